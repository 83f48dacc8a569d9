"""Kinds of flag values: a row of ``flags.txt`` names one, with its range or its words.

A kind returns a parser: ``number 1 65535`` is ``number("1", "65535")``. A parser returns the value of a text,
or raises `Malformed` with the form that was expected.
"""

from __future__ import annotations

from launcher.core.environ import (
    COUNT_LIMIT,
    Malformed,
    parse_host,
    parse_host_port,
    parse_hosts,
    parse_int,
    parse_nodes,
)
from launcher.core.errors import EXIT_NOT_READY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    Parse = Callable[[str], Any]

ROLES = ("chief", "worker", "ps", "evaluator")
"""The roles of TensorFlow's tasks, in TensorFlow's order."""
SIZE_UNITS = {"": 0, "K": 10, "M": 20, "G": 30}
TIME_UNITS = {"s": 1, "m": 60, "h": 3600}
DAY_S = 86400
AMOUNT_LENGTH = 18
PROCESS_LIMIT = 4096
"""Limit of processes on one node: more than any node has GPUs or cores."""
UNCATCHABLE = ("KILL", "STOP")
NOT_PASSED_ON = (
    *UNCATCHABLE,
    "CHLD",  # about our own children
    *("SEGV", "BUS", "FPE", "ILL"),  # our own faults: if they were blocked,
    *("ABRT", "TRAP", "SYS"),  # a fault would hang us instead of killing us
    *("TTIN", "TTOU"),  # about our own use of the terminal
)
"""Signals that the launcher does not forward, so that they cannot be mapped to another signal."""


def one_of(*words: str) -> Parse:
    """Accept only these words."""
    return lambda text: text if text in words else _refuse(_or(words))


def number(low: str = "0", high: str = str(COUNT_LIMIT - 1), *words: str) -> Parse:
    """Accept a whole number from ``low`` to ``high``, or one of the words, which stays a text."""

    def parse(text: str) -> int | str:
        try:
            return text if text in words else parse_int(text, int(low), int(high) + 1)
        except Malformed as error:
            _refuse(f"{error}, or {_or(words)}" if words else str(error))

    return parse


def amount(text: str) -> float:
    """Return a number that is not negative: ``300``, ``0.5``."""
    if not text.replace(".", "", 1).isdecimal() or not text.isascii() or len(text) > AMOUNT_LENGTH:
        _refuse("a number such as 300 or 0.5")
    return float(text)


def duration(least: str = "0", most: str = str(DAY_S)) -> Parse:
    """Accept seconds: ``90``, ``90s``, ``1.5m``, ``2h``."""

    def parse(text: str) -> float:
        unit = text[-1:] if text[-1:] in TIME_UNITS else ""
        try:
            seconds = float(text.removesuffix(unit)) * TIME_UNITS.get(unit, 1)
        except ValueError:
            seconds = -1.0
        if not float(least) <= seconds <= float(most):
            _refuse(f"seconds in {least}..{most}, or a duration such as 90s, 5m or 2h")
        return seconds

    return parse


def limits(*phases: str) -> Parse:
    """Accept seconds, which may be others in a phase: ``10m`` or ``10m,first=30m``.

    The value is a number, or pairs (phase, seconds) of which the first has no phase.
    """
    seconds = duration()

    def parse(text: str) -> float | tuple[tuple[str, float], ...]:
        usual, *others = text.split(",")
        pairs = {"": seconds(usual)}
        for phase, _, limit in (item.strip().partition("=") for item in others):
            if phase not in phases or phase in pairs:
                _refuse(f"seconds, then those of phases ({_or(phases)}), such as 10m,{phases[0]}=30m")
            pairs[phase] = seconds(limit)
        return tuple(pairs.items()) if others else pairs[""]

    return parse


def size(least: str) -> Parse:
    """Accept a size: ``65536``, ``100M``, ``4GiB``; units of 1024. ``least``: in bytes."""

    def parse(text: str) -> int:
        found = _bytes(text)
        if not _bytes(least) <= found < 1 << 60:
            _refuse(f"a size of at least {least}, such as 65536, 100M or 4GiB")
        return found

    return parse


