"""TensorFlow: the tasks of a node, their TF_CONFIG, and their GPUs. Loaded only for a TensorFlow job.

A TF_CONFIG that is set already comes from the platform and stays as it is (`launcher.sources.tensorflow` has
validated it). In ours the evaluator is not part of the cluster, as TensorFlow requires since 2.3.

All nodes assign the tasks alike, without communication. Computing tasks are distributed over the nodes evenly
and in order, a chief first. Each parameter server goes to the first node with the fewest tasks so far. A
coordinator and an evaluator go to node 0. The tasks of a node listen on consecutive ports, in TensorFlow's
order of roles, so the port of a task follows from its place on its node.

Source: tensorflow/python/distribute/{multi_worker_util.py,parameter_server_strategy_v2.py} and
cluster_resolver/tfconfig_cluster_resolver.py (2.21); Azure Machine Learning, "Distributed GPU training".
"""

from __future__ import annotations

import json
import os
from collections import Counter

from launcher.core.blocks import PACKAGE
from launcher.core.environ import PORT_LIMIT, bracket
from launcher.core.errors import LauncherError, make_error
from launcher.core.frozen import frozen, replace
from launcher.core.model import Allocation, Companion, Meeting, Place, Policy, Scope, Setting, Topology
from launcher.frameworks.case import Beside
from launcher.identity.topology import make_topology
from launcher.machine.gpus import VISIBLE, share_gpus
from launcher.machine.pythons import own_program
from launcher.options.flag_values import ROLES
from launcher.options.flags import ROLE_FLAGS, TENSORFLOW

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.frameworks.case import Case
    from launcher.options.reading import Options

CHIEF, WORKER, PS, EVALUATOR = ROLES
FIRST_PORT = 2222
"""Azure ML's port, also used in TensorFlow's own guides."""
TF_CONFIG = "TF_CONFIG"
GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"
SERVER = os.path.join(PACKAGE, "servers", "tf_server.py")
"""The standard server, a separate program: the job's Python may not have the launcher."""
STANDARD = "standard"
"""Value of ``--tf-server`` with which a platform's task runs it, too."""
WATCH = "watch"
"""Name of the companion that ends a job whose coordinator would wait forever."""


@frozen
class Task:
    """One task: its role and index in the role, its node, and its place among the node's tasks."""

    role: str
    index: int
    node: int
    place: int = 0

    @property
    def name(self) -> str:
        """Its name, ``worker 3``."""
        return f"{self.role} {self.index}"


@frozen
class Cast:
    """All tasks of a job, in TensorFlow's order.

    Attributes:
        tasks: The tasks.
        coordinated: Whether the chief is the coordinator of TensorFlow 2's parameter servers: then it
            computes nothing itself, and the job ends with it.
        first_port: Port of the first task of a node.
        hosts: Address of each node.
    """

    tasks: tuple[Task, ...]
    coordinated: bool = False
    first_port: int = FIRST_PORT
    hosts: tuple[str, ...] = ()

    @property
    def ranked(self) -> tuple[Task, ...]:
        """The tasks with a rank, in rank order: the job ends with them."""
        roles = (CHIEF,) if self.coordinated else (CHIEF, WORKER)
        return tuple(task for task in self.tasks if task.role in roles)

    def on(self, node: int) -> tuple[Task, ...]:
        """Return the tasks of one node."""
        return tuple(task for task in self.tasks if task.node == node)

    def address(self, task: Task) -> str:
        """Return the address of one task, ``host:port``."""
        return f"{bracket(self.hosts[task.node])}:{self.port(task)}"

    def port(self, task: Task) -> int:
        """Return the port of a task."""
        return self.first_port + task.place


def plan_topology(options: Options, allocation: Allocation, environ: Mapping[str, str]) -> Topology | None:
    """Return the shape of a job with roles from the user, or of a task that runs the standard server.

    Only tasks of `Cast.ranked` are ranks; a node may have none. None for any other job.

    Raises:
        UsageError: The roles make no job, or TF_CONFIG is set as well.
    """
    if asks_for_roles(options):
        if environ.get(TF_CONFIG):
            raise make_error("roles-and-config", flags=", ".join(options.origins(*TENSORFLOW)))
        if allocation.node_count is None:
            return None  # another launcher without roles assigns the ranks at the start
        cast = plan_cast(options, allocation.node_count)
        own = [rank for rank, task in enumerate(cast.ranked) if task.node == allocation.node_rank]
        places = tuple(Place(rank, local_rank) for local_rank, rank in enumerate(own))
        return make_topology(allocation, len(cast.ranked), len(places), places)
    if options.text("tf_server") == STANDARD and _read_inherited(environ, "task").get("type") == WORKER:
        return make_topology(allocation, allocation.world_size, allocation.local_size, ())
    return None


