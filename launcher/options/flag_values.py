"""Parsers of flag values, one function per kind of value; all raise `Malformed`."""

from __future__ import annotations

from launcher.core.environ import (
    PORT_LIMIT,
    Malformed,
    parse_host,
    parse_host_port,
    parse_hosts,
    parse_int,
    parse_nodes,
)
from launcher.core.errors import EXIT_NOT_READY
from launcher.core.model import COUNT_WORDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROLES = ("chief", "worker", "ps", "evaluator")
"""The roles of TensorFlow's tasks, in TensorFlow's order."""
LOST_AFTER_LEAST_S = 5.0
SIZE_MIN, SIZE_UNITS = 1 << 16, {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
TIME_UNITS = {"s": 1, "m": 60, "h": 3600}
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


def parse_port(text: str) -> int:
    """Return a port, 1..65535."""
    return parse_int(text, 1, PORT_LIMIT)


def parse_master_port(text: str) -> int:
    """Return a port, or 0 for a free one, which only a single-node job can use."""
    return parse_int(text, 0, PORT_LIMIT)


def parse_processes(text: str) -> int | str:
    """Return the number of processes of a node, or one of the words in COUNT_WORDS."""
    if text in COUNT_WORDS:
        return text
    try:
        return parse_int(text, 1, PROCESS_LIMIT + 1)
    except Malformed as error:
        raise Malformed(f"{error}, or {', '.join(COUNT_WORDS[:-1])} or {COUNT_WORDS[-1]}") from None


def one_of(*words: str) -> Callable[[str], str]:
    """Return a parser that accepts only these words."""

    def parse(text: str) -> str:
        if text not in words:
            raise Malformed(f"{', '.join(words[:-1])} or {words[-1]}")
        return text

    return parse


def parse_seconds(text: str) -> float:
    """Return seconds, up to a day: ``90``, ``90s``, ``1.5m``, ``2h``."""
    unit = text[-1:] if text[-1:] in TIME_UNITS else ""
    try:
        seconds = float(text.removesuffix(unit)) * TIME_UNITS.get(unit, 1)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 86400:
        raise Malformed("seconds in 0..86400, or a duration such as 90s, 5m or 2h")
    return seconds


def parse_lost_after(text: str) -> float:
    """Return seconds of silence, long enough for a heartbeat to arrive."""
    seconds = parse_seconds(text)
    if seconds < LOST_AFTER_LEAST_S:
        raise Malformed(f"at least {LOST_AFTER_LEAST_S:g} seconds, more than two heartbeats")
    return seconds


def parse_word(text: str) -> str:
    """Return a name that is safe to pass on anywhere."""
    if not text.replace("-", "a").replace("_", "a").replace(".", "a").isalnum() or text[0] == "-":
        raise Malformed("a name of letters, digits, dots and dashes")
    return text


def parse_endpoint(text: str) -> str:
    """Return ``HOST[:PORT]`` as it was given."""
    parse_host_port(text, 0)
    return text.strip()


def parse_key_values(text: str) -> tuple[tuple[str, str], ...]:
    """Return (key, value) pairs, by the rules of torch.distributed.elastic.rendezvous.utils."""
    pairs = tuple(
        (key.strip(), value.strip()) for key, _, value in (i.partition("=") for i in text.split(","))
    )
    if not all(key and value for key, value in pairs):
        raise Malformed("KEY=VALUE,KEY=VALUE,... such as timeout=600")
    return pairs


def parse_gpus_per_process(text: str) -> int:
    """Return the number of GPUs of a process, 1..1023."""
    return parse_int(text, 1, 1024)


def parse_restarts(text: str) -> int:
    """Return the maximum number of restarts, 0..999."""
    return parse_int(text, 0, 1000)


def parse_spares(text: str) -> int:
    """Return the number of spare nodes, 0..4096."""
    return parse_int(text, 0, PROCESS_LIMIT + 1)


def parse_statuses(text: str) -> tuple[int, ...]:
    """Return exit statuses, each 1..255."""
    try:
        return tuple(parse_int(item.strip(), 1, 256) for item in text.split(","))
    except Malformed:
        raise Malformed("exit statuses in 1..255, such as 93 or 93,94") from None


def parse_fatal_status(text: str) -> int:
    """Return an exit code that no platform takes for a signal (128+n) or for "retry" (75)."""
    status = parse_int(text, 1, 126)
    if status == EXIT_NOT_READY:
        raise Malformed(f"an exit code in 1..125 other than {EXIT_NOT_READY}, which means that a retry helps")
    return status


def parse_regex(text: str) -> str:
    """Return a regular expression as it was given."""
    import re

    try:
        re.compile(text.encode("utf-8", "surrogateescape"))
    except (re.error, OverflowError, RecursionError) as error:
        raise Malformed(f"a regular expression ({error})") from None
    if not text:
        raise Malformed("a regular expression that is not empty")
    return text


def parse_signal(text: str) -> int:
    """Return the number of a signal that a process can catch, given as ``TERM``, ``SIGTERM`` or ``15``.

    Raises:
        Malformed: The signal is unknown, or no process can catch it (KILL, STOP).
    """
    import signal

    name = text.strip().upper().removeprefix("SIG")
    number = parse_int(name) if name.isdecimal() else getattr(signal, f"SIG{name}", None)
    never = {getattr(signal, f"SIG{one}") for one in UNCATCHABLE}
    if not isinstance(number, int) or number not in signal.valid_signals() - never:
        raise Malformed(f"the name or number of a signal, but {' and '.join(UNCATCHABLE)}")
    return int(number)


def parse_signal_map(text: str) -> tuple[tuple[int, int], ...]:
    """Return pairs of signal numbers: (arriving, sent instead)."""
    pairs = [item.partition("=")[::2] for item in text.split(",")]
    try:
        numbers = tuple((parse_signal(arriving), parse_signal(sent)) for arriving, sent in pairs)
    except Malformed:
        what = f"ARRIVING=SENT by name or number, but no {' or '.join(UNCATCHABLE)}, which nothing can catch"
        raise Malformed(f"{what}; such as TERM=USR1 or TERM=USR1,INT=USR1") from None
    if len({arriving for arriving, _ in numbers}) < len(numbers):
        raise Malformed("each arriving signal once")
    _require_passed_on(arriving for arriving, _ in numbers)
    return numbers


def _require_passed_on(arriving: Iterable[int]) -> None:
    """Refuse arriving signals that the launcher does not forward: their pair would have no effect."""
    import signal

    kept = {getattr(signal, f"SIG{name}") for name in NOT_PASSED_ON}
    if kept.isdisjoint(arriving):
        return
    names = ", ".join(one.name.removeprefix("SIG") for one in sorted(signal.Signals) if one not in kept)
    raise Malformed(
        f"an arriving signal that the launcher passes on: {names}, or a number between the last two"
    )


def parse_streams(text: str) -> tuple[tuple[int | None, int], ...]:
    """Return pairs (local rank or None for all, streams) in torchrun's notation.

    Streams: 0 none, 1 stdout, 2 stderr, 3 both.
    """
    shape = "0, 1 (stdout), 2 (stderr), 3 (both), or LOCAL_RANK:N,... such as 0:3,1:2"
    try:
        if ":" not in text:
            return ((None, parse_int(text, 0, 4)),)
        pairs = [item.strip().partition(":")[::2] for item in text.split(",")]
        return tuple((parse_int(rank), parse_int(bits, 0, 4)) for rank, bits in pairs)
    except Malformed:
        raise Malformed(shape) from None


def parse_readers(text: str) -> int | str:
    """Return which rank reads standard input: a rank, ``all`` or ``none``."""
    return text if text in ("all", "none") else parse_int(text)


def parse_size(text: str) -> int:
    """Return a number of bytes: ``65536``, ``100M``, ``4GiB``; units of 1024."""
    text = text[:-2] if text.endswith(("KiB", "MiB", "GiB")) else text
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    try:
        found = parse_int(number, 1, 1 << 60) * SIZE_UNITS[unit]
    except (Malformed, KeyError):
        found = 0
    if not SIZE_MIN <= found < 1 << 60:
        raise Malformed("a size of at least 64K, such as 65536, 100M or 4GiB")
    return found


def parse_words(text: str) -> tuple[str, ...]:
    """Return words, which may be quoted as in a shell."""
    import shlex

    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise Malformed(f"words quoted as in a shell ({error})") from None


def parse_modules(text: str) -> tuple[str, ...]:
    """Return names of Python modules, or ``auto`` alone."""
    names = tuple(item.strip() for item in text.split(","))
    are_names = all(part.isidentifier() for name in names for part in name.split("."))
    if not are_names or ("auto" in names and len(names) > 1):
        raise Malformed("names of modules, or auto: torch,transformers")
    return names


def parse_patterns(text: str) -> tuple[str, ...]:
    """Return names of variables; a name may end with ``*``."""
    names = tuple(item.strip() for item in text.split(","))
    if not all(name.removesuffix("*").replace("_", "a").isalnum() for name in names):
        raise Malformed("names of variables, such as DATA_DIR or HF_*")
    return names


def parse_tasks(text: str) -> int:
    """Return the number of tasks of a role, 0..4096."""
    return parse_int(text, 0, PROCESS_LIMIT + 1)


def parse_roles(text: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return each role with the nodes of its tasks, in order: ``chief=0 ps=1-2 worker=3,3``."""
    found: dict[str, tuple[int, ...]] = {}
    for word in text.split():
        role, equals, nodes = word.partition("=")
        if not equals or role not in ROLES or role in found:
            raise Malformed(f"ROLE=NODES ..., each of {', '.join(ROLES)} at most once")
        found[role] = tuple(node for item in nodes.split(",") for node in _node_range(item))
    if not found or any(len(nodes) > PROCESS_LIMIT for nodes in found.values()):
        raise Malformed(f"ROLE=NODES ..., {PROCESS_LIMIT} tasks of a role at most")
    return tuple(found.items())


def _node_range(text: str) -> range:
    first, dash, last = text.partition("-")
    try:
        low = parse_int(first, 0, PROCESS_LIMIT)
        return range(low, (parse_int(last, low, PROCESS_LIMIT) if dash else low) + 1)
    except Malformed:
        raise Malformed("indices of nodes, such as 0, 1-3 or 2,2 (two tasks on node 2)") from None


def parse_local_ranks(text: str) -> tuple[int, ...]:
    """Return local ranks in the given order."""
    try:
        return tuple(parse_int(item.strip()) for item in text.split(","))
    except Malformed:
        raise Malformed("local ranks, such as 0 or 0,3") from None


def parse_command(text: str) -> tuple[str, ...]:
    """Return the words of a command, which has at least its program."""
    words = parse_words(text)
    if not words or not words[0].strip():
        raise Malformed("a command, with its program as the first word")
    return words


KINDS: dict[str, Callable[[str], object] | None] = {
    "": None,
    "text": str,
    "int": parse_int,
    "host": parse_host,
    "hosts": parse_hosts,
    "nodes": parse_nodes,
    "command": parse_command,
    "endpoint": parse_endpoint,
    "fatal": parse_fatal_status,
    "gpus_per_process": parse_gpus_per_process,
    "key_values": parse_key_values,
    "local_ranks": parse_local_ranks,
    "lost_after": parse_lost_after,
    "master_port": parse_master_port,
    "modules": parse_modules,
    "patterns": parse_patterns,
    "port": parse_port,
    "processes": parse_processes,
    "readers": parse_readers,
    "regex": parse_regex,
    "restarts": parse_restarts,
    "roles": parse_roles,
    "seconds": parse_seconds,
    "signal_map": parse_signal_map,
    "size": parse_size,
    "spares": parse_spares,
    "statuses": parse_statuses,
    "streams": parse_streams,
    "tasks": parse_tasks,
    "word": parse_word,
    "words": parse_words,
}
"""Kinds of values by their names in the table of flags; none for a switch."""
