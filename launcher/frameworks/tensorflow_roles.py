"""Assigns TensorFlow's tasks to nodes and ports; all nodes decide alike without communication.

Computing tasks are distributed over the nodes evenly and in order, a chief first. Each parameter server goes
to the first node with the fewest tasks so far. A coordinator and an evaluator go to node 0. The tasks of a
node listen on consecutive ports, in TensorFlow's own order of roles, so the port of a task follows from its
place on its node.

Source: tensorflow/python/distribute/{multi_worker_util.py,parameter_server_strategy_v2.py} (2.21).
"""

from __future__ import annotations

from collections import Counter

from launcher.core.environ import PORT_LIMIT, bracket
from launcher.core.errors import Problem, UsageError
from launcher.core.frozen import frozen, replace
from launcher.options.flag_values import ROLES
from launcher.options.flags import ROLE_FLAGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.options.reading import Options

CHIEF, WORKER, PS, EVALUATOR = ROLES
FIRST_PORT = 2222
"""Azure ML's port, also used in TensorFlow's own guides."""
WHERE = "command line and environment"


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

    def list_computing(self, tasks: Sequence[Task]) -> list[Task]:
        """Return those of these tasks that compute: workers, and without a coordinator the chief, too."""
        roles = (WORKER,) if self.coordinated else (CHIEF, WORKER)
        return [task for task in tasks if task.role in roles]

    def address(self, task: Task) -> str:
        """Return the address of one task, ``host:port``."""
        return f"{bracket(self.hosts[task.node])}:{self.port(task)}"

    def port(self, task: Task) -> int:
        """Return the port of a task."""
        return self.first_port + task.place


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
    problem = _find_problem(options, nodes, node_count)
    if problem is not None:
        raise UsageError(problem)
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
        what = f"a node has {count} tasks that listen, and the last would listen on port {first + count - 1}"
        fix = "a lower --tf-port, or fewer tasks on the node"
        raise UsageError(Problem("roles", f"--tf-port {first}: {what}", WHERE, fix))
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


def _find_problem(options: Options, nodes: dict[str, list[int]], node_count: int) -> Problem | None:
    """Return the problem of roles that make no cluster, or leave a node idle; None if there is none."""
    flags = (options.get(dest) for dest in (*ROLE_FLAGS, "tf1"))
    asked = ", ".join(flag.origin for flag in flags if flag is not None)
    beyond = [f"{role}={node}" for role in ROLES for node in nodes[role] if node >= node_count]
    if beyond:
        what = f"{asked}: {beyond[0]}, but the nodes of this job are 0..{node_count - 1}"
        fix = "pass the number of nodes (--nnodes N, or --hosts HOST,...), or name existing nodes"
        return Problem("roles-outside", what, WHERE, fix)
    several = [role for role in (CHIEF, EVALUATOR) if len(nodes[role]) > 1]
    if several:
        return Problem(
            "roles", f"{asked}: TensorFlow has one {several[0]} at most", WHERE, "name one node for it"
        )
    if not nodes[WORKER] and not (nodes[CHIEF] and not nodes[PS]):
        return Problem("roles", f"{asked}: nothing computes", WHERE, "add a worker: --worker-count N")
    chief = options.get("chief")
    if nodes[PS] and not options.switch("tf1") and chief is not None and not chief.value:
        what = f"{asked}: with TensorFlow 2's parameter servers a chief tells the workers what to do"
        return Problem(
            "no-chief", what, WHERE, "leave out --no-chief, or pass --tf1 for a program of TensorFlow 1"
        )
    idle = [node for node in range(node_count) if not any(node in nodes[role] for role in ROLES)]
    if idle:
        what = f"{asked}: node {idle[0]} of {node_count} has no task"
        return Problem("roles-idle-node", what, WHERE, "give each node one, or use fewer nodes")
    return None
