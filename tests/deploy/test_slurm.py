"""deploy/slurm: shellcheck and a real sbatch read every script, and a real Slurm runs it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import need_namespaces
from tests.cluster.slurm import RUN_TIMEOUT_S, SlurmCluster
from tests.deploy.shell import shellcheck
from tests.mpis import find_mpi
from tests.process.looking import wait_for
from tests.process.starting import ROOT

pytestmark = [pytest.mark.root, pytest.mark.xdist_group("slurm")]

HERE = Path(ROOT) / "deploy" / "slurm"
SCRIPTS = sorted(HERE.glob("*.sbatch"))
SMALL = ("--gpus-per-node=2", "--exclusive=user")
"""Options for a job on the nodes of the tests, which have two GPUs each."""
QUICK = {
    "LAUNCHER_LOST_AFTER": "5",
    "LAUNCHER_GRACE": "1",
    "LAUNCHER_REJOIN_TIMEOUT": "2",
    "LAUNCHER_NPROC_PER_NODE": "1",
    "RESTARTS": "1",
    "SPARES": "0",
}
LIVES = """
import os, sys, time
folder = sys.argv[1]
print("to avoid them: sbatch --exclude=node0,node2", flush=True)
with open(f"{folder}/up-{os.environ.get('SLURM_RESTART_COUNT', '0')}-{os.environ['RANK']}", "w") as file:
    file.write(os.uname().nodename)
while not os.path.exists(f"{folder}/go"):
    time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmCluster]:
    """Return nodes that run one script after another."""
    need_namespaces()
    with SlurmCluster(2, pyxis=True) as cluster:
        yield cluster


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_sbatch_takes_a_script(script: Path, slurm: SlurmCluster) -> None:
    """Every option is one of Slurm's, and nodes like these can run it."""
    done = slurm.run("sbatch", "--test-only", "--nodes=2", "--gpus-per-node=2", str(script))
    assert done.returncode == 0 and "using 128 processors on nodes node[0-1]" in done.stderr, done.stderr


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_shellcheck_finds_nothing(script: Path) -> None:
    assert shellcheck(script) == ""


def submit(
    slurm: SlurmCluster, script: str | Path, folder: Path, *words: str, without: str = "", **variables: str
) -> Path:
    """Submit a script in a folder, without these nodes; return the file of its output."""
    path = folder / "train.py"
    path.write_text(LIVES)
    options = (
        "--nodes=2",
        *SMALL,
        f"--exclude={without}",
        f"--chdir={folder}",
        f"--output={folder}/train.log",
    )
    line = ("sbatch", *options, str(HERE / script), *(words or (sys.executable, str(path), str(folder))))
    done = slurm.run(*line, **{**QUICK, **variables})
    assert done.returncode == 0, done.stderr
    return folder / "train.log"


def wait_up(folder: Path, run: int, log: Path) -> set[str]:
    """Wait until both ranks of a run are there; return the names of their nodes."""

    def find() -> set[str]:
        return {text for path in folder.glob(f"up-{run}-[01]") if (text := path.read_text())}

    wait_for(lambda: len(find()) == 2, f"two nodes in run {run}, see {log}", 90)
    return find()


def wait_end(slurm: SlurmCluster) -> None:
    """Wait until no job is there."""
    wait_for(lambda: slurm.run("squeue", "--noheader").stdout == "", "the job has ended", RUN_TIMEOUT_S)


@pytest.mark.parametrize("script", ["srun.sbatch", "pyxis.sbatch"])
def test_a_script_trains_on_all_nodes_after_a_check(script: str, slurm: SlurmCluster, tmp_path: Path) -> None:
    """Each node has a file with the result of its check. pyxis is a stand-in."""
    log = submit(slurm, script, tmp_path)
    assert wait_up(tmp_path, 0, log) == {"node0", "node1"}
    (tmp_path / "go").touch()
    wait_end(slurm)
    checks = [path.read_text() for path in sorted(tmp_path.glob("check-*-node[01].json"))]
    assert len(checks) == 2 and all('"problems": 0' in text for text in checks), log.read_text()


@pytest.mark.thorough
def test_a_node_with_a_problem_stops_the_job_before_it_starts(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Status 69, and the file of the node says why: here no node has the script."""
    log = submit(slurm, "srun.sbatch", tmp_path, "./no-such-script.py")
    wait_end(slurm)
    job = re.search(r"see check-(\d+)-\*\.json", log.read_text())
    assert job, log.read_text()
    shown = slurm.run("scontrol", "show", "job", job[1]).stdout
    assert "ExitCode=69:0" in shown, shown
    assert "command-not-found" in (tmp_path / f"check-{job[1]}-node1.json").read_text()


@pytest.mark.thorough
@pytest.mark.mpi
@pytest.mark.parametrize("family", ["openmpi4", "openmpi5"])
def test_mpirun_trains_on_all_nodes(family: str, slurm: SlurmCluster, tmp_path: Path) -> None:
    """The ranks are mpirun's, and the key of the job is gone after it."""
    log = submit(slurm, "mpirun.sbatch", tmp_path, **find_mpi(family).environ)
    assert wait_up(tmp_path, 0, log) == {"node0", "node1"}
    (tmp_path / "go").touch()
    wait_end(slurm)
    assert "srun: error" not in log.read_text(), log.read_text()
    assert not list(tmp_path.glob("*.key*"))


@pytest.mark.thorough
def test_a_lost_node_queues_the_job_again_without_it(tmp_path: Path) -> None:
    """Status 75 of srun, because no node came back: the job excludes our line's node, and the user's own.

    What a rank prints does not count.
    """
    need_namespaces()
    with SlurmCluster(4) as slurm:
        log = submit(slurm, "srun.sbatch", tmp_path, without="node3")
        assert wait_up(tmp_path, 0, log) == {"node0", "node1"}
        slurm.crash(slurm.cluster.nodes[1])
        assert wait_up(tmp_path, 1, log) == {"node0", "node2"}
        (tmp_path / "go").touch()
        wait_end(slurm)
        shown = slurm.run("scontrol", "show", "job", "1").stdout
    assert "JobState=COMPLETED" in shown and "Restarts=1" in shown, shown
    assert "ExcNodeList=node1,node3\n" in shown, shown
    assert "launcher:   to avoid them: sbatch --exclude=node1\n" in log.read_text()
