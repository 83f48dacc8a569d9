"""Who stands where in every case: written by hand from how the job was started, never from a plan.

One row per job: how often the launcher was started, the number of processes, the master, and for each
start what it stands for, as ``node.local_rank=rank`` (``?`` where nothing tells the node), or what a task
without a rank is called. A start
that must be refused has its exit status and the codes of what is wrong instead.
"""

from __future__ import annotations

from typing import NamedTuple


class Job(NamedTuple):
    """The truth about a job; starts are separated by ``|`` and stand in the order of the case."""

    scope: str
    world: int | None
    master: str
    starts: str


class Refused(NamedTuple):
    """A job of which no start gets a plan: exit status, and the codes of the problems."""

    status: int
    codes: str


AT_START, SPARE = "ranks at the start", "spare"
P2X2 = "0.0=0 | 0.1=1 | 1.0=2 | 1.1=3"
P2X2_LAST_UNPROVEN = "0.0=0 | 0.1=1 | 1.0=2 | ?.1=3"
CYCLIC = "0.0=0 | 1.0=1 | 0.1=2 | 1.1=3"
UNEVEN = "0.0=0 | 0.1=1 | 0.2=2 | 1.0=3"
UNKNOWN = "?.0=0 | ?.1=1 | ?.0=2 | ?.1=3"
P1X1 = "0.0=0 | 1.0=1"
N2X2 = "0.0=0 0.1=1 | 1.0=2 1.1=3"
N3X2 = N2X2 + " | 2.0=4 2.1=5"
N2X4 = "0.0=0 0.1=1 0.2=2 0.3=3 | 1.0=4 1.1=5 1.2=6 1.3=7"
P2X4 = "0.0=0 | 0.1=1 | 0.2=2 | 0.3=3 | 1.0=4 | 1.1=5 | 1.2=6 | 1.3=7"
ONE = "0.0=0"
TWO = "0.0=0 0.1=1"
EIGHT = "0.0=0 0.1=1 0.2=2 0.3=3 0.4=4 0.5=5 0.6=6 0.7=7"
N2X8 = EIGHT + " | 1.0=8 1.1=9 1.2=10 1.3=11 1.4=12 1.5=13 1.6=14 1.7=15"
SAGEMAKER = " | ".join(" ".join(f"{node}.{i}={8 * node + i}" for i in range(8)) for node in range(11))
A, B = "10.77.0.4:6105", "nodeA:6105"
HEAD, FIRST = "10.77.0.10:6105", "node1:6105"
AZ, POD = "10.0.0.4:6105", "job-worker-0.job.svc:6105"
LOCAL = "127.0.0.1:6105"
CONTRADICTION = Refused(78, "contradiction")
NO_MASTER = Refused(78, "missing-variable")
NO_IDENTITY = Refused(78, "no-identity")
MALFORMED = Refused(78, "malformed-variable")

