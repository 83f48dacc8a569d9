"""TensorFlow: the tasks of a node, their TF_CONFIG, and their GPUs. Loaded only for a TensorFlow job.

A TF_CONFIG that is set already comes from the platform and stays as it is (`launcher.sources.tensorflow` has
validated it). In ours the evaluator is not part of the cluster, as TensorFlow requires since 2.3.

Source: tensorflow/python/distribute/cluster_resolver/tfconfig_cluster_resolver.py (2.21); Azure Machine
Learning, "Distributed GPU training guide", TensorFlow.
"""

from __future__ import annotations

import json
import os

from launcher.command.words import is_python
from launcher.core.errors import EnvironmentUntrusted, Problem, UsageError
from launcher.core.model import (
    Allocation,
    Companion,
    Meeting,
    Place,
    Policy,
    Scope,
    Setting,
    Topology,
)
from launcher.frameworks.tensorflow_roles import (
    CHIEF,
    EVALUATOR,
    FIRST_PORT,
    PS,
    WORKER,
    Cast,
    Task,
    plan_cast,
    plan_ranks,
)
from launcher.identity.topology import make_topology
from launcher.machine.gpus import share_gpus
from launcher.machine.pythons import own_program, own_python
from launcher.options.flag_values import ROLES
from launcher.options.flags import ROLE_FLAGS, TENSORFLOW

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.frameworks.case import Case
    from launcher.options.reading import Options

TF_CONFIG = "TF_CONFIG"
VISIBLE = "CUDA_VISIBLE_DEVICES"
GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"
SERVER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "servers", "tf_server.py")
"""The standard server, a separate program: the job's Python may not have the launcher."""
WATCH = "watch"
"""Name of the companion that ends a job whose coordinator would wait forever."""


def plan_topology(options: Options, allocation: Allocation, environ: Mapping[str, str]) -> Topology | None:
    """Return the shape of a job with roles from the user, or of a task that runs the standard server.

    Only tasks of `Cast.ranked` are ranks; a node may have none. None for any other job.

    Raises:
        UsageError: The roles make no job, or TF_CONFIG is set as well.
    """
    if asks_for_roles(options):
        if environ.get(TF_CONFIG):
            raise UsageError(_both(options))
        if allocation.node_count is None:
            return None  # another launcher without roles assigns the ranks at the start
        cast = plan_cast(options, allocation.node_count)
        own = [rank for rank, task in enumerate(cast.ranked) if task.node == allocation.node_rank]
        places = tuple(Place(rank, local_rank) for local_rank, rank in enumerate(own))
        return make_topology(allocation, len(cast.ranked), len(places), places)
    if _runs_standard(options) and _read_inherited(environ, "task").get("type") == WORKER:
        return make_topology(allocation, allocation.world_size, allocation.local_size, ())
    return None


def plan_process(case: Case, place: Place) -> list[Setting]:
    """Return TF_CONFIG of one process, unless it is set, and its share of the node's GPUs.

    Raises:
        EnvironmentUntrusted: The node of each task is unknown, or an inherited TF_CONFIG lacks a chief.
    """
    if case.environ.get(TF_CONFIG):
        _check_inherited(case)
        return []
    cast, hosts = find_cast(case), find_hosts(case)
    task = cast.ranked[place.rank] if case.forks else cast.on(require_node_rank(case))[place.local_rank]
    return [plan_config(cast, task, hosts, case), *plan_gpus(cast, task, case)]


def bears_losses(case: Case) -> bool:
    """Whether there is a coordinator, which gives the work of a lost worker to another."""
    return asks_for_roles(case.options) and find_cast(case).coordinated


def plan_companions(case: Case) -> list[Companion]:
    """Return this node's tasks without a rank, and the watcher of the workers beside a coordinator."""
    if case.environ.get(TF_CONFIG):
        return _plan_inherited(case)
    if not asks_for_roles(case.options):
        return []
    cast, hosts = find_cast(case), find_hosts(case)
    tasks = [task for task in cast.on(require_node_rank(case)) if task not in cast.ranked]
    return [*(_companion(cast, task, hosts, case) for task in tasks), *_plan_watch(cast, hosts, case)]


def plan_ports(case: Case) -> tuple[tuple[int, str], ...]:
    """Return the ports that the tasks of this node will listen on, and the names of the tasks."""
    if case.environ.get(TF_CONFIG):
        return ()
    cast, node = find_cast(case), require_node_rank(case)
    own = [task for task in cast.on(node) if task.role != EVALUATOR]
    if not case.forks:
        own = [task for task in own if task.place == case.topology.local_rank]
    return tuple((cast.port(task), task.name) for task in own)


def plan_meeting(case: Case) -> Meeting | None:
    """Return the address exchange for the nodes, if their addresses are not listed."""
    job = case.topology
    if case.environ.get(TF_CONFIG) or job.node_count == 1 or case.allocation.hosts:
        return None
    find_cast(case)  # raises an error if other facts are missing
    node = require_node_rank(case)
    assert job.node_count is not None  # noqa: S101 - `find_cast` checks it
    member, count = (node, job.node_count) if case.forks else (job.rank, job.world_size or 0)
    wait_s, token_file = _wait_s(case.options), case.options.text("token_file")
    port, _ = case.free_port
    return Meeting(job.master_addr, port, member, count, node, job.node_count, wait_s, token_file)


