"""Which process is this? What its starter says, beside what is inherited: right, or refused."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from launcher.core.errors import EnvironmentUntrusted, UsageError
from launcher.core.model import Plan
from launcher.hook.answer import find_answer
from launcher.options.reading import read_options
from launcher.planning.plan import plan_job
from launcher.planning.recorded import replay
from launcher.planning.settings import render_environ

HYDRA = "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1"
FLUX = "FLUX_JOB_ID=f FLUX_JOB_SIZE=2 FLUX_JOB_NNODES=2 FLUX_TASK_RANK=1 FLUX_TASK_LOCAL_ID=0"
OPEN_MPI = (
    "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1"
)
SLURM = (
    "SLURM_JOB_ID=9 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=0 SLURM_NODEID=1 "
    "SLURM_STEP_NUM_NODES=2 SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_STEP_NODELIST=n[0-1]"
)
AZURE_ML = "RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 AZUREML_NODE_COUNT=2"
ONE_PER_NODE = (HYDRA, FLUX, OPEN_MPI, SLURM, AZURE_ML)
"""Node 1 of two nodes with one process each, as its starter says it."""
FORWARDED_INDEX = (
    "NODE_RANK=0",
    "PET_NODE_RANK=0",
    "SKYPILOT_NODE_RANK=0",
    "AZUREML_CR_NODE_RANK=0",
    "LAUNCHER_NODE_RANK=0",
)
BATCH = "AZ_BATCH_HOST_LIST=10.0.0.4,10.0.0.5"
UNEVEN = "PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1"
HALF = "PMI_RANK=2 PMI_SIZE=4 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2"
LAST = "PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2"
ALL_HERE = (
    "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2"
)
MASTER = "MASTER_ADDR=10.0.0.4"


def plan(environ: str, *, gpus: int = 0, own: str = "10.0.0.5", **flags: str) -> Plan:
    """Return the plan for variables as one would type them before a command."""
    variables = dict(word.split("=", 1) for word in shlex.split(environ))
    host = replay({"environ": variables, "gpus": gpus, "hostname": "here", "addresses": {"eth0": [own]}})
    return plan_job(host.environ, host, read_options(flags, host.environ), ("true",))


def seen(environ: str, *names: str, gpus: int = 0, own: str = "10.0.0.5", **flags: str) -> list[str | None]:
    """Return what the first process of a plan finds in some variables; None where one is not set."""
    made = plan(environ, gpus=gpus, own=own, **flags)
    variables = dict(word.split("=", 1) for word in shlex.split(environ))
    rendered = render_environ(made, made.processes[0], variables)
    return [rendered.get(name) for name in names]


def refused(environ: str, *, gpus: int = 0, own: str = "10.0.0.5", **flags: str) -> str:
    """Return why there is no plan: codes, texts and fixes."""
    with pytest.raises(EnvironmentUntrusted) as caught:
        plan(environ, gpus=gpus, own=own, **flags)
    return str(caught.value)


@pytest.mark.parametrize("index", FORWARDED_INDEX)
@pytest.mark.parametrize("starter", ONE_PER_NODE)
def test_a_node_index_of_elsewhere_makes_no_second_rank_0(starter: str, index: str) -> None:
    """flux run, mpiexec and srun forward the submitter's variables: another index is a contradiction."""
    more = "PET_NNODES=2" if index.startswith("PET") else ""
    text = refused(f"{starter} {MASTER} LAUNCHER_NPROC_PER_NODE=4 {index} {more}")
    assert "[contradiction]" in text and index.split("=")[0] in text


@pytest.mark.parametrize("starter", ONE_PER_NODE)
def test_the_same_node_index_agrees(starter: str) -> None:
    environ = f"{starter} {MASTER} LAUNCHER_NPROC_PER_NODE=4 NODE_RANK=1"
    assert seen(environ, "RANK", "WORLD_SIZE", "NODE_RANK") == ["4", "8", "1"]


@pytest.mark.parametrize("starter", (HYDRA, FLUX, SLURM))
def test_a_forwarded_word_that_this_is_the_master_counts_for_nothing(starter: str) -> None:
    environ = f"{starter} {MASTER} {BATCH} AZ_BATCH_IS_CURRENT_NODE_MASTER=true LAUNCHER_NPROC_PER_NODE=4"
    assert seen(environ, "RANK", "NODE_RANK") == ["4", "1"]


def test_a_typed_node_rank_does_not_make_a_second_rank_0() -> None:
    """One command line is typed for all processes of mpiexec."""
    text = refused(f"{HYDRA} {MASTER}", node_rank="0", nproc_per_node="4")
    assert "[contradiction]" in text and "--node-rank" in text


@pytest.mark.parametrize("index", FORWARDED_INDEX[:2])
@pytest.mark.parametrize("rank", (HALF, LAST))
def test_a_node_index_that_does_not_fit_the_rank_is_refused(rank: str, index: str) -> None:
    """Rank 2 or 3 of 2 + 2 is not on node 0, however the ranks are placed."""
    assert "[contradiction]" in refused(f"{rank} {MASTER} {index} PET_NNODES=2")


def test_a_node_index_that_fits_the_rank_is_published() -> None:
    assert seen(f"{LAST} {MASTER} NODE_RANK=1 AZUREML_NODE_COUNT=2", "NODE_RANK") == ["1"]


@pytest.mark.parametrize("index", ("NODE_RANK=0", "NODE_RANK=1", "LAUNCHER_NODE_RANK=0"))
def test_a_node_index_that_nothing_proves_is_left_out(index: str) -> None:
    """3 + 1 processes: no number of this process says on which node it is."""
    assert seen(f"{UNEVEN} {MASTER} {index}", "NODE_RANK", "RANK") == [None, "3"]


@pytest.mark.parametrize(
    "count",
    (
        "AZUREML_NODE_COUNT=1",
        "PET_NNODES=1",
        "SKYPILOT_NUM_NODES=1",
        "AMLARC_NUM_WORKER=1",
        "LAUNCHER_NNODES=1",
        "AZ_BATCH_HOST_LIST=10.0.0.5",
    ),
)
@pytest.mark.parametrize("starter", (HALF, LAST))
def test_one_node_has_all_processes(starter: str, count: str) -> None:
    """With one node alone, two of four processes would meet at 127.0.0.1 and wait for the others."""
    assert "[contradiction]" in refused(f"{starter} {count}")


@pytest.mark.parametrize(
    "environ",
    (
        f"NODE_RANK=0 RANK=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 WORLD_SIZE=4 {MASTER}",
        f"NODE_RANK=1 RANK=0 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 WORLD_SIZE=4 {MASTER}",
        f"NODE_RANK=2 RANK=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 WORLD_SIZE=6 {MASTER}",
        f"NODE_RANK=3 RANK=3 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 WORLD_SIZE=4 {MASTER}",
        f"RANK=1 LOCAL_RANK=2 WORLD_SIZE=8 {MASTER}",
        f"RANK=3 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 WORLD_SIZE=4 {MASTER}",
        "RANK=2 LOCAL_RANK=0 WORLD_SIZE=4 AZUREML_NODE_COUNT=1",
        f"RANK=1 LOCAL_RANK=0 WORLD_SIZE=4 LOCAL_WORLD_SIZE=4 {MASTER}",
    ),
)
def test_what_no_placement_allows_is_refused(environ: str) -> None:
    assert "[contradiction]" in refused(environ)


def test_mpiruns_daemons_may_number_the_nodes_otherwise() -> None:
    """Open MPI numbers nodes by daemon: with --host reversed, rank 0 runs on node 1."""
    environ = (
        "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 "
        "OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_MCA_orte_num_nodes=2 OMPI_MCA_orte_node_regex=n[1:0-1]@0(2) "
        f"'OMPI_MCA_orte_local_daemon_uri=17.1;tcp://10.0.0.4:1' {MASTER}"
    )
    assert seen(environ, "RANK", "NODE_RANK", own="10.0.0.4") == ["0", "1"]


