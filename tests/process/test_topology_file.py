"""The topology file that a plan holds: where processes find it, on a node with the /sys of an ND H200 v5."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from launcher.fabrics.topology_file import WORD
from tests.cluster.test_made_up_sys import DRESS
from tests.golden.fabrics import read_fabric, write_fabric
from tests.process.starting import launch
from tests.unit.machines import write_gpus
from tests.unit.test_fabrics import V5_GPUS, vm

pytestmark = pytest.mark.root

H200 = vm("Standard_ND96isr_H200_v5")
JOB = (
    *("--nnodes", "2", "--node-rank", "0", "--master-addr", "10.77.0.10"),
    *("--engine", "process", "--no-peers"),
)
READ = "import os, sys; print(open(os.environ['NCCL_TOPO_FILE']).read().count('<pci'))"
GRANDCHILD = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {READ!r}]))"
DEVICES = 24
"""Devices of the whole machine; NCCL leaves out those that it does not find."""


@pytest.fixture
def node(tmp_path: Path) -> tuple[str, ...]:
    """Return an interpreter on such a node, with four of its GPUs."""
    machine = tmp_path / "machine"
    write_fabric(machine, read_fabric("nd96isr_h200_v5"))
    write_gpus(machine, V5_GPUS)
    return ("unshare", "--mount", "sh", "-c", DRESS, str(machine), sys.executable)


@pytest.mark.parametrize("nproc", ["1", "2"], ids=["the launcher becomes the command", "the launcher stays"])
@pytest.mark.parametrize("script", [READ, GRANDCHILD], ids=["process", "grandchild"])
def test_processes_read_it_and_nothing_is_left(
    nproc: str, script: str, node: tuple[str, ...], tmp_path: Path
) -> None:
    """By a path that what they start can open as well."""
    private = tmp_path / "tmp"
    private.mkdir()
    flags = ("--nproc-per-node", nproc, "--bind", "none", "--no-prefix")
    rank = (
        {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"} if nproc == "1" else {}
    )
    where = ("--scope", "process", "--no-stay", "--master-addr", "10.77.0.10") if rank else JOB
    command = ("--", sys.executable, "-c", script)
    environ = {**H200, **rank, "TMPDIR": str(private)}
    done = launch("run", *where, *(() if rank else flags), *command, environ=environ, interpreter=node)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(DEVICES)] * int(nproc)
    assert [*private.iterdir()] == []


def test_env_leaves_it_out_and_says_so(node: tuple[str, ...]) -> None:
    """A shell could not do anything with it."""
    done = launch("env", *JOB, "--format", "json", environ=H200, interpreter=node)
    assert "NCCL_TOPO_FILE" not in json.loads(done.stdout)
    assert "launcher: note: NCCL_TOPO_FILE is left out: launcher run makes its file" in done.stderr


def test_the_plan_holds_its_text(node: tuple[str, ...]) -> None:
    """Under the word that the setting has."""
    done = launch("plan", *JOB, "--format", "json", "--", "true", environ=H200, interpreter=node)
    plan = json.loads(done.stdout)
    assert {item["name"]: item["value"] for item in plan["settings"]}["NCCL_TOPO_FILE"] == WORD
    assert plan["fabric"]["files"][WORD].count("<pci") == DEVICES
