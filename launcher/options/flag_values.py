"""What the text of a flag means: a function per kind of value, which raises `Malformed`."""

from __future__ import annotations

from launcher.core.environ import PORT_LIMIT, Malformed, parse_host_port, parse_int
from launcher.core.model import COUNT_WORDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROLES = ("chief", "worker", "ps", "evaluator")
"""The roles of a task of TensorFlow, in its own order."""
LOST_AFTER_LEAST_S = 5.0
PROCESS_LIMIT = 4096
"""More processes on one node than any node has GPUs or cores."""
UNCATCHABLE = ("KILL", "STOP")
NOT_PASSED_ON = (
    *UNCATCHABLE,
    "CHLD",  # about our own children
    *("SEGV", "BUS", "FPE", "ILL"),  # our own faults: blocked, they
    *("ABRT", "TRAP", "SYS"),  # would leave us hanging instead of dying
    *("TTIN", "TTOU"),  # about our own use of the terminal
)
"""Signals that arrive at the launcher and go no further: nothing can be sent instead of them."""


def parse_port(text: str) -> int:
    """Return a port, 1..65535."""
    return parse_int(text, 1, PORT_LIMIT)


def parse_master_port(text: str) -> int:
    """Return a port, or 0 for one that is free; the latter can only be where there is one node."""
    return parse_int(text, 0, PORT_LIMIT)


def parse_processes(text: str) -> int | str:
    """Return how many processes a node has, or one of the words that count them."""
    if text in COUNT_WORDS:
        return text
    try:
        return parse_int(text, 1, PROCESS_LIMIT + 1)
    except Malformed as error:
        raise Malformed(f"{error}, or {', '.join(COUNT_WORDS[:-1])} or {COUNT_WORDS[-1]}") from None


def one_of(*words: str) -> Callable[[str], str]:
    """Return what takes one of these words, and no other."""

    def parse(text: str) -> str:
        if text not in words:
            raise Malformed(f"{', '.join(words[:-1])} or {words[-1]}")
        return text

    return parse


def parse_seconds(text: str) -> float:
    """Return seconds, up to a day."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 86400:
        raise Malformed("seconds in 0..86400")
    return seconds


def parse_lost_after(text: str) -> float:
    """Return seconds of silence, long enough for heartbeats to be heard."""
    seconds = parse_seconds(text)
    if seconds < LOST_AFTER_LEAST_S:
        raise Malformed(f"seconds in {LOST_AFTER_LEAST_S:g}..86400, two heartbeats and a bit at least")
    return seconds


def parse_word(text: str) -> str:
    """Return a name that is safe wherever it is handed on to."""
    if not text.replace("-", "a").replace("_", "a").replace(".", "a").isalnum() or text[0] == "-":
        raise Malformed("a name of letters, digits, dots and dashes")
    return text


def parse_endpoint(text: str) -> str:
    """Return ``HOST[:PORT]`` as it was given."""
    parse_host_port(text, 0)
    return text.strip()


def parse_key_values(text: str) -> tuple[tuple[str, str], ...]:
    """Return (key, value) pairs; torch.distributed.elastic.rendezvous.utils has the same rules."""
    pairs = tuple(
        (key.strip(), value.strip()) for key, _, value in (i.partition("=") for i in text.split(","))
    )
    if not all(key and value for key, value in pairs):
        raise Malformed("KEY=VALUE,KEY=VALUE,... such as timeout=600")
    return pairs


def parse_gpus_per_process(text: str) -> int:
    """Return how many GPUs a process has, 1..1023."""
    return parse_int(text, 1, 1024)


def parse_restarts(text: str) -> int:
    """Return how often processes are started again, 0..999."""
    return parse_int(text, 0, 1000)


def parse_signal(text: str) -> int:
    """Return the number of a signal that a process can be told: ``TERM``, ``SIGTERM`` or ``15``.

    Raises:
        Malformed: No such signal, or one that no process can catch (KILL, STOP).
    """
    import signal

    name = text.strip().upper().removeprefix("SIG")
    number = parse_int(name) if name.isdecimal() else getattr(signal, f"SIG{name}", None)
    never = {getattr(signal, f"SIG{one}") for one in UNCATCHABLE}
    if not isinstance(number, int) or number not in signal.valid_signals() - never:
        raise Malformed(f"the name or number of a signal, but {' and '.join(UNCATCHABLE)}")
    return int(number)


def parse_signal_map(text: str) -> tuple[tuple[int, int], ...]:
    """Return pairs of signal numbers: which one arrives, which one is sent instead of it."""
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
    """Refuse signals that never get further than the launcher, which would make a row that does nothing."""
    import signal

    kept = {getattr(signal, f"SIG{name}") for name in NOT_PASSED_ON}
    if kept.isdisjoint(arriving):
        return
    names = ", ".join(one.name.removeprefix("SIG") for one in sorted(signal.Signals) if one not in kept)
    raise Malformed(
        f"an arriving signal that the launcher passes on: {names}, or a number between the last two"
    )


def parse_streams(text: str) -> tuple[tuple[int | None, int], ...]:
    """Return (local rank or None for all, 0 none, 1 stdout, 2 stderr, 3 both), torchrun's notation."""
    shape = "0, 1 (stdout), 2 (stderr), 3 (both), or LOCAL_RANK:N,... such as 0:3,1:2"
    try:
        if ":" not in text:
            return ((None, parse_int(text, 0, 4)),)
        pairs = [item.strip().partition(":")[::2] for item in text.split(",")]
        return tuple((parse_int(rank), parse_int(bits, 0, 4)) for rank, bits in pairs)
    except Malformed:
        raise Malformed(shape) from None


def parse_words(text: str) -> tuple[str, ...]:
    """Return words that are quoted as in a shell."""
    import shlex

    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise Malformed(f"words quoted as in a shell ({error})") from None


def parse_patterns(text: str) -> tuple[str, ...]:
    """Return names of variables, some with a ``*`` at their end."""
    names = tuple(item.strip() for item in text.split(","))
    if not all(name.removesuffix("*").replace("_", "a").isalnum() for name in names):
        raise Malformed("names of variables, such as DATA_DIR or HF_*")
    return names


def parse_tasks(text: str) -> int:
    """Return how many tasks of a role there are, 0..4096."""
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
    """Return local ranks, in the order in which they were given."""
    try:
        return tuple(parse_int(item.strip()) for item in text.split(","))
    except Malformed:
        raise Malformed("local ranks, such as 0 or 0,3") from None