def plan_process(case: Case, place: Place) -> list[Setting]:
    """Return TF_CONFIG of one process, unless it is set, and its share of the node's GPUs.

    Raises:
        EnvironmentUntrusted: The node of each task is unknown, or an inherited TF_CONFIG lacks a chief.
    """
    if case.environ.get(TF_CONFIG):
        cluster = _read_inherited(case.environ, "cluster")
        if cluster.get(PS) and not cluster.get(CHIEF) and not case.options.switch("tf1"):
            raise make_error("no-tf-chief")
        return []
    cast = find_cast(case)
    return plan_task(cast, cast.ranked[place.rank] if case.forks else _find_own(cast, case)[0], case)


def plan_beside(case: Case) -> Beside:
    """Return what this node has beside the ranks: tasks without a rank, a watcher, ports and addresses.

    Raises:
        LauncherError: The tasks or their nodes cannot be told.
    """
    if case.environ.get(TF_CONFIG):
        return Beside(tuple(_plan_inherited(case)))
    cast = find_cast(case)
    own = _find_own(cast, case)
    others = [_companion(cast, task, case) for task in own if task not in cast.ranked]
    return Beside(
        companions=(*others, *_plan_watch(cast, own, case)),
        ports=tuple((cast.port(task), task.name) for task in own if task.role != EVALUATOR),
        meeting=_plan_meeting(case),
        bears_losses=cast.coordinated,
    )


def _find_own(cast: Cast, case: Case) -> tuple[Task, ...]:
    """Return this launcher's tasks: its node's, or its only process."""
    own = cast.on(case.topology.node_rank or 0)
    return own if case.forks else tuple(task for task in own if task.place == case.topology.local_rank)


def _plan_meeting(case: Case) -> Meeting | None:
    """Return the address exchange for the nodes, if their addresses are not listed."""
    job, node = case.topology, case.topology.node_rank or 0
    if job.node_count in (None, 1) or case.allocation.hosts:
        return None
    member, count = (node, job.node_count) if case.forks else (job.rank, job.world_size)
    wait_s, token_file = case.options.roll_call_s, case.options.text("token_file")
    port, _ = case.free_port
    return Meeting(job.master_addr, port, member or 0, count or 0, node, job.node_count, wait_s, token_file)


def _plan_inherited(case: Case) -> list[Companion]:
    """Return the task of this process according to the platform's TF_CONFIG, if it has no rank.

    Raises:
        EnvironmentUntrusted: The task runs the standard server, and there is no chief to use it.
    """
    task = _read_inherited(case.environ, "task")
    role, name = task.get("type"), f"{task.get('type')} {task.get('index')}"
    if role == EVALUATOR:
        return [Companion(name, case.argv, finishes=True)]
    if case.options.text("tf_server") != STANDARD:
        return [Companion(name, case.argv)] if role == PS else []
    if role not in (PS, WORKER):
        return []
    chiefs = _read_inherited(case.environ, "cluster").get(CHIEF)
    if not isinstance(chiefs, list) or not chiefs:
        raise make_error("no-tf-chief")
    return [Companion(name, (case.python, SERVER, *_leave_with(case, str(chiefs[0]))), serves=True)]


def _companion(cast: Cast, task: Task, case: Case) -> Companion:
    """Return one task without a rank: the standard server, or the command.

    If the node has no rank, another process must notice that the job is over: the server itself, or the
    program that then runs the command.
    """
    alone = not any(other.node == task.node for other in cast.ranked)
    leaves = _leave_with(case, *map(cast.address, cast.ranked)) if alone else ()
    settings = tuple(plan_task(cast, task, case))
    finishes = task.role == EVALUATOR  # a server never exits by itself
    if cast.coordinated and not finishes and case.options.text("tf_server", "auto") != "script":
        return Companion(task.name, (case.python, SERVER, *leaves), settings, serves=True)
    argv = case.argv
    if leaves and argv:
        linger = ("--linger", f"{case.options.grace_s:g}") if finishes else ()
        argv = own_program(SERVER, *leaves, *linger, "--", *case.argv)
    return Companion(task.name, argv, settings, finishes=finishes)


