"""Parsers of the texts in variables and flags, and the record of what a source claims."""

from __future__ import annotations

from launcher.core.errors import attempt
from launcher.core.model import Claim, Evidence, Fact, Trust

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from launcher.core.errors import Problem
    from launcher.core.model import Scope, Value

COUNT_LIMIT = 1 << 24
"""Limit of node and process counts: a larger number is malformed."""
PORT_LIMIT = 65536
BOM = "\ufeff"
"""Byte order mark, with which Windows' editors begin a file."""
OWN_PLACE = "own name "
"""Start of the origin text of a node's index in the user's list of hosts."""
STATIC, C10D = MEETS_AT_MASTER = ("static", "c10d")
"""torchrun's rendezvous backends whose endpoint is a node of the job and not a separate server (etcd)."""
_DIGITS_LIMIT = 10
# Letters and digits of host names (RFC 1123), and the underscore that real clusters use.
# Anything else never reaches a command line or a resolver.
_WORD = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")
_INNER = _WORD | frozenset(".-")
_HOST_LIMIT = 253
_TWICE_NAMED = 3


class Malformed(ValueError):
    """A malformed text; the message says what was expected."""


def parse_int(text: str, minimum: int = 0, limit: int = COUNT_LIMIT) -> int:
    """Return a decimal integer in ``minimum..limit-1``; surrounding blanks are allowed.

    Raises:
        Malformed: Anything else: signs, underscores, non-ASCII digits, out of range.
    """
    digits = text.strip(" \t\r\n")
    plain = digits.isascii() and digits.isdecimal() and len(digits) <= _DIGITS_LIMIT
    if not plain or not minimum <= int(digits) < limit:
        raise Malformed(f"an integer in {minimum}..{limit - 1}")
    return int(digits)


def is_host(text: str) -> bool:
    """Whether a text is a valid host name or address."""
    address, percent, zone = text.partition("%")
    if ":" in address:
        return _is_ipv6(address) and (not percent or _is_name(zone))
    return _is_name(text)


def _is_name(text: str) -> bool:
    ends = text[:1] + text[-1:]
    is_word = 0 < len(text) <= _HOST_LIMIT and _WORD.issuperset(ends) and _INNER.issuperset(text)
    return is_word and ".." not in text


def _is_ipv6(text: str) -> bool:
    """Whether a text is an IPv6 address, without a zone (RFC 4291, section 2.2)."""
    from _socket import AF_INET6, inet_pton

    return attempt(inet_pton, AF_INET6, text) is not None


def parse_host(text: str) -> str:
    """Return a host name or address, without brackets around an IPv6 address.

    Raises:
        Malformed: Blank, longer than 253 characters, or not a valid name or address.
    """
    host = text.strip(" \t\r\n")
    if host.startswith("[") and host.endswith("]") and ":" in host:
        host = host[1:-1]
    if not is_host(host):
        raise Malformed("a hostname or an IP address, without a port")
    return host


def bracket(host: str) -> str:
    """Return a host in the form that it has before a port: an IPv6 address has brackets."""
    return f"[{host}]" if ":" in host else host


def parse_host_port(text: str, least: int = 1) -> tuple[str, int | None]:
    """Split ``host``, ``host:port``, ``[v6]:port`` or a bare IPv6 address.

    Args:
        text: The text to split.
        least: The lowest valid port; 0 if port 0 may stand for a free port.

    Raises:
        Malformed: The host or the port is invalid.
    """
    head, colon, tail = text.strip().rpartition(":")
    if not colon or (head.count(":") and not head.endswith("]")):
        return parse_host(text), None
    return parse_host(head), parse_int(tail, least, PORT_LIMIT)


def parse_nodes(text: str) -> int | str:
    """Return a number of nodes, or the range of an elastic job as ``MIN:MAX``; ``2:2`` is 2.

    Raises:
        Malformed: Anything else.
    """
    low, colon, high = text.partition(":")
    try:
        least, most = parse_int(low, 1), parse_int(high if colon else low, 1)
        if least > most:
            raise Malformed
    except Malformed:
        raise Malformed("a number of nodes, N or MIN:MAX") from None
    return least if least == most else f"{least}:{most}"


def parse_hosts(text: str, separator: str | None = ",") -> tuple[str, ...]:
    """Return the hosts of a list in order, without ports; blanks separate them if ``separator`` is None.

    Raises:
        Malformed: The list is empty, an item is not a host, or a host occurs twice.
    """
    return each_once(text.split(separator))


