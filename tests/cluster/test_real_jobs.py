"""The whole way, for real: a platform starts the launcher on two nodes, gloo adds up what every rank gives.

Every number here is computed across processes: a wrong rank, world, or master gives a wrong sum or none.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from launcher.rehearse.cluster import Cluster
from tests.cluster.conftest import need_namespaces
from tests.mpis import FAMILIES, find_mpi
from tests.process.starting import ROOT, clean_environ

pytestmark = [pytest.mark.root, pytest.mark.torch]

DEADLINE_S = 180.0
TRAIN = os.path.join(ROOT, "examples", "train_ddp.py")
ACCURACY = re.compile(r"epoch (\d+)/\d+: loss [\d.]+, accuracy ([\d.]+) % \((\d+) process")
ALLREDUCE = (sys.executable, os.path.join(ROOT, "examples", "allreduce.py"))
# Intel MPI does not tell processes where rank 0 runs; the launcher asks for it instead of guessing.
EXTRA = {"impi": ("--env", "MASTER_ADDR=10.77.0.10")}


def rehearse(*words: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``launcher rehearse WORDS`` to its end."""
    environ = clean_environ(OMP_NUM_THREADS="1", LAUNCHER_PREFIX="0", **({"PATH": path} if path else {}))
    return subprocess.run(
        [sys.executable, "-m", "launcher", "rehearse", *words],
        env=environ,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def assert_sum(done: subprocess.CompletedProcess[str], *, master: str | None = None) -> None:
    """The job ended well, and every rank of 2 nodes x 2 processes stood where it belongs."""
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("{")]
    result = json.loads(line)
    assert (result["sum"], result["expected"]) == (10, 10)
    places = [(p["RANK"], p["LOCAL_RANK"]) for p in result["processes"]]
    assert places == [("0", "0"), ("1", "1"), ("2", "0"), ("3", "1")]
    assert [p["NODE_RANK"] for p in result["processes"]] == ["0", "0", "1", "1"]
    masters = {p["MASTER_ADDR"] for p in result["processes"]}
    assert len(masters) == 1 and masters <= {master or "10.77.0.10", "node0"}


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("family", "scope"), [(family, scope) for scope in ("process", "node") for family in FAMILIES]
)
def test_every_mpi_runs_per_rank_and_per_node(family: str, scope: str) -> None:
    """mpirun of each family starts 2 nodes x 2, once per rank or once per node: the sum is right."""
    need_namespaces()
    mpi = find_mpi(family)
    words = (
        *("--like", "openmpi", "--scope", scope, "--nodes", "2", "--processes", "2"),
        *EXTRA.get(family, ()),
    )
    assert_sum(rehearse(*words, "--", *ALLREDUCE, path=mpi.environ["PATH"]))


@pytest.mark.mpi
def test_hydras_cyclic_ranks_get_their_true_node() -> None:
    """One rank per host in turn (-ppn 1, 4 ranks): the node is the proxy's, never rank // local size."""
    need_namespaces()
    mpi = find_mpi("mpich")
    show = 'echo "$RANK $NODE_RANK $LOCAL_RANK $(hostname)"'
    with Cluster(2) as cluster:
        hosts = ("-launcher-exec", cluster.agent, "-hosts", "node0,node1", "-ppn", "1", "-n", "4")
        launcher = (sys.executable, "-m", "launcher", "run", "--", "sh", "-c", show)
        done = subprocess.run(
            cluster.argv(cluster.nodes[0], (mpi.mpirun, *hosts, *launcher)),
            env=clean_environ(**mpi.environ),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 0 0 node0", "1 1 0 node1", "2 0 1 node0", "3 1 1 node1"]


PLATFORMS: Sequence[tuple[str, ...]] = (
    ("--like", "azureml-mpi", "--scope", "process"),
    ("--like", "azureml-pytorch", "--scope", "node"),
    ("--like", "azureml-pytorch", "--scope", "process"),
    ("--like", "azureml-mpi", "--scope", "node"),
    ("--like", "azure-batch"),
    ("--like", "slurm", "--scope", "node"),
    ("--like", "slurm", "--scope", "process"),
    ("--like", "torchrun"),
    ("--like", "plain"),
)


@pytest.mark.mpi
@pytest.mark.parametrize("words", PLATFORMS, ids=lambda words: "-".join(words[1::2]))
def test_every_platform_starts_the_same_job(words: tuple[str, ...]) -> None:
    """Whatever started it, the job has the same ranks on the same nodes, and adds up."""
    need_namespaces()
    assert_sum(rehearse(*words, "--nodes", "2", "--processes", "2", "--", *ALLREDUCE))


@pytest.mark.thorough
@pytest.mark.mpi
@pytest.mark.xdist_group("loopback")  # both meet at the default port of this machine
@pytest.mark.parametrize("like", ["azureml-pytorch", "azureml-mpi"])
def test_a_rehearsal_needs_no_root(like: str) -> None:
    """On loopback addresses the same job runs without any privilege, real mpirun included."""
    words = ("--like", like, "--loopback", "--nodes", "2", "--processes", "2")
    assert_sum(rehearse(*words, "--", *ALLREDUCE), master="127.0.77.10")


@pytest.mark.thorough
@pytest.mark.mpi
def test_the_main_job_reaches_the_accuracy_of_one_process(tmp_path: Path) -> None:
    """The README's first command: 2 nodes x 2 processes under Azure ML's MPI learn what one learns."""
    need_namespaces()
    alone = subprocess.run(
        [sys.executable, TRAIN, "--epochs", "5"],
        env=clean_environ(), capture_output=True, text=True, check=True, timeout=DEADLINE_S,
    )  # fmt: skip
    words = ("--like", "azureml-mpi", "--nodes", "2", "--processes", "2")
    checkpoint = ("--checkpoint", str(tmp_path / "digits.pt"))
    done = rehearse(*words, "--", "python", TRAIN, "--epochs", "5", *checkpoint)
    assert done.returncode == 0, done.stderr
    one, four = ACCURACY.findall(alone.stdout)[-1], ACCURACY.findall(done.stdout)[-1]
    assert (one[0], four[0], one[2], four[2]) == ("5", "5", "1", "4")
    assert float(four[1]) >= 95.0
    assert abs(float(one[1]) - float(four[1])) <= 0.6
    again = rehearse(*words, "--", "python", TRAIN, "--epochs", "6", *checkpoint)
    assert [found[0] for found in ACCURACY.findall(again.stdout)] == ["6"], again.stderr
