"""Jobs on two nodes with two versions of the launcher: this one, and the previous or the next one.

The previous version is the package in tests/previous. The next one is a copy of this one with another number.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from launcher.channel.version import CHANNEL, OLDEST
from launcher.core.version import __version__
from tests.cluster.conftest import MakeFleet
from tests.cluster.fleets import ALLREDUCE
from tests.cluster.together import Job, assert_one_truth
from tests.process.looking import wait_for
from tests.process.starting import ROOT, clean_environ

pytestmark = [pytest.mark.root, pytest.mark.xdist_group("peers")]

ARCHIVE = Path(ROOT) / "tests" / "previous" / "launcher.tar.xz"
PREVIOUS, THIS = "previous", "this"
NEXT = "7.0.0"
BOTH_WAYS = pytest.mark.parametrize("old", [0, 1], ids=["node 0 is older", "node 1 is older"])
FAILS_ONCE = """
import os, sys, time
attempt, rank, folder = os.environ.get("LAUNCHER_ATTEMPT", "0"), os.environ["RANK"], sys.argv[1]
open(f"{folder}/up-{rank}-{attempt}", "w").close()
deadline = time.monotonic() + 60
while not all(os.path.exists(f"{folder}/up-{other}-{attempt}") for other in (0, 1)):
    assert time.monotonic() < deadline
    time.sleep(0.02)
if attempt == "0":
    os.kill(os.getpid(), 9) if rank == "1" else time.sleep(60)
print(f"rank {rank} attempt {attempt}")
"""
FAILS_LAST = """
    sys.stdout.flush()
    if os.environ["RANK"] == "1":
        sys.exit(7)
    import time
    time.sleep(60)
