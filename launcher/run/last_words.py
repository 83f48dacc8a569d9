"""What a process said last: its traceback, from its error file or its stderr, and the lines around it.

Nothing here trusts what it reads: the file and the stream were written by a process that failed. Text
stays as it was (but for what only a terminal obeys) until `presentable` makes it fit to be shown.
"""

from __future__ import annotations

from collections.abc import Sequence

from launcher.frozen import frozen
from launcher.run.error_file import read_error_file
from launcher.run.presentable import clean_lines
from launcher.run.tracebacks import bare, find_traceback, read_messages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.run.verdict import Death

OF_AN_EXCEPTION = 1
"""The exit status of a Python that an exception has ended, which whoever waited for it often passes on."""
STDERR_BYTES = 32 << 10
"""How much of the end of a process's stderr is kept; a text of this length has lost its beginning."""
CPP_FRAME = "frame #"


@frozen
class LastWords:
    """What a process said last, not yet fit to be shown.

    Attributes:
        traceback: Its lines, chained exceptions and groups included; empty if there is none.
        source: ``"error file"`` or ``"stderr"``, None without a traceback or message.
        exception: What was raised last, e.g. ``"ValueError: no"``; empty if unknown.
        messages: Those lines of the traceback in which exceptions speak; no file, no line of code.
        lines: The other lines of its stderr, oldest first, without empty ones.
        note: Why its error file could not be used; empty if it could, or is not there.
    """

    traceback: tuple[str, ...] = ()
    source: str | None = None
    exception: str = ""
    messages: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    note: str = ""


def read_words_of(death: Death) -> LastWords:
    """Return what a process said last, without what another one said that shares its files."""
    return read_last_words(death.stderr, death.error_file, death.pid, death.code)


def read_last_words(
    stderr: bytes, error_file: str | None, pid: int = 0, code: int = OF_AN_EXCEPTION
) -> LastWords:
    """Return what a process said last. Never raises, never waits.

    The error file may be of a process that this one had started: that one's exception tells why this one
    ended only where it ended as an exception ends a Python (a shell's status is its last command's).

    Args:
        stderr: The end of its stderr, at most `STDERR_BYTES`.
        error_file: Where torch's ``@record`` or our hook would have written; need not exist.
        pid: Its process id; 0 if unknown.
        code: How it ended, as `os.waitstatus_to_exitcode` has it.
    """
    lines = clean_lines(stderr.decode("utf-8", "replace"), cut=len(stderr) >= STDERR_BYTES)
    place = find_traceback(lines)
    block = [bare(line) for line in lines[place[0] : place[1]]] if place else []
    rest = lines[: place[0]] + lines[place[1] :] if place else lines
    messages, exception = read_messages(block)
    recorded, writer, note = read_error_file(error_file)
    if recorded is not None and code != OF_AN_EXCEPTION and writer not in ("", str(pid)):
        raised = read_messages(clean_lines(recorded[1]))[1] or recorded[0]
        if code < 0 and raised == exception:  # the same on stderr: not what this signal ended
            block, messages, exception = [], (), ""
        recorded, note = None, f"its error file is of process {writer}, which it had started: {raised}"
    if recorded is None:
        source = "stderr" if block else None
        return LastWords(tuple(block), source, exception, messages, _other_lines(rest), note)
    theirs = clean_lines(recorded[1])
    if theirs:
        told, raised = read_messages(theirs)
        same = raised == exception
        others = _other_lines(rest if same else lines)
        return LastWords(tuple(theirs), "error file", raised or recorded[0], told, others)
    told = (recorded[0], *messages)
    return LastWords(tuple(block), "error file", recorded[0], told, _other_lines(rest))


def _other_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """Return lines worth reading: no empty ones, no frames of C++ stacks."""
    kept: list[str] = []
    frames = 0
    for line in (*lines, ""):
        if bare(line).startswith(CPP_FRAME):
            frames += 1
            continue
        if frames:
            kept.append(f"({frames} frames of a C++ stack left out)")
        frames = 0
        if line:
            kept.append(line)
    return tuple(kept)