def _plan_watch(cast: Cast, own: Sequence[Task], case: Case) -> list[Companion]:
    """Return the process that ends the job if workers on other nodes are lost.

    Without it the coordinator waits for an hour, again and again.
    """
    workers = [task for task in cast.tasks if task.role == WORKER]
    is_here = any(task.role == CHIEF for task in own)
    if not cast.coordinated or not is_here or all(task in own for task in workers):
        return []
    peers = ",".join(map(cast.address, workers))
    line = own_program(SERVER, "--while", peers, "--wait", f"{case.options.roll_call_s:g}")
    return [Companion(WATCH, line, serves=True)]


def _leave_with(case: Case, *addresses: str) -> tuple[str, ...]:
    """Return the arguments with which the standard server ends when these tasks have gone."""
    return ("--until", ",".join(addresses), "--wait", f"{case.options.roll_call_s:g}")


def _read_inherited(environ: Mapping[str, str], part: str) -> Mapping[str, object]:
    """Return a part of an inherited TF_CONFIG; empty without one."""
    try:
        found = json.loads(environ.get(TF_CONFIG) or "{}")[part]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def asks_for_roles(options: Options) -> bool:
    """Whether the user names roles, rather than only the framework."""
    return any(options.get(dest) is not None for dest in ROLE_FLAGS)