def test_a_world_smaller_than_this_node_is_refused_and_no_fault_of_ours() -> None:
    environ = (
        "OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_LOCAL_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=3 "
        "OMPI_COMM_WORLD_RANK=0 'PMIX_SERVER_URI2=prterun-n0-1@0.0;tcp4://127.0.0.1:1'"
    )
    assert "[contradiction]" in refused(environ)


@pytest.mark.parametrize(
    "environ",
    (
        "RANK=4 WORLD_SIZE=6 LOCAL_RANK=0 NODE_RANK=1",  # 4 + 2 processes
        "RANK=1 WORLD_SIZE=4 LOCAL_RANK=0 NODE_RANK=1",  # dealt to two nodes
        "RANK=4 WORLD_SIZE=6 LOCAL_RANK=0 NODE_RANK=1 SKYPILOT_NUM_NODES=2",
    ),
)
def test_a_size_that_nothing_states_is_left_out(environ: str) -> None:
    made = plan(f"{environ} {MASTER}")
    assert seen(f"{environ} {MASTER}", "LOCAL_WORLD_SIZE", "NODE_RANK") == [None, "1"]
    assert any("LOCAL_WORLD_SIZE is not set" in note for note in made.notes)


MASTERS = (
    "MASTER_ADDR",
    "PET_MASTER_ADDR",
    "PET_RDZV_ENDPOINT",
    "MASTER_IP",
    "AZ_BATCHAI_MPI_MASTER_NODE",
    "AZ_BATCHAI_JOB_MASTER_NODE_IP",
)


def test_a_typed_node_0_of_a_job_without_a_number_of_nodes_is_the_only_node() -> None:
    """As in torchrun; a variable can be the same on all nodes, and any other sign of them is an error."""
    assert seen("", "RANK", "WORLD_SIZE", "NODE_RANK", node_rank="0") == ["0", "1", "0"]
    assert seen("", "WORLD_SIZE", node_rank="0", nproc_per_node="2", master_addr="127.0.0.1") == ["2"]
    unclear: list[tuple[str, dict[str, Any]]] = [
        ("", {"node_rank": "1"}),
        ("LAUNCHER_NODE_RANK=0", {}),
        ("PET_NODE_RANK=0", {}),
        ("", {"node_rank": "0", "master_addr": "10.0.0.9"}),
        ("MASTER_ADDR=10.0.0.9", {"node_rank": "0"}),
        ("SLURM_JOB_ID=9 SLURM_JOB_NUM_NODES=2", {"node_rank": "0"}),
    ]
    for environ, flags in unclear:
        text = refused(environ, **flags)
        assert "[no-identity]" in text or "needs a number of nodes" in text, environ


@pytest.mark.parametrize("name", MASTERS)
def test_a_master_elsewhere_is_no_single_machine(name: str) -> None:
    text = refused(f"{name}=10.0.0.9")
    assert "[no-identity]" in text and name in text and "--nnodes" in text


@pytest.mark.parametrize("name", MASTERS)
@pytest.mark.parametrize("own", ("10.0.0.5", "here", "localhost"))
def test_a_master_that_is_this_machine_is_a_single_machine(name: str, own: str) -> None:
    assert seen(f"{name}={own}", "WORLD_SIZE") == ["1"]


@pytest.mark.parametrize(
    ("is_master", "own", "expected"),
    [
        ("true", "10.0.0.5", ["0", "10.0.0.5"]),
        ("false", "10.0.0.4", ["1", "10.0.0.5"]),
        ("true", "10.0.0.4", ["0", "10.0.0.4"]),
        ("false", "10.0.0.5", ["1", "10.0.0.4"]),
    ],
)
def test_azure_batch_says_which_node_is_the_master_where_it_does_not_name_it(
    is_master: str, own: str, expected: list[str]
) -> None:
    """Rank 0 runs on the master, and MASTER_ADDR names that very node."""
    environ = f"{BATCH} AZ_BATCH_IS_CURRENT_NODE_MASTER={is_master}"
    assert seen(environ, "RANK", "MASTER_ADDR", own=own) == expected


def test_azure_batch_of_three_nodes_needs_the_masters_name() -> None:
    """A node that is not the master cannot tell which of the two others is."""
    environ = f"{BATCH},10.0.0.6 AZ_BATCH_IS_CURRENT_NODE_MASTER=false"
    assert "AZ_BATCH_MASTER_NODE" in refused(environ)


@pytest.mark.parametrize(("master", "is_master"), [("10.0.0.4:6000", "true"), ("10.0.0.5:6000", "false")])
def test_azure_batch_contradicts_itself(master: str, is_master: str) -> None:
    environ = f"{BATCH} AZ_BATCH_MASTER_NODE={master} AZ_BATCH_IS_CURRENT_NODE_MASTER={is_master}"
    assert "[contradiction]" in refused(environ)


def test_half_an_allocation_is_completed_by_nnodes() -> None:
    """Two processes on one of two hosts: the fix that the message names works."""
    environ = (
        "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 "
        f"OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_MCA_orte_num_nodes=1 {BATCH} AZ_BATCH_MASTER_NODE=10.0.0.5:6000"
    )
    text = refused(environ)
    assert "--nnodes 1" in text and "WORLD_SIZE, or unset" not in text
    assert seen(environ, "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", nnodes="1") == ["0", "2", "2"]


@pytest.mark.parametrize(
    ("index", "known"), [("RANK=0", "rank"), ("LOCAL_RANK=0", "local_rank"), ("WORLD_SIZE=2", "world_size")]
)
def test_what_the_starter_does_not_say_is_not_taken_from_elsewhere(index: str, known: str) -> None:
    """mpiexec -pmi-port tells no size, and other starters no local rank: an inherited one is another's."""
    starters = {
        "rank": "FLUX_JOB_SIZE=2 FLUX_JOB_NNODES=2 FLUX_TASK_LOCAL_ID=0",
        "local_rank": "FLUX_JOB_SIZE=4 FLUX_JOB_NNODES=2 FLUX_TASK_RANK=3",
        "world_size": "PMI_ID=1 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1",
    }
    assert known in refused(f"{starters[known]} {index} {MASTER}")


ALONE_HERE = "PMI_RANK=4 PMI_SIZE=5 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1 MASTER_ADDR=node0"


@pytest.mark.parametrize(
    "allocation",
    [
        "SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=2 SLURM_JOB_NODELIST=here,node0",
        "LSB_MCPU_HOSTS='node0 4 here 1'",
    ],
)
def test_more_processes_than_the_allocation_has_nodes_are_no_agents(allocation: str) -> None:
    """mpiexec put four ranks on the other node and one here, where four GPUs are: it is a process."""
    environ = f"{ALONE_HERE} {allocation}"
    assert seen(environ, "RANK", "WORLD_SIZE", gpus=4) == ["4", "5"]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ("PET_MASTER_ADDR=node0 RANK=7 LOCAL_RANK=3 WORLD_SIZE=8 MASTER_ADDR=node0", ["7", "3", "8"]),
        ("MLP_ROLE=worker RANK=5 LOCAL_RANK=1 WORLD_SIZE=8 MASTER_ADDR=node0", ["5", "1", "8"]),
        (
            "KUBERNETES_SERVICE_HOST=1 RANK=5 LOCAL_RANK=1 WORLD_SIZE=8 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 "
            "GROUP_WORLD_SIZE=2 MASTER_ADDR=node0",
            ["5", "1", "8"],
        ),
        (
            "AWS_BATCH_JOB_NODE_INDEX=1 AWS_BATCH_JOB_NUM_NODES=2 AWS_BATCH_JOB_MAIN_NODE_INDEX=0 RANK=4 "
            "LOCAL_RANK=0 WORLD_SIZE=8 LOCAL_WORLD_SIZE=4 NODE_RANK=1 MASTER_ADDR=node0",
            ["4", "0", "8"],
        ),
    ],
)
def test_one_of_several_processes_of_a_node_is_no_agent(environ: str, expected: list[str]) -> None:
    """A platform of one launcher per node has started what has started this process."""
    assert seen(environ, "RANK", "LOCAL_RANK", "WORLD_SIZE", gpus=4) == expected


