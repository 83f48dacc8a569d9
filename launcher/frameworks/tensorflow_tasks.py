"""Variables of a TensorFlow task: TF_CONFIG, with the cluster and its place in it, and its GPUs."""

from __future__ import annotations

import json

from launcher.core.errors import EnvironmentUntrusted, Problem
from launcher.core.model import Policy, Scope, Setting
from launcher.frameworks.tensorflow_roles import (
    CHIEF,
    EVALUATOR,
    FIRST_PORT,
    WORKER,
    Cast,
    Task,
    plan_cast,
    plan_ranks,
)
from launcher.machine.gpus import share_gpus
from launcher.options.flag_values import ROLES
from launcher.options.flags import ROLE_FLAGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.frameworks.case import Case
    from launcher.options.reading import Options

TF_CONFIG = "TF_CONFIG"
VISIBLE = "CUDA_VISIBLE_DEVICES"
GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"


def asks_for_roles(options: Options) -> bool:
    """Whether the user names roles, rather than only the framework."""
    return any(options.get(dest) is not None for dest in ROLE_FLAGS)


def find_cast(case: Case) -> Cast:
    """Return the tasks of the job, and the node of each.

    Raises:
        UsageError: The user's roles make no job.
        EnvironmentUntrusted: The number of processes on each node is unknown.
    """
    job = case.topology
    if asks_for_roles(case.options):
        return plan_cast(case.options, job.node_count or 1)
    if job.node_count is None or job.local_size is None or job.world_size != job.node_count * job.local_size:
        raise EnvironmentUntrusted(_unknown(case, "how many processes each node has"))
    return plan_ranks(job.node_count, job.local_size, int(case.options.number("tf_port", FIRST_PORT)))


def find_hosts(case: Case) -> tuple[str, ...]:
    """Return the address of every node, node 0 first; placeholders until the nodes have exchanged them."""
    count = case.topology.node_count or 1
    if count == 1:
        return (case.topology.master_addr,)
    return case.allocation.hosts or tuple(f"<node {node}>" for node in range(count))


def require_node_rank(case: Case) -> int:
    """Return the rank of this node.

    Raises:
        EnvironmentUntrusted: It is unknown.
    """
    if case.topology.node_rank is None:
        raise EnvironmentUntrusted(_unknown(case, "which node this is"))
    return case.topology.node_rank


def plan_config(cast: Cast, task: Task, hosts: Sequence[str], case: Case) -> Setting:
    """Return TF_CONFIG of one task."""
    cluster = {role: cast.addresses(role, hosts) for role in ROLES if role != EVALUATOR}
    config = {
        "cluster": {role: addresses for role, addresses in cluster.items() if addresses},
        "task": {"type": task.role, "index": task.index},
        "environment": "cloud",
    }
    where = case.origin("hosts") if case.allocation.hosts else "addresses that the nodes exchange first"
    where = "one node" if case.topology.node_count == 1 else where
    text = json.dumps(config, separators=(",", ":"))
    return Setting(
        TF_CONFIG, text, f"{case.origin('world_size')}; {where}; ports from {cast.first_port} on each node"
    )


def list_computing(cast: Cast, node: int) -> list[Task]:
    """Return the tasks of a node that compute: the workers, and without a coordinator the chief, too."""
    roles = (WORKER,) if cast.coordinated else (CHIEF, WORKER)
    return [task for task in cast.on(node) if task.role in roles]


def plan_gpus(cast: Cast, task: Task, case: Case) -> list[Setting]:
    """Return settings with the GPUs that one of several tasks on a node sees.

    TensorFlow takes all memory of all visible GPUs. Computing tasks share them evenly. If there are more
    tasks than GPUs, each sees one, and takes only the memory that it needs. Other tasks beside them see none.
    """
    gpus, computing = case.machine.gpu_count or 0, list_computing(cast, task.node)
    alone = len(cast.on(task.node)) < 2
    if not gpus or alone or not computing or case.options.get("gpus_per_process"):
        return []
    if task not in computing:
        return [Setting(VISIBLE, "-1", f"the GPUs are for {computing[0].name} of this node")]
    if len(computing) < 2:
        return []
    each = max(1, gpus // len(computing))
    mine = share_gpus(case.environ.get(VISIBLE), gpus, computing.index(task) % gpus, each)
    why = f"{gpus} GPUs for {len(computing)} tasks that compute"
    grows = [Setting(GROWTH, "true", why, Policy.IF_UNSET)] if len(computing) > gpus else []
    return [] if mine is None else [Setting(VISIBLE, mine, why), *grows]


def _unknown(case: Case, what: str) -> Problem:
    started = "process" if case.allocation.scope is Scope.PROCESS else "node"
    return Problem(
        "tf-config-unknown",
        f"{TF_CONFIG} must say which node each task is on, and it is unknown {what}",
        f"environment, started once per {started} by {case.allocation.source}",
        "start the same number of processes on every node, and pass --node-rank R if the platform has none",
    )