def find_cast(case: Case) -> Cast:
    """Return the tasks of the job, the node of each, and the addresses of the nodes.

    Raises:
        UsageError: The user's roles make no job.
        EnvironmentUntrusted: The number of processes on each node is unknown, or the rank of this node.
    """
    job = case.topology
    nodes, each = job.node_count or 1, job.local_size or 0
    if asks_for_roles(case.options):
        cast = plan_cast(case.options, nodes)
    elif job.node_count is None or job.world_size != nodes * each:
        raise _unknown(case, "how many processes each node has")
    else:
        # All compute: one worker each, node by node
        workers = [Task(WORKER, rank, rank // each) for rank in range(nodes * each)]
        cast = make_cast(workers, case.options)
    if job.node_rank is None:
        raise _unknown(case, "which node this is")
    # Placeholders until the nodes have exchanged their addresses
    hosts = case.allocation.hosts or tuple(f"<node {node}>" for node in range(nodes))
    return replace(cast, hosts=hosts if nodes > 1 else (job.master_addr,))


def plan_task(cast: Cast, task: Task, case: Case) -> list[Setting]:
    """Return TF_CONFIG of one task, and the GPUs that it sees."""
    cluster: dict[str, list[str]] = {}
    for member in cast.tasks:
        if member.role != EVALUATOR:
            cluster.setdefault(member.role, []).append(cast.address(member))
    own = {"type": task.role, "index": task.index}
    config = {"cluster": cluster, "task": own, "environment": "cloud"}
    where = case.origin("hosts") if case.allocation.hosts else "addresses that the nodes exchange first"
    where = "one node" if case.topology.node_count == 1 else where
    why = f"{case.origin('world_size')}; {where}; ports from {cast.first_port} on each node"
    return [Setting(TF_CONFIG, json.dumps(config, separators=(",", ":")), why), *_plan_gpus(cast, task, case)]


def _plan_gpus(cast: Cast, task: Task, case: Case) -> list[Setting]:
    """Return settings with the GPUs that one of several tasks on a node sees.

    TensorFlow takes all memory of all visible GPUs. Computing tasks share them evenly. If there are more
    tasks than GPUs, each sees one, and takes only the memory that it needs. Other tasks beside them see none.
    """
    gpus, tasks = case.machine.gpu_count or 0, cast.on(task.node)
    computing = [one for one in tasks if one.role == WORKER or (one.role == CHIEF and not cast.coordinated)]
    if not gpus or len(tasks) < 2 or not computing or case.options.get("gpus_per_process"):
        return []
    if task not in computing:
        return [Setting(VISIBLE, "-1", f"the GPUs are for {computing[0].name} of this node")]
    if len(computing) < 2:
        return []
    each = max(1, gpus // len(computing))
    mine = share_gpus(case.environ.get(VISIBLE), gpus, computing.index(task) % gpus, each)
    why = f"{gpus} GPU{'s' if gpus > 1 else ''} for {len(computing)} tasks that compute"
    grows = [Setting(GROWTH, "true", why, Policy.IF_UNSET)] if len(computing) > gpus else []
    return [] if mine is None else [Setting(VISIBLE, mine, why), *grows]


def _unknown(case: Case, what: str) -> LauncherError:
    started = "process" if case.allocation.scope is Scope.PROCESS else "node"
    return make_error("tf-config-unknown", started=started, source=case.allocation.source, what=what)


def plan_cast(options: Options, node_count: int) -> Cast:
    """Return the tasks that the user requests.

    Args:
        options: ``--roles``, or any of the counts.
        node_count: Number of nodes.

    Raises:
        UsageError: TensorFlow has no cluster with these roles, or a node has no task.
    """
    roles = options.get("roles")
    if roles is not None and isinstance(roles.value, tuple):
        nodes = {role: list(dict(roles.value).get(role, ())) for role in ROLES}
    else:
        nodes = _deal(options, node_count)
    _check_roles(options, nodes, node_count)
    coordinated = bool(nodes[PS]) and not options.switch("tf1")
    if coordinated and not nodes[CHIEF]:
        nodes[CHIEF] = [0]
    tasks = [Task(role, index, node) for role in ROLES for index, node in enumerate(nodes[role])]
    return make_cast(tasks, options, coordinated=coordinated)


def make_cast(tasks: Sequence[Task], options: Options, *, coordinated: bool = False) -> Cast:
    """Return a job's tasks with their places: for each the number of earlier tasks on the same node.

    Raises:
        UsageError: A port would be too large.
    """
    taken: Counter[int] = Counter()
    placed = []
    for task in tasks:
        placed.append(replace(task, place=taken[task.node]))
        taken[task.node] += 1
    first = int(options.number("tf_port", FIRST_PORT))
    count = max((task.place + 1 for task in placed if task.role != EVALUATOR), default=0)
    if first + count > PORT_LIMIT:
        raise make_error("roles-port", first=first, count=count, last=first + count - 1)
    return Cast(tuple(placed), coordinated, first)


def _deal(options: Options, node_count: int) -> dict[str, list[int]]:
    """Return the nodes of each role's tasks, from the numbers of tasks."""
    servers = int(options.number("parameter_server_count", 0))
    coordinates = bool(servers) and not options.switch("tf1")
    chiefs = int(options.switch("chief", coordinates))
    computing_chiefs = 0 if coordinates else chiefs
    left = max(1, node_count - servers) if servers else node_count - computing_chiefs
    workers = int(options.number("worker_count", max(0, left)))
    # Evenly and in order: the first nodes get one more if necessary
    each, more = divmod(computing_chiefs + workers, node_count)
    computing = [node for node in range(node_count) for _ in range(each + (node < more))]
    counts = [computing.count(node) for node in range(node_count)]
    nodes: dict[str, list[int]] = {
        CHIEF: computing[:computing_chiefs] or [0] * chiefs,
        WORKER: computing[computing_chiefs:],
        PS: [],
        EVALUATOR: [0] if options.switch("evaluator") else [],
    }
    for _ in range(servers):
        node = counts.index(min(counts))
        counts[node] += 1
        nodes[PS].append(node)
    return nodes


def _check_roles(options: Options, nodes: dict[str, list[int]], node_count: int) -> None:
    """Refuse roles that make no cluster, or leave a node idle.

    Raises:
        UsageError: They do.
    """
    flags = (options.get(dest) for dest in (*ROLE_FLAGS, "tf1"))
    asked = ", ".join(flag.origin for flag in flags if flag is not None)
    beyond = [f"{role}={node}" for role in ROLES for node in nodes[role] if node >= node_count]
    if beyond:
        raise make_error("roles-outside", asked=asked, role=beyond[0], last=node_count - 1)
    for role in (CHIEF, EVALUATOR):
        if len(nodes[role]) > 1:
            raise make_error("roles-once", asked=asked, role=role)
    if not nodes[WORKER] and not (nodes[CHIEF] and not nodes[PS]):
        raise make_error("roles-worker", asked=asked)
    if nodes[PS] and not options.switch("tf1") and not options.switch("chief", True):
        raise make_error("roles-chief", asked=asked)
    for node in range(node_count):
        if not any(node in nodes[role] for role in ROLES):
            raise make_error("roles-idle-node", asked=asked, node=node, count=node_count)
