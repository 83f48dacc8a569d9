"""What single sources claim, where the golden cases of whole jobs do not reach."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product

import pytest

from launcher.core.errors import EnvironmentUntrusted
from launcher.core.model import Evidence, Fact, Plan, Scope, Value
from launcher.machine.host import Host
from launcher.options.reading import read_options
from launcher.planning.plan import plan_job
from launcher.planning.recorded import replay
from launcher.sources import gather


def ask(source: str, environ: dict[str, str]) -> Evidence:
    """Return what one source makes of an environment."""
    (evidence,) = gather(environ, Host("/nonexistent"), source).evidence
    return evidence


def facts(evidence: Evidence) -> dict[Fact, Value]:
    """Return what a source claims, by fact."""
    return {claim.fact: claim.value for claim in evidence.claims}


def plan(
    environ: dict[str, str], gpus: int, *, ancestors: Sequence[Sequence[str]] = (), **flags: str
) -> Plan:
    """Return the plan for an environment and a number of GPUs, below processes with these command lines."""
    lines = [list(line) for line in ancestors]
    host = replay({"environ": environ, "gpus": gpus, "ancestors": lines})
    return plan_job(host.environ, host, read_options(flags, host.environ), ())


@pytest.mark.parametrize(("tasks", "scope"), [("2", Scope.NODE), ("4", Scope.PROCESS)])
def test_slurm_a_lone_task_among_more_is_no_launcher_per_node(tasks: str, scope: Scope) -> None:
    """srun -N2 -n4 may put three tasks on one node and one on the other."""
    environ = {
        "SLURM_JOB_ID": "9",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(int(tasks) - 1),
        "SLURM_NTASKS": tasks,
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "1",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_TASKS_PER_NODE": f"{int(tasks) - 1},1",
        "SLURM_STEP_NODELIST": "nodeA,nodeB",
    }
    assert plan(environ, gpus=4).allocation.scope is scope


def test_slurm_arbitrary_tasks_have_no_master() -> None:
    """The node list is sorted whatever SLURM_HOSTFILE says: its first node is not rank 0's."""
    environ = {
        "SLURM_DISTRIBUTION": "arbitrary",
        "SLURM_NODEID": "0",
        "SLURM_NTASKS": "2",
        "SLURM_PROCID": "1",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "node[0-1]",
    }
    evidence = ask("slurm", environ)
    assert Fact.MASTER_ADDR not in facts(evidence)
    assert facts(evidence)[Fact.HOSTS] == ("node0", "node1")
    assert "SLURM_DISTRIBUTION='arbitrary'" in evidence.notes[0]
    assert facts(ask("slurm", {**environ, "SLURM_STEP_NODELIST": "node1"}))[Fact.MASTER_ADDR] == "node1"


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMI_ID"])
@pytest.mark.parametrize(
    ("rank", "node", "master"), [("0", "node0", "node0"), ("0", "node1", None), ("1", "node1", "node0")]
)
def test_slurm_mpirun_may_put_rank_0_on_another_node(
    name: str, rank: str, node: str, master: str | None
) -> None:
    """Mpirun --host leaves the first node out: rank 0 must not send everybody there."""
    environ = {
        "MPI_LOCALRANKID": "0",
        "SLURMD_NODENAME": node,
        "SLURM_JOB_ID": "9",
        "SLURM_JOB_NODELIST": "node[0-1]",
        "SLURM_PROCID": "0",
        name: rank,
    }
    assert facts(ask("slurm", environ)).get(Fact.MASTER_ADDR) == master


def test_slurm_interactive_step_is_no_task() -> None:
    """The shell of salloc, where Slurm starts it on the first node, has a step of ten digits."""
    environ = {"SLURM_JOB_ID": "9", "SLURM_JOB_NUM_NODES": "2", "SLURM_STEP_ID": "4294967290"}
    evidence = ask("slurm", environ)
    assert (evidence.problems, evidence.claims, len(evidence.signs)) == ((), (), 1)


@pytest.mark.parametrize(("rank", "scope"), [("1", Scope.NODE), ("3", Scope.PROCESS)])
def test_hydra_a_lone_process_among_more_is_no_launcher_per_node(rank: str, scope: Scope) -> None:
    """mpiexec -hosts a:3,b:1: rank 3 is alone on proxy 1; one per node, proxy 1 would have rank 1."""
    environ = {
        "PMI_RANK": rank,
        "PMI_SIZE": str(int(rank) + 1),
        "MPI_LOCALRANKID": "0",
        "MPI_LOCALNRANKS": "1",
        "HYDRA_BSTRAP_NODE_ID": "1",
    }
    assert plan({**environ, "MASTER_ADDR": "a"}, gpus=4).allocation.scope is scope


