"""Horovod for real, on two nodes: under MPI, by gloo at our rendezvous, and what happens when that fails.

Every job trains one model from other data on each rank, and stops unless the gradients that come back
are the mean: the examples check that, and print how far the ranks' weights are apart.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.rehearse.cluster import Cluster
from tests.cluster.fleets import Fleet
from tests.cluster.frameworks import EXAMPLES, rehearse, run_example
from tests.cluster.together import Job
from tests.mpis import find_mpi
from tests.process.looking import wait_for
from tests.process.starting import launch, open_launcher

pytestmark = [pytest.mark.root, pytest.mark.torch, pytest.mark.horovod]

DEADLINE_S = 240.0
TORCH, TENSORFLOW = "horovod_torch.py", "horovod_tensorflow.py"
GOOD = 0.75
"""What one epoch reaches at least; guessing would be 0.1."""
RESULT = re.compile(r"accuracy ([\d.]+) \((\d+) ranks, (\d+) on each node, by (\w+)\); weights differ by 0\n")
FAULTY = """
    import os, signal, sys, time
    import torch, horovod.torch as hvd

    hvd.init()
    print("met", hvd.size(), flush=True)
    for step in range(3000):
        hvd.allreduce(torch.ones(1), name="step")
        time.sleep(0.01)
        if os.environ.get("DIES") and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
"""


def assert_trained(said: str, by: str, ranks: int = 2, each: int = 1) -> None:
    """One line says that all took part, by what, and that all have the same weights."""
    (found,) = RESULT.findall(said)
    assert (int(found[1]), int(found[2]), found[3]) == (ranks, each, by), said
    assert float(found[0]) > GOOD, said


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("like", "scope", "by"),
    [
        ("azureml-mpi", None, "MPI"),
        ("azure-batch", None, "gloo"),
        ("azureml-pytorch", "process", "gloo"),
        ("openmpi", None, "MPI"),
        ("azureml-pytorch", "node", "gloo"),
        ("slurm", "process", "gloo"),
    ],
)
def test_two_nodes_learn_one_model(like: str, scope: str | None, by: str) -> None:
    """PyTorch, in every style: nothing is asked for, the script imports Horovod."""
    assert_trained(run_example(like, TORCH, "--epochs", "2", scope=scope), by)


@pytest.fixture
def fleet(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """Return two nodes with a family of MPI, and the keys of a job."""
    two = Fleet(cluster, find_mpi(request.param), tmp_path)
    yield two
    two.close()


@pytest.mark.thorough
@pytest.mark.mpi
@pytest.mark.parametrize("fleet", ["openmpi4"], indirect=True)
def test_mpirun_as_the_engine(fleet: Fleet) -> None:
    """One launcher per node, the launcher runs mpirun: MPI's controller."""
    script = os.path.join(EXAMPLES, TORCH)
    words = ("--nproc-per-node", "1", "--no-prefix", "--", sys.executable, script, "--epochs", "2")
    fleet.start_all(*words, environ={"OMP_NUM_THREADS": "1"})
    head, other = fleet.wait(DEADLINE_S)
    assert (head.status, other.status) == (0, 0), head.err[-3000:]
    assert_trained(head.out, "MPI")


@pytest.mark.parametrize("has_name", [False, True])
def test_the_rendezvous_listens_at_the_clusters_address(
    cluster: Cluster, tmp_path: Path, has_name: bool
) -> None:
    """Not at all of the node's; both nodes reach it there, by its address or by a name."""
    job, port, end = Job(cluster, tmp_path), 7777, tmp_path / "end"
    address = cluster.nodes[0].address
    environ = {"HOROVOD_GLOO_RENDEZVOUS_PORT": str(port), "HOME": os.environ["HOME"]}
    words = ("--framework", "horovod", "--", "sh", "-c", f"echo met; until [ -e {end} ]; do sleep 0.05; done")
    try:
        for index in (0, 1):
            master = cluster.nodes[0].hostname if has_name else address
            job.start(index, *words, environ=environ, master=master)
        wait_for(lambda: job.listens(0, port), "the rendezvous listens", DEADLINE_S)
        assert job.listens(0, port) == f"{address}:{port}"
        for _ in (0, 1):
            (tmp_path / "end").write_text("\n" * 2)
        done = job.wait()
    finally:
        job.close()
    assert [(one.status, one.out.count("met")) for one in done.values()] == [(0, 1), (0, 1)], done


