"""TF_CONFIG: one task of a TensorFlow job (Azure ML's TensorFlow distribution, Kubeflow's TFJob).

A task is one process with all GPUs of its node, so the launcher never starts more than one for it. Ranks are
in TensorFlow's own order: the chief, then the workers. Parameter servers and evaluators have none.

Source: tensorflow/python/distribute/{multi_worker_util.py,cluster_resolver/tfconfig_cluster_resolver.py}.
"""

from __future__ import annotations

from launcher.core.environ import Malformed, parse_host_port, parse_int, parse_json, shorten
from launcher.core.frozen import frozen
from launcher.core.model import Fact, Scope, Trust
from launcher.options.flag_values import ROLES
from launcher.sources.reader import Reader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

TF_CONFIG = "TF_CONFIG"
RANKED = ("chief", "worker")
ALONE = ("chief", "evaluator")
"""Roles with at most one task."""


@frozen
class TfConfig:
    """The cluster in TF_CONFIG, by role, and the role and index of this process in it."""

    cluster: dict[str, list[str]]
    role: str
    index: int

    @property
    def rank(self) -> int | None:
        """The rank of this task; None if its role has none."""
        ahead = len(self.cluster.get("chief", [])) if self.role == "worker" else 0
        return self.index + ahead if self.role in RANKED else None

    @property
    def hosts(self) -> list[str]:
        """The hosts of the tasks with ranks, in the order of these."""
        return [parse_host_port(address)[0] for name in RANKED for address in self.cluster.get(name, [])]

    def names_several(self) -> bool:
        """Whether there are other tasks, or this one has no rank."""
        return self.role not in RANKED or sum(map(len, self.cluster.values())) > 1


class Invalid(Exception):
    """TF_CONFIG is not a valid cluster: the row of the problem in ``errors.txt``, and its values."""

    def __init__(self, row: str, **values: object) -> None:
        super().__init__(row, values)


def read(reader: Reader) -> None:
    """Claim the task's place in its cluster, or report what is wrong with TF_CONFIG."""
    try:
        task = _parse(reader.text(TF_CONFIG) or "")
    except Invalid as error:
        row, values = error.args
        reader.refuse(row, TF_CONFIG, **values)
        return
    reader.starts = Scope.PROCESS
    reader.lone = not task.names_several()
    reader.task = f"{task.role} {task.index}" if task.rank is None else ""
    claim_task(reader, task.hosts, task.rank, TF_CONFIG, TF_CONFIG)


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


def find_task(text: str) -> TfConfig | None:
    """Return the task in a TF_CONFIG; None if that is invalid (see `read`)."""
    try:
        return _parse(text)
    except Invalid:
        return None


def _parse(text: str) -> TfConfig:
    """Return the task, valid by TensorFlow 2's rules, including those that it checks late or never.

    Raises:
        Invalid: TF_CONFIG is not valid.
    """
    try:
        config = parse_json(text)
        own, cluster = config["task"], {str(role): items for role, items in config["cluster"].items()}
        tasks = {role: list(items) for role, items in cluster.items()}
        task = TfConfig(tasks, str(own["type"]), _index(own["index"]))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        expected = 'a JSON object {"cluster": {role: [host:port]}, "task": {"type", "index"}}'
        raise Invalid("tf-config", expected=expected) from None
    sparse = [role for role, items in cluster.items() if not isinstance(items, list)]
    for fault in _list_faults(task, sparse):
        raise fault
    return task


def _index(value: object) -> int:
    """Return a task index; TensorFlow itself would turn 0.9 into 0, and true and "0_1" into 1."""
    if not isinstance(value, (int, str)) or isinstance(value, bool):
        raise TypeError
    return parse_int(value) if isinstance(value, str) else value


def _list_faults(task: TfConfig, sparse: list[str]) -> Iterator[Invalid]:
    """Yield the faults of a task; the later ones presume that the earlier are not there.

    An index of -1 passes TensorFlow's own check. ``sparse``: the roles whose tasks are not a list.
    """
    strange = sorted({task.role, *task.cluster} - set(ROLES))
    if "master" in strange:
        yield Invalid("tf-config-master")
    if strange:
        yield Invalid("tf-config", expected=f"roles among {', '.join(ROLES)}, not {shorten(strange[0])!r}")
    if sparse:
        yield Invalid("tf-config-sparse", roles=", ".join(sparse))
    addresses = [item for items in task.cluster.values() for item in items]
    if not all(isinstance(item, str) for item in addresses):
        yield Invalid("tf-config", expected="a list of host:port for every role (not so: an item)")
    yield from (Invalid("tf-config", expected=expected) for expected in _find_addresses_wrong(addresses))
    count, role = len(task.cluster.get(task.role, [])), task.role
    for alone in ALONE:
        if len(task.cluster.get(alone, [])) > 1:
            yield Invalid("tf-config-roles", role=alone)
    if not 0 <= task.index < max(1, count):
        yield Invalid("tf-config-index", role=role, last=max(1, count) - 1)
    if not count and (role != "evaluator" or role in task.cluster):
        yield Invalid("tf-config-no-task", role=role)


def _find_addresses_wrong(addresses: list[str]) -> Iterator[str]:
    """Yield what was expected of a task without an address of its own, with a port; the first says most."""
    found: dict[tuple[str, int], str] = {}
    for address in addresses:
        try:
            host, port = parse_host_port(address)
        except Malformed as error:
            yield f"every task to be {error}"
            return
        if port is None:
            yield f"every task to be host:port, not {shorten(address)!r}"
        elif (other := found.setdefault((host.lower(), port), address)) is not address:
            second = "twice" if other == address else f"and {shorten(address)!r}"
            yield f"a different address for every task, not {shorten(other)!r} {second}"
