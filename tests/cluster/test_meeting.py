"""Whether the processes of several nodes meet, below torchrun's agent as below the launcher."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.cluster.frameworks import rehearse
from tests.process.starting import ROOT

pytestmark = [pytest.mark.root, pytest.mark.torch, pytest.mark.xdist_group("torch")]

LONE = "import time, torch; time.sleep({}); print('DONE')"
TRAIN = (os.path.join(ROOT, "examples", "train_ddp.py"), "--epochs", "1")
BRIEF = "import jax; jax.distributed.initialize(); print(jax.process_index(), jax.process_count())"

AS_THERE = {"LAUNCHER_STAY": "", "LAUNCHER_REHEARSED": ""}
"""A rehearsal has --stay by default, and one report."""
CLOSED_THERE = """
import os, socket, time
time.sleep(7)
there = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 20
if os.environ["RANK"] == "0":
    with socket.create_server(("", there[1])) as server:
        server.accept()[0].close()
else:
    while True:
        try:
            socket.create_connection(there).recv(1)
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
"""
"""The end that closes first keeps a trace, the other one none."""


def unmet(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return what the nodes say about processes that have not met."""
    return [line for line in done.stderr.splitlines() if "never-met" in line]


def test_lone_workers_of_two_agents_are_warned_about() -> None:
    """Import torch, never join, all end with 0: the agents' own rendezvous is no meeting."""
    done = rehearse("plain", "python", "-c", LONE.format(12), processes=2)
    assert (done.returncode, done.stdout.count("DONE")) == (0, 4), done.stderr
    lines = unmet(done)
    assert len(lines) == 2
    for ranks in ("ranks 0-1", "ranks 2-3"):
        assert any(f"[never-met] all processes have ended; {ranks} were not seen" in line for line in lines)


@pytest.mark.parametrize("platform", ["azureml-pytorch", "openmpi", "slurm"])
def test_lone_ranks_that_a_platform_has_started_are_warned_about(
    platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One launcher per process, one process per node: each node tells of its own."""
    monkeypatch.chdir(tmp_path)  # where Azure ML's job has its ./outputs
    done = rehearse(platform, "python", "-c", LONE.format(12), scope="process", environ=AS_THERE)
    assert (done.returncode, done.stdout.count("DONE")) == (0, 2), done.stderr
    assert len(unmet(done)) == 2, done.stderr


@pytest.mark.parametrize("platform", ["azureml-pytorch", "openmpi"])
def test_ranks_that_a_platform_has_started_have_met(platform: str) -> None:
    """Gloo, one rank per node."""
    environ = {"LAUNCHER_REQUIRE_MEETING": "1", "LAUNCHER_MEETING_TIMEOUT": "60", **AS_THERE}
    done = rehearse(platform, "python", *TRAIN, scope="process", environ=environ)
    assert (done.returncode, unmet(done)) == (0, []), done.stderr


@pytest.mark.thorough  # tests/cluster/test_engines.py has a job of torchrun's that must meet
@pytest.mark.parametrize("processes", [1, 2])
def test_workers_that_train_together_have_met(processes: int) -> None:
    """Gloo under torchrun's agents, one or two per node."""
    environ = {
        "LAUNCHER_REQUIRE_MEETING": "1",
        "LAUNCHER_MEETING_TIMEOUT": "60",
        "LAUNCHER_ENGINE": "torchrun",
    }
    done = rehearse("plain", "python", *TRAIN, processes=processes, environ=environ)
    assert done.returncode == 0, done.stderr
    assert "torchrun's agent starts the processes" in done.stderr
    assert (unmet(done), "ends (--require" in done.stderr) == ([], False)


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["process", "torchrun"])
def test_a_meeting_at_the_very_end_is_no_false_alarm(engine: str) -> None:
    """JAX's processes join and end between two looks."""
    environ = {"LAUNCHER_REQUIRE_MEETING": "1", "LAUNCHER_ENGINE": engine}
    done = rehearse("plain", "python", "-c", BRIEF, processes=2, environ=environ)
    assert done.returncode == 0, done.stderr
    assert (unmet(done), "ends (--require" in done.stderr) == ([], False)


@pytest.mark.thorough
def test_a_connection_that_the_other_node_closes_at_once_is_a_meeting() -> None:
    """It lasts a millisecond; of the node of rank 1 only a counter of the kernel tells of it."""
    done = rehearse("plain", "python", "-c", CLOSED_THERE)
    assert (done.returncode, unmet(done)) == (0, []), done.stderr
