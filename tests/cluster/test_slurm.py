"""Real Slurm starts the launcher on simulated nodes: srun, sbatch, salloc, and mpirun inside of them.

The nodes are `tests.cluster.slurm`'s: node0, node1 and sometimes node2.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest

from launcher.rehearse.platforms import variables
from tests.cluster.conftest import need_namespaces
from tests.cluster.slurm import SlurmCluster
from tests.mpis import find_mpi
from tests.process.starting import ROOT

pytestmark = [pytest.mark.root, pytest.mark.xdist_group("slurm")]

LAUNCHER = (sys.executable, "-m", "launcher")
# One of several launchers on a node becomes the command, whose parent is then the program that started the
# task. A launcher that is alone on its node stays: it starts several processes, or sees whether its only one
# meets others.
SHOW = """\
launcher=stays
case $(cat /proc/$PPID/comm) in slurmstepd|orted|hydra_pmi_proxy|mpirun) launcher=gone; esac
place="$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE node $NODE_RANK is $(hostname)"
echo "$place, $launcher, master $MASTER_ADDR"
"""
RUN = (*LAUNCHER, "run", "--no-prefix", "--", "sh", "-c", SHOW)
ALLREDUCE = (
    *LAUNCHER,
    *("run", "--no-prefix", "--", sys.executable),
    os.path.join(ROOT, "examples", "allreduce.py"),
)


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmCluster]:
    """Return two nodes on which Slurm is up."""
    need_namespaces()
    with SlurmCluster(2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def three() -> Iterator[SlurmCluster]:
    """Return three of them."""
    need_namespaces()
    with SlurmCluster(3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def with_gpus() -> Iterator[SlurmCluster]:
    """Return two nodes that show the device files of two GPUs, as far as a launcher looks."""
    need_namespaces()
    with SlurmCluster(2, device_files=2) as cluster:
        yield cluster


def lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return what the tasks printed, in rank order; the job ended well."""
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


