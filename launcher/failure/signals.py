"""Explains the signal that ended a process, or a child of it, and that the launcher has not sent."""

from __future__ import annotations

from launcher.core.errors import say_size
from launcher.core.signal import signal
from launcher.failure.model import Cause
from launcher.failure.starters import is_own_error, read_told_signal
from launcher.failure.stderr import TERMINATE, LastOutput, find_user_frame
from launcher.failure.symptoms import read_signals, read_symptoms
from launcher.failure.text import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from launcher.failure.counters import Counters

SHM_DEFAULT_BYTES = 64 << 20
"""Docker's default size of a container's /dev/shm."""


def fix_exception(words: LastOutput) -> str:
    """Return where an exception was raised in the user's code."""
    frame = find_user_frame(words.traceback)
    return f"see {quote(frame)}" if frame else "see the traceback"


def explain_bus_error(after: Counters) -> Cause:
    size, free = after.shm or (0, 0)
    fix = read_symptoms()["shm-full"].fix
    if size and free < max(1 << 20, size // 50):
        return Cause("shm-full", f"shared memory (/dev/shm) is full{say_shm(after)}", fix, False)
    small = f"; /dev/shm may have been full{say_shm(after)}" if 0 < size <= SHM_DEFAULT_BYTES else ""
    what = f"the process accessed a mapped part of a file that is missing, or has no disk space{small}"
    return Cause(
        "bus-error",
        what,
        fix
        if small
        else "are files truncated while they are mapped? `df -h` shows full disks, `dmesg` failing ones",
    )


def explain_signal(number: int, before: Counters, after: Counters, words: LastOutput) -> Iterator[Cause]:
    """Yield the meaning of a signal that the launcher has not sent, if no better cause is known."""
    if number == signal.SIGKILL:
        seen = "cannot tell whether memory ran out"
        if before.oom_kill is not None and after.oom_kill is not None:
            count = f"oom_kill stayed {after.oom_kill} in {base_name(after.events_file)}"
            seen = f"memory did not run out, {count}"
        yield Cause(
            "killed",
            f"SIGKILL was not sent by the launcher; {seen}",
            "ask the platform about a time limit, an eviction or its own out-of-memory killer (`dmesg | "
            "grep -i oom`); or was it a `kill -9` by hand?",
        )
    elif number == signal.SIGABRT and words.exception and words.was_ending:
        what = f"{quote(words.exception)}; while Python ended, {_explain_abort(words)}"
        yield Cause(
            "python-exception",
            what,
            fix_exception(words),
            False,
        )
    elif number == signal.SIGABRT:
        yield Cause(
            "aborted",
            _explain_abort(words),
            "its last lines of stderr show why, the traceback shows where; `pip check` finds packages "
            "that do not fit",
        )
    elif number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        what = "this signal was not sent by the launcher"
        yield Cause(
            "ended-from-outside",
            what,
            "ask the platform (`sacct -j JOB`, `kubectl describe pod POD`); or was it a `kill` by hand?",
        )
    else:
        yield from filter(None, [find_signal(number)])


def explain_told(code: int, before: Counters, after: Counters, words: LastOutput) -> list[Cause]:
    """Return the meaning of a signal that ended a child of the process, as the process says."""
    own = not words.exception or is_own_error(words.exception)
    told = read_told_signal(words.lines if own else [words.exception])
    if told is None or code <= 0:
        return []
    number, line = told
    if number == signal.SIGBUS:
        return [explain_bus_error(after)]
    found = explain_signal(number, before, after, words)
    return [Cause(cause.code, f"{cause.what}: {quote(line)}", cause.fix, cause.retryable) for cause in found]


def find_signal(number: int | None) -> Cause | None:
    """Return the cause that a signal shows on its own."""
    found = None if number is None else read_signals().get(number)
    return None if found is None else Cause(found.code, found.meaning, found.fix, found.retryable)


def _explain_abort(words: LastOutput) -> str:
    """Return the message of C++ or glibc before it aborted."""
    for index in range(len(words.lines) - 1, -1, -1):
        if words.lines[index].startswith(TERMINATE):
            return "C++ code failed: " + quote(" ".join(words.lines[index : index + 2]))
    return "native code detected an error and aborted the process"


def say_shm(counters: Counters) -> str:
    if counters.shm is None:
        return ""
    size, free = counters.shm
    return f", it has {say_size(size)} and {say_size(free)} of it free now"


def base_name(path: str) -> str:
    return path.rpartition("/")[2]