@pytest.mark.parametrize(
    "starter", [HALF, "HOROVOD_RANK=3 HOROVOD_SIZE=4 HOROVOD_LOCAL_RANK=1 HOROVOD_LOCAL_SIZE=2"]
)
def test_a_scope_of_nodes_does_not_make_a_process_an_agent(starter: str) -> None:
    """Each of the processes would start as many again."""
    for text in (
        refused(f"{starter} {MASTER}", scope="node"),
        refused(f"{starter} {MASTER} LAUNCHER_SCOPE=node"),
    ):
        assert "one of several" in text and "scope" in text.lower()


@pytest.mark.parametrize(
    "environ",
    [
        "KUBERNETES_SERVICE_HOST=10.96.0.1 WORLD_SIZE=2",
        "RUNAI_NUM_OF_GPUS=1 WORLD_SIZE=2",
        "KUBERNETES_SERVICE_HOST=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1",
        "KUBERNETES_SERVICE_HOST=1 WORLD_SIZE=x",
        "KUBERNETES_SERVICE_HOST=1 RANK=1 WORLD_SIZE=8 MASTER_ADDR=j PET_NODE_RANK=1 PET_NPROC_PER_NODE=4",
        "NPROC_PER_NODE=4 NODE_RANK=1 WORLD_SIZE=8 MASTER_ADDR=10.0.0.4",
    ],
)
def test_a_world_whose_unit_nothing_shows_is_refused(environ: str) -> None:
    """It may count processes or nodes; one half of a pod's variables does not tell."""
    refused(environ, gpus=4)
    refused(environ)


@pytest.mark.parametrize(
    ("source", "part"), [("torch_elastic", "TORCHELASTIC_RUN_ID=x"), ("volcano", "VC_X=1")]
)
def test_a_named_source_that_says_nothing_makes_no_single_machine(source: str, part: str) -> None:
    """Named by hand, and the platform's variables are there in part: the rest may say the contrary."""
    assert f"--source {source}" in refused(f"{part} RANK=1 WORLD_SIZE=2 {MASTER}", source=source)


IDLE_HEAD = "OMPI_COMM_WORLD_SIZE=4 OMPI_MCA_orte_num_nodes=2 'OMPI_MCA_orte_hnp_uri=5.0;tcp://10.0.0.99:4'"
"""The launcher pod of an MPIJob runs mpirun and no ranks: 3 are on daemon 1, and one on daemon 2."""


def on_daemon(daemon: int, rank: int, local: int, size: int) -> str:
    """Return what Open MPI 4 tells a rank beside the idle head."""
    numbers = f"OMPI_COMM_WORLD_RANK={rank} OMPI_COMM_WORLD_LOCAL_RANK={local}"
    own = f"'OMPI_MCA_orte_local_daemon_uri=5.{daemon};tcp://10.0.0.5:4'"
    return f"{IDLE_HEAD} {numbers} OMPI_COMM_WORLD_LOCAL_SIZE={size} {own}"


@pytest.mark.parametrize("place", [(1, 0, 0, 3), (1, 1, 1, 3), (1, 2, 2, 3), (2, 3, 0, 1)])
def test_the_pod_that_runs_mpirun_alone_is_no_master(place: tuple[int, int, int, int]) -> None:
    """A node beyond their number, or all lower ranks on a daemon that is not mpirun's, prove it idle."""
    text = refused(on_daemon(*place))
    assert "[missing-variable]" in text and "--master-addr" in text and "10.0.0.99" not in text
    own = "10.0.0.5" if place[1] else "10.0.0.4"
    assert seen(f"{on_daemon(*place)} {MASTER}", "RANK", "MASTER_ADDR", own=own) == [
        str(place[1]),
        "10.0.0.4",
    ]


def test_mpiruns_own_node_is_the_master_where_nothing_proves_it_idle() -> None:
    """3 + 1 ranks, the first three beside mpirun."""
    assert seen(on_daemon(1, 3, 0, 1), "RANK", "MASTER_ADDR") == ["3", "10.0.0.99"]


@pytest.mark.parametrize("rank", (0, 1))
def test_sagemakers_mpirun_hands_its_own_name_to_all_ranks(rank: int) -> None:
    """The toolkit passes every SM_* with -x: SM_CURRENT_HOST is no node's own name under mpirun."""
    environ = (
        f"OMPI_COMM_WORLD_RANK={rank} OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 "
        "OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_MCA_orte_num_nodes=2 "
        f"'OMPI_MCA_orte_local_daemon_uri=5.{rank};tcp://10.0.0.5:4' "
        "'OMPI_MCA_orte_hnp_uri=5.0;tcp://10.0.0.4:4' "
        """'SM_HOSTS=["algo-1","algo-2"]' SM_CURRENT_HOST=algo-1"""
    )
    assert seen(environ, "RANK", "NODE_RANK", "MASTER_ADDR") == [str(rank), str(rank), "algo-1"]


def test_a_sign_that_says_which_node_this_is_is_not_called_silent() -> None:
    """SLURM_NODEID does say which; without the step's id it may be another step's."""
    text = refused("SLURM_NODEID=1 SLURM_NNODES=2")
    assert (
        "can't tell which node or rank this is (found: SLURM_NODEID='1')" in text
        and "pass SLURM_STEP_ID" in text
    )


def test_half_of_hydras_names_in_a_task_of_slurm_is_refused() -> None:
    """Four processes here by mpiexec's names, in a task of two: srun may have started mpiexec's proxy."""
    task = "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_LOCALID=0 SLURM_NODEID=0"
    nodes = "SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST=node[0-1]"
    text = refused(f"PMI_RANK=0 MPI_LOCALNRANKS=4 {task} {nodes}")
    assert "MPI_LOCALNRANKS='4'" in text


def test_a_jobset_of_several_jobs_gets_no_second_rank_0_from_the_fix() -> None:
    """Every index exists once in each Job: the index alone is no rank there."""
    text = refused("JOB_COMPLETION_INDEX=0")
    assert "in a JobSet of several Jobs --node-rank $((J * PODS + JOB_COMPLETION_INDEX))" in text


@pytest.mark.parametrize(
    "pod",
    [
        "KUBERNETES_SERVICE_HOST=x RANK=1 WORLD_SIZE=2 PET_NNODES=2 PET_NODE_RANK=1",
        "SKYPILOT_NODE_RANK=1 SKYPILOT_NUM_NODES=2",
        "LWS_GROUP_SIZE=2 LWS_WORKER_INDEX=1",
    ],
)
def test_a_launcher_per_node_is_no_process(pod: str) -> None:
    """RANK, which counts pods, is not missing: the flag is wrong."""
    text = refused(f"{pod} {MASTER}", scope="process")
    assert text.count("[") == 1 and "[contradiction] --scope process" in text and "leave it out" in text
    assert seen(f"{pod} {MASTER}", "RANK", "WORLD_SIZE", nproc_per_node="1", gpus=2) == ["1", "2"]


def test_a_node_of_another_rank_is_no_second_one_with_it() -> None:
    """RANK of another node beside SageMaker's place in its list: one process per node leaves one place."""
    hosts = 'SM_HOSTS=\'["a","b","c"]\' SM_CURRENT_HOST=b'
    assert "[contradiction]" in refused(f"{hosts} RANK=2 WORLD_SIZE=3")
    assert seen(f"{hosts} RANK=1 WORLD_SIZE=3", "RANK", "WORLD_SIZE") == ["1", "3"]


def test_rank_0_away_from_its_master_is_told_by_both_names() -> None:
    text = refused("SKYPILOT_NODE_RANK=0 SKYPILOT_NUM_NODES=2 SKYPILOT_NODE_IPS='10.0.0.4 10.0.0.5'")
    assert "the master is 10.0.0.4" in text and "correct SKYPILOT_NODE_RANK or SKYPILOT_NODE_IPS" in text


SKYPILOT = "SKYPILOT_NODE_RANK=0 SKYPILOT_NUM_NODES=2 SKYPILOT_NODE_IPS='10.0.0.5 10.0.0.6'"


