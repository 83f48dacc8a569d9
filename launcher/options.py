"""The flags of ``launcher run``, as one table: name, meaning, and the LAUNCHER_* variable of each.

A flag beats its variable; both beat whatever the platform says. Names are torchrun's wherever
torchrun has one. The command line parser, the variables and the reference in docs/ come from here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from launcher.environ import PORT_LIMIT, Malformed, Reader, is_loopback, parse_host, parse_int, shorten
from launcher.errors import Problem, UsageError
from launcher.frozen import frozen
from launcher.host import Host
from launcher.model import Evidence, Fact, Trust

PREFIX = "LAUNCHER_"
PROCESS_LIMIT = 4096
"""More processes on one node than any node has GPUs or cores."""


@frozen
class Flag:
    """One flag: ``dest`` gives ``--dest-with-dashes`` and ``LAUNCHER_DEST``.

    ``parse`` turns text into the value and raises `Malformed`; None marks a switch.
    """

    dest: str
    metavar: str
    help: str
    parse: Callable[[str], object] | None
    fact: Fact | None = None
    short: str | None = None

    @property
    def name(self) -> str:
        """The flag as typed, e.g. ``--node-rank``."""
        return "--" + self.dest.replace("_", "-")

    @property
    def variable(self) -> str:
        """The variable that gives the same, e.g. ``LAUNCHER_NODE_RANK``."""
        return PREFIX + self.dest.upper()


def _count(text: str) -> int:
    low, colon, high = text.partition(":")
    if colon and low != high:
        raise Malformed("a fixed number of nodes, N or N:N (for elastic jobs start torchrun itself)")
    return parse_int(low, 1)


def _rank(text: str) -> int:
    return parse_int(text)


def _port(text: str) -> int:
    return parse_int(text, 1, PORT_LIMIT)


def _processes(text: str) -> int | str:
    if text in ("auto", "gpu", "cpu"):
        return text
    try:
        return parse_int(text, 1, PROCESS_LIMIT + 1)
    except Malformed as error:
        raise Malformed(f"{error}, or auto, gpu or cpu") from None


def _scope(text: str) -> str:
    if text not in ("auto", "node", "process"):
        raise Malformed("auto, node or process")
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 86400:
        raise Malformed("seconds in 0..86400")
    return seconds


def _gpus_per_process(text: str) -> int:
    return parse_int(text, 1, 1024)


FLAGS = (
    Flag("nnodes", "N", "number of nodes in the job", _count, Fact.NODE_COUNT),
    Flag("node_rank", "R", "index of this node, 0 is the master", _rank, Fact.NODE_RANK),
    Flag(
        "nproc_per_node",
        "N|auto|gpu|cpu",
        "processes per node; without it one per GPU, or one",
        _processes,
        Fact.PROCESSES_PER_NODE,
    ),
    Flag("master_addr", "HOST", "host of node 0", parse_host, Fact.MASTER_ADDR),
    Flag("master_port", "PORT", "port of the rendezvous on node 0 (6105)", _port, Fact.MASTER_PORT),
    Flag(
        "scope",
        "auto|node|process",
        "whether the launcher was started once per node or per process",
        _scope,
    ),
    Flag(
        "source",
        "NAME",
        "the only environment to believe: a source's name, or module:function",
        str,
    ),
    Flag("role", "NAME", "name of the role, for ROLE_NAME (default)", str),
    Flag(
        "gpus_per_process",
        "N",
        "give each process N GPUs of its own through CUDA_VISIBLE_DEVICES",
        _gpus_per_process,
    ),
    Flag("grace", "S", "seconds between SIGTERM and SIGKILL when stopping (30)", _seconds),
    Flag("module", "", "the command is a Python module, as in python -m", None, short="-m"),
    Flag("no_python", "", "never put Python in front of the command, even if it ends in .py", None),
)


@frozen
class Given:
    """A value that the user gave, and how: ``--nnodes 2`` or ``LAUNCHER_NNODES='2'``."""

    value: object
    origin: str


class Options:
    """What the user asked for; absent where nothing was asked."""

    def __init__(self, given: Mapping[str, Given] | None = None) -> None:
        self._given = dict(given or {})

    def get(self, dest: str) -> Given | None:
        """Return what was given for a flag."""
        return self._given.get(dest)

    def text(self, dest: str, default: str = "") -> str:
        """Return a flag's value as text."""
        given = self._given.get(dest)
        return default if given is None else str(given.value)

    def number(self, dest: str, default: float) -> float:
        """Return a flag's numeric value."""
        given = self._given.get(dest)
        return float(given.value) if given and isinstance(given.value, (int, float)) else default

    def switch(self, dest: str) -> bool:
        """Return whether a switch is on."""
        given = self._given.get(dest)
        return bool(given and given.value)

    def evidence(self) -> Evidence:
        """Return the flags that state facts, as the innermost source: the user wins."""
        reader = Reader("manual", {}, Host())
        for flag in FLAGS:
            given = self._given.get(flag.dest)
            if flag.fact is not None and given is not None and isinstance(given.value, (int, str)):
                reader.claim(flag.fact, given.value, given.origin, Trust.ASKED)
        master = self._given.get("master_addr")
        if master and not is_loopback(str(master.value)) and not self._given.keys() & {"nnodes", "node_rank"}:
            reader.sign(
                master.origin, "pass --nnodes N --node-rank R as well (--nnodes 1 for a single machine)"
            )
        return reader.evidence()


def read_options(typed: Mapping[str, str | bool], environ: Mapping[str, str]) -> Options:
    """Combine typed flags (dest to text, or True for a switch) with LAUNCHER_* variables.

    Raises:
        UsageError: Values that are not what they should be, all at once.
    """
    given: dict[str, Given] = {}
    problems: list[Problem] = []
    for flag in FLAGS:
        text, where = _look_up(flag, typed, environ)
        if text is None:
            continue
        origin = f"{flag.name} {text}" if where == "command line" else f"{flag.variable}={shorten(text)!r}"
        try:
            value = flag.parse(text) if flag.parse else _is_on(text)
        except Malformed as error:
            fix = f"correct {flag.name if where == 'command line' else flag.variable}"
            problems.append(Problem("malformed-flag", f"{origin}: expected {error}", where, fix))
            continue
        given[flag.dest] = Given(value, origin)
    if problems:
        raise UsageError(*problems)
    return Options(given)


def _look_up(
    flag: Flag, typed: Mapping[str, str | bool], environ: Mapping[str, str]
) -> tuple[str | None, str]:
    value = typed.get(flag.dest)
    if value is True:
        return "1", "command line"
    if isinstance(value, str):
        return value, "command line"
    return environ.get(flag.variable) or None, "environment"


def _is_on(text: str) -> bool:
    if text.lower() not in ("0", "1", "true", "false"):
        raise Malformed("0, 1, false or true")
    return text.lower() in ("1", "true")
