"""Environment variables that Azure sets: Azure Batch, and Azure ML on top of it.

Names and formats come from the vendor's pages (Azure Batch compute node environment variables; Azure Machine
Learning distributed GPU training guide) and from published dumps. The values are made up. Secrets, such as
tokens and signed URLs, are left out.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.rehearse.nodes import Node

BATCH_PORT = 6000
"""Port of AZ_BATCH_MASTER_NODE, reserved for the Batch service: a job that uses it fails."""
MASTER_PORT = 6105
TENSORFLOW_PORT = 2222
RUN = "rehearsal_1700000000_0a1b2c3d"
WORKSPACE = "00000000-0000-4000-8000-000000000000"
WORK = "/mnt/batch/tasks/workitems/batchjob001/job-1/task001"


def batch(nodes: Sequence[Node], node: Node) -> dict[str, str]:
    """Return the variables of an Azure Batch multi-instance task on one node."""
    addresses = [other.address for other in nodes]
    first = node.index == 0
    return {
        "AZ_BATCH_ACCOUNT_NAME": "mybatchaccount",
        "AZ_BATCH_JOB_ID": "batchjob001",
        "AZ_BATCH_NODE_ID": _node_id(node),
        "AZ_BATCH_NODE_IS_DEDICATED": "true",
        "AZ_BATCH_NODE_SHARED_DIR": "/mnt/batch/tasks/shared",
        "AZ_BATCH_POOL_ID": "batchpool001",
        "AZ_BATCH_TASK_ID": "task001",
        "AZ_BATCH_TASK_SHARED_DIR": WORK,
        "AZ_BATCH_TASK_WORKING_DIR": f"{WORK}/wd",
        "AZ_BATCH_HOST_LIST": ",".join(addresses),
        "AZ_BATCH_NODE_LIST": ";".join(addresses),
        "AZ_BATCH_IS_CURRENT_NODE_MASTER": "true" if first else "false",
        "CCP_NODES": " ".join([str(len(nodes)), *(f"{address} 1" for address in addresses)]),
        **_batch_master(nodes),
    }


def machine_learning(nodes: Sequence[Node]) -> dict[str, str]:
    """Return the variables that Azure ML sets to the same values on all nodes of a job."""
    master = nodes[0].address
    return {
        "AZUREML_ARM_PROJECT_NAME": "rehearsal",
        "AZUREML_ARM_RESOURCEGROUP": "rehearsal-group",
        "AZUREML_ARM_SUBSCRIPTION": WORKSPACE,
        "AZUREML_ARM_WORKSPACE_NAME": "rehearsal-workspace",
        "AZUREML_EXPERIMENT_ID": WORKSPACE,
        "AZUREML_NODE_COUNT": str(len(nodes)),
        "AZUREML_PARAMETER_Node_Count": str(len(nodes)),
        "AZUREML_ROOT_RUN_ID": RUN,
        "AZUREML_RUN_ID": RUN,
        "AZUREML_TARGET_TYPE": "batchai",
        "AZUREML_WORKSPACE_ID": WORKSPACE,
        "AZ_BATCHAI_CLUSTER_NAME": "rehearsal-cluster",
        "AZ_BATCHAI_JOB_MASTER_NODE_IP": master,
        "AZ_BATCHAI_MPI_MASTER_NODE": master if len(nodes) > 1 else "localhost",
        **_batch_master(nodes),
    }


def machine_learning_node(nodes: Sequence[Node], node: Node, task_index: int) -> dict[str, str]:
    """Return the variables that Azure ML sets on one node, unless it starts the job by mpirun.

    Args:
        nodes: All nodes.
        node: The node.
        task_index: Index of the process in the job: AZ_BATCHAI_TASK_INDEX counts processes.
    """
    return {
        **machine_learning(nodes),
        "AZUREML_CR_NODE_RANK": str(node.index),
        "AZ_BATCHAI_IS_CURRENT_NODE_MASTER": "true" if node.index == 0 else "false",
        "AZ_BATCHAI_TASK_INDEX": str(task_index),
        "AZ_BATCH_NODE_ID": _node_id(node),
    }


def pytorch(nodes: Sequence[Node], node: Node, local_rank: int, local_size: int) -> dict[str, str]:
    """Return the variables of Azure ML's PyTorch distribution.

    ``local_size`` is process_count_per_instance of the job. Its default is 1. RANK and WORLD_SIZE then count
    nodes, although one process per GPU must run.
    """
    rank = node.index * local_size + local_rank
    return {
        **machine_learning_node(nodes, node, rank),
        "MASTER_ADDR": nodes[0].address,
        "MASTER_PORT": str(MASTER_PORT),
        "NODE_RANK": str(node.index),
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(len(nodes) * local_size),
    }


def tensorflow(nodes: Sequence[Node], node: Node) -> dict[str, str]:
    """Return the variables of Azure ML's TensorFlow distribution, with workers only."""
    config = {
        "cluster": {"worker": [f"{other.address}:{TENSORFLOW_PORT}" for other in nodes]},
        "task": {"type": "worker", "index": node.index},
        "environment": "cloud",
    }
    own = machine_learning_node(nodes, node, node.index)
    return {**own, "TF_CONFIG": json.dumps(config, separators=(",", ":"))}


def _batch_master(nodes: Sequence[Node]) -> dict[str, str]:
    """Return the variable that names the master, which Batch sets only for several nodes."""
    if len(nodes) == 1:
        return {}
    return {"AZ_BATCH_MASTER_NODE": f"{nodes[0].address}:{BATCH_PORT}"}


def _node_id(node: Node) -> str:
    return f"tvm-1219235766_{node.index + 1}-20261121t090000z"