def parse_json(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: It is none, or too deep.
    """
    import json

    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError from error


def each_once(items: Iterable[str]) -> tuple[str, ...]:
    """Return hosts in order, without ports.

    Raises:
        Malformed: There is no item, an item is not a host, or a host occurs twice.
    """
    hosts = dict[str, None]()
    twice = dict[str, None]()
    for item in items:
        host = parse_host_port(item)[0]
        (twice if host in hosts else hosts)[host] = None
    if not hosts:
        raise Malformed("at least one host")
    if twice:
        named = "".join(f", not {host!r} twice" for host in list(twice)[:_TWICE_NAMED])
        more = ", ..." if len(twice) > _TWICE_NAMED else ""
        raise Malformed(f"each host only once{named}{more}")
    return tuple(hosts)


OWN_NAMES = ("localhost", "ip6-localhost", "ip6-loopback", "localhost4", "localhost6")
REHEARSED = "127.0.77."
"""Addresses of the simulated nodes of `launcher rehearse`; any other address in 127/8 means this node."""


SOCKET_NAMES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
NETWORK_NAMES = (*SOCKET_NAMES, "NCCL_SOCKET_FAMILY", "NCCL_IB_HCA")
"""The network variables that are checked against this node: `launcher.fabrics.variables`."""


def is_loopback(host: str) -> bool:
    """Whether a host is a loopback name or address in any spelling, and so means "this node" on each node."""
    name = host.lower().rstrip(".")
    if name.partition(".")[0] in OWN_NAMES or name in ("0", "0.0.0.0", "127"):  # noqa: S104
        return True
    if ":" not in name:
        return (
            name.startswith("127.") and not name.startswith(REHEARSED) and name.replace(".", "").isdecimal()
        )
    import ipaddress

    address = attempt(ipaddress.ip_address, name.partition("%")[0])
    if address is None:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_loopback or address.is_unspecified or bool(mapped and mapped.is_loopback)


class Source:
    """What one source knows about a job, as it is collected: the fields of `Evidence`.

    ``node_count``: number of nodes that the user asked for; None if not given.
    """

    starts: Scope | None = None
    seals = lone = even = False
    in_order = True
    most_nodes: int | None = None
    least: Claim | None = None
    forwards: tuple[str, ...] | None = None
    task = ""

    def __init__(self, source: str, node_count: int | None = None) -> None:
        self.source = source
        self.node_count = node_count
        self.claims: list[Claim] = []
        self.signs: list[tuple[str, str]] = []
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self.several: list[str] = []

    def claim(self, fact: Fact, value: Value, origin: str, trust: Trust = Trust.STATED) -> None:
        """State a fact; ``origin`` is a variable's name (its value is added) or a sentence."""
        self.claims.append(Claim(fact, value, self.origin(origin), self.source, trust))

    def claim_hosts(
        self,
        hosts: tuple[str, ...],
        origin: str,
        trust: Trust = Trust.STATED,
        *,
        master: Trust | None = None,
    ) -> None:
        """State a host list in node order, and the node count that follows from it.

        ``master``: trust in the first one as the master; None if it need not be.
        """
        if hosts:
            self.claim(Fact.HOSTS, hosts, origin, trust)
            self.claim(Fact.NODE_COUNT, len(hosts), origin, trust)
            if master is not None:
                self.claim(Fact.MASTER_ADDR, hosts[0], origin, master)

    def sign(self, name: str, fix: str, *, of_nodes: bool = True) -> None:
        """Record a variable that hints at several nodes without saying which one this is.

        It is ignored if the user asked for one node. ``of_nodes``: whether it states several nodes; else it
        may count or number the processes of one.
        """
        if of_nodes:
            self.several.append(self.origin(name))
        if self.node_count != 1:
            self.signs.append((self.origin(name), fix))

    def origin(self, name: str) -> str:
        """Return the text that shows an origin: as it is."""
        return name

    def evidence(self) -> Evidence:
        """Return all that was collected."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in Evidence.__annotations__}
        fields |= {name: tuple(found) for name, found in fields.items() if isinstance(found, list)}
        return Evidence(**fields)


SERVICE = "_SERVICE_HOST"
"""End of the name of a variable that Kubernetes sets for each Service of a namespace, in all of its pods."""


def leave_out_services(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables without NAME_PORT=tcp://..., which Kubernetes sets beside NAME_SERVICE_HOST.

    For a Service named ``master`` or ``launcher-metrics`` these are names that we read.
    """
    ports = [name for name in environ if name.endswith("_PORT") and "://" in environ[name]]
    left_out = {name for name in ports if name.removesuffix("_PORT") + SERVICE in environ}
    return {name: environ[name] for name in environ if name not in left_out} if left_out else environ


OWN_JOB_ID = "LAUNCHER_JOB_ID"
"""Set by ``--ssh``: of the nodes that it starts, only the first has the platform's variables."""
JOB_IDS = (OWN_JOB_ID, "AZ_BATCH_JOB_ID", "AZUREML_RUN_ID", "SLURM_JOB_ID", "PBS_JOBID")
"""Job ids of platforms, the same on all nodes of a job; the first one set counts. Ids of parts of a job (a
Slurm step, a task of Batch) are not here: each node may be a part of its own."""
CARRIED_BY_MPIRUN = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_RANK")
"""Variables of processes that mpirun started: only mpirun's own node has all of the platform's variables."""


def find_job_id(environ: Mapping[str, str]) -> str:
    """Return the platform's id of the job, the same on all nodes; empty if unknown."""
    if any(name in environ for name in CARRIED_BY_MPIRUN):
        return ""
    found = (environ.get(name, "") for name in JOB_IDS)
    return next((value for value in found if value and value.isprintable()), "")


def shorten(value: str, limit: int = 120) -> str:
    """Return a value shortened for a message: a list of 1,000 hosts must not fill the screen.

    A value is redacted before it is cut: half a secret could not be recognized later.
    """
    if len(value) <= limit:
        return value
    from launcher.core import redact

    return f"{redact.shorten(value, limit)}... ({len(value)} characters)"
