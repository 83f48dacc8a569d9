"""Jobs that restart under a real Slurm: lost nodes and spare nodes.

A job that is queued again is in tests/deploy/test_slurm.py, with the script that does it.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import need_namespaces
from tests.cluster.slurm import RUN_TIMEOUT_S, SlurmCluster
from tests.process.looking import wait_for

pytestmark = [pytest.mark.root, pytest.mark.xdist_group("slurm")]

FLAGS = ("--restarts", "3", "--lost-after", "5", "--grace", "1", "--rejoin-timeout", "2")
LIVES = """
import os, sys, time
attempt, folder = os.environ.get("LAUNCHER_ATTEMPT", "0"), sys.argv[1]
restart = os.environ.get("SLURM_RESTART_COUNT", "0")
with open(f"{folder}/up-{restart}-{attempt}-{os.environ['RANK']}", "w") as file:
    file.write(f"{os.uname().nodename} {os.getppid()}\\n")
while not os.path.exists(f"{folder}/go"):
    time.sleep(0.02)
"""


@pytest.fixture
def slurm() -> Iterator[SlurmCluster]:
    """Return nodes for two ranks and one in reserve."""
    need_namespaces()
    with SlurmCluster(3) as cluster:
        yield cluster


def launch(folder: Path, *flags: str) -> tuple[str, ...]:
    """Return the command line of a job whose ranks wait for a file."""
    own = (sys.executable, "-m", "launcher", "run", *FLAGS, *flags)
    return (*own, "--", sys.executable, "-c", LIVES, str(folder))


def wait_up(folder: Path, run: int, attempt: int) -> dict[int, str]:
    """Wait until both ranks of an attempt run; return their nodes and the launchers' pids."""

    def find() -> dict[int, str]:
        files = {int(path.name[-1]): path for path in folder.glob(f"up-{run}-{attempt}-[01]")}
        return {rank: text for rank, path in files.items() if (text := path.read_text().strip())}

    wait_for(lambda: len(find()) == 2, f"the ranks run, run {run}, attempt {attempt}", 90)
    return find()


def test_a_spare_node_takes_the_place_of_a_lost_one(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Srun --no-kill goes on, and ends with 0; Slurm takes the line for the next job."""
    step = slurm.start("srun", "-N3", "--ntasks-per-node=1", "--no-kill", *launch(tmp_path, "--spares", "1"))
    assert wait_up(tmp_path, 0, 0)[1].startswith("node1 ")
    slurm.crash(slurm.cluster.nodes[1])
    assert wait_up(tmp_path, 0, 1)[1].startswith("node2 ")
    (tmp_path / "go").touch()
    said, _ = step.communicate(timeout=RUN_TIMEOUT_S)
    assert step.returncode == 0, said
    found = re.search(r"to avoid them: (sbatch --exclude=node1)$", said, re.MULTILINE)
    assert found, said
    done = slurm.run(*shlex.split(found[1]), "--wrap=exec true", "--output=/dev/null")
    assert done.returncode == 0, done.stderr


@pytest.mark.thorough
def test_a_launcher_that_is_killed_does_not_end_the_step(slurm: SlurmCluster, tmp_path: Path) -> None:
    """The job succeeds on the spare node; srun's status is the highest of its tasks all the same."""
    step = slurm.start("srun", "-N3", "--ntasks-per-node=1", "--no-kill", *launch(tmp_path, "--spares", "1"))
    node, pid = wait_up(tmp_path, 0, 0)[1].split()
    assert node == "node1"
    slurm.on(slurm.cluster.nodes[1], "kill", "-9", pid)
    assert wait_up(tmp_path, 0, 1)[1].startswith("node2 ")
    (tmp_path / "go").touch()
    said, _ = step.communicate(timeout=RUN_TIMEOUT_S)
    assert step.returncode == 137 and "2 attempts, 1 failed (1 x node-lost); exit code 0" in said, said