def _plan_inherited(case: Case) -> list[Companion]:
    """Return the task of this process according to the platform's TF_CONFIG, if it has no rank.

    Raises:
        EnvironmentUntrusted: The task runs the standard server, and there is no chief to use it.
    """
    task = _read_inherited(case.environ, "task")
    role, name = task.get("type"), f"{task.get('type')} {task.get('index')}"
    standard = _runs_standard(case.options)
    if role == PS or (role == WORKER and standard):
        argv = _inherited_server(case) if standard else case.argv
        return [Companion(name, argv, serves=standard)]
    return [Companion(name, case.argv, finishes=True)] if role == EVALUATOR else []


def _inherited_server(case: Case) -> tuple[str, ...]:
    """Return the standard server for a platform's task: it ends when the chief has gone."""
    chiefs = _read_inherited(case.environ, "cluster").get(CHIEF)
    if not isinstance(chiefs, list) or not chiefs:
        raise EnvironmentUntrusted(_no_chief())
    return _server(case, ("--until", str(chiefs[0]), "--wait", f"{_wait_s(case.options):g}"))


def _companion(cast: Cast, task: Task, hosts: Sequence[str], case: Case) -> Companion:
    """Return one task without a rank: the standard server, or the command.

    If the node has no rank, another process must notice that the job is over: the server itself, or the
    program that then runs the command.
    """
    waited_for = [cast.address(other, hosts) for other in cast.ranked]
    alone = not any(other.node == task.node for other in cast.ranked)
    leaves = ("--until", ",".join(waited_for), "--wait", f"{_wait_s(case.options):g}") if alone else ()
    settings = (plan_config(cast, task, hosts, case), *plan_gpus(cast, task, case))
    finishes = task.role == EVALUATOR  # a server never exits by itself
    if cast.coordinated and task.role != EVALUATOR and case.options.text("tf_server", "auto") != "script":
        return Companion(task.name, _server(case, leaves), settings, serves=True)
    argv = case.argv
    if leaves and argv:
        linger = ("--linger", f"{case.options.grace_s:g}") if finishes else ()
        argv = own_program(SERVER, *leaves, *linger, "--", *case.argv)
    return Companion(task.name, argv, settings, finishes=finishes)


def _plan_watch(cast: Cast, hosts: Sequence[str], case: Case) -> list[Companion]:
    """Return the process that ends the job if workers on other nodes are lost.

    Without it the coordinator waits for an hour, again and again.
    """
    node = require_node_rank(case)
    workers = [task for task in cast.tasks if task.role == WORKER]
    is_here = any(task.role == CHIEF for task in cast.on(node))
    if not cast.coordinated or not is_here or all(task.node == node for task in workers):
        return []
    peers = ",".join(cast.address(task, hosts) for task in workers)
    line = own_program(SERVER, "--while", peers, "--wait", f"{_wait_s(case.options):g}")
    return [Companion(WATCH, line, serves=True)]


def _server(case: Case, words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command line of the standard server, with the command's Python."""
    python = case.command[0] if case.argv and is_python(case.command[0]) else ""
    return (python or own_python(case.environ), SERVER, *words)


def _wait_s(options: Options) -> float:
    return options.number("roll_call_timeout", 900.0)


def _runs_standard(options: Options) -> bool:
    return options.text("tf_server", "auto") == "standard"


def check(case: Case) -> tuple[str, ...]:
    """Return a note if tasks must share a GPU."""
    if case.environ.get(TF_CONFIG) or case.topology.node_rank is None or not case.machine.gpu_count:
        return ()
    cast = find_cast(case)
    gpus, count = case.machine.gpu_count, len(list_computing(cast, case.topology.node_rank))
    if count <= gpus or case.options.get("gpus_per_process"):
        return ()
    seen = f"{gpus} GPU{'s are' if gpus > 1 else ' is'} seen on this node"
    shared = f"several share one, with {GROWTH}=true unless set; NCCL does not work between these"
    return (f"{count} tasks compute, and {seen}: {shared}",)


def _read_inherited(environ: Mapping[str, str], part: str) -> Mapping[str, object]:
    """Return a part of an inherited TF_CONFIG; empty without one."""
    try:
        found = json.loads(environ.get(TF_CONFIG) or "{}")[part]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _check_inherited(case: Case) -> None:
    """Refuse a TensorFlow 2 job with parameter servers and without a chief."""
    cluster = _read_inherited(case.environ, "cluster")
    if cluster.get(PS) and not cluster.get(CHIEF) and not case.options.switch("tf1"):
        raise EnvironmentUntrusted(_no_chief())


def _no_chief() -> Problem:
    return Problem(
        "no-chief",
        "TF_CONFIG has no chief: with TensorFlow 2's parameter servers a chief tells the workers what to do, "
        "and worker 0 would wait forever",
        "environment, source tensorflow",
        "pass --tf1 for a program of TensorFlow 1; else start one launcher per node without TF_CONFIG, with "
        "--parameter-server-count N (Azure ML: the PyTorch distribution)",
    )


def _both(options: Options) -> Problem:
    flags = ", ".join(options.origins(*TENSORFLOW))
    return Problem(
        "roles-and-config",
        f"TF_CONFIG and {flags} both define this task",
        "command line and environment",
        f"leave out the flags, or the platform's variable: env -u {TF_CONFIG} launcher run ...",
    )


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
