"""Accelerate, and what stands on it: told that CPUs are meant where there is nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from launcher.core.model import Plan
from launcher.machine.host import Host
from launcher.options.reading import read_options
from launcher.planning.plan import plan_job

USE_CPU = "ACCELERATE_USE_CPU"


def plan(root: Path, *command: str, devices: tuple[str, ...] = (), **flags: str) -> Plan:
    """Return the plan of two processes on a machine with these device files."""
    (root / "dev" / "dri").mkdir(parents=True)
    for name in devices:
        (root / "dev" / name).write_text("")
    options = read_options({"nproc_per_node": "2", "bind": "none", **flags}, {})
    return plan_job({}, Host(str(root)), options, command or (sys.executable, "train.py"))


def told(job: Plan) -> str | None:
    """Return what the processes are told of CPUs."""
    return {setting.name: setting.value for setting in job.settings}.get(USE_CPU)


@pytest.mark.parametrize(
    ("devices", "flags", "expected"),
    [
        ((), {"framework": "accelerate"}, "true"),
        (("kvm", "null"), {"framework": "accelerate"}, "true"),
        ((), {}, None),
        ((), {"framework": "torch"}, None),
        ((), {"framework": "accelerate", "nproc_per_node": "1"}, None),
        (("nvidia0",), {"framework": "accelerate"}, None),
        (("kfd",), {"framework": "accelerate"}, None),
        (("dri/renderD128",), {"framework": "accelerate"}, None),
        (("accel",), {"framework": "accelerate"}, None),
    ],
)
def test_cpus_are_meant_where_there_is_nothing_else(
    tmp_path: Path, devices: tuple[str, ...], flags: dict[str, str], expected: str | None
) -> None:
    """Else every process finds no accelerator, joins no job, and trains alone."""
    assert told(plan(tmp_path, devices=devices, **flags)) == expected


@pytest.mark.parametrize("line", ["import accelerate", "from accelerate import A", "import transformers"])
def test_a_script_shows_it_too(tmp_path: Path, line: str) -> None:
    """Nobody has to name Accelerate for that; who names another framework has said that it is none."""
    script = tmp_path / str(tmp_path.relative_to("/")) / "train.py"  # as the machine in the folder has it
    script.parent.mkdir(parents=True)
    script.write_text(f"{line}\n")
    (tmp_path / "train.py").write_text(f"{line}\n")
    command = (sys.executable, str(tmp_path / "train.py"))
    assert told(plan(tmp_path, *command)) == "true"


def test_accelerates_own_launcher_needs_no_warning(tmp_path: Path) -> None:
    """Its processes are one job on CPUs, too (accelerate 1.15; tests/cluster/test_torch_family.py)."""
    assert not plan(tmp_path, "accelerate", "launch", "train.py").warnings
