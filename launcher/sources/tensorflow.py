"""TF_CONFIG: one task of a TensorFlow job (Azure ML's TensorFlow distribution, Kubeflow's TFJob).

A task is one process with all GPUs of its node, so the launcher never starts more than one for it. Ranks are
in TensorFlow's own order: the chief, then the workers. Parameter servers and evaluators have none.

Source: tensorflow/python/distribute/{multi_worker_util.py,cluster_resolver/tfconfig_cluster_resolver.py}.
"""

from __future__ import annotations

from launcher.core.environ import Malformed, parse_host_port, parse_int, parse_json, shorten
from launcher.core.errors import Problem
from launcher.core.frozen import frozen
from launcher.core.model import Fact, Scope, Trust
from launcher.options.flag_values import ROLES
from launcher.sources.reader import Reader

TF_CONFIG = "TF_CONFIG"
FIX = f"correct {TF_CONFIG}, or unset it if this is not a TensorFlow job"
MALFORMED = "malformed-variable"
RANKED = ("chief", "worker")
ALONE = ("chief", "evaluator")
"""Roles with at most one task."""


@frozen
class Task:
    """The cluster in TF_CONFIG, by role, and the role and index of this process in it."""

    cluster: dict[str, list[str]]
    role: str
    index: int


class Invalid(Exception):
    """TF_CONFIG is not a valid cluster: the code of the problem, what was expected, and the fix."""

    def __init__(self, code: str, expected: str, fix: str = FIX) -> None:
        super().__init__(code, expected, fix)


def read(reader: Reader) -> None:
    """Claim the task's place in its cluster, or report what is wrong with TF_CONFIG."""
    try:
        task = _parse(reader.text(TF_CONFIG) or "")
    except Invalid as error:
        code, expected, fix = error.args
        what = f"{reader.origin(TF_CONFIG)}: expected {expected}"
        reader.problems.append(Problem(code, what, f"environment, source {reader.source}", fix))
        return
    reader.starts = Scope.PROCESS
    reader.lone = not _names_several(task)
    if task.role not in RANKED:
        reader.task = f"{task.role} {task.index}"
    hosts = [parse_host_port(address)[0] for name in RANKED for address in task.cluster.get(name, [])]
    claim_task(reader, hosts, None if reader.task else _find_rank(task), TF_CONFIG, TF_CONFIG)


def claim_task(reader: Reader, hosts: list[str], rank: int | None, name: str, index: str) -> None:
    """Claim a process by its rank in a list of all processes' hosts; without one only their number.

    ``name`` and ``index`` are the variables of the list and of the rank.
    """
    if not hosts:
        return
    if rank is not None:
        own = [place for place, host in enumerate(hosts) if host == hosts[rank]]
        nodes = tuple(dict.fromkeys(hosts))
        reader.claim(Fact.RANK, rank, index)
        reader.claim(Fact.LOCAL_RANK, own.index(rank), name)
        reader.claim(Fact.LOCAL_SIZE, len(own), name)
        reader.claim(Fact.NODE_RANK, nodes.index(hosts[rank]), index, Trust.DERIVED)
        reader.claim(Fact.NODE_COUNT, len(nodes), name, Trust.DERIVED)
    reader.claim(Fact.WORLD_SIZE, len(hosts), name)
    reader.claim(Fact.MASTER_ADDR, hosts[0], name, Trust.DERIVED)


def find_rank(text: str) -> tuple[str, str] | None:
    """Return rank and world size in a TF_CONFIG; None if it has no rank, or is invalid."""
    try:
        task = _parse(text)
    except Invalid:
        return None
    if task.role not in RANKED:
        return None
    world = sum(len(task.cluster.get(name, [])) for name in RANKED)
    return str(_find_rank(task)), str(world)


def names_several(text: str) -> bool:
    """Whether a TF_CONFIG names several tasks, or one without a rank, or is invalid (see `read`)."""
    try:
        task = _parse(text)
    except Invalid:
        return True
    return _names_several(task)


def _names_several(task: Task) -> bool:
    return task.role not in RANKED or sum(map(len, task.cluster.values())) > 1


def _find_rank(task: Task) -> int:
    return task.index if task.role == "chief" else task.index + len(task.cluster.get("chief", []))


def _parse(text: str) -> Task:
    """Return the task, valid by TensorFlow 2's rules, including those that it checks late or never.

    Raises:
        Invalid: TF_CONFIG is not valid.
    """
    try:
        config = parse_json(text)
        cluster, own = config["cluster"], config["task"]
        task = Task(
            {str(role): list(items) for role, items in cluster.items()},
            str(own["type"]),
            _index(own["index"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        expected = 'a JSON object {"cluster": {role: [host:port]}, "task": {"type", "index"}}'
        raise Invalid(MALFORMED, expected) from None
    _check_roles(task)
    _check_tasks(task, [role for role, items in cluster.items() if not isinstance(items, list)])
    return task


def _index(value: object) -> int:
    """Return a task index; TensorFlow itself would turn 0.9 into 0, and true and "0_1" into 1."""
    if not isinstance(value, (int, str)) or isinstance(value, bool):
        raise TypeError
    return parse_int(value) if isinstance(value, str) else value


def _check_roles(task: Task) -> None:
    strange = sorted({task.role, *task.cluster} - set(ROLES))
    if "master" in strange:
        expected, fix = "no role 'master', which TensorFlow 2 refuses", "call it chief, in cluster and task"
        raise Invalid("tf-config-master", expected, fix)
    if strange:
        raise Invalid(MALFORMED, f"roles among {', '.join(ROLES)}, not {shorten(strange[0])!r}")


def _check_addresses(addresses: list[str]) -> None:
    """Check that each task has an address of its own, with the port at which it listens."""
    found: dict[tuple[str, int], str] = {}
    for address in addresses:
        try:
            host, port = parse_host_port(address)
        except Malformed as error:
            raise Invalid(MALFORMED, f"every task to be {error}") from None
        if port is None:
            raise Invalid(MALFORMED, f"every task to be host:port, not {shorten(address)!r}")
        other = found.setdefault((host.lower(), port), address)
        if other is not address:
            second = "twice" if other == address else f"and {shorten(address)!r}"
            raise Invalid(MALFORMED, f"an address of its own for every task, not {shorten(other)!r} {second}")


def _check_tasks(task: Task, sparse: list[str]) -> None:
    """Check what TensorFlow finds out late or never: an index of -1 passes its own check."""
    if sparse:
        expected = f"a list of host:port for every role (not so: {', '.join(sparse)})"
        fix = "list all tasks of the role (Kubeflow: without enableDynamicWorker, which makes it a map)"
        raise Invalid("tf-config-sparse", expected, fix)
    if not all(isinstance(item, str) for items in task.cluster.values() for item in items):
        raise Invalid(MALFORMED, "a list of host:port for every role (not so: an item)")
    _check_addresses([address for items in task.cluster.values() for address in items])
    for role in ALONE:
        if len(task.cluster.get(role, [])) > 1:
            fix = f"keep one {role}; make the others workers"
            raise Invalid("tf-config-roles", f"one {role} at most", fix)
    if task.role == "evaluator" and task.index == 0 and "evaluator" not in task.cluster:
        return
    count = len(task.cluster.get(task.role, []))
    if not 0 <= task.index < max(1, count):
        expected = f"a task index of {task.role} in 0..{max(1, count) - 1}"
    elif not count:
        expected = f"tasks of the role {task.role}, which this task has"
    else:
        return
    fix = f"correct task.index, which counts from 0 in each role, or add the task to cluster.{task.role}"
    raise Invalid("tf-config-index", expected, fix)
