"""The flags of ``launcher run``, as one table: name, meaning, and the LAUNCHER_* variable of each.

A flag beats its variable; both beat whatever the platform says. Names are torchrun's wherever
torchrun has one. The command line parser, the variables and the reference in docs/ come from here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from launcher.environ import (
    PORT_LIMIT,
    Malformed,
    Reader,
    is_loopback,
    parse_host,
    parse_int,
    parse_signal,
    shorten,
)
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

    ``parse`` turns text into the value and raises `Malformed`; None marks a switch. A ``negatable``
    switch can also be turned off, by ``--no-dest``: what it decides has a default of its own.
    """

    dest: str
    metavar: str
    help: str
    parse: Callable[[str], object] | None
    fact: Fact | None = None
    short: str | None = None
    negatable: bool = False

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


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise Malformed(f"{', '.join(words[:-1])} or {words[-1]}")
        return text

    return parse


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


def _restarts(text: str) -> int:
    return parse_int(text, 0, 1000)


def _signal_map(text: str) -> tuple[tuple[int, int], ...]:
    """Return pairs of signal numbers: which one arrives, which one is sent instead of it."""
    pairs = [item.partition("=")[::2] for item in text.split(",")]
    try:
        numbers = tuple((parse_signal(arriving), parse_signal(sent)) for arriving, sent in pairs)
    except Malformed:
        raise Malformed("ARRIVING=SENT by name or number, such as TERM=USR1 or TERM=USR1,INT=USR1") from None
    if len({arriving for arriving, _ in numbers}) < len(numbers):
        raise Malformed("each arriving signal once")
    return numbers


def _streams(text: str) -> tuple[tuple[int | None, int], ...]:
    """Return (local rank or None for all, 0 none, 1 stdout, 2 stderr, 3 both), torchrun's notation."""
    shape = "0, 1 (stdout), 2 (stderr), 3 (both), or LOCAL_RANK:N,... such as 0:3,1:2"
    try:
        if ":" not in text:
            return ((None, parse_int(text, 0, 4)),)
        pairs = [item.strip().partition(":")[::2] for item in text.split(",")]
        return tuple((parse_int(rank), parse_int(bits, 0, 4)) for rank, bits in pairs)
    except Malformed:
        raise Malformed(shape) from None


def _local_ranks(text: str) -> tuple[int, ...]:
    try:
        return tuple(parse_int(item.strip()) for item in text.split(","))
    except Malformed:
        raise Malformed("local ranks, such as 0 or 0,3") from None


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
        _one_of("auto", "node", "process"),
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
    Flag(
        "bind",
        "none|numa|core",
        "keep each process to CPUs of its own: near its GPU, or an even share (numa if there are GPUs)",
        _one_of("none", "numa", "core"),
    ),
    Flag("grace", "S", "seconds between SIGTERM and SIGKILL when stopping (30)", _seconds),
    Flag(
        "signal_to",
        "leader|group",
        "whether a signal goes to the process only, or to its children too (leader)",
        _one_of("leader", "group"),
    ),
    Flag("signal_map", "A=B,...", "send signal B where A arrives, such as TERM=USR1", _signal_map),
    Flag("init", "", "stay as init of the process, as process 1 of a container does", None, negatable=True),
    Flag("restarts", "N", "on one node: start all processes again after a failure, N times (0)", _restarts),
    Flag("failure_file", "FILE", "where to write the failure record (where the platform looks)", str),
    Flag("log_dir", "DIR", "folder for the log files of --redirects and --tee", str),
    Flag("redirects", "N", "write to files only: 1 stdout, 2 stderr, 3 both, 0:3,1:2", _streams, short="-r"),
    Flag("tee", "N", "write to files as well (as --redirects)", _streams, short="-t"),
    Flag("local_ranks_filter", "R,...", "show only the output of these local ranks", _local_ranks),
    Flag(
        "prefix", "", "begin each line with its rank (if there are several processes)", None, negatable=True
    ),
    Flag("progress", "", "a status line (on a terminal, or where all is silent)", None, negatable=True),
    Flag("stall_timeout", "S", "act after so long without any output and GPU work (never)", _seconds),
    Flag("on_stall", "report|stop", "what to do then (report)", _one_of("report", "stop")),
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

    def switch(self, dest: str, default: bool = False) -> bool:
        """Return whether a switch is on."""
        given = self._given.get(dest)
        return default if given is None else bool(given.value)

    def pairs(self, dest: str) -> tuple[tuple[int, int], ...]:
        """Return the value of a flag that holds pairs of numbers."""
        given = self._given.get(dest)
        return given.value if given and isinstance(given.value, tuple) else ()

    def streams(self, dest: str) -> tuple[tuple[int | None, int], ...]:
        """Return (local rank or None for all, bits) of ``--redirects`` or ``--tee``."""
        given = self._given.get(dest)
        return given.value if given and isinstance(given.value, tuple) else ()

    def numbers(self, dest: str) -> tuple[int, ...] | None:
        """Return the value of a flag that holds a list of numbers, None if it was not given."""
        given = self._given.get(dest)
        return given.value if given and isinstance(given.value, tuple) else None

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
        typed_as = (
            f"{flag.name} {text}" if flag.parse else flag.name if text == "1" else f"--no-{flag.name[2:]}"
        )
        origin = typed_as if where == "command line" else f"{flag.variable}={shorten(text)!r}"
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
    if isinstance(value, bool):
        return str(int(value)), "command line"
    if isinstance(value, str):
        return value, "command line"
    return environ.get(flag.variable) or None, "environment"


def _is_on(text: str) -> bool:
    if text.lower() not in ("0", "1", "true", "false"):
        raise Malformed("0, 1, false or true")
    return text.lower() in ("1", "true")