@pytest.mark.parametrize("left", ["MPI_LOCALNRANKS=4", "OMPI_COMM_WORLD_LOCAL_SIZE=2"])
def test_one_of_several_processes_without_its_rank_is_no_launcher_per_node(left: str) -> None:
    """A container gets the platform's variables and a part of mpirun's."""
    assert seen(SKYPILOT, "RANK", "WORLD_SIZE") == ["0", "2"]
    text = refused(f"{SKYPILOT} {left}")
    assert f"unset {left.partition('=')[0]} if this launcher is the only one" in text


LAUNCHED = (
    "LAUNCHER_LAUNCHED=1 RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 GROUP_RANK=0 GROUP_WORLD_SIZE=2 "
    "ROLE_RANK=0 ROLE_WORLD_SIZE=2 MASTER_ADDR=10.0.0.5 MASTER_ADDRESS=10.0.0.5 MASTER_PORT=6105"
)
"""Rank 0 of two nodes with one process each, by this launcher."""


def test_an_mpirun_of_the_same_size_inside_a_launched_process_is_another_world() -> None:
    """Rank 0 of 2, like the process around it, but both are on this node."""
    inside = OPEN_MPI.replace("RANK=1", "RANK=0")
    assert seen(f"{LAUNCHED} {inside}", "RANK", "LOCAL_WORLD_SIZE") == ["0", "1"]
    with pytest.raises(UsageError, match="inside rank 0 of another launcher run"):
        plan(f"{LAUNCHED} {inside.replace('LOCAL_SIZE=1', 'LOCAL_SIZE=2')}")


def test_a_pod_of_a_jax_job_stays_one_process_beside_a_starter_without_a_rank() -> None:
    jax = "PROCESS_ID=0 NUM_PROCESSES=2 COORDINATOR_ADDRESS=here COORDINATOR_PORT=6666"
    assert "need a rank" in refused(f"{jax} PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1", gpus=2)


def test_a_task_without_a_rank_is_no_launcher_per_node() -> None:
    cluster = '{"cluster": {"ps": ["c:1"], "worker": ["a:1", "b:1"]}, "task": {"type": "ps", "index": 0}}'
    text = refused(f"TF_CONFIG='{cluster}'", scope="node")
    assert "[contradiction]" in text and "--scope node but this is ps 0" in text


@pytest.mark.parametrize("starter", [HYDRA, FLUX, OPEN_MPI, "RANK=1 WORLD_SIZE=2 LOCAL_RANK=0"])
def test_the_lowest_rank_of_a_later_node_is_not_where_the_master_is(starter: str) -> None:
    """``MASTER_ADDR=$(hostname)`` in a shell on each node, whose index nothing proves."""
    text = refused(f"{starter} MASTER_ADDR=here")
    assert "MASTER_ADDR='here' is this node itself, but" in text and "unset the wrong one" in text


def test_an_index_that_cannot_be_names_the_sizes_that_show_it() -> None:
    text = refused(f"{HALF} {MASTER} SKYPILOT_NODE_RANK=0 SKYPILOT_NUM_NODES=2")
    assert "MPI_LOCALNRANKS='2' on each node" in text


@pytest.mark.parametrize("starter", [HYDRA, OPEN_MPI])
def test_one_that_is_alone_may_be_what_was_left_over(starter: str) -> None:
    """``-hosts a:2,b:1``: rank 2 is alone on a node of several GPUs, as in a job of one process per node."""
    rest = f"{starter.replace('RANK=1', 'RANK=2').replace('SIZE=2', 'SIZE=3')} {MASTER}"
    text = refused(rest, gpus=2)
    assert "[ambiguous-scope]" in text and "--nnodes 3" in text and "--scope process" in text
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK")
    assert seen(rest, *names, gpus=2, scope="process") == ["2", "3", "0", None]
    assert seen(rest, *names, gpus=2, nnodes="3") == ["4", "6", "0", "2"]
    assert seen(rest, *names, gpus=2, nproc_per_node="2") == ["4", "6", "0", "2"]


@pytest.mark.parametrize("starter", [HYDRA, OPEN_MPI])
def test_of_two_one_that_is_alone_shows_that_the_other_is_too(starter: str) -> None:
    assert seen(f"{starter} {MASTER}", "RANK", "WORLD_SIZE", gpus=2) == ["2", "4"]


MIG = "CUDA_VISIBLE_DEVICES=MIG-a,MIG-b"


@pytest.mark.parametrize(
    ("environ", "visible"),
    [
        (f"{MIG} PMI_RANK=0 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2", "MIG-a"),
        (f"{MIG} PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2", "MIG-b"),
        (f"{MIG} RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2", "MIG-b"),
        (MIG, "MIG-a"),
        ("CUDA_VISIBLE_DEVICES=MIG-GPU-1/1/0,MIG-GPU-1/2/0", "MIG-GPU-1/1/0"),
        ("CUDA_VISIBLE_DEVICES=0,1", "0,1"),
        ("CUDA_VISIBLE_DEVICES=MIG-a PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2", "MIG-a"),
    ],
)
def test_each_process_gets_one_mig_instance(environ: str, visible: str) -> None:
    """CUDA shows a process only the first instance of a list: two ranks would share it."""
    assert seen(environ, "CUDA_VISIBLE_DEVICES", gpus=2) == [visible]


def test_one_process_keeps_its_list_of_mig_instances() -> None:
    """It is alone on its node."""
    assert seen(MIG, "CUDA_VISIBLE_DEVICES", gpus=2, nproc_per_node="1") == ["MIG-a,MIG-b"]


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ("PBS_NODENUM=1", "PBS_NODENUM='1'"),
        ("JOB_COMPLETION_INDEX=1", "JOB_COMPLETION_INDEX='1'"),
        ("JOB_COMPLETION_INDEX=3 PBS_NODENUM=3", "'3'"),
    ],
)
def test_a_typed_node_rank_is_not_below_the_platforms_index(environ: str, said: str) -> None:
    """A $PBS_NODENUM that the first node's shell has replaced is 0 on every node."""
    flags: dict[str, Any] = {"nnodes": "4", "master_addr": "10.0.0.4"}
    text = refused(environ, node_rank="0", **flags)
    assert "[contradiction]" in text and said in text and "sh -c" in text
    assert plan(environ, node_rank="3", **flags).topology.node_rank == 3
    assert plan(environ, node_rank="0", source="manual", **flags).topology.node_rank == 0


@pytest.mark.parametrize(
    "platform",
    [
        "SKYPILOT_NODE_RANK=1 SKYPILOT_NUM_NODES=2 SKYPILOT_NODE_IPS='10.0.0.4 10.0.0.5'",
        "AZUREML_CR_NODE_RANK=1 AZUREML_NODE_COUNT=2",
        "LWS_GROUP_SIZE=2 LWS_WORKER_INDEX=1 LWS_LEADER_ADDRESS=s-0.s",
        "MLP_WORKER_NUM=2 MLP_ROLE_INDEX=1 MLP_WORKER_0_HOST=w-0",
    ],
)
@pytest.mark.parametrize("starter", [LAST.replace("=4", "=2").replace("=3", "=1"), ALL_HERE])
def test_mpirun_inside_of_each_node_is_a_job_of_its_own_with_one_node(platform: str, starter: str) -> None:
    """`--nnodes 1` says so on every node of the platform, not on node 0 alone."""
    shape = plan(f"{platform} {starter}", gpus=2, nnodes="1").topology
    assert (shape.node_rank, shape.node_count, shape.world_size, shape.master_addr) == (0, 1, 2, "127.0.0.1")


