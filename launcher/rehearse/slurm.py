"""Environment variables that srun sets for a task; names and formats were captured from Slurm 22.05.

The tasks are simulated, and the Slurm daemons are not started. They need a configuration, a key and some
seconds, and a task sees nothing of them except these variables.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.rehearse.nodes import Node

JOB_ID = "7"
CONTROL_PORT = "34011"


def task(nodes: Sequence[Node], node: Node, local_rank: int, local_size: int) -> dict[str, str]:
    """Return the variables of one task of ``srun -N<nodes> --ntasks-per-node=<local_size>``."""
    first = node.index * local_size
    return {
        **_job(nodes, local_size),
        **_step(nodes, local_size),
        "SLURMD_NODENAME": node.hostname,
        "SLURM_GTIDS": ",".join(str(first + index) for index in range(local_size)),
        "SLURM_LOCALID": str(local_rank),
        "SLURM_NODEID": str(node.index),
        "SLURM_PROCID": str(first + local_rank),
        "SLURM_TOPOLOGY_ADDR": node.hostname,
        "SLURM_TOPOLOGY_ADDR_PATTERN": "node",
    }


def _job(nodes: Sequence[Node], local_size: int) -> dict[str, str]:
    count, names = str(len(nodes)), nodelist(nodes)
    return {
        "SLURM_CLUSTER_NAME": "rehearsal",
        "SLURM_CPUS_ON_NODE": str(local_size),
        "SLURM_JOBID": JOB_ID,
        "SLURM_JOB_CPUS_PER_NODE": repeated(local_size, len(nodes)),
        "SLURM_JOB_ID": JOB_ID,
        "SLURM_JOB_NAME": "rehearsal",
        "SLURM_JOB_NODELIST": names,
        "SLURM_JOB_NUM_NODES": count,
        "SLURM_JOB_PARTITION": "debug",
        "SLURM_NNODES": count,
        "SLURM_NODELIST": names,
        "SLURM_SUBMIT_HOST": nodes[0].hostname,
        "SLURM_TASKS_PER_NODE": repeated(local_size, len(nodes)),
    }


def _step(nodes: Sequence[Node], local_size: int) -> dict[str, str]:
    tasks = str(len(nodes) * local_size)
    return {
        "SLURM_LAUNCH_NODE_IPADDR": nodes[0].address,
        "SLURM_NPROCS": tasks,
        "SLURM_NTASKS": tasks,
        "SLURM_NTASKS_PER_NODE": str(local_size),
        "SLURM_SRUN_COMM_HOST": nodes[0].address,
        "SLURM_SRUN_COMM_PORT": CONTROL_PORT,
        "SLURM_STEPID": "0",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_LAUNCHER_PORT": CONTROL_PORT,
        "SLURM_STEP_NODELIST": nodelist(nodes),
        "SLURM_STEP_NUM_NODES": str(len(nodes)),
        "SLURM_STEP_NUM_TASKS": tasks,
        "SLURM_STEP_TASKS_PER_NODE": repeated(local_size, len(nodes)),
    }


def nodelist(nodes: Sequence[Node]) -> str:
    """Return the nodes as Slurm writes them: ``node[0-3]``; addresses are listed one by one."""
    if len(nodes) > 1 and nodes[0].hostname == "node0":
        return f"node[0-{len(nodes) - 1}]"
    return ",".join(node.hostname for node in nodes)


def repeated(value: int, times: int) -> str:
    """Return a count per node as Slurm writes it: ``2(x4)``."""
    return f"{value}(x{times})" if times > 1 else str(value)
