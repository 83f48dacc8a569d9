"""What single sources claim, where the golden cases of whole jobs do not reach."""

from __future__ import annotations

import pytest

from launcher.core.errors import EnvironmentUntrusted
from launcher.core.model import Evidence, Fact, Plan, Scope, Value
from launcher.machine.host import Host
from launcher.options.reading import read_options
from launcher.planning.plan import plan_job
from launcher.planning.recorded import RecordedHost
from launcher.sources import gather


def ask(source: str, environ: dict[str, str]) -> Evidence:
    """Return what one source makes of an environment."""
    (evidence,) = gather(environ, Host("/nonexistent"), source).evidence
    return evidence


def facts(evidence: Evidence) -> dict[Fact, Value]:
    """Return what a source claims, by fact."""
    return {claim.fact: claim.value for claim in evidence.claims}


def plan(environ: dict[str, str], gpus: int, **flags: str) -> Plan:
    """Return the plan for an environment and a number of GPUs."""
    host = RecordedHost({"environ": environ, "gpus": gpus})
    return plan_job(host.environ, host, read_options(flags, host.environ), ())


@pytest.mark.parametrize(
    ("tasks", "starts"),
    [("2", None), ("4", Scope.PROCESS)],
)
def test_slurm_a_lone_task_among_more_is_no_launcher_per_node(tasks: str, starts: Scope | None) -> None:
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
    assert ask("slurm", environ).starts is starts


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


@pytest.mark.parametrize(("rank", "starts"), [("1", None), ("3", Scope.PROCESS)])
def test_hydra_a_lone_process_among_more_is_no_launcher_per_node(rank: str, starts: Scope | None) -> None:
    """mpiexec -hosts a:3,b:1: rank 3 is alone on proxy 1; one per node, proxy 1 would have rank 1."""
    environ = {
        "PMI_RANK": rank,
        "PMI_SIZE": str(int(rank) + 1),
        "MPI_LOCALRANKID": "0",
        "MPI_LOCALNRANKS": "1",
        "HYDRA_BSTRAP_NODE_ID": "1",
    }
    assert ask("hydra", environ).starts is starts


def test_batch_ai_workers_on_hosts_of_their_own_are_nodes() -> None:
    """One worker per host: the index of the worker is the index of the node."""
    environ = {"AZ_BATCHAI_WORKER_HOSTS": "10.0.0.4:2223,10.0.0.5:2222", "AZ_BATCHAI_TASK_INDEX": "1"}
    assert facts(ask("batch_ai", environ))[Fact.NODE_RANK] == 1


def test_batch_ai_workers_that_share_a_host_are_not() -> None:
    """Two workers on one host: the index is that of a process."""
    environ = {"AZ_BATCHAI_WORKER_HOSTS": "10.0.0.4:2223,10.0.0.4:2224", "AZ_BATCHAI_TASK_INDEX": "1"}
    assert Fact.NODE_RANK not in facts(ask("batch_ai", environ))


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
    host = RecordedHost({"environ": environ, "gpus": 1, "hostname": "job-master-0"})
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
    assert [lost.claim.value for finding in job.findings for lost in finding.lost].count("1:4") == 1


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