@pytest.mark.parametrize(
    ("environ", "flags", "what", "fixes"),
    [
        ("WORLD_SIZE=4", {}, "WORLD_SIZE='4'", ["unset WORLD_SIZE"]),
        ("RANK=1", {}, "RANK='1'", ["unset RANK"]),
        ("RANK=1 WORLD_SIZE=4", {}, "WORLD_SIZE='4'", ["unset RANK, WORLD_SIZE"]),
        ("", {"nnodes": "2"}, "--nnodes 2", ["pass --hosts HOST,..."]),
        ("", {"nnodes": "2", "nproc_per_node": "2"}, "--nnodes 2", ["pass --hosts HOST,..."]),
        ("AWS_BATCH_JOB_NUM_NODES=2", {}, "AWS_BATCH_JOB_NUM_NODES='2'", ["pass --hosts HOST,..."]),
    ],
)
def test_what_is_missing_is_one_cause_and_one_line_to_type(
    environ: str, flags: dict[str, Any], what: str, fixes: list[str]
) -> None:
    """Not an error for each fact that follows, and no notes: they are the plan's."""
    with pytest.raises(EnvironmentUntrusted) as caught:
        plan(environ, **flags)
    (problem,), notes = caught.value.problems, caught.value.notes
    assert (problem.code, what in problem.what, notes) == ("missing-variable", True, ())
    assert all(fix in problem.fix for fix in fixes)


def test_more_processes_than_nodes_need_their_ranks() -> None:
    """One launcher per node would start fewer processes than the job's."""
    environ = "AZUREML_CR_NODE_RANK=0 AZUREML_NODE_COUNT=3 NODE_RANK=0 MASTER_ADDR=10.0.0.20 WORLD_SIZE=6"
    with pytest.raises(EnvironmentUntrusted) as caught:
        plan(environ)
    (problem,) = caught.value.problems
    expected = "set RANK and LOCAL_RANK in each process, or pass --scope node if started once per node"
    assert (problem.code, problem.fix) == ("missing-variable", expected)


def test_the_line_with_hosts_makes_the_job() -> None:
    """What the refusals of `--nnodes 2` and of a number of nodes tell to type."""
    hosts = "10.0.0.4,10.0.0.5"
    assert plan("", nnodes="2", hosts=hosts).topology.node_rank == 1
    assert plan("AWS_BATCH_JOB_NUM_NODES=2", hosts=hosts).topology.node_rank == 1


TORCHRUN = (
    "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 GROUP_RANK=0 GROUP_WORLD_SIZE=1 "
    "MASTER_ADDR=localhost MASTER_PORT=29500 TORCHELASTIC_RUN_ID=none"
)
STEP = "SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_NODEID=1 SLURM_NNODES=2 SLURM_LOCALID=0"
MPICH = "PMI_RANK=0 PMI_SIZE=1"
MPIRUN = (
    "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2"
)
INNER = {"torchrun": TORCHRUN, "mpiexec": MPICH, "mpirun": MPIRUN}
SEVERAL = (
    STEP,
    "VC_TASK_INDEX=1 VC_WORKER_HOSTS=job-worker-0.job,job-worker-1.job VC_WORKER_NUM=2",
    "JOB_COMPLETION_INDEX=1",
    "JOB_COMPLETION_INDEX=0",
    "PET_NNODES=1:4 PET_RDZV_BACKEND=c10d PET_RDZV_ENDPOINT=job-worker-0:23456 PET_RDZV_ID=job",
    "PET_NNODES=2 PET_NODE_RANK=1 PET_MASTER_ADDR=job-master-0",
    "AWS_BATCH_JOB_NUM_NODES=2 AWS_BATCH_JOB_NODE_INDEX=0 AWS_BATCH_JOB_MAIN_NODE_INDEX=0",
    "LSB_MCPU_HOSTS='a 4 b 4'",
    "LSF_PM_TASKID=2 LSB_HOSTS='a here'",
    "AZ_BATCH_HOST_LIST=10.0.0.4,10.0.0.5 AZ_BATCH_MASTER_NODE=10.0.0.4:6000",
    "SKYPILOT_NODE_RANK=1 SKYPILOT_NUM_NODES=2",
    "SLURM_JOB_NUM_NODES=2 SLURM_JOB_NODELIST=n[0-1]",
    "PBS_NUM_NODES=2",
    "NNODES=2 NODE_RANK=1",
    "LAUNCHER_NNODES=2",
)
"""What states several nodes, from the second of them where it says which it is."""


@pytest.mark.parametrize("around", SEVERAL)
@pytest.mark.parametrize("starter", INNER)
def test_a_world_of_one_node_inside_several_is_refused(starter: str, around: str) -> None:
    """Each node would train alone: what started this process, or the number of nodes, is a mistake."""
    message = refused(f"{around} {INNER[starter]}")
    assert "[contradiction]" in message and "all run on this node" in message
    assert message.count("[") == 1, message  # the one cause
    assert "--nnodes 1" in message and f"instead of {starter}" in message
    assert "unset LAUNCHER_NNODES" not in message


@pytest.mark.parametrize("around", SEVERAL[:-1])
@pytest.mark.parametrize("starter", INNER)
def test_jobs_of_one_node_each_are_what_nnodes_1_says(starter: str, around: str) -> None:
    """The first way out: the user says that each node is a job of its own."""
    expected = ["2" if starter == "mpirun" else "1", "1"]
    environ, names = f"{around} {INNER[starter]}", ("WORLD_SIZE", "GROUP_WORLD_SIZE")
    assert seen(environ, *names, nnodes="1") == expected
    assert seen(f"{environ} LAUNCHER_NNODES=1", *names) == expected


def test_the_hook_warns_of_a_world_of_one_node_inside_several() -> None:
    """It changes nothing in a worker of torchrun."""
    for around, answer in (
        (STEP, {"refused": "[contradiction] environment"}),
        ("", {"scope": "process", "set": {}, "unset": [], "files": {}, "cpus": ()}),
    ):
        variables = dict(word.split("=", 1) for word in f"{around} {TORCHRUN}".split())
        host = replay({"environ": variables, "gpus": 0, "hostname": "here"})
        assert find_answer(host.environ, host, ("train.py",)) == answer


def test_a_worker_of_the_users_single_node_knows_that_word() -> None:
    """``launcher run --nnodes 1 --engine torchrun``: its workers start a launcher each, inside the step."""
    agent = plan(STEP, nnodes="1", source="manual", engine="torchrun").agent
    assert agent is not None
    assert ("LAUNCHER_NNODES", "1") in [(setting.name, setting.value) for setting in agent.settings]


@pytest.mark.parametrize(
    "around",
    [
        "SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_NODEID=0 SLURM_NNODES=1 SLURM_LOCALID=0",
        "PET_NNODES=1 PET_NODE_RANK=0 JOB_COMPLETION_INDEX=0",
        "AWS_BATCH_JOB_NUM_NODES=1 AWS_BATCH_JOB_NODE_INDEX=0 AWS_BATCH_JOB_MAIN_NODE_INDEX=0",
        "VC_TASK_INDEX=0 VC_WORKER_HOSTS=job-worker-0.job VC_WORKER_NUM=1",
        "SLURM_JOB_NUM_NODES=1 SLURM_JOB_NODELIST=n0",
        "NUM_PROCESSES=2 PMIX_RANK=1 OMPI_COMM_WORLD_NODE_RANK=1",
        "LSB_MCPU_HOSTS='a 4'",
    ],
)
@pytest.mark.parametrize("starter", INNER)
def test_a_world_of_one_node_inside_one_node_is_a_job(starter: str, around: str) -> None:
    """Numbers of processes are no statement of several nodes."""
    assert seen(f"{around} {INNER[starter]}", "GROUP_WORLD_SIZE") == ["1"]


def test_a_pod_of_the_trainers_jax_runtime_may_be_the_only_one() -> None:
    """The index of the only pod is 0, and the operator says that there is one."""
    pod = "JAX_NUM_PROCESSES=1 JAX_PROCESS_ID=0 JOB_COMPLETION_INDEX=0 KUBERNETES_SERVICE_HOST=10.96.0.1"
    assert seen(pod, "WORLD_SIZE") == ["1"]


STALE = (
    "OMPI_COMM_WORLD_RANK={} OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=0 "
    "OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_MCA_orte_hnp_uri='1.0;tcp://10.0.0.5:5' "
    "OMPI_MCA_orte_local_daemon_uri='1.{};tcp://{}:5' OMPI_MCA_orte_num_nodes=2"
)