def _bytes(text: str) -> int:
    """Return the bytes of a size; 0 if it is none."""
    digits = text.rstrip("KMGiBkmgb")
    unit = text[len(digits) :].upper().removesuffix("B").removesuffix("I")
    is_number = digits.isascii() and digits.isdecimal() and len(digits) < 16
    is_size = is_number and unit in SIZE_UNITS and (unit or digits == text)
    return int(digits) << SIZE_UNITS[unit] if is_size else 0


def list_of(kind: str, *more: str) -> Parse:
    """Accept one or more values of a kind with commas between them."""
    parse = parser_of(" ".join((kind, *more)))
    return lambda text: tuple(parse(item.strip()) for item in text.split(","))


def words(least: str = "0") -> Parse:
    """Accept words, quoted as in a shell. ``least``: their minimum number."""

    def parse(text: str) -> tuple[str, ...]:
        import shlex

        try:
            found = tuple(shlex.split(text))
        except ValueError as error:
            _refuse(f"words quoted as in a shell ({error})")
        if int(least) and not (found and found[0].strip()):
            _refuse("a command, with its program as the first word")
        return found

    return parse


def regex(text: str) -> str:
    """Return a regular expression as it was given."""
    import re

    try:
        re.compile(text.encode("utf-8", "surrogateescape"))
    except (re.error, OverflowError, RecursionError) as error:
        _refuse(f"a regular expression ({error})")
    return text or _refuse("a regular expression that is not empty")


def name(text: str) -> str:
    """Return a name that is safe to pass on anywhere."""
    safe = text.replace("-", "a").replace("_", "a").replace(".", "a").isalnum() and text[0] != "-"
    return text if safe else _refuse("a name of letters, digits, dots and dashes")


def variable(text: str) -> str:
    """Return the name of a variable, which may end with ``*``."""
    safe = text.removesuffix("*").replace("_", "a").isalnum()
    return text if safe else _refuse("names of variables, such as DATA_DIR or HF_*")


def modules(text: str) -> tuple[str, ...]:
    """Return names of Python modules, or ``auto`` alone."""
    names = tuple(item.strip() for item in text.split(","))
    are_names = all(part.isidentifier() for one in names for part in one.split("."))
    if not are_names or ("auto" in names and len(names) > 1):
        _refuse("names of modules, or auto: torch,transformers")
    return names


def endpoint(text: str) -> str:
    """Return ``HOST[:PORT]`` as it was given."""
    parse_host_port(text, 0)
    return text.strip()


def key_values(text: str) -> tuple[tuple[str, str], ...]:
    """Return (key, value) pairs, by the rules of torch.distributed.elastic.rendezvous.utils."""
    pairs = [item.partition("=") for item in text.split(",")]
    found = tuple((key.strip(), value.strip()) for key, _, value in pairs)
    return found if all(map(all, found)) else _refuse("KEY=VALUE,KEY=VALUE,... such as timeout=600")


def streams(text: str) -> tuple[tuple[int | None, int], ...]:
    """Return pairs (local rank or None for all, streams) in torchrun's notation.

    Streams: 0 none, 1 stdout, 2 stderr, 3 both.
    """
    try:
        if ":" not in text:
            return ((None, parse_int(text, 0, 4)),)
        pairs = [item.strip().partition(":")[::2] for item in text.split(",")]
        return tuple((parse_int(rank), parse_int(bits, 0, 4)) for rank, bits in pairs)
    except Malformed:
        _refuse("0, 1 (stdout), 2 (stderr), 3 (both), or LOCAL_RANK:N,... such as 0:3,1:2")


def parse_signal(text: str) -> int:
    """Return the number of a signal that a process can catch, given as ``TERM``, ``SIGTERM`` or ``15``.

    Raises:
        Malformed: The signal is unknown, or no process can catch it (KILL, STOP).
    """
    import signal

    word = text.strip().upper().removeprefix("SIG")
    found = parse_int(word) if word.isdecimal() else getattr(signal, f"SIG{word}", None)
    never = {getattr(signal, f"SIG{one}") for one in UNCATCHABLE}
    if not isinstance(found, int) or found not in signal.valid_signals() - never:
        _refuse(f"the name or number of a signal, but {' and '.join(UNCATCHABLE)}")
    return int(found)