def mpirun(version: int, rank: int, local: int, size: int, local_size: int, daemon: int) -> dict[str, str]:
    """Return what mpirun tells a process, as far as Open MPI 4 and 5 agree, and the index of its daemon."""
    names = ("RANK", "LOCAL_RANK", "SIZE", "LOCAL_SIZE")
    numbers = zip(names, (rank, local, size, local_size), strict=True)
    uri = f"4.{daemon};tcp4://127.0.0.1:5" if version == 4 else f"prterun-n0-7@0.{daemon};tcp4://127.0.0.1:5"
    return {f"OMPI_COMM_WORLD_{name}": str(number) for name, number in numbers} | {"PMIX_SERVER_URI2": uri}


def place_all(sizes: tuple[int, ...], *, dealt: bool) -> list[tuple[int, int, int]]:
    """Return (node, rank, local rank) of each process, node by node or dealt in turn."""
    places = [(node, local) for node, size in enumerate(sizes) for local in range(size)]
    if dealt:
        places.sort(key=lambda place: (place[1], place[0]))
    return [(node, rank, local) for rank, (node, local) in enumerate(places)]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("dealt", [False, True], ids=["filled", "dealt"])
@pytest.mark.parametrize("idle", [False, True], ids=["", "idle-head"])
def test_open_mpi_names_no_node_but_the_right_one(version: int, *, dealt: bool, idle: bool) -> None:
    """Every job of up to four nodes with up to three processes each; an idle head shifts the daemons."""
    found, all_known = 0, 0
    for sizes in (shape for count in range(1, 5) for shape in product((1, 2, 3), repeat=count)):
        for node, rank, local in place_all(sizes, dealt=dealt):
            environ = mpirun(version, rank, local, sum(sizes), sizes[node], node + idle)
            if version == 4:
                environ["OMPI_MCA_orte_num_nodes"] = str(len(sizes))
                if node + idle:
                    environ["OMPI_MCA_orte_node_regex"] = f"n[1:0-9]@0({len(sizes) + idle})"
            named = facts(ask("open_mpi", environ)).get(Fact.NODE_RANK, node)
            assert named == node, (sizes, rank)
            found, all_known = found + (Fact.NODE_RANK in facts(ask("open_mpi", environ))), all_known + 1
    assert found == all_known or version == 5 or idle
    assert found > all_known // 4 or (version == 5 and idle)


PRTED = ["/opt/bin/prted", "--prtemca", "ess_base_vpid", "1", "--prtemca", "ess_base_num_procs", "2"]


def test_open_mpi_5_counts_its_daemons_on_their_command_line() -> None:
    """With two daemons an idle head would leave all processes to this node."""
    environ = {**mpirun(5, 3, 1, 4, 2, 1), "MASTER_ADDR": "n0"}
    assert plan(environ, 0, ancestors=[PRTED]).topology.node_rank == 1
    assert plan(environ, 0).topology.node_rank is None


@pytest.mark.parametrize("rank", range(8))
def test_open_mpi_5_by_numa_node_gives_local_ranks_in_another_order(rank: int) -> None:
    """--map-by numa or package: ranks fill one domain, local ranks are dealt to all of them."""
    local = (rank * 2) % 8 + rank // 4
    alone = plan(mpirun(5, rank, local, 8, 8, 0), 8).topology
    assert (alone.rank, alone.places[0].local_rank, alone.node_count, alone.node_rank) == (rank, local, 1, 0)
    bare = {
        name: value for name, value in mpirun(5, rank, local, 8, 8, 0).items() if name != "PMIX_SERVER_URI2"
    }
    assert plan(bare, 8).topology.places[0].local_rank == local
    for node in (0, 1):
        environ = {**mpirun(5, rank + 8 * node, local, 16, 8, node), "PMIX_NAMESPACE": "prterun-n0-7@1"}
        shape = plan(environ, 8).topology
        assert (shape.rank, shape.master_addr, shape.node_rank in (None, node)) == (
            rank + 8 * node,
            "n0",
            True,
        )


UNEVEN = {
    "open mpi": mpirun(5, 0, 0, 5, 1, 0),
    "hydra": {"PMI_RANK": "0", "PMI_SIZE": "5", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}
    | {"HYDRA_BSTRAP_NODE_ID": "0"},
    "pals": {"PALS_RANKID": "0", "PMI_RANK": "0", "PMI_SIZE": "5", "PALS_LOCAL_RANKID": "0"}
    | {"PALS_LOCAL_SIZE": "1", "PALS_NODEID": "0"},
    "a later node": mpirun(5, 1, 0, 6, 1, 1),
}


