"""What a process said last: its traceback, from its error file or its stderr, and the lines around it.

Nothing here trusts what it reads: the file and the stream were written by a process that failed. Text
stays as it was (but for what only a terminal obeys) until `presentable` makes it fit to be shown.
"""

from __future__ import annotations

import json
import re

from launcher.core.frozen import frozen
from launcher.failure.model import ProcessExit
from launcher.failure.text import HEADER, RANK, clean_lines
from launcher.guest import WRITER
from launcher.machine.whole import read_whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.failure.model import ProcessExit

OF_AN_EXCEPTION = 1
"""The exit status of a Python that an exception has ended, which its parent often passes on."""
STDERR_BYTES = 32 << 10
"""How much of the end of a process's stderr is kept; a text of this length has lost its beginning."""
CPP_FRAME = "frame #"
CONTINUED_MAX = 12
"""Lines of one exception's message after its first."""
MARGIN = re.compile(r" +[|+] ?")
CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
REMOTE = ('"""', "-- Process ")
"""multiprocessing.pool and torch.multiprocessing.spawn quote the traceback of their process so."""
BY_THE_WAY = (
    *("Exception ignored in", "Exception ignored on", "Exception in thread", "Error in atexit"),
    *("--- Logging error ---", "Task exception was never", "Future exception was never", "future: "),
)
"""Lines before a traceback that did not end the process."""
FATAL = "Fatal Python error:"
TERMINATE = "terminate called"
"""So C++ begins its last words."""
STACK = ("Current thread 0x", "Thread 0x", "Stack (most recent call first)")
ERROR_FILE_BYTES = 1 << 20
_BLOCK = re.compile(
    rb"Root Cause \(first observed failure\):\s+\[\d+\]:\s+time\s*: [^\n]*\s+host\s*: (?P<host>\S*)\s+"
    rb"rank\s*: (?P<rank>\d{1,9}) \(local_rank: (?P<local>\d{1,9})\)\s+"
    rb"exitcode\s*: (?P<code>-?\d{1,3}) \(pid: (?P<pid>\d{1,9})\)[^\n]*\s+"
    rb"error_file: (?P<file>[^\n]*)"
)
_AGENT_SPEAKS = re.compile(rb"^[^\n]*\] failed \(exitcode: ", re.MULTILINE)


@frozen
class LastWords:
    """What a process said last: without secrets, but not yet fit for a terminal.

    Attributes:
        traceback: Its lines, chained exceptions and groups included; empty if there is none.
        source: ``"error file"`` or ``"stderr"``, None without a traceback or message.
        exception: What was raised last, e.g. ``"ValueError: no"``; empty if unknown.
        messages: Those lines of the traceback in which exceptions speak; no file, no line of code.
        lines: The other lines of its stderr, oldest first, without empty ones.
        note: Why its error file could not be used; empty if it could, or is not there.
        was_ending: Whether the exception was ending Python: it stands in the error file, or nothing follows
            its traceback but what C++ says when it aborts.
    """

    traceback: tuple[str, ...] = ()
    source: str | None = None
    exception: str = ""
    messages: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    note: str = ""
    was_ending: bool = False


def read_words_of(death: ProcessExit) -> LastWords:
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
        follows = next((line for line in lines[place[1] :] if line), "") if place else ""
        was_ending = HEADER.match(block[0]) is not None if block else False
        was_ending = was_ending and (not follows or follows.startswith(TERMINATE))
        return LastWords(tuple(block), source, exception, messages, _other_lines(rest), note, was_ending)
    theirs = clean_lines(recorded[1])
    if theirs:
        told, raised = read_messages(theirs)
        same = raised == exception
        others = _other_lines(rest if same else lines)
        return LastWords(tuple(theirs), "error file", raised or recorded[0], told, others, was_ending=True)
    told = (recorded[0], *messages)
    return LastWords(tuple(block), "error file", recorded[0], told, _other_lines(rest), was_ending=True)


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


def find_traceback(lines: Sequence[str]) -> tuple[int, int] | None:
    """Return where the traceback that ended a process begins and ends in its lines; None without one.

    The last one counts, with everything chained to it. One that Python prints by the way (an
    exception that was ignored, in a thread, at exit) counts only if there is no other. A dump of
    faulthandler after it wins: that is what the process died of.
    """
    headers = [index for index, line in enumerate(lines) if HEADER.match(_inner(line))]
    found = None
    last = len(headers) - 1
    while found is None and last >= 0:
        start = _chain_start(lines, headers, last)
        if not _before(lines, headers[start]).startswith(BY_THE_WAY):
            found = headers[start], _block_end(lines, headers[last])
        last = start - 1  # what is between the two begins where this one begins
    if found is None and headers:
        found = headers[_chain_start(lines, headers, len(headers) - 1)], _block_end(lines, headers[-1])
    fatal = max((index for index, line in enumerate(lines) if line.startswith(FATAL)), default=-1)
    if fatal >= (found[1] if found else 0):
        return fatal, _stacks_end(lines, fatal + 1)
    return found