def signal_map(text: str) -> tuple[tuple[int, int], ...]:
    """Return pairs of signal numbers: (arriving, sent instead)."""
    import signal

    pairs = [item.partition("=")[::2] for item in text.split(",")]
    try:
        numbers = tuple((parse_signal(arriving), parse_signal(sent)) for arriving, sent in pairs)
    except Malformed:
        what = f"ARRIVING=SENT by name or number, but no {' or '.join(UNCATCHABLE)}, which nothing can catch"
        _refuse(f"{what}; such as TERM=USR1 or TERM=USR1,INT=USR1")
    if len({arriving for arriving, _ in numbers}) < len(numbers):
        _refuse("each arriving signal once")
    kept = {getattr(signal, f"SIG{one}") for one in NOT_PASSED_ON}  # their pair would have no effect
    if not kept.isdisjoint(arriving for arriving, _ in numbers):
        names = ", ".join(one.name.removeprefix("SIG") for one in sorted(signal.Signals) if one not in kept)
        _refuse(f"an arriving signal that the launcher passes on: {names}, or a number between the last two")
    return numbers


def fatal(text: str) -> int:
    """Return an exit code that no platform takes for a signal (128+n) or for "retry" (75)."""
    status = parse_int(text, 1, 126)
    if status == EXIT_NOT_READY:
        _refuse(f"an exit code in 1..125 other than {EXIT_NOT_READY}, which means that a retry helps")
    return status


def roles(text: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return each role with the nodes of its tasks, in order: ``chief=0 ps=1-2 worker=3,3``."""
    found: dict[str, tuple[int, ...]] = {}
    for word in text.split():
        role, equals, nodes = word.partition("=")
        if not equals or role not in ROLES or role in found:
            _refuse(f"ROLE=NODES ..., each of {', '.join(ROLES)} at most once")
        found[role] = tuple(node for item in nodes.split(",") for node in _node_range(item))
    if not found or any(len(nodes) > PROCESS_LIMIT for nodes in found.values()):
        _refuse(f"ROLE=NODES ..., {PROCESS_LIMIT} tasks of a role at most")
    return tuple(found.items())


def _node_range(text: str) -> range:
    first, dash, last = text.partition("-")
    try:
        low = parse_int(first, 0, PROCESS_LIMIT)
        return range(low, (parse_int(last, low, PROCESS_LIMIT) if dash else low) + 1)
    except Malformed:
        _refuse("indices of nodes, such as 0, 1-3 or 2,2 (two tasks on node 2)")


def _or(found: tuple[str, ...]) -> str:
    return f"{', '.join(found[:-1])} or {found[-1]}"


def _refuse(expected: str) -> NoReturn:
    raise Malformed(expected) from None


KINDS: dict[str, Callable[..., Parse]] = {
    "list": list_of,
    **{kind.__name__: kind for kind in (number, duration, limits, size, words)},
}
PLAIN: dict[str, Parse] = {
    "text": str,
    "host": parse_host,
    "hosts": parse_hosts,
    "nodes": parse_nodes,
    **{parse.__name__: parse for parse in (amount, name, regex, endpoint, modules, variable, key_values)},
    **{parse.__name__: parse for parse in (signal_map, streams, roles, fatal)},
}
"""Kinds by their names in the table of flags, with words and without; "choice" is `one_of` a row's words."""


def parser_of(kind: str, form: str = "") -> Parse:
    """Return the parser of a row; ``form`` is what a bad value is told, if not what its kind says."""
    name, *more = kind.split()
    parse = PLAIN.get(name) or KINDS[name](*more)
    if not form:
        return parse

    def parse_formed(text: str) -> object:
        try:
            return parse(text)
        except Malformed:
            _refuse(form)

    return parse_formed


def is_on(text: str) -> bool:
    """Return whether a switch is on.

    Raises:
        Malformed: The text is neither on nor off.
    """
    if text.lower() not in ("0", "1", "true", "false"):
        _refuse("0, 1, false or true")
    return text.lower() in ("1", "true")