@pytest.mark.parametrize("environ", UNEVEN.values(), ids=UNEVEN)
def test_a_process_alone_on_its_node_asks_whether_the_others_share_one(environ: dict[str, str]) -> None:
    """mpirun --host n0:1,n1:4 on nodes of 4 GPUs: rank 0 must not start four processes."""
    job = {**environ, "MASTER_ADDR": "n0"}
    with pytest.raises(EnvironmentUntrusted) as caught:
        plan(job, gpus=4)
    (problem,) = caught.value.problems
    world = int(environ.get("PMI_SIZE") or environ["OMPI_COMM_WORLD_SIZE"])
    assert problem.code == "ambiguous-scope" and f"--nnodes {world}" in problem.fix
    assert plan(job, gpus=4, scope="process").topology.world_size == world
    assert plan(job, gpus=4, nnodes=str(world)).topology.world_size == 4 * world


def test_the_last_process_alone_on_as_many_nodes_needs_no_question() -> None:
    """Each process before it has a node of its own."""
    last = {**UNEVEN["hydra"], "PMI_RANK": "4", "HYDRA_BSTRAP_NODE_ID": "4", "MASTER_ADDR": "n0"}
    assert plan(last, gpus=4).topology.world_size == 20


MPIRUN = ["/opt/bin/mpirun", "--host", "n0:2,n1:2", "-np", "4"]


@pytest.mark.parametrize("prefix", ["", "LAUNCHER_"])
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(
    ("ancestors", "daemon", "port"),
    [
        ([MPIRUN], 0, 6105),
        ([["bash", "run.sh"], [*MPIRUN, "-x", "MASTER_PORT"]], 0, 29500),
        ([[*MPIRUN, "-x", "MASTER_PORT=29500"]], 0, 29500),
        ([[*MPIRUN, "-x", "MASTER_*"]], 0, 29500),
        ([[*MPIRUN, "-x", "MASTER_ADDR"]], 0, 6105),
        ([PRTED], 1, 29500),
        ([], 0, 6105),
        ([], 1, 6105),
    ],
)
def test_a_port_is_the_jobs_if_mpirun_forwards_it(
    version: int, ancestors: list[list[str]], daemon: int, port: int, prefix: str
) -> None:
    """Mpirun's own node has the variable in any case, the others only with -x."""
    for local in (0, 1):
        environ = {**mpirun(version, 2 * daemon + local, local, 4, 2, daemon), "MASTER_ADDR": "n0"}
        lines = [[word.replace("MASTER_", f"{prefix}MASTER_") for word in line] for line in ancestors]
        job = plan({**environ, f"{prefix}MASTER_PORT": "29500"}, 0, ancestors=lines)
        assert job.topology.master_port == port
    alone = {**mpirun(version, 1, 1, 2, 2, 0), "MASTER_PORT": "29500"}
    assert plan(alone, 0, ancestors=[MPIRUN]).topology.master_port == 29500


def test_batch_ai_workers_on_hosts_of_their_own_are_nodes() -> None:
    """One worker per host: the index of the worker is the index of the node."""
    environ = {"AZ_BATCHAI_WORKER_HOSTS": "10.0.0.4:2223,10.0.0.5:2222", "AZ_BATCHAI_TASK_INDEX": "1"}
    assert facts(ask("batch_ai", environ))[Fact.NODE_RANK] == 1


def test_batch_ai_workers_that_share_a_host_are_processes_of_one_node() -> None:
    """Two workers on one host: the index is that of a process."""
    environ = {"AZ_BATCHAI_WORKER_HOSTS": "10.0.0.4:2223,10.0.0.4:2224", "AZ_BATCHAI_TASK_INDEX": "1"}
    found = facts(ask("batch_ai", environ))
    assert (found[Fact.LOCAL_RANK], found[Fact.LOCAL_SIZE], found[Fact.NODE_RANK]) == (1, 2, 0)


def test_jaxjob_starts_one_process_per_pod() -> None:
    """PROCESS_ID is JAX's own: four processes with the same one would never meet."""
    environ = {"COORDINATOR_ADDRESS": "job-worker-0", "NUM_PROCESSES": "2", "PROCESS_ID": "1"}
    job = plan(environ, gpus=4)
    assert (job.allocation.scope, job.topology.world_size, job.topology.rank) == (Scope.PROCESS, 2, 1)
    assert (job.topology.local_size, job.topology.node_rank) == (1, 1)


BATCH = {
    "AZ_BATCH_HOST_LIST": "10.0.0.4,10.0.0.5,10.0.0.6",
    "AZ_BATCH_MASTER_NODE": "10.0.0.4:6000",
    "AZ_BATCH_IS_CURRENT_NODE_MASTER": "false",
}