def assert_sum(done: subprocess.CompletedProcess[str], places: list[str]) -> None:
    """Gloo added up what all ranks gave, and they stood at these places (``node.local``, by rank)."""
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("{")]
    result = json.loads(line)
    world = len(places)
    assert (result["sum"], result["expected"]) == (world * (world + 1) // 2,) * 2
    seen = result["processes"]
    assert [f"{p['NODE_RANK']}.{p['LOCAL_RANK']}" for p in seen] == places
    assert [p["hostname"] for p in seen] == [f"node{place[0]}" for place in places]
    assert {p["MASTER_ADDR"] for p in seen} == {"node0"}


# srun


def test_srun_starts_one_launcher_per_process(slurm: SlurmCluster) -> None:
    """Two tasks per node are two processes per node: their numbers are Slurm's."""
    assert lines(slurm.run("srun", "-N2", "--ntasks-per-node=2", *RUN)) == [
        "0/4 0/2 node 0 is node0, gone, master node0",
        "1/4 1/2 node 0 is node0, gone, master node0",
        "2/4 0/2 node 1 is node1, gone, master node0",
        "3/4 1/2 node 1 is node1, gone, master node0",
    ]


def test_cyclic_tasks_are_on_their_true_node(slurm: SlurmCluster) -> None:
    """Ranks dealt out in turn: the node is never rank // local size."""
    assert lines(slurm.run("srun", "-N2", "--ntasks-per-node=2", "-m", "cyclic", *RUN)) == [
        "0/4 0/2 node 0 is node0, gone, master node0",
        "1/4 0/2 node 1 is node1, gone, master node0",
        "2/4 1/2 node 0 is node0, gone, master node0",
        "3/4 1/2 node 1 is node1, gone, master node0",
    ]


@pytest.mark.thorough
def test_a_step_on_other_nodes_than_the_jobs_first(three: SlurmCluster) -> None:
    """The nodes and the master of a step are the step's own, not the job's."""
    step = ("srun", "-N2", "-n2", "-w", "node1,node2")
    assert lines(three.run("salloc", "-N3", *step, *RUN)) == [
        "0/2 0/1 node 0 is node1, stays, master node1",
        "1/2 0/1 node 1 is node2, stays, master node1",
    ]


@pytest.mark.torch
def test_one_launcher_per_node_starts_the_processes(slurm: SlurmCluster) -> None:
    """One task per node and a number of processes asked for: the launcher starts them, and they add up."""
    step = ("srun", "-N2", "--ntasks-per-node=1")
    two = {"LAUNCHER_NPROC_PER_NODE": "2", "OMP_NUM_THREADS": "1"}
    assert lines(slurm.run(*step, *RUN, **two)) == [
        "0/4 0/2 node 0 is node0, stays, master node0",
        "1/4 1/2 node 0 is node0, stays, master node0",
        "2/4 0/2 node 1 is node1, stays, master node0",
        "3/4 1/2 node 1 is node1, stays, master node0",
    ]
    assert_sum(slurm.run(*step, *ALLREDUCE, **two), ["0.0", "0.1", "1.0", "1.1"])


def test_the_status_of_a_task_is_sruns(slurm: SlurmCluster) -> None:
    """What one process exits with is what the job ends with."""
    command = ("sh", "-c", "exit $((RANK * 7))")
    done = slurm.run("srun", "-N2", "--ntasks-per-node=1", *LAUNCHER, "run", "--", *command)
    assert done.returncode == 7, done.stderr


# GPUs


@pytest.mark.parametrize(
    ("options", "devices"),
    [
        (("--ntasks-per-node=2", "--gres=gpu:2"), ["0,1", "0,1"]),
        (("--ntasks-per-node=2", "--gpus-per-task=1"), ["0", "1"]),
        (("--ntasks-per-node=1", "--gres=gpu:1"), ["0"]),
    ],
)
def test_a_task_per_gpu_keeps_the_gpus_slurm_gave(
    with_gpus: SlurmCluster, options: tuple[str, ...], devices: list[str]
) -> None:
    """As many tasks as GPUs: every task is a process, and CUDA_VISIBLE_DEVICES is Slurm's."""
    show = (*RUN[:-1], 'echo "$RANK/$WORLD_SIZE $LOCAL_RANK $CUDA_VISIBLE_DEVICES"')
    size = len(devices)
    places = [(node * size + local, local) for node in range(2) for local in range(size)]
    expected = [f"{rank}/{2 * size} {local} {devices[local]}" for rank, local in places]
    assert lines(with_gpus.run("srun", "-N2", *options, *show)) == expected


# Shells: sbatch, salloc


def test_a_batch_script_on_two_nodes_is_refused(slurm: SlurmCluster) -> None:
    """The script runs once, on the first node: starting the job there alone would hang."""
    done = slurm.run_script(shlex.join(RUN), "-N2")
    assert (done.returncode, done.stdout) == (78, "")
    assert "(found: SLURM_JOB_NUM_NODES='2')" in done.stderr
    assert "srun launcher run -- COMMAND" in done.stderr


@pytest.mark.thorough
def test_srun_in_a_batch_script_is_the_way(slurm: SlurmCluster) -> None:
    """What the refusal says to type works, though the step inherits what the script was told."""
    done = slurm.run_script("srun " + shlex.join(RUN), "-N2", "--ntasks-per-node=1")
    assert lines(done) == [
        "0/2 0/1 node 0 is node0, stays, master node0",
        "1/2 0/1 node 1 is node1, stays, master node0",
    ]


@pytest.mark.parametrize("way", [(), ("srun", "--interactive", "--preserve-env")], ids=["local", "step"])
def test_a_shell_in_an_allocation_is_refused(slurm: SlurmCluster, way: tuple[str, ...]) -> None:
    """Salloc's shell, on the node it is typed on or as the interactive step on the first, is no task."""
    done = slurm.run("salloc", "-N2", *way, *RUN)
    assert (done.returncode, done.stdout) == (78, ""), done.stderr
    assert "(found: SLURM_JOB_NUM_NODES='2')" in done.stderr
    assert "srun launcher run -- COMMAND" in done.stderr
    assert "malformed" not in done.stderr


# mpirun inside


# The simulation of srun, and the fixture


@pytest.mark.thorough
def test_a_rehearsal_sets_what_srun_sets(slurm: SlurmCluster) -> None:
    """`launcher rehearse --like slurm` simulates srun: variable by variable, this is what srun says."""
    show = "import json, os; print(json.dumps(dict(os.environ)))"
    files = f"--output={slurm.folder}/task%t.json"
    lines(slurm.run("srun", "-N2", "--ntasks-per-node=2", files, sys.executable, "-c", show))
    tasks = {rank: json.loads((slurm.folder / f"task{rank}.json").read_text()) for rank in range(4)}
    nodes = slurm.cluster.nodes
    by_chance = {"SLURM_JOB_ID", "SLURM_JOBID", "SLURM_STEP_LAUNCHER_PORT", "SLURM_SRUN_COMM_PORT"}
    named = {"SLURM_CLUSTER_NAME", "SLURM_JOB_NAME", "SLURM_JOB_PARTITION"}
    for rank, real in tasks.items():
        expected = variables("slurm", nodes, nodes[rank // 2], rank % 2, 2)
        assert set(expected) - set(real) == set()
        compared = set(expected) - by_chance - named
        assert {n: real[n] for n in compared} == {n: expected[n] for n in compared}


# --engine mpirun


TOKEN = {"LAUNCHER_TOKEN": "a token of these tests"}
BY_MPIRUN = ("run", "--engine", "mpirun", "--no-prefix")


@pytest.mark.thorough
@pytest.mark.mpi
@pytest.mark.parametrize("family", ["openmpi4", "mpich"])
def test_one_task_per_node_and_mpirun_as_the_engine(family: str, slurm: SlurmCluster) -> None:
    """Srun starts a launcher on every node, and the first of these mpirun, which leaves srun alone."""
    line = (*LAUNCHER, *BY_MPIRUN, "--nproc-per-node=2", "--", "sh", "-c", SHOW)
    done = slurm.run("srun", "-N2", "--ntasks-per-node=1", *line, **find_mpi(family).environ, **TOKEN)
    assert [text.partition(" is ")[0] for text in lines(done)] == [
        *("0/4 0/2 node 0", "1/4 1/2 node 0", "2/4 0/2 node 1", "3/4 1/2 node 1"),
    ]