TRUTH: dict[str, Job | Refused] = {
    # Open MPI
    "openmpi_4.1.4_debian_2x2": Job("process", 4, A, P2X2),
    "openmpi_4.1.4_debian_hosts_reversed": Job("process", 4, HEAD, P2X2),
    "openmpi_4.1.4_debian_mpirun_elsewhere": NO_MASTER,
    "openmpi_4.1.4_debian_mpirun_elsewhere_master_addr": Job("process", 4, FIRST, P2X2),
    "openmpi_4.1.4_debian_uneven_3_1": Job("process", 4, HEAD, UNEVEN),
    "openmpi_4.1.8_2x2": Job("process", 4, A, P2X2),
    "openmpi_4.1.8_hosts_reversed": Job("process", 4, HEAD, P2X2),
    "openmpi_4.1.8_map_by_node": Job("process", 4, A, CYCLIC),
    "openmpi_4.1.8_mpirun_elsewhere": NO_MASTER,
    "openmpi_4.1.8_mpirun_elsewhere_master_addr": Job("process", 4, FIRST, P2X2),
    "openmpi_4.1.8_one_per_node": Job("process", 2, A, P1X1),
    "openmpi_4.1.8_one_per_node_gpus4": Job("node", 8, A, N2X4),
    "openmpi_4.1.8_one_per_node_scope_process": Job("process", 2, A, P1X1),
    "openmpi_4.1.8_single": Job("process", 1, LOCAL, ONE),
    "openmpi_4.1.8_uneven_3_1": Job("process", 4, HEAD, UNEVEN),
    "openmpi_4.1.8_uneven_3_1_gpus4": Job("process", 4, HEAD, UNEVEN),
    "openmpi_5.0.11_2x2": Job("process", 4, B, P2X2_LAST_UNPROVEN),
    "openmpi_5.0.11_hosts_reversed": NO_MASTER,
    "openmpi_5.0.11_hosts_reversed_master_addr": Job("process", 4, FIRST, UNKNOWN),
    "openmpi_5.0.11_hosts_reversed_one_per_node_gpus4": Job("node", 8, FIRST, N2X4),
    "openmpi_5.0.11_map_by_node": Job("process", 4, "node0:6105", "0.0=0 | 1.0=1 | 0.1=2 | ?.1=3"),
    "openmpi_5.0.11_mpirun_elsewhere": NO_MASTER,
    "openmpi_5.0.11_mpirun_elsewhere_master_addr": Job("process", 4, FIRST, UNKNOWN),
    "openmpi_5.0.11_one_per_node": Job("process", 2, B, P1X1),
    "openmpi_5.0.11_one_per_node_gpus4": Job("node", 8, B, N2X4),
    "openmpi_5.0.11_single": Job("process", 1, LOCAL, ONE),
    "openmpi_5.0.11_single_gpus8": Job("node", 8, LOCAL, EIGHT),
    "openmpi_5.0.11_uneven_3_1": Job("process", 4, "node0:6105", UNEVEN),
    "openmpi_5.0.11_uneven_3_1_gpus4": Job("process", 4, "node0:6105", UNEVEN),
    # MPICH and Intel MPI
    "mpich_5.0.2_2x2": NO_MASTER,
    "mpich_5.0.2_2x2_master_addr": Job("process", 4, A, UNKNOWN),
    "mpich_5.0.2_2x2_parents": Job("process", 4, "node0:6105", P2X2),
    "mpich_5.0.2_cyclic": Job("process", 4, "node0:6105", CYCLIC),
    # Ranks 2 and 3 cannot see that mpiexec's node has no ranks; rank 0 can, and ends the job
    "mpich_5.0.2_mpiexec_not_a_worker": Job(
        "process", 4, "node0:6105", "78 missing-variable | 78 missing-variable | 1.0=2 | 1.1=3"
    ),
    "mpich_5.0.2_mpiexec_not_a_worker_master_addr": Job("process", 4, FIRST, P2X2),
    "mpich_5.0.2_pmi_port": Refused(78, "missing-variable"),
    "mpich_5.0.2_ppn_1": Job("process", 2, "node0:6105", P1X1),
    "mpich_5.0.2_ppn_1_gpus4": Job("node", 8, "node0:6105", N2X4),
    "mpich_5.0.2_ppn_1_wrap": Job("process", 4, "node0:6105", CYCLIC),
    "mpich_5.0.2_uneven_3_1_gpus4": Job("process", 4, "node0:6105", UNEVEN),
    "intelmpi_2021.13.1_2x2": NO_MASTER,
    "intelmpi_2021.13.1_2x2_master_addr": Job("process", 4, A, P2X2),
    "intelmpi_2021.18.1_mpiexec_not_a_worker": NO_MASTER,
    "intelmpi_2021.18.1_one_per_node": Job("process", 2, "node0:6105", P1X1),
    "intelmpi_2021.18.1_one_per_node_gpus4": Job("node", 8, "node0:6105", N2X4),
    "intelmpi_2021.18.1_ppn_1_wrap": Job("process", 4, "node0:6105", CYCLIC),
    # Slurm
    "slurm_22.05_2x2": Job("process", 4, B, P2X2),
    "slurm_22.05_arbitrary": NO_MASTER,
    "slurm_22.05_batch_script": Refused(78, "no-identity"),
    "slurm_22.05_batch_script_flags": Job("node", 4, B, TWO),
    "slurm_22.05_batch_script_one_node": Job("node", 8, LOCAL, EIGHT),
    "slurm_22.05_cyclic": Job("process", 4, "node0:6105", CYCLIC),
    "slurm_22.05_mpirun": Job("process", 4, A, P2X2),
    "slurm_22.05_one_per_node": Job("process", 2, B, P1X1),
    "slurm_22.05_one_per_node_gpus4": Job("node", 8, B, N2X4),
    "slurm_22.05_one_per_node_gpus_hidden": Job("process", 2, B, P1X1),
    "slurm_22.05_pmi2": Job("process", 4, "node0:6105", P2X2),
    "slurm_22.05_salloc_interactive_step": Refused(78, "no-identity"),
    "slurm_22.05_salloc_shell": Refused(78, "no-identity"),
    "slurm_22.05_uneven_3_1": Job("process", 4, "node0:6105", UNEVEN),
    # torchrun, and this launcher itself
    "torchrun_2.15_c10d_2x2": Job("process", 4, "nodeA:36271", P2X2),
    "torchrun_2.15_inside_srun_and_mpirun": Job("process", 4, A, P2X2),
    "torchrun_2.15_static_2x2": Job("process", 4, A, P2X2),
    "torchrun_left_over": Job("node", 2, LOCAL, TWO),
    "launcher_inside_launcher": Job("process", 4, A, P2X2),
    "mpirun_inside_launcher": Job("process", 2, LOCAL, "0.0=0 | 0.1=1"),
    "launcher_inside_launcher_node_unknown": Job("process", 4, A, UNKNOWN),
    # Azure Batch and Batch AI
    "azure_batch_2_nodes": Job("node", 2, AZ, P1X1),
    "azure_batch_2_nodes_gpus8": Job("node", 16, AZ, N2X8),
    "azure_batch_3_nodes": Job("node", 6, AZ, N2X2 + " | 2.0=4 2.1=5"),
    "azure_batch_3_nodes_address_unknown": Job("node", 3, AZ, "0.0=0 | 78 no-identity | 78 no-identity"),
    "azure_batch_master_second": Job("node", 2, AZ, P1X1),
    "azure_batch_mpirun": Job("process", 4, A, P2X2_LAST_UNPROVEN),
    "azure_batch_single_node": Job("node", 4, LOCAL, "0.0=0 0.1=1 0.2=2 0.3=3"),
    "batch_ai_tensorflow": Refused(78, "tf-config-master"),
    "batch_ai_tensorflow_corrected": Job("process", 2, AZ, P1X1),
    "batch_ai_worker_hosts": Job("process", 2, AZ, P1X1),
    # Azure ML
    "azureml_common_runtime_2_nodes": Job("node", 8, POD, N2X4),
    "azureml_common_runtime_2_nodes_no_machine": Job("node", 8, POD, N2X4),
    "azureml_common_runtime_pytorch_2x4": Job("process", 8, POD, P2X4),
    "azureml_common_runtime_pytorch_per_node": Job("node", 8, POD, N2X4),
    "azureml_itp_master_ip": Job("process", 4, A, P2X2),
    "azureml_kubernetes_1_pod": Job(
        "node",
        1,
        "azureml-workloads-8b2821ccdc9c9fb818502c0e69b96572-worker-0."
        "azureml-workloads-8b2821ccdc9c9fb818502c0e69b96572.azureml-workloads.svc.cluster.local:6105",
        ONE,
    ),
    "azureml_kubernetes_volcano_2_pods": Job("node", 4, "job-worker-0.job:6105", N2X2),
    "azureml_mpi_2x2": Job("process", 4, A, P2X2),
    "azureml_mpi_map_by_node": Job("process", 4, A, CYCLIC),
    "azureml_mpi_one_per_node_gpus4": Job("node", 8, A, N2X4),
    "azureml_pytorch_2x4": Job("process", 8, AZ, P2X4),
    "azureml_pytorch_2x4_six_alone": Job("process", 8, AZ, P2X4),
    "azureml_pytorch_2x4_six_alone_gpus4": Job(
        "process", 8, AZ, P2X4.replace("0.0=0", "78 ambiguous-scope", 1)
    ),
    "azureml_pytorch_per_node": Job("process", 2, AZ, P1X1),
    "azureml_pytorch_per_node_gpus4": Job("node", 8, AZ, N2X4),
    "azureml_pytorch_per_node_scope_node": Job("node", 8, AZ, N2X4),
    # Node 1 of one process each, or a node of several to which ranks are dealt: the six names are the same
    "azureml_pytorch_per_node_six_alone_gpus4": Refused(78, "ambiguous-scope"),
    "azureml_tensorflow_2_workers": Job("process", 2, "host0:6105", P1X1),
    # Kubeflow
    "kubeflow_jaxjob": Job("process", 2, "job-worker-0:6105", P1X1),
    "kubeflow_mpijob_launcher_pod": Refused(78, "no-identity"),
    "kubeflow_mpijob_one_per_node_gpus4": Job("node", 8, FIRST, N2X4),
    "kubeflow_pytorch_operator": Job("node", 8, "job-master-0:23456", N2X4),
    "kubeflow_pytorch_operator_localhost": Job("node", 2, "job-master-0:23456", P1X1),
    "kubeflow_pytorchjob_auto": Job("node", 8, "job-master-0:23456", N2X4),
    "kubeflow_pytorchjob_elastic": Job("node", None, "job-worker-0:23456", AT_START),
    "kubeflow_pytorchjob_elastic_fixed": Job("node", 8, "job-worker-0:23456", f"{AT_START} | {AT_START}"),
    "kubeflow_pytorchjob_gpus4": Job("node", 8, "job-master-0:23456", N2X4),
    "kubeflow_tfjob": Job("process", 2, "job-worker-0.ns.svc:6105", P1X1 + " | ps 0"),
    "kubeflow_tfjob_dynamic": Refused(78, "tf-config-sparse"),
    "kubeflow_trainer_v2": Job("node", 4, "job-node-0-0.job:29500", N2X2),
    "kubeflow_trainer_v2_cpus": Job("node", 8, "job-node-0-0.job:29500", N2X4),
    "kubeflow_trainer_v2_jax": Job("process", 2, "job-node-0-0.job:6105", P1X1),
    "refused_trainer_v2_xgboost": NO_IDENTITY,
    "refused_trainer_v2_torchtune": NO_MASTER,
    "refused_mpijob_launcher_pod": NO_IDENTITY,
    # Clouds
    "sagemaker_11_hosts": Job("node", 88, "algo-1:6105", SAGEMAKER),
    "sagemaker_mpirun_2_hosts": Job("process", 2, "algo-1:6105", P1X1),
    # Flux tells no task its node, and names no host; 4 tasks on 2 nodes may stand as 2 and 2 or as 3 and 1
    "flux_2x2": Job("process", 4, AZ, UNKNOWN),
    "flux_uneven_2_1": Job("process", 3, AZ, "?.0=0 | ?.1=1 | ?.0=2"),
    "flux_gpus_per_task": Job("process", 4, AZ, UNKNOWN),
    "flux_one_node": Job("process", 2, LOCAL, "0.0=0 | 0.1=1"),
    "flux_one_per_node_8_gpus": Job("node", 16, AZ, N2X8),
    "refused_flux_without_master": NO_MASTER,
    "alibaba_pai_2_nodes": Job("node", 8, "dlc1abc-master-0:23456", N2X4),
    "baidu_aihc_2_nodes": Job("node", 4, "job-master-0:23456", N2X2),
    "leaderworkerset_2_pods": Job("node", 4, "train-0.train.default:6105", N2X2),
    "runpod_2_nodes": Job("node", 4, "10.3.0.4:29500", N2X2),
    "lepton_2_workers": Job("node", 4, "job-worker-0.job-svc:6105", N2X2),
    "volcengine_2_nodes": Job("node", 4, "worker-0:2222", N2X2),
    "vertex_ai_3_replicas": Job("node", 6, "cmle-training-workerpool0-abc-0:2222", N3X2),
    "vertex_ai_one_replica": Job("node", 2, LOCAL, TWO),
    "vertex_ai_reduction_server": Job("node", 4, "cmle-training-workerpool0-abc-0:2222", N2X2),
    "refused_vertex_ai_reducer": NO_IDENTITY,
    # Rank 0 is on the main node; the others follow in their order
    "aws_batch_main_second": Job("node", 6, "10.4.0.5:6105", N3X2),
    "aws_batch_one_node": Job("node", 2, LOCAL, TWO),
    # Volcano
    "volcano_pytorch_3_pods": Job("node", 6, "job-master-0.job:23456", N3X2),
    "volcano_pytorch_tensorboard": Job("node", 6, "job-master-0.job:23456", N3X2),
    "volcano_master_2_workers": Job("node", 6, "job-master-0.job:6105", N3X2),
    "volcano_one_task": Job("node", 4, "job-trainer-0.job:6105", N2X2),
    "volcano_modelarts": Job("node", 8, "modelarts-job-worker-0.job:6105", N2X4),
    "refused_volcano_name_unknown": NO_IDENTITY,
    # Kubernetes without an operator
    "indexed_job_2_pods": Job("node", 4, "train-0.train.ns.svc.cluster.local:6105", N2X2),
    "indexed_job_master_addr": Job("node", 4, "10.5.0.4:6105", N2X2),
    "indexed_job_each_alone": Job("node", 2, LOCAL, TWO),
    "refused_indexed_job": NO_IDENTITY,
    # The pods of the second Job have the first one's indices
    "jobset_2_jobs": Job("node", 4, "set-work-0-0.set:6105", P1X1 + " | 78 no-identity | 78 no-identity"),
    # horovodrun: only the first process of a node is told which node it is
    "horovodrun_2x2": Job("process", 4, "10.6.0.4:6105", "0.0=0 | ?.1=1 | 1.0=2 | ?.1=3"),
    "horovodrun_uneven_2_1": Job("process", 3, "10.6.0.4:6105", "0.0=0 | ?.1=1 | 1.0=2"),
    "refused_horovodrun_without_master": NO_MASTER,
    # LSF and PBS
    "lsf_blaunch_2_hosts": Job("node", 4, "grid03:6105", N2X2),
    "mvapich_2x2": Job("process", 4, AZ, UNKNOWN),
    "lsf_jsrun_2x2": Job("process", 4, "h1:6105", P2X2),
    "lsf_one_host_8_slots": Job("node", 2, LOCAL, TWO),
    "refused_lsf_script": NO_IDENTITY,
    "pals_2x2": Job("process", 4, "nid000001:6105", P2X2),
    "pals_one_per_node_2_gpus": Job("node", 4, "nid000001:6105", N2X2),
    "refused_pals_without_master": NO_MASTER,
    "pbs_one_host": Job("node", 2, LOCAL, TWO),
    "refused_pbs_script": NO_IDENTITY,
    "skypilot_2_nodes": Job("node", 8, "10.1.0.4:6105", N2X4),
    # One machine, or flags
    "defaults_of_a_fleet": Job("node", 4, LOCAL, "0.0=0 0.1=1 0.2=2 0.3=3"),
    "defaults_below_a_platform": Job("node", 2, "127.0.0.1:23456", TWO),
    "defaults_of_a_fleet_two_nodes": Job("node", 4, "10.0.0.4:29500", N2X2.partition(" | ")[0]),
    "refused_defaults_of_a_fleet": Refused(64, "malformed-config malformed-flag"),
    "flags_2_nodes": Job("node", 4, "10.77.0.4:29400", N2X2),
    "flags_3_nodes_and_a_spare": Job("node", 3, A, "0.0=0 | 1.0=1 | 2.0=2 | spare"),
    "flags_as_variables_2_nodes": Job("node", 4, A, N2X2),
    "flags_beat_azure_batch": Job("node", 4, "node0.example:7000", N2X2),
    "module_command": Job("node", 1, LOCAL, ONE),
    "plain_1_gpu": Job("node", 1, LOCAL, ONE),
    "bind_nd96_h200_v5": Job("node", 8, LOCAL, EIGHT),
    "bind_openmpi_5.0.11_nd96_v4": Job("node", 16, B, N2X8),
    "plain_8_gpus": Job("node", 8, LOCAL, EIGHT),
    "plain_8_gpus_two_per_process": Job("node", 4, LOCAL, "0.0=0 0.1=1 0.2=2 0.3=3"),
    "plain_8_gpus_two_visible": Job("node", 2, LOCAL, TWO),
    "plain_empty_variables": Job("node", 2, LOCAL, TWO),
    "plain_master_port_set": Job("node", 1, "localhost:29500", ONE),
    "plain_no_gpu": Job("node", 1, LOCAL, ONE),
    "plain_world_of_one": Job("process", 1, "localhost:29500", ONE),
    "program_command": Job("node", 2, LOCAL, TWO),
    # Refusals
    "refused_batch_lists_disagree": CONTRADICTION,
    "refused_everything_at_once": Refused(78, "contradiction malformed-variable"),
    "refused_host_list_against_nnodes": CONTRADICTION,
    "refused_node_rank_forwarded": CONTRADICTION,
    "refused_node_rank_left_over": CONTRADICTION,
    "refused_world_of_one_left_over": Refused(78, "no-identity"),
    "refused_master_flag_alone": Refused(78, "no-identity"),
    "refused_slurm_in_docker": NO_IDENTITY,
    "refused_slurm_step_left_out": Refused(78, "no-identity"),
    "refused_platform_without_source": Refused(78, "no-identity"),
    "refused_rank_0_off_the_master": CONTRADICTION,
    "refused_malformed_flags": Refused(64, "malformed-flag"),
    "refused_malformed_numbers": MALFORMED,
    "refused_master_alone": Refused(78, "no-identity"),
    "refused_master_localhost": CONTRADICTION,
    "refused_master_localhost_openmpi": CONTRADICTION,
    "refused_no_master": NO_MASTER,
    "refused_node_count_alone": Refused(78, "missing-variable"),
    "refused_node_rank_outside": CONTRADICTION,
    "refused_nodes_without_master": NO_MASTER,
    "refused_nproc_against_mpirun": CONTRADICTION,
    "refused_rank_against_hydra": CONTRADICTION,
    "refused_rank_against_open_mpi": Job(
        "process", 4, A, "0.0=0 | 78 contradiction | 78 contradiction | 78 contradiction"
    ),
    "refused_rank_against_slurm": CONTRADICTION,
    "refused_rank_outside_world": CONTRADICTION,
    "refused_too_few_gpus": Refused(78, "too-few-gpus"),
    "refused_world_counts_nodes": CONTRADICTION,
    "refused_world_counts_nodes_alone": CONTRADICTION,
    "refused_worlds_disagree": CONTRADICTION,
}
