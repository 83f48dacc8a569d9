"""``launcher run --stay`` where the platform starts each rank by itself: the same verdict on every node."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.rehearse.job import run_rehearsal
from tests.cluster.conftest import need_namespaces
from tests.cluster.slurm import SlurmCluster
from tests.cluster.together import Job
from tests.process.looking import wait_for

PLATFORMS = ("openmpi", "azureml-mpi", "azureml-pytorch", "slurm", "torchrun")
FAIL = """
import os, time
print("at work", flush=True)
here = os.path.dirname(__file__)
open(f"{here}/up-{os.environ['RANK']}", "w").close()
if os.environ["RANK"] == "3":
    while not all(os.path.exists(f"{here}/up-{rank}") for rank in range(4)):
        time.sleep(0.01)
    raise ValueError("no such column")
time.sleep(100)
"""
SAVE = """
import os, signal, sys, time
def save(number, frame):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
open(f"{sys.argv[1]}/up-{os.environ['RANK']}", "w").close()
time.sleep(100)
"""


def write(folder: Path, text: str) -> str:
    """Return the path of a script."""
    path = folder / "train.py"
    path.write_text(text)
    return str(path)


@pytest.mark.torch
@pytest.mark.mpi
@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_first_failure_is_told_once_on_each_node(
    platform: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 x 2 ranks, one ValueError: its status, one verdict on each node, and the other three ended by us."""
    need_namespaces()
    monkeypatch.chdir(tmp_path)  # Azure ML shows the failure record that is in ./outputs
    command = ["launcher", "run", "--stay", "--", sys.executable, write(tmp_path, FAIL)]
    begun = time.monotonic()
    env = {"NO_COLOR": "1", "LAUNCHER_REHEARSED": "0"}  # each node has its own log
    status = run_rehearsal(
        platform, 2, 2, command, scope=None if platform == "torchrun" else "process", env=env
    )
    said = capfd.readouterr()
    assert status == 1, said.err[-3000:]
    assert time.monotonic() - begun < 60
    both = said.out + said.err
    assert both.count("rank 3 of 4 failed first: it exited with code 1") == 2, both
    assert both.count("cause: [python-exception] ValueError: no such column") == 2
    assert sorted(re.findall(r"\[rank (\d)\] at work", both)) == ["0", "1", "2", "3"]
    assert len(re.findall(r"where: rank 3, \S+:\d+, local rank 1, pid .*, node 1", both)) == 2


def start_ranks(pair: Job, script: str, folder: Path) -> None:
    """Start two ranks on each of two nodes, one by one, as some platforms do, and wait for all."""
    for rank in range(4):
        environ = {
            "RANK": str(rank),
            "WORLD_SIZE": "4",
            "LOCAL_RANK": str(rank % 2),
            "LOCAL_WORLD_SIZE": "2",
            "NODE_RANK": str(rank // 2),
            "MASTER_ADDR": pair.cluster.nodes[0].address,
            "MASTER_PORT": "6105",
        }
        pair.start_as(rank // 2, rank, "--stay", "--", sys.executable, script, str(folder), environ=environ)
    wait_for(lambda: len(list(folder.glob("up-*"))) == 4, "all ranks are at work")


@pytest.mark.root
def test_a_signal_to_one_lets_all_save(pair: Job, tmp_path: Path) -> None:
    """What ends a job may tell one of them alone."""
    start_ranks(pair, write(tmp_path, SAVE), tmp_path)
    pair.signal(2, signal.SIGTERM)
    done = pair.wait()
    assert sorted(one.out for one in done.values()) == [f"[rank {rank}] saved\n" for rank in range(4)]
    assert {one.status for one in done.values()} == {0}
    assert "rank 2 (node1) received SIGTERM: passing it on to all ranks" in done[0].err


@pytest.mark.thorough
@pytest.mark.root
def test_a_launcher_that_is_killed_takes_its_rank_along_and_ends_all(pair: Job, tmp_path: Path) -> None:
    """The others hear at once that its connection has ended, and name it when it does not come back."""
    start_ranks(pair, write(tmp_path, SAVE), tmp_path)
    pair.signal(3, signal.SIGKILL)
    done = pair.wait()
    assert {done[rank].status for rank in range(3)} == {75}, {rank: one.err for rank, one in done.items()}
    for rank, said in ((0, 1), (1, 0), (2, 1)):
        assert len(done[rank].first) == said
    assert "rank 3 failed first: it is lost" in done[0].err and "rank 3 (node1) is lost" in done[2].err


# --- a real srun


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmCluster]:
    """Return two nodes on which Slurm is up."""
    need_namespaces()
    with SlurmCluster(2) as cluster:
        yield cluster


@pytest.mark.root
@pytest.mark.xdist_group("slurm")
def test_srun_gets_the_status_and_the_verdict(slurm: SlurmCluster, tmp_path: Path) -> None:
    """One launcher for each task; srun ends with the status of the rank that failed first."""
    script = write(slurm.folder, FAIL)
    step = ("srun", "-N2", "--ntasks-per-node=2", sys.executable, "-m", "launcher", "run", "--stay")
    done = slurm.run(*step, "--", sys.executable, script)
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("rank 3 of 4 failed first: it exited with code 1") == 2, done.stderr