@pytest.mark.parametrize(
    "stale",
    [
        "SLURM_JOB_NODELIST=old0",
        "SLURM_JOB_NODELIST=old[0-1] SLURM_JOB_NUM_NODES=2",
        "SLURM_JOB_ID=7 SLURM_JOB_NODELIST=other,here",
        "SLURM_JOB_ID=7 SLURM_NODELIST=old0 SLURM_JOB_NODELIST=old0 SLURM_STEP_ID=0",
    ],
)
def test_mpiruns_own_address_beats_a_list_of_slurm(stale: str) -> None:
    """The list can be of another job, from the shell in which mpirun was typed."""
    for rank, daemon, own in ((0, 0, "10.0.0.5"), (2, 1, "10.0.0.6")):
        environ = f"{STALE.format(rank, daemon, own)} {stale}"
        assert seen(environ, "MASTER_ADDR", own=own) == ["10.0.0.5"]


@pytest.mark.parametrize(
    "environ",
    [
        "MLP_WORKER_NUM=2 MLP_ROLE_INDEX=0 MLP_WORKER_0_HOST=10.0.0.4",
        "LWS_GROUP_SIZE=2 LWS_WORKER_INDEX=0 LWS_LEADER_ADDRESS=10.0.0.4",
        "PET_NNODES=2 PET_NODE_RANK=0 PET_MASTER_ADDR=10.0.0.4",
        "DSTACK_NODES_NUM=2 DSTACK_NODE_RANK=0 DSTACK_MASTER_NODE_IP=10.0.0.4",
        "RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=10.0.0.4",
    ],
)
def test_rank_0_is_not_on_another_node_than_its_own_address(environ: str) -> None:
    """The variables of node 0 are on all nodes: the others see that its address is not theirs."""
    assert "[contradiction]" in (message := refused(environ, own="10.0.0.5"))
    assert "rank 0 is here" in message and "10.0.0.4" in message
    assert seen(environ, "RANK", own="10.0.0.4") == ["0"]
    # An address translated on the way, or of another network, may lead here
    assert seen(environ, "RANK", own="10.9.0.5") == ["0"]


LOGIN = (
    "SLURM_STEP_ID=0 SLURM_PROCID={} SLURM_NTASKS=2 SLURM_NODEID={} SLURM_NNODES=2 SLURM_LOCALID=0 "
    "SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_STEP_NODELIST={} MASTER_ADDR={}"
)


@pytest.mark.parametrize("master", ["login1", "login1.cluster", "10.0.0.1", "n7"])
def test_rank_0_sees_that_the_master_is_no_node_of_its_step(master: str) -> None:
    """MASTER_ADDR=$(hostname) of the login node."""
    message = refused(LOGIN.format(0, 0, "here,n1", master))
    assert "[contradiction]" in message and master in message and "rank 0 is here" in message
    assert "MASTER_ADDR, or unset the wrong one" in message


def test_another_name_of_the_first_node_is_its_master() -> None:
    """A name in another network leads to this node: the resolver knows."""
    environ = dict(word.split("=", 1) for word in LOGIN.format(0, 0, "here,n1", "here-ib").split())
    host = replay(
        {
            "environ": environ,
            "gpus": 0,
            "hostname": "here",
            "addresses": {"ib0": ["10.1.0.5"]},
            "resolved": {"here-ib": ["10.1.0.5"]},
        }
    )
    made = plan_job(host.environ, host, read_options({}, host.environ), ("true",))
    assert made.topology.master_addr == "here-ib"


def test_a_contradiction_is_reported_once() -> None:
    """Also if a claim that its text quotes is left out: node_count of an outer job of 5 nodes."""
    inner = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=9 OMPI_COMM_WORLD_LOCAL_RANK=0"
    outer = "RANK=1 WORLD_SIZE=5 NUM_NODES=5 NODE_RANK=1 NUM_TRAINERS=1"
    with pytest.raises(EnvironmentUntrusted) as caught:
        plan(f"{inner} OMPI_COMM_WORLD_LOCAL_SIZE=1 {outer} {MASTER}")
    (problem,) = caught.value.problems
    assert problem.what == "OMPI_COMM_WORLD_SIZE='9' but WORLD_SIZE='5': one world_size expected"


@pytest.mark.parametrize("gpus", [0, 2])
def test_a_claim_that_is_left_out_contradicts_nothing(gpus: int) -> None:
    """horovodrun over 5 nodes, typed on a node of a cluster of 4: whatever else was looked at before."""
    inner = "HOROVOD_RANK=4 HOROVOD_SIZE=5 HOROVOD_LOCAL_RANK=0 HOROVOD_LOCAL_SIZE=1"
    nodes = "HOROVOD_CROSS_RANK=4 HOROVOD_CROSS_SIZE=5"
    made = plan(f"{inner} {nodes} SKYPILOT_NUM_NODES=4 {MASTER}", gpus=gpus)
    assert (made.topology.node_rank, made.topology.node_count, made.topology.world_size) == (4, 5, 5)
    assert any(note.startswith("SKYPILOT_NUM_NODES='4' is not used") for note in made.notes)


def test_a_local_rank_above_the_rank_among_all_processes_of_the_node_is_refused() -> None:
    """Open MPI counts those of all jobs of a node in OMPI_COMM_WORLD_NODE_RANK: none has a lower number."""
    names = {"RANK": 1, "SIZE": 12, "LOCAL_RANK": 2, "LOCAL_SIZE": 3, "NODE_RANK": 1}
    shuffled = " ".join(f"OMPI_COMM_WORLD_{name}={number}" for name, number in names.items())
    assert "OMPI_COMM_WORLD_NODE_RANK='1'" in refused(f"{shuffled} {MASTER}")
    later = shuffled.replace("NODE_RANK=1", "NODE_RANK=5")  # beside a job of other processes
    assert seen(f"{later} {MASTER}", "LOCAL_RANK") == ["2"]


@pytest.mark.parametrize("lost", ("LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"))
def test_a_worker_of_torchrun_is_on_the_node_of_its_group(lost: str) -> None:
    """NODE_RANK is passed on by what started torchrun; torchrun itself sets GROUP_RANK alone."""
    worker = (
        "RANK=3 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 GROUP_WORLD_SIZE=4 "
        "TORCHELASTIC_RUN_ID=none NODE_RANK=0"
    )
    environ = " ".join(word for word in worker.split() if not word.startswith(lost))
    assert seen(f"{environ} {MASTER}", "RANK", "NODE_RANK", "GROUP_RANK") == ["3", "1", "1"]


def test_pods_that_the_operator_of_pet_names_started_are_not_counted_by_world_size() -> None:
    pod = "KUBERNETES_SERVICE_HOST=10.96.0.1 RANK=0 WORLD_SIZE=4 MASTER_ADDR=here PET_MASTER_ADDR=here"
    assert "PET_NNODES" in refused(f"{pod} PET_NODE_RANK=0", gpus=2)


VC_EACH = "VC_MASTER_HOSTS=j-master-0.j VC_WORKER_HOSTS=j-worker-0.j VC_MASTER_NUM=1 VC_WORKER_NUM=1"


def test_tasks_of_one_pod_each_are_several_pods() -> None:
    """mpirun in each pod starts a world of its own."""
    assert "VC_" in refused(f"{VC_EACH} VC_TASK_INDEX=0 PMI_RANK=0 PMI_SIZE=1 MPI_LOCALRANKID=0")


def test_two_names_of_a_pods_index_agree() -> None:
    """The node rank's name is VK_TASK_INDEX in Azure ML's object, which may be another pod's."""
    hosts = '["j-0.j", "j-1.j"]'
    config = f'AZUREML_CR_DISTRIBUTED_CONFIG=\'{{"rank": "VK_TASK_INDEX", "host_list": {hosts}}}\''
    assert seen(f"{config} VK_TASK_INDEX=1 VC_TASK_INDEX=1", "NODE_RANK") == ["1"]
    assert "VK_TASK_INDEX" in refused(f"{config} VK_TASK_INDEX=1 VC_TASK_INDEX=0")


