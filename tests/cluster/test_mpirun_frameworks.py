"""Frameworks in ranks that a real mpirun has started on two nodes: they meet by our variables alone.

PyTorch is started here. DeepSpeed and Horovod are only in the environment of the benchmarks; by hand,
on 2 nodes x 2 ranks:

- deepspeed 0.19.8 (DS_ACCELERATOR=cpu, gloo) under Open MPI 5 and MPICH: init_distributed meets by our
  variables, never imports mpi4py, sums right. Without destroy_process_group one of two runs ended in
  SIGABRT at the interpreter's exit ("terminate called without an active exception"): a thread of gloo.
- horovod 0.28.1 built for gloo alone under Open MPI 5: without HOROVOD_* hvd.init() makes four jobs of
  size 1, and all end with 0. With HOROVOD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE, _CROSS_RANK, _CROSS_SIZE,
  _HOSTNAME, _CONTROLLER, _CPU_OPERATIONS, _GLOO_RENDEZVOUS_ADDR, _GLOO_RENDEZVOUS_PORT and _GLOO_IFACE, and
  its RendezvousServer in rank 0's script, it sums right. A build for MPI asks MPI instead.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.rehearse.cluster import Cluster
from tests.cluster.fleets import Fleet
from tests.mpis import find_mpi

pytestmark = [pytest.mark.root, pytest.mark.torch]

DEADLINE_S = 180.0
TORCH = """
    import json, os, socket, sys
    import torch, torch.distributed as dist

    dist.init_process_group("gloo")  # env://
    total = torch.tensor(dist.get_rank() + 1)
    dist.all_reduce(total)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    seen = {name: os.environ.get(name) for name in names} | {"node": socket.gethostname()}
    seen |= {"dist_rank": dist.get_rank(), "sum": int(total), "mpi4py": "mpi4py" in sys.modules}
    sys.stdout.write(json.dumps(seen) + "\\n")
    dist.destroy_process_group()
"""
DEEPSPEED_LOOKS_AT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK")
"""``required_env`` of init_distributed (deepspeed/comm/comm.py, 0.19.8): where one of them is missing it
imports mpi4py and asks MPI, and takes the first word of ``hostname -I`` on rank 0 for the master."""


@pytest.fixture
def two(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """Return two nodes with the family of MPI that the test is for."""
    fleet = Fleet(cluster, find_mpi(request.param), tmp_path)
    yield fleet
    fleet.close()


@pytest.mark.mpi
@pytest.mark.parametrize("two", ["openmpi5", "mpich"], indirect=True)
def test_torch_adds_up_and_deepspeed_would_not_ask_mpi(two: Fleet) -> None:
    """2 nodes x 2 ranks, gloo by env://: the sum is right, and every rank has all that DeepSpeed wants."""
    words = ("--nproc-per-node", "2", "--no-prefix", "--", sys.executable, two.script(TORCH))
    two.start_all(*words, environ={"OMP_NUM_THREADS": "1"})
    head, other = two.wait(DEADLINE_S)
    assert (head.status, other.status) == (0, 0), head.err[-3000:]
    assert sorted(record["dist_rank"] for record in head.records) == [0, 1, 2, 3]
    assert {record["sum"] for record in head.records} == {10}
    assert Counter(record["node"] for record in head.records) == {"node0": 2, "node1": 2}
    for record in head.records:
        assert all(record[name] for name in DEEPSPEED_LOOKS_AT), record
        assert int(record["RANK"]) == record["dist_rank"] and not record["mpi4py"]


ARGUMENTS = """
    import json, os, sys

    sys.stdout.write(json.dumps({"rank": os.environ["RANK"], "argv": sys.argv[1:]}) + "\\n")
"""


@pytest.mark.thorough
@pytest.mark.mpi
@pytest.mark.parametrize("two", ["openmpi4", "mpich"], indirect=True)
def test_each_rank_gets_its_own_arguments(two: Fleet) -> None:
    """No shell on the way, mpirun's daemons and ssh included, expands or splits what the user wrote."""
    flags = ("--nproc-per-node", "2", "--no-prefix", "--expand-args", "--local-rank-arg", "--")
    words = ("--out=run/$RANK of ${WORLD_SIZE}", "$HOME", "$EMPTY_HOST", "it's", "a;b", "$LOCAL_RANK", "")
    two.start_all(*flags, sys.executable, two.script(ARGUMENTS), *words)
    head, other = two.wait(DEADLINE_S)
    assert (head.status, other.status) == (0, 0), head.err[-3000:]
    assert sorted((int(record["rank"]), record["argv"]) for record in head.records) == [
        (
            rank,
            [
                f"--local_rank={rank % 2}",
                f"--out=run/{rank} of 4",
                *("$HOME", "$EMPTY_HOST", "it's", "a;b", str(rank % 2), ""),
            ],
        )
        for rank in range(4)
    ]


TENSORFLOW = """
    import json, os

    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    context = tf.distribute.get_replica_context
    own = float(os.environ["RANK"]) + 1
    add = tf.function(lambda: context().all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(own)))
    total = float(strategy.run(add))
    print(json.dumps({"sum": total, "config": json.loads(os.environ["TF_CONFIG"])}), flush=True)
"""


@pytest.mark.thorough
@pytest.mark.mpi
@pytest.mark.parametrize("two", ["openmpi4"], indirect=True)
def test_tensorflow_adds_up_at_the_port_it_is_told(two: Fleet) -> None:
    """--tf-port names the framework, and reaches the ranks: they meet by our TF_CONFIG."""
    words = ("--tf-port", "2300", "--no-prefix", "--", sys.executable, two.script(TENSORFLOW))
    two.start_all(*words, environ={"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"})
    head, other = two.wait(DEADLINE_S)
    assert (head.status, other.status) == (0, 0), head.err[-3000:]
    assert [record["sum"] for record in head.records] == [3.0, 3.0]
    assert sorted(record["config"]["task"]["index"] for record in head.records) == [0, 1]
    for record in head.records:
        workers = record["config"]["cluster"]["worker"]
        assert [worker.rpartition(":")[2] for worker in workers] == ["2300", "2300"]