def read_messages(block: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Return (what the exceptions of a traceback say, what the last one says)."""
    if block and block[0].startswith(FATAL):
        return (block[0],), block[0]
    messages: list[str] = []
    last, expected = "", False
    for line in block:
        inner = _inner(line)
        if HEADER.match(inner) or HEADER.match(line):
            expected = expected or "|" not in line  # of a group, the group itself
        elif inner and inner[0] not in ' \t+-"' and inner not in CHAINED:
            messages.append(inner)
            if expected:
                last, expected = inner, False
    return tuple(messages), last


def bare(line: str) -> str:
    """Return a line without torch's mark of the rank."""
    match = RANK.match(line)
    return line[match.end() :] if match else line


def _chain_start(lines: Sequence[str], headers: Sequence[int], last: int) -> int:
    """Return which header the chain begins with that the header number ``last`` belongs to."""
    while last > 0:
        before = _before(lines, headers[last])
        chained = before in CHAINED or before.startswith(REMOTE)
        inside = bare(lines[headers[last]]).startswith("Original ") or "|" in lines[headers[last]]
        if not (chained or inside):
            break
        last -= 1
    return last


def _block_end(lines: Sequence[str], header: int) -> int:
    """Return the index after the last line of the traceback that begins at a header."""
    end = header + 1
    while end < len(lines) and bare(lines[end])[:1] in (" ", "\t"):
        end += 1
    if RANK.match(lines[header]):  # each line of it is marked
        while end < len(lines) and RANK.match(lines[end]):
            end += 1
    elif not lines[header].startswith(" "):  # of a group all lines are indented
        limit = end + CONTINUED_MAX
        while end < min(limit, len(lines)) and lines[end] and not _begins_something_else(lines[end]):
            end += 1
    return end


def _begins_something_else(line: str) -> bool:
    return line.startswith(("[", TERMINATE, FATAL, *BY_THE_WAY)) or line in CHAINED


def _stacks_end(lines: Sequence[str], index: int) -> int:
    """Return the index after the stacks of a faulthandler dump."""
    end = index
    while index < len(lines) and (not lines[index] or lines[index].startswith((" ", "<", *STACK, "Python"))):
        index += 1
        end = index if lines[index - 1] else end
    return end


def _before(lines: Sequence[str], index: int) -> str:
    """Return the last line above one that is not empty."""
    for above in range(index - 1, -1, -1):
        text = _inner(lines[above]).strip()
        if text:
            return text
    return ""


def _inner(line: str) -> str:
    """Return a line without marks and the margin of an exception group."""
    text = bare(line)
    if HEADER.match(text):
        return text
    match = MARGIN.match(text)
    return text[match.end() :] if match else text


def read_error_file(path: str | None) -> tuple[tuple[str, str] | None, str, str]:
    """Return ((message, traceback), pid of the writer, "") of an error file, or (None, "", why not).

    Of the writer nothing is known where it is torch.
    """
    try:
        data = read_whole(path, ERROR_FILE_BYTES) if path else None
    except FileNotFoundError:
        data = None
    except (OSError, ValueError) as error:
        return None, "", f"its error file cannot be read: {getattr(error, 'strerror', None) or error}"
    if data is not None and len(data) > ERROR_FILE_BYTES:
        return None, "", f"its error file cannot be read: it is larger than {ERROR_FILE_BYTES >> 20} MiB"
    if data is None:
        return None, "", ""
    try:
        recorded = json.loads(data)["message"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None, "", "its error file is not what torch writes: " + _describe(data)
    if isinstance(recorded, str):
        return (_first_line(recorded), recorded if HEADER.search(recorded) else ""), "", ""
    message = recorded.get("message") if isinstance(recorded, dict) else None
    extra = recorded.get("extraInfo") if isinstance(recorded, dict) else None
    extra = extra if isinstance(extra, dict) else {}
    stack = extra.get("py_callstack")
    if not isinstance(message, str) and not isinstance(stack, str):
        return None, "", "its error file is not what torch writes: no message"
    told = (_first_line(message), stack if isinstance(stack, str) else "")
    return told, _read_pid(extra) if extra.get("writer") == WRITER else "", ""


def _read_pid(extra: dict[str, object]) -> str:
    """Return the process id that our hook has written; empty if it is none."""
    pid = str(extra.get("pid", ""))
    return pid if pid.isdecimal() else ""


def _first_line(message: object) -> str:
    lines = clean_lines(message) if isinstance(message, str) else []
    return lines[0] if lines else ""


def _describe(data: bytes) -> str:
    return "not JSON with a message" if data.strip() else "empty"


def read_root_cause(agent: ProcessExit) -> ProcessExit | None:
    """Return the end of the process that the agent names; None where it names none.

    Args:
        agent: The end of the agent, with the last of its standard error, where its processes write too.

    Source:
        torch/distributed/elastic/multiprocessing/errors/__init__.py, ChildFailedError.format_msg (2.13).
    """
    blocks = list(_BLOCK.finditer(agent.stderr))
    if not blocks:
        return None
    found = blocks[-1]
    # A text that has lost its beginning begins in the middle of a line
    whole = agent.stderr.partition(b"\n")[2] if len(agent.stderr) >= STDERR_BYTES else agent.stderr
    speaks = _AGENT_SPEAKS.search(whole)
    file = found["file"].decode("utf-8", "replace").strip()
    return ProcessExit(
        rank=int(found["rank"]),
        local_rank=int(found["local"]),
        pid=int(found["pid"]),
        code=int(found["code"]),
        ended_ns=agent.ended_ns,
        stderr=whole[: speaks.start()] if speaks else b"",
        error_file=file if file.startswith("/") else None,
    )