def test_a_world_size_that_is_not_volcanos_hides_no_pod() -> None:
    """Only with RANK is it the plugin's: without one it came from elsewhere, as did NODE_RANK."""
    hosts = "VC_MASTER_HOSTS=j-master-0.j VC_WORKER_HOSTS=here,j-worker-1.j VC_MASTER_NUM=1 VC_WORKER_NUM=2"
    assert seen(f"{hosts} VC_TASK_INDEX=0", "NODE_RANK") == ["1"]
    elsewhere = "WORLD_SIZE=3 NODE_RANK=2 NUM_NODES=3 MASTER_ADDR=j-master-0.j"
    assert "NODE_RANK='2'" in refused(f"{hosts} VC_TASK_INDEX=0 {elsewhere}")


@pytest.mark.parametrize(
    ("environ", "fix"),
    (
        (f"{HYDRA} {MASTER} HYDRA_BSTRAP_NODE_ID=1 LAUNCHER_NODE_RANK=0", "unset LAUNCHER_NODE_RANK\n"),
        (
            "AZ_BATCH_HOST_LIST=10.0.0.4,10.0.0.5 AZ_BATCH_MASTER_NODE=10.0.0.4:6000 SKYPILOT_NODE_RANK=0 "
            "SKYPILOT_NUM_NODES=2",
            "unset the wrong one, SKYPILOT_NODE_RANK or AZ_BATCH_HOST_LIST",
        ),
        ("NPROC_PER_NODE=2 RANK=0 WORLD_SIZE=2 VC_TASK_INDEX=2", "the wrong one, RANK or VC_TASK_INDEX"),
    ),
)
def test_a_contradiction_names_both_variables_and_no_way_that_goes_by_the_wrong_one(
    environ: str, fix: str
) -> None:
    """--source manual would go by LAUNCHER_NODE_RANK, which one image gives to all nodes."""
    assert fix in f"{refused(environ, own='10.0.0.5')}\n"


@pytest.mark.parametrize("rank", (0, 1))
def test_a_platforms_master_beats_the_nodes_own_name_for_itself(rank: int) -> None:
    """Each image or pod may say localhost: the host in a list of the platform is the same on all nodes."""
    step = SLURM.replace("PROCID=1", f"PROCID={rank}").replace("NODEID=1", f"NODEID={rank}")
    assert seen(f"{step} MASTER_ADDR=localhost", "RANK", "MASTER_ADDR") == [str(rank), "n0"]
    assert "[contradiction]" in refused(f"{OPEN_MPI} MASTER_ADDR=localhost")
    assert "[contradiction]" in refused(f"{step} LAUNCHER_MASTER_ADDR=localhost")


WORKER = "RANK=4 WORLD_SIZE=6 LOCAL_RANK=1"


@pytest.mark.parametrize(
    ("left", "node"),
    (
        ("LOCAL_WORLD_SIZE=3 GROUP_RANK=1 ROLE_RANK=4", "1"),
        ("GROUP_RANK=1", "1"),
        ("ROLE_RANK=4 ROLE_WORLD_SIZE=6", None),
    ),
)
def test_node_rank_beside_torchruns_names_is_about_what_started_torchrun(left: str, node: str | None) -> None:
    """Some of its variables passed into a container: it sets no NODE_RANK, so that one is inherited."""
    assert seen(f"{WORKER} {left} NODE_RANK=0 {MASTER}", "RANK", "NODE_RANK") == ["4", node]


def test_a_group_that_cannot_be_the_ranks_is_refused() -> None:
    """Node 0's GROUP_RANK in the processes of all nodes, beside a platform's own variables."""
    message = refused(f"{WORKER} GROUP_RANK=0 NODE_RANK=1 {MASTER}")
    assert "[contradiction] GROUP_RANK='0' but RANK='4' with LOCAL_RANK='1'" in message, message
    assert "[contradiction]" in refused(f"RANK=1 WORLD_SIZE=6 LOCAL_RANK=1 GROUP_RANK=1 {MASTER}")


def test_a_worker_of_torchrun_beside_an_mpirun_of_several_processes_has_its_group_as_node() -> None:
    """What an mpirun around it started several times is no torchrun of the whole node."""
    sizes = "RANK=7 WORLD_SIZE=10 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=3 GROUP_WORLD_SIZE=5"
    around = ["RANK=7", "SIZE=10", "LOCAL_RANK=1", "LOCAL_SIZE=2"]
    mpirun = " ".join(f"OMPI_COMM_WORLD_{word}" for word in around)
    assert seen(f"{sizes} TORCHELASTIC_RUN_ID=none NODE_RANK=0 {mpirun} {MASTER}", "NODE_RANK") == ["3"]


@pytest.mark.parametrize(("rank", "local_rank", "node"), ((0, 0, 0), (1, 0, 1), (3, 2, 1)))
def test_torchrun_in_one_of_several_ranks_of_a_node_is_refused_on_all(
    rank: int, local_rank: int, node: int
) -> None:
    """On a node with one rank both starters' numbers agree: its process would plan a port of its own."""
    sizes, first = (1, 3), rank - local_rank
    torchrun = (
        f"RANK={rank} WORLD_SIZE=4 LOCAL_RANK={local_rank} LOCAL_WORLD_SIZE={sizes[node]} GROUP_RANK={node} "
        "GROUP_WORLD_SIZE=2 MASTER_PORT=29400 TORCHELASTIC_RUN_ID=none"
    )
    around = [f"RANK={first}", "SIZE=4", "LOCAL_RANK=0", f"LOCAL_SIZE={sizes[node]}"]
    mpirun = " ".join(f"OMPI_COMM_WORLD_{word}" for word in around)
    environ, own = f"{torchrun} {mpirun} MASTER_ADDR=10.0.0.4", f"10.0.0.{4 + node}"
    message = refused(environ, own=own)
    assert message.count("[") == 1 and "--source torch_elastic" in message, message
    found = seen(environ, "RANK", "LOCAL_RANK", "MASTER_PORT", own=own, source="torch_elastic")
    assert found == [str(rank), str(local_rank), "29400"]


def test_older_versions_of_open_mpi_number_local_ranks_in_the_order_of_ranks() -> None:
    numbers = (f"OMPI_COMM_WORLD_{word}" for word in ["RANK=1", "SIZE=8", "LOCAL_RANK=2", "LOCAL_SIZE=4"])
    environ = f"{' '.join(numbers)} {MASTER}"
    assert seen(environ, "RANK", "LOCAL_RANK") == ["1", "2"]  # version 5, --map-by numa
    uri = "OMPI_MCA_orte_hnp_uri='1.0;tcp://10.0.0.4:5'"
    assert "OMPI_COMM_WORLD_LOCAL_RANK='2'" in refused(f"{environ} {uri}")


@pytest.mark.parametrize("wrong", ("CROSS_RANK=3", "CROSS_SIZE=9", "SIZE=2"))
def test_a_horovod_node_is_one_of_its_nodes_and_each_of_those_has_a_process(wrong: str) -> None:
    numbers = "RANK=1 SIZE=6 LOCAL_RANK=1 LOCAL_SIZE=2 CROSS_RANK=0 CROSS_SIZE=3"
    right = " ".join(f"HOROVOD_{word}" for word in numbers.split())
    assert seen(f"{right} {MASTER}", "RANK") == ["1"]
    name = f"HOROVOD_{wrong.partition('=')[0]}"
    environ = " ".join(word for word in right.split() if not word.startswith(f"{name}="))
    assert "HOROVOD_CROSS_SIZE" in refused(f"{environ} HOROVOD_{wrong} {MASTER}")


