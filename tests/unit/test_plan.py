"""launcher.plan: what would happen, from a folder or a snapshot; nothing else is read, nothing is started."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import cluster_launcher
import launcher
from launcher.cli.entry import main
from launcher.core.errors import EnvironmentUntrusted, UsageError
from launcher.core.model import Setting
from launcher.options.flags import FLAGS
from launcher.planning.parts import GLOO_INTERFACE, find_interface
from launcher.planning.preload import describe_times
from launcher.views.plan_json import describe
from tests.fuzz.secrets import PLAIN
from tests.fuzz.snapshots import WATCH
from tests.golden.topologies import read_topology, topology_names

COMMAND = ["--nproc-per-node=auto", "--bind", "numa", "--", "python", "train.py"]


def write(folder: Path, files: dict[str, Any]) -> None:
    """Write the files of a snapshot below a folder; folders are made for links that have files below them."""
    for path, value in files.items():
        place = folder / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        is_folder = any(other.startswith(f"{path}/") for other in files)
        if isinstance(value, dict) and not is_folder:
            place.symlink_to(value["link"])
        elif is_folder:
            place.mkdir(exist_ok=True)
        else:
            place.write_text(value or "")


@pytest.mark.parametrize("name", topology_names())
def test_a_snapshot_plans_as_the_command_does(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The same plan as ``launcher plan --replay``, under both names of the package."""
    snapshot = read_topology(name)
    path = tmp_path / "node.json"
    path.write_text(json.dumps(snapshot))
    assert main(["plan", "--format", "json", "--replay", str(path), *COMMAND], {}) == 0
    printed = json.loads(capfd.readouterr().out)
    environ, files = snapshot["environ"], snapshot["files"]
    for plan in (launcher.plan, cluster_launcher.plan):
        assert json.loads(json.dumps(describe(plan(COMMAND, environ, files, snapshot), environ))) == printed


def test_a_folder_is_a_machine_and_refusals_are_the_commands(tmp_path: Path) -> None:
    """No files or answers of this machine are read; errors have codes and statuses."""
    # CPUs and GPUs of the folder, the answers that are given; no files or answers of this machine.
    snapshot = read_topology("v100_mesh")
    write(tmp_path, snapshot["files"])
    environ = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "node0", "MASTER_PORT": "1"}
    launcher.plan(COMMAND[2:], environ, str(tmp_path), {})  # modules are loaded
    with WATCH.on(str(tmp_path)):
        alone = launcher.plan(["--", "train"], {}, str(tmp_path), snapshot)
        rank = launcher.plan(["--", "train"], environ, str(tmp_path))
    assert not WATCH.seen
    assert (
        alone.topology.world_size
        == launcher.plan(["--", "train"], {}, snapshot["files"], {}).topology.world_size
    )
    assert (rank.topology.rank, rank.topology.master_addr) == (1, "node0")
    # Errors with codes, and statuses.
    with pytest.raises(EnvironmentUntrusted) as caught:
        launcher.plan(["--", "train"], {"RANK": "x", "WORLD_SIZE": "2"}, {})
    assert caught.value.exit_status == 78
    with pytest.raises(UsageError):
        launcher.plan(["--nnodes", "none", "--", "train"], {}, {})


def test_the_slowest_imports_of_a_preload_are_named() -> None:
    modules = ["torch", "torch.nn", "json", "transformers", "numpy"]
    assert describe_times(modules, [2.0, 0.1, 0.01, 1.4, 0.3]) == (
        "torch (2.1 s), transformers (1.4 s) and 2 more"
    )
    assert describe_times(["json"], [0.01]) == "json"


def test_gloos_interface_is_the_users_or_ours_and_the_first_of_several() -> None:
    ours = [Setting(GLOO_INTERFACE, "eth0", "detected")]
    assert find_interface(ours, {}) == "eth0"
    assert find_interface(ours, {GLOO_INTERFACE: "ib0,ib1"}) == "ib0"
    assert find_interface([], {}) == ""


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_flag_shows_the_secret_in_its_value(form: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Whatever a flag takes, in a plan or in the message that refuses it."""
    for flag in FLAGS:
        name = f"--{flag.dest.replace('_', '-')}"
        for shape in ("password={}", "https://u:{}@h/x"):
            words = ("--restarts", "2", f"{name}={shape.format(PLAIN)}", "--", "python", "train.py")
            main(["plan", "--format", form, *words], {"PATH": os.defpath})
            shown = capfd.readouterr()
            assert PLAIN not in shown.out + shown.err, name
