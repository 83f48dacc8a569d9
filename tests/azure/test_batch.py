"""docker/batch: the REST API's own models take every task, and both command lines do their part."""

from __future__ import annotations

import json
import shlex
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from tests.azure import folder
from tests.azure.commands import Shell, plan_run, ranks
from tests.golden.jobs import read_case, snapshots
from tests.process.looking import wait_for
from tests.process.starting import ROOT

HERE = Path(ROOT) / "docker" / "batch"
TASKS = sorted(HERE.glob("*.json"))
CASE = "azure_batch_2_nodes_gpus8"
OPEN_MPI = {"path": "/usr/local/bin/mpirun", "family": "Open MPI", "version": "5.0.8"}


@lru_cache
def loaded_tasks() -> dict[str, dict[str, Any]]:
    """Return what Azure's client makes of each task, by name."""
    return {path.stem: answer for path, answer in zip(TASKS, folder.load("task", TASKS), strict=True)}


@pytest.mark.parametrize("path", TASKS, ids=lambda path: path.stem)
def test_a_task_is_one_for_azures_client(path: Path) -> None:
    """Every field is one of the REST API, what is required is there, and nothing is lost on the way."""
    answer = loaded_tasks()[path.stem]
    assert answer["error"] is None
    assert answer["sent"] == answer["written"] == json.loads(path.read_text())
    settings = answer["written"]["multiInstanceSettings"]
    assert settings["numberOfInstances"] == 2 and settings["commonResourceFiles"]
    # Its container has the node's own network, or the addresses in Batch's lists are nobody's.
    assert "--network=host" in answer["written"]["containerSettings"]["containerRunOptions"].split()


def lines_of(name: str) -> tuple[list[str], list[str]]:
    """Return the words of a task's coordination and application command; Batch itself uses no shell."""
    task = loaded_tasks()[name]["written"]
    return shlex.split(task["multiInstanceSettings"]["coordinationCommandLine"]), shlex.split(
        task["commandLine"]
    )


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Return the folder where Batch puts the common resource files; other than the working directory."""
    folder = tmp_path / "task" / "shared"
    folder.mkdir(parents=True)
    return folder


def variables(node: int, shared: Path) -> dict[str, str]:
    """Return what Batch sets on a node of the recorded task, with a folder that exists here."""
    recorded = snapshots(read_case(CASE))[node]["environ"]
    return {**recorded, "AZ_BATCH_TASK_SHARED_DIR": str(shared)}


@pytest.mark.parametrize("name", [path.stem for path in TASKS])
def test_the_coordination_command_starts_nothing_on_the_master(
    name: str, shared: Path, tmp_path: Path
) -> None:
    """There the application command does the work."""
    coordination, _ = lines_of(name)
    shell = Shell(tmp_path)
    assert shell.run(coordination, variables(0, shared), shared.parent) == ""
    assert not shell.called.exists()


def test_mpirun_serves_on_the_others_and_runs_on_the_master(shared: Path, tmp_path: Path) -> None:
    """The same token on both; every node has 8 ranks; node 0 works in the folder that all nodes have."""
    coordination, application = lines_of("mpirun-task")
    shell = Shell(tmp_path)
    assert shell.run(coordination, variables(1, shared), shared.parent) == ""
    wait_for(shell.called.exists, "a node that serves")
    token = ["--token-file", f"{shared}/job.token"]
    assert shell.call() == {"words": ["serve", *token], "folder": str(shared.parent)}
    shell.run(application, variables(0, shared), shared.parent)
    call = shell.call()
    assert call["folder"] == str(shared)
    assert call["words"] == ["run", "--engine", "mpirun", *token, "--", "python", "train_ddp.py"]
    (shared / "job.token").touch()
    head, other = plan_run(call["words"], CASE, tmp_path, mpirun=OPEN_MPI, root=True)
    assert head["agent"]["fleet"]["hosts"] == ["10.0.0.4", "10.0.0.5"]
    assert head["agent"]["fleet"]["per_node"] == 8
    assert head["topology"]["world_size"] == other["topology"]["world_size"] == 16
    assert "AZ_BATCH_TASK_SHARED_DIR" in head["agent"]["fleet"]["forward"]


def test_nodes_run_the_same_command(shared: Path, tmp_path: Path) -> None:
    """The coordination command starts on the others what the application command is; 16 processes in all."""
    coordination, application = lines_of("nodes-task")
    shell = Shell(tmp_path)
    assert shell.run(coordination, variables(1, shared), shared.parent) == ""
    wait_for(shell.called.exists, "the launcher of a node")
    on_others = shell.call()
    shell.run(application, variables(0, shared), shared.parent)
    assert on_others == shell.call()
    assert on_others["folder"] == str(shared)
    plans = plan_run(on_others["words"], CASE, tmp_path)
    assert [plan["topology"]["node_rank"] for plan in plans] == [0, 1]
    assert ranks(plans) == list(range(16))


@pytest.mark.parametrize("name", [path.stem for path in TASKS])
def test_the_coordination_command_returns_while_its_launcher_stays(
    name: str, shared: Path, tmp_path: Path
) -> None:
    """Batch starts the application when it has returned; nothing that stays holds its output open."""
    coordination, _ = lines_of(name)
    shell = Shell(tmp_path)
    gate = tmp_path / "gate"
    shell.stay_until(gate)
    shell.run(coordination, variables(1, shared), shared.parent)
    assert not shell.called.exists()
    gate.touch()
    wait_for(shell.called.exists, "the launcher, when it may go on")
