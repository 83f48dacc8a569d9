"""A day in the life of a job under a real Slurm: a killed rank, a lost node, and what the log tells."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.cluster.conftest import need_namespaces
from tests.cluster.slurm import SlurmCluster
from tests.process.looking import is_true_by
from tests.process.starting import ROOT

pytestmark = [pytest.mark.root, pytest.mark.xdist_group("slurm"), pytest.mark.thorough]

RANKS = 8
DEADLINE_S = 100.0
QUICK = {
    "SPARES": "0",
    "LAUNCHER_LOG_FORMAT": "json",
    "LAUNCHER_EVENTS": "events-%n.jsonl",
    "LAUNCHER_NPROC_PER_NODE": "2",
    "LAUNCHER_LOST_AFTER": "5",
    "LAUNCHER_GRACE": "1",
    "LAUNCHER_REJOIN_TIMEOUT": "2",
}
TRAIN = """
import os, sys, time
rank, folder = os.environ["RANK"], sys.argv[1]
print(f"step 1 of rank {rank} of {os.environ['WORLD_SIZE']}", flush=True)
run, attempt = os.environ.get("SLURM_RESTART_COUNT", "0"), os.environ.get("LAUNCHER_ATTEMPT", "0")
with open(f"{folder}/new-{rank}", "w") as file:
    file.write(f"{os.uname().nodename} {os.getpid()}")
os.rename(file.name, f"{folder}/up-{run}-{attempt}-{rank}")
while not os.path.exists(f"{folder}/go"):
    time.sleep(0.02)
"""


class Day:
    """A job of four nodes out of five, each with two ranks."""

    def __init__(self, slurm: SlurmCluster, folder: Path) -> None:
        self.slurm, self.folder, self.log = slurm, folder, folder / "train-1.log"

    def submit(self, script: Path) -> None:
        """Submit the job."""
        (self.folder / "train.py").write_text(TRAIN)
        # Not in the checkout, where srun takes the folder of the package for the command.
        options = ("--nodes=4", "--gpus-per-node=2", f"--chdir={self.folder}")
        path = os.pathsep.join((os.path.dirname(sys.executable), self.slurm.environ()["PATH"]))
        words = (sys.executable, str(self.folder / "train.py"), str(self.folder))
        done = self.slurm.run("sbatch", *options, str(script), *words, PATH=path, **QUICK)
        assert done.returncode == 0, done.stderr

    def wait_up(self, run: int, attempt: int) -> list[tuple[str, str]]:
        """Wait until all ranks of an attempt run; return the node and the pid of each."""
        paths = [self.folder / f"up-{run}-{attempt}-{rank}" for rank in range(RANKS)]
        self.wait_for(lambda: all(path.exists() for path in paths), f"run {run}, attempt {attempt}")
        words = [path.read_text().split() for path in paths]
        return [(node, pid) for node, pid in words]

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        """Poll until something is true; fail with the logs at the deadline, or if the job has ended."""
        is_true_by(lambda: condition() or self.has_ended(), DEADLINE_S)
        assert condition(), f"not within {DEADLINE_S:g} s, or before the end: {what}\n{self.describe()}"

    def has_ended(self) -> bool:
        """Whether Slurm has no job any more that runs or waits."""
        return self.slurm.run("squeue", "--noheader").stdout == ""

    def show(self) -> str:
        """Return what Slurm says of the job."""
        return self.slurm.run("scontrol", "show", "job", "1").stdout

    def describe(self) -> str:
        """Return the job's log and Slurm's view, for the message of a failed test."""
        log = self.log.read_text() if self.log.exists() else ""
        return f"{log}\n{self.show()}\n{self.slurm.logs()}"


@pytest.fixture
def day(tmp_path: Path) -> Iterator[Day]:
    """Return a job on five nodes."""
    need_namespaces()
    with SlurmCluster(5, pyxis=True) as slurm:
        yield Day(slurm, tmp_path)


@pytest.mark.thorough
def test_a_day_in_the_life(day: Day) -> None:
    """A rank is killed, a node is lost: restarted, queued again without the node, ended with 0."""
    day.submit(Path(ROOT, "deploy", "slurm", "pyxis.sbatch"))
    node, pid = day.wait_up(0, 0)[3]
    assert node == "node1"
    day.slurm.on(day.slurm.cluster.nodes[1], "kill", "-9", pid)
    assert {node for node, _ in day.wait_up(0, 1)} == {"node0", "node1", "node2", "node3"}

    lost = day.slurm.cluster.nodes[2]
    day.slurm.lose(lost)
    day.wait_for(lambda: "Restarts=1" in day.show(), "the job is queued again")
    day.slurm.boot(lost)  # without the exclusion the job would get it again
    day.wait_for(lambda: "down" not in day.slurm.run("sinfo", "-N").stdout, "the lost node is back")
    assert {node for node, _ in day.wait_up(1, 0)} == {"node0", "node1", "node3", "node4"}

    (day.folder / "go").touch()
    day.wait_for(day.has_ended, "the job has ended")
    shown = day.show()
    assert "JobState=COMPLETED" in shown and "ExitCode=0:0" in shown and "ExcNodeList=node2" in shown, shown
    require_answers(day)


def require_answers(day: Day) -> None:
    """Load the log as the page says, and compare the answers to its questions with those on the page."""
    page = Path(ROOT, "docs", "day.md").read_text()
    load, ask = (find_blocks(page, title) for title in ("Load the log", "Ask"))
    subprocess.run([sys.executable, "-c", "\n".join(load)], cwd=day.folder, check=True)
    queries, answers = ask[::2], ask[1::2]
    assert len(queries) == len(answers) == page.count(";\n\n    ") >= 7
    with contextlib.closing(sqlite3.connect(day.folder / "job.db")) as db:
        given = [render_rows(db.execute(query)) for query in queries]
    assert [without_numbers(one) for one in given] == [without_numbers(one) for one in answers], given


def find_blocks(page: str, title: str) -> list[str]:
    """Return the blocks of code below a title."""
    section = page.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return [textwrap.dedent(block) for block in re.findall(r"^(?:    .*\n)+", section, re.MULTILINE)]


def render_rows(rows: Iterable[Sequence[object]]) -> str:
    """Return rows as the program sqlite3 prints them."""
    return "".join("|".join("" if cell is None else str(cell) for cell in row) + "\n" for row in rows)


def without_numbers(text: str) -> str:
    """Return an answer without what differs from day to day: seconds, and the names of runs."""
    return re.sub(r"\b[0-9a-f]{16}\b", "RUN", re.sub(r"\b\d+\.\d+", "SECONDS", text))