"""


class Mixed:
    """Two nodes, each with the launcher of a folder."""

    def __init__(self, job: Job, older: int, old: Path, new: Path) -> None:
        self.job, self.folders = job, {older: old, 1 - older: new}

    def start(self, *words: str) -> None:
        """Start the same on both nodes, with the launcher of each."""
        for node, folder in self.folders.items():
            environ = {"PYTHONPATH": str(folder)}
            self.job.start(node, *words, environ=environ, cwd=str(folder))

    def ask(self, node: int, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of a node's own launcher there."""
        folder = str(self.folders[node])
        line = (sys.executable, "-m", "launcher", *words)
        argv = self.job.cluster.argv(self.job.cluster.nodes[node], line, cwd=folder)
        environ = clean_environ(PYTHONPATH=folder)
        return subprocess.run(argv, env=environ, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the previous version."""
    folder = tmp_path_factory.mktemp("previous")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def upcoming(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the next version: its channel is one newer, and understands ours."""
    return copy_with(tmp_path_factory.mktemp("next"), NEXT, CHANNEL + 1, CHANNEL)


def copy_with(folder: Path, version: str, channel: int, oldest: int) -> Path:
    """Return a folder with a copy of this version that has other numbers."""
    shutil.copytree(
        Path(ROOT) / "launcher", folder / "launcher", ignore=shutil.ignore_patterns("__pycache__")
    )
    put(folder / "launcher" / "core" / "version.py", f'"{__version__}"', f'"{version}"')
    numbers = folder / "launcher" / "channel" / "version.py"
    put(numbers, f"CHANNEL = {CHANNEL}\n", f"CHANNEL = {channel}\n")
    put(numbers, f"OLDEST = {OLDEST}\n", f"OLDEST = {oldest}\n")
    return folder


def put(path: Path, old: str, new: str) -> None:
    """Replace a text of a file, which is there."""
    text = path.read_text()
    assert old in text, (path, old)
    path.write_text(text.replace(old, new))


@pytest.fixture(params=["previous", "next"])
def mixed(request: pytest.FixtureRequest, pair: Job, previous: Path, upcoming: Path, old: int) -> Mixed:
    """Return two nodes: the previous version and this one, or this version and the next one."""
    both = (previous, Path(ROOT)) if request.param == "previous" else (Path(ROOT), upcoming)
    return Mixed(pair, old, *both)


@BOTH_WAYS
def test_a_job_runs_and_says_which_versions_it_has(mixed: Mixed) -> None:
    """All processes start, their output arrives, and the job ends with 0."""
    mixed.start("--", "sh", "-c", 'echo "rank $RANK of $WORLD_SIZE at $MASTER_PORT"')
    done = mixed.job.wait()
    assert {one.status for one in done.values()} == {0}, done[0].err + done[1].err
    assert [done[rank].out for rank in (0, 1)] == [f"rank {rank} of 2 at 6105\n" for rank in (0, 1)]
    versions = {read_version(folder) for folder in mixed.folders.values()}
    if len(versions) == 2:
        assert "warning: the nodes differ in launcher" in done[0].err
        assert all(version in done[0].err for version in versions)
    else:
        assert "differ" not in done[0].err


def read_version(folder: Path) -> str:
    """Return the version of the launcher of a folder."""
    return (folder / "launcher" / "core" / "version.py").read_text().split('"')[-2]


@BOTH_WAYS
@pytest.mark.parametrize("fails", [0, 1])
def test_a_failed_rank_is_named_on_both_nodes(mixed: Mixed, old: int, fails: int) -> None:
    """Both launchers have one verdict, with its cause, and what the other rank did."""
    files = [mixed.job.folder / f"failure{node}.json" for node in (0, 1)]
    script = f"""
import os, sys, time
folder, rank = sys.argv[1], int(os.environ["RANK"])
open(f"{{folder}}/up-{{rank}}", "w").close()
while not os.path.exists(f"{{folder}}/up-{{1 - rank}}"):
    time.sleep(0.02)
def wait_for_the_other():
    time.sleep(60)
if rank == {fails}:
    time.sleep(0.5)
    import no_such_module
wait_for_the_other()
"""
    path = mixed.job.folder / "train.py"
    path.write_text(script)
    for node, folder in mixed.folders.items():
        words = ("--failure-file", str(files[node]), "--", sys.executable, str(path), str(mixed.job.folder))
        mixed.job.start(node, *words, environ={"PYTHONPATH": str(folder)}, cwd=str(folder))
    done = mixed.job.wait()
    assert_one_truth(done, 1, f"rank {fails} of 2 failed first: ")
    for one in done.values():
        assert "import-error" in one.err and "No module named 'no_such_module'" in one.err, one.err
    records = [json.loads(file.read_text()) for file in files]
    for record in records:
        assert (record["rank"], record["host"]) == (fails, f"node{fails}")
        assert record["causes"][0]["code"] == "import-error"
        assert "wait_for_the_other" in json.dumps(record["evidence"]), record["evidence"]


@BOTH_WAYS
def test_a_restart(mixed: Mixed) -> None:
    """Both nodes start the second attempt together, and the job ends with 0."""
    folder = str(mixed.job.folder)
    mixed.start("--restarts", "2", "--", sys.executable, "-c", FAILS_ONCE, folder)
    done = mixed.job.wait()
    assert {one.status for one in done.values()} == {0}, done[0].err + done[1].err
    assert [done[rank].out for rank in (0, 1)] == [f"rank {rank} attempt 1\n" for rank in (0, 1)]
    for one in done.values():
        assert one.err.count("rank 1 of 2 failed first: it was killed by SIGKILL") == 1, one.err
        assert "restart 1 of 2" in one.err


@BOTH_WAYS
def test_status_and_stacks_of_both_nodes_and_the_end_by_a_signal(mixed: Mixed, old: int) -> None:
    """Either launcher answers for both nodes; a signal to one of them ends the job on both."""
    mark = "open(f\"{sys.argv[1]}/up-{os.environ['RANK']}\", 'w').close()"
    script = f"import os, sys, time; {mark}; time.sleep(60)"
    mixed.start("--", sys.executable, "-c", script, str(mixed.job.folder))
    wait_for(lambda: len(list(mixed.job.folder.glob("up-*"))) == 2, "both ranks", 60)
    for node in (0, 1):
        wait_for(lambda: mixed.ask(node, "status", "--json").returncode == 0, "it can be asked", 60)  # noqa: B023
        found: dict[str, Any] = json.loads(mixed.ask(node, "status", "--json").stdout)
        ranks = {rank["rank"]: rank["state"] for one in found["nodes"] for rank in one["ranks"]}
        assert ranks == {0: "running", 1: "running"}, found
        assert [one["launcher"] for one in found["nodes"]] == [
            read_version(mixed.folders[at]) for at in (0, 1)
        ]
        stacks = mixed.ask(node, "stacks")
        assert stacks.returncode == 0 and "rank 0" in stacks.stdout and "rank 1" in stacks.stdout, stacks
    mixed.job.signal(old, signal.SIGTERM)
    done = mixed.job.wait()
    assert {one.status for one in done.values()} == {143}, done[0].err + done[1].err


@pytest.fixture(params=["previous", "next"])
def covers(request: pytest.FixtureRequest, previous: Path, upcoming: Path) -> tuple[str, str]:
    """Return the package of another version, and the path at which mpirun's head expects it on each node."""
    folder = previous if request.param == "previous" else upcoming
    return str(folder / "launcher"), os.path.join(ROOT, "launcher")


@pytest.mark.mpi
@pytest.mark.parametrize("other", [0, 1], ids=["the head is another", "node 1 is another"])
def test_a_job_that_mpirun_starts(fleet: MakeFleet, covers: tuple[str, str], other: int) -> None:
    """Ranks of both nodes meet through MPI, and both launchers end with the status of the one that fails."""
    two = fleet("openmpi5", 2)
    script = two.script(ALLREDUCE + FAILS_LAST)
    for node in two.cluster.nodes:
        words = ("--no-prefix", "--nproc-per-node", "1", "--", "python", script)
        two.start(node, *words, cover=covers if node.index == other else ())
    head, second = two.wait()
    assert (head.status, second.status) == (7, 7), head.err + second.err
    assert [record["sum"] for record in head.records] == [3, 3], head.out
    assert "rank 1 of 2 failed first: it exited with status 7" in head.err
    if NEXT in Path(covers[0], "core", "version.py").read_text():
        assert f"launcher {NEXT} (channel" in head.err and f"launcher {__version__} (channel" in head.err
    two.await_empty()


# --- versions that do not understand each other


def refuse(pair: Job, folders: Mapping[int, Path]) -> dict[int, str]:
    """Run a job that does not start, and return what each launcher says."""
    for node, folder in folders.items():
        words = ("--", "touch", str(pair.folder / "started"))
        pair.start(node, *words, environ={"PYTHONPATH": str(folder)}, cwd=str(folder))
    done = pair.wait()
    assert {one.status for one in done.values()} == {78}, done[0].err + done[1].err
    assert not (pair.folder / "started").exists()
    return {node: one.err for node, one in done.items()}


@BOTH_WAYS
def test_a_version_that_has_given_up_ours_is_refused(pair: Job, old: int) -> None:
    """Whichever of them is node 0: the error names the node, both versions, and what to do."""
    far = copy_with(pair.folder / "far", "9.0.0", CHANNEL + 2, CHANNEL + 1)
    said = refuse(pair, {old: Path(ROOT), 1 - old: far})
    numbers = {old: (__version__, f"channel {CHANNEL}"), 1 - old: ("9.0.0", f"channel {CHANNEL + 2}")}
    for err in said.values():
        assert "[other-version] node 1 (node1) has launcher " in err, err
        assert all(f"launcher {version} ({channel}" in err for version, channel in numbers.values()), err
        assert "fix:  the same image on all nodes" in err


def test_a_previous_version_with_an_older_channel_is_refused(pair: Job, previous: Path) -> None:
    """As 0.1.0 is, which states no channel."""
    folder = pair.folder / "old"
    shutil.copytree(previous, folder)
    version = folder / "launcher" / "core" / "version.py"
    put(version, f'"{read_version(folder)}"', '"0.1.0"')
    for err in refuse(pair, {0: Path(ROOT), 1: folder}).values():
        assert "[other-version] node 1 (node1) has launcher 0.1.0 (channel 1" in err, err
        assert f"node 0 (node0) has launcher {__version__} (channel {CHANNEL}, " in err