ASKS = """
import os, pathlib, time, urllib.request
folder, rank = pathlib.Path("{folder}"), os.environ["RANK"]
if rank == "0":
    (folder / "pid").write_text(str(os.getpid()))
while rank == "1" and not (folder / "ended").exists():
    time.sleep(0.05)
print("asked", urllib.request.urlopen("http://{address}:7777/launcher/job").read().decode())
"""


@pytest.mark.thorough
def test_the_rendezvous_outlives_the_ranks_of_its_node(cluster: Cluster, tmp_path: Path) -> None:
    """Rank 1 asks after rank 0 has ended: it would wait ten minutes for a server that is gone."""
    job, address = Job(cluster, tmp_path), cluster.nodes[0].address
    environ = {"HOROVOD_GLOO_RENDEZVOUS_PORT": "7777", "HOME": os.environ["HOME"]}
    script = ASKS.format(folder=tmp_path, address=address)

    def has_ended() -> bool:
        pid = tmp_path / "pid"
        return pid.exists() and pid.read_text() not in job.on(cluster.nodes[0], ("ps", "-eo", "pid=")).split()

    try:
        job.start_all("--framework", "horovod", "--", sys.executable, "-c", script, environ=environ)
        wait_for(has_ended, "rank 0 has ended", DEADLINE_S)
        (tmp_path / "ended").touch()
        done = job.wait()
    finally:
        job.close()
    asked = [(one.status, one.out.count("asked node0:1,node1:1")) for one in done.values()]
    assert asked == [(0, 1)] * 2, done
    assert not job.listens(0, 7777)


def test_a_rank_that_dies_in_training_ends_the_job(tmp_path: Path) -> None:
    """The rank by name, and the other node at once: it has lost a peer."""
    script = tmp_path / "faulty.py"
    script.write_text(textwrap.dedent(FAULTY))
    done = rehearse("azure-batch", "python", str(script), environ={"DIES": "1"})
    assert done.returncode in (1, 137) and "met 2" in done.stdout
    assert "rank 1 of 2 failed first: it was killed by SIGKILL" in done.stderr
    assert "horovod-peer-lost" in done.stderr or "on node 1 (node1); stopping" in done.stderr


def open_job(folder: Path, **environ: str) -> subprocess.Popen[str]:
    """Start a job of two ranks on this machine alone, at a port that is free."""
    script = folder / "faulty.py"
    script.write_text(textwrap.dedent(FAULTY))
    words = ("run", "--standalone", "--nproc-per-node", "2", "--", sys.executable, str(script))
    return open_launcher(*words, environ={"OMP_NUM_THREADS": "1", **environ})


@pytest.mark.thorough
def test_a_taken_port_is_named(tmp_path: Path) -> None:
    """By the server, with 75: a retry can help."""
    import socket

    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        job = open_job(tmp_path, HOROVOD_GLOO_RENDEZVOUS_PORT=str(port))
        _, err = job.communicate(timeout=60)
    assert job.returncode == 75 and f"[horovod-port] port {port} of this node is taken" in err, err


KERAS = """
import horovod.tensorflow.keras as hvd
import keras

hvd.init()
model = keras.Sequential([keras.layers.Dense(1, use_bias=False, input_shape=(4,))])
model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
"""


def test_keras_3_is_refused_before_the_start(tmp_path: Path) -> None:
    """By name, where the script can be read."""
    script = tmp_path / "fit.py"
    script.write_text(KERAS)
    line = ("run", "--standalone", "--nproc-per-node", "2", "--", sys.executable, str(script))
    done = launch(*line)
    assert done.returncode == 69 and "[horovod-keras]" in done.stderr