def test_a_batch_node_that_does_not_find_itself_says_so() -> None:
    """Behind a bridge no address of the node is in the list: the refusal names the reason."""
    with pytest.raises(EnvironmentUntrusted) as caught:
        plan(BATCH, gpus=1)
    (problem,) = caught.value.problems
    assert "AZ_BATCH_HOST_LIST" in problem.what
    assert "none of this node's addresses" in problem.fix
    assert "--node-rank R" in problem.fix


def test_a_batch_node_that_does_not_find_itself_can_be_told() -> None:
    """What the message says to type works."""
    assert plan(BATCH, gpus=1, node_rank="2").topology.node_rank == 2


def test_a_batch_node_under_mpirun_need_not_find_itself() -> None:
    """mpirun has said who we are."""
    mpi = {
        "OMPI_COMM_WORLD_RANK": "5",
        "OMPI_COMM_WORLD_SIZE": "6",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    }
    assert plan({**BATCH, **mpi}, gpus=0).topology.rank == 5


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_old_pytorch_operator_names_the_master_pod_localhost(name: str) -> None:
    """On the master pod alone; the others wait for it by its name, which is its hostname."""
    environ = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": name}
    host = replay({"environ": environ, "gpus": 1, "hostname": "job-master-0"})
    job = plan_job(host.environ, host, read_options({}, host.environ), ())
    assert job.topology.master_addr == "job-master-0"


def test_localhost_on_another_pod_stays_an_error() -> None:
    """Only the master pod may say so."""
    environ = {
        "KUBERNETES_SERVICE_HOST": "10.96.0.1",
        "RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "localhost",
    }
    with pytest.raises(EnvironmentUntrusted):
        plan(environ, gpus=1)


ELASTIC = {"PET_NNODES": "1:4", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "job-0", "PET_NPROC_PER_NODE": "2"}


def test_a_range_of_nodes_is_an_elastic_job() -> None:
    """1:4 is no number to plan with: torchrun gives out the ranks, and no node has to know its own."""
    job = plan({**ELASTIC, "PET_NODE_RANK": ""}, gpus=2)
    assert job.allocation.node_range == (1, 4) and job.allocation.ranks_at_start
    assert (job.topology.world_size, job.topology.node_rank, job.processes) == (None, None, ())
    assert job.engine == "torchrun"


def test_an_elastic_job_can_be_fixed_by_flag() -> None:
    """The user wins over the platform: a number of nodes that is asked for makes an ordinary job of it."""
    job = plan(ELASTIC, gpus=2, nnodes="2")
    assert (job.topology.world_size, job.topology.node_rank) == (4, 1)
    (note,) = [note for note in job.notes if note.startswith("PET_NNODES='1:4'")]
    assert note.endswith("is not used as node_range: the number of nodes is fixed")


def test_a_range_of_one_is_a_fixed_job() -> None:
    """2:2 is two nodes."""
    job = plan({**ELASTIC, "PET_NNODES": "2:2"}, gpus=2)
    assert job.topology.world_size == 4


@pytest.mark.parametrize("text", ["2:", ":2", "x:x", "0:0", "-1:-1", "1e1", "9999999999:9999999999"])
def test_a_malformed_range_is_named(text: str) -> None:
    """Neither N nor N:M."""
    (problem,) = ask("torch_agent", {"PET_NNODES": text}).problems
    assert problem.code == "malformed-variable"


def test_a_wrong_tf_config_names_a_fix_that_works() -> None:
    """There is no flag for TF_CONFIG."""
    environ = {"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}, "task": {"type": "master", "index": 0}}'}
    (problem,) = ask("tensorflow", environ).problems
    assert problem.code == "tf-config-master"
    assert "flag" not in problem.fix


def test_a_node_rank_of_another_node_is_not_taken_from_a_forwarded_list() -> None:
    """Ranks mapped by NUMA node can look dealt like cards; then only the list shows whose number it is."""
    pools = {"workerpool0": ["x015:2222"], "workerpool1": ["recorded:2222"]}
    spec = {"cluster": pools, "task": {"type": "workerpool0", "index": 0}, "environment": "cloud"}
    environ = {**mpirun(5, 4, 2, 6, 3, 2), "MASTER_ADDR": "x015", "CLUSTER_SPEC": json.dumps(spec)}
    job = plan(environ, 0)
    assert job.topology.node_rank in (None, 1)
    (note,) = [note for note in job.notes if "is not used as node_rank" in note]
    assert note.endswith("it is of another node: its own list has this one elsewhere")