def test_azure_mls_task_index_is_the_rank_or_the_node() -> None:
    """It is that of the process that Azure ML started; a launcher inside of that sets another RANK."""
    job = f"RANK=2 WORLD_SIZE=4 LOCAL_RANK=0 NODE_RANK=1 AZUREML_NODE_COUNT=2 {MASTER}"
    master = "AZ_BATCHAI_MPI_MASTER_NODE=10.0.0.4"
    for index in (1, 2):
        assert seen(f"{job} {master} AZ_BATCHAI_TASK_INDEX={index}", "RANK") == ["2"]
    assert "AZ_BATCHAI_TASK_INDEX='3'" in refused(f"{job} {master} AZ_BATCHAI_TASK_INDEX=3")


def test_a_node_rank_is_the_place_of_this_node_in_the_list_beside_it() -> None:
    """One node's variables on all nodes: the list shows that this is another node."""
    hosts = "SKYPILOT_NODE_IPS='10.0.0.4\n10.0.0.5\n10.0.0.6' SKYPILOT_NUM_NODES=3"
    assert seen(f"{hosts} SKYPILOT_NODE_RANK=1", "NODE_RANK") == ["1"]
    assert "SKYPILOT_NODE_RANK='2'" in refused(f"{hosts} SKYPILOT_NODE_RANK=2")


def test_a_node_rank_that_fits_no_way_of_placing_so_many_processes_on_each_node_is_refused() -> None:
    job = f"NPROC_PER_NODE=1 RANK=2 WORLD_SIZE=3 LOCAL_RANK=0 {MASTER}"
    assert seen(f"{job} NODE_RANK=2", "NODE_RANK") == ["2"]
    assert "NODE_RANK='1'" in refused(f"{job} NODE_RANK=1")


def test_pet_node_rank_shows_an_operators_pod_whose_world_size_counts_processes() -> None:
    pod = "PET_NPROC_PER_NODE=2 PET_NODE_RANK=0 PET_MASTER_ADDR=here MASTER_ADDR=here RANK=0 WORLD_SIZE=2"
    assert "PET_NNODES" in refused(pod, gpus=2)


def test_a_pod_of_volcano_with_an_index_is_not_the_only_one() -> None:
    assert "VC_TASK_INDEX='1'" in refused("VC_MASTER_NUM=1 VC_TASK_INDEX=1")


def test_a_pods_name_in_volcanos_list_contradicts_another_pods_node_rank() -> None:
    hosts = "VC_TRAINER_HOSTS=j-0.j,here,j-2.j VC_TRAINER_NUM=3 VC_TASK_INDEX=1"
    assert seen(f"{hosts} {MASTER} RANK=1 WORLD_SIZE=3 LOCAL_RANK=0 NODE_RANK=1", "NODE_RANK") == ["1"]
    assert "NODE_RANK='2'" in refused(f"{hosts} {MASTER} RANK=2 WORLD_SIZE=3 LOCAL_RANK=0 NODE_RANK=2")


def test_slurms_counts_of_all_nodes_are_the_world_where_its_size_is_hidden() -> None:
    step = "SLURM_STEP_ID=0 SLURM_NODEID=1 SLURM_JOB_NODELIST=n[0-2]"
    assert "a rank" in refused(f"{step} SLURM_STEP_TASKS_PER_NODE=4,1,2")
    assert seen(f"{step} SLURM_STEP_TASKS_PER_NODE=1(x3)", "WORLD_SIZE") == ["3"]  # one on each


def test_another_jobs_pet_master_addr_does_not_make_processes_nodes() -> None:
    job = f"RANK=2 WORLD_SIZE=4 LOCAL_RANK=0 NODE_RANK=1 AZUREML_NODE_COUNT=2 {MASTER}"
    assert seen(f"{job} PET_MASTER_ADDR=other", "RANK", "WORLD_SIZE", gpus=2) == ["2", "4"]


@pytest.mark.parametrize("place", ["RANK=8 LOCAL_RANK=2", "RANK=5 LOCAL_RANK=1", "RANK=5 LOCAL_RANK=2"])
def test_the_mean_number_of_processes_on_a_node_does_not_prove_that_all_are_alike(place: str) -> None:
    """12 processes on 4 nodes may be 4 + 1 + 3 + 4: where 3 are, no quotient is the node's rank."""
    rank, local = (f"FLUX_TASK_{word}" for word in place.replace("LOCAL_RANK", "LOCAL_ID").split())
    sizes = "FLUX_JOB_SIZE=12 FLUX_JOB_NNODES=4 LOCAL_WORLD_SIZE=3"
    assert seen(f"{rank} {local} {sizes} {MASTER}", "NODE_RANK", "WORLD_SIZE") == [None, "12"]


def test_of_two_nodes_one_with_half_of_the_processes_shows_the_other() -> None:
    environ = f'{LAST} {MASTER} SM_HOSTS=\'["algo-1", "algo-2"]\''
    assert seen(environ, "NODE_RANK") == ["1"]


def test_a_master_of_another_task_shows_that_its_task_is_not_listed() -> None:
    """The list of Volcano's workers is not the whole job where MASTER_ADDR is a pod of the masters."""
    workers = "VC_WORKER_HOSTS=job-worker-0.job,job-worker-1.job VC_WORKER_NUM=2 VC_TASK_INDEX=1"
    variables = dict(word.split("=", 1) for word in f"{workers} MASTER_ADDR=job-master-0.job".split())
    host = replay({"environ": variables, "hostname": "job-worker-1", "addresses": {}})
    with pytest.raises(EnvironmentUntrusted, match="can't tell which node"):
        plan_job(host.environ, host, read_options({}, host.environ), ("true",))


def test_of_a_users_two_numbers_of_nodes_either_may_be_the_wrong_one() -> None:
    """WORLD_SIZE counts pods for an operator, and processes for a user: only the user knows whose it is."""
    pod = "RANK=0 WORLD_SIZE=4 KUBERNETES_SERVICE_HOST=10.96.0.1 JOB_COMPLETION_INDEX=0 LAUNCHER_NNODES=2"
    assert "unset the wrong one, LAUNCHER_NNODES or WORLD_SIZE" in refused(f"{pod} MASTER_ADDR=10.0.0.5")


def test_a_worker_of_torchrun_without_its_rank_has_no_outer_ones() -> None:
    worker = "LOCAL_RANK=0 LOCAL_WORLD_SIZE=4 GROUP_RANK=0 GROUP_WORLD_SIZE=1 TORCHELASTIC_RUN_ID=none"
    outer = "SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=1"
    assert "a rank and a world size" in refused(f"{worker} MASTER_PORT=29400 {MASTER} {outer}")


def test_a_steps_variables_without_its_id_are_a_tasks() -> None:
    """SLURM_TASKS_PER_NODE is a request in a batch script, but a task's own count beside a step's lists."""
    count = "SLURM_TASKS_PER_NODE=2 SLURM_JOB_NUM_NODES=1"
    assert seen(count, "WORLD_SIZE", gpus=1) == ["1"]
    text = refused(f"{count} SLURM_STEP_NUM_NODES=1 SLURM_STEP_NODELIST=n1", gpus=2)
    assert "SLURM_TASKS_PER_NODE='2'" in text and "--nnodes 1 if each task is a separate job" in text


def test_a_number_of_nodes_alone_does_not_make_a_process_a_launcher_per_node() -> None:
    """Two of mpiexec's processes are here, and both would be node 3."""
    assert "rank of this one is missing" in refused(f"MPI_LOCALNRANKS=2 NODE_RANK=3 {MASTER}", nnodes="4")


def test_a_process_with_a_local_rank_is_no_operators_launcher_per_node() -> None:
    environ = f"{AZURE_ML.replace('WORLD_SIZE=2', 'WORLD_SIZE=4')} {MASTER} PET_NODE_RANK=1 NODE_RANK=1"
    assert seen(environ.replace("RANK=1 W", "RANK=2 W"), "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE") == [
        "2",
        "4",
        "2",
    ]


def test_a_name_that_only_pmix_gives_shows_a_process_of_a_starter() -> None:
    """Rank 0's master is itself: without the sign it would train alone."""
    assert "PMIX_HOSTNAME" in refused("AZ_BATCHAI_MPI_MASTER_NODE=10.0.0.5 PMIX_HOSTNAME=here")
