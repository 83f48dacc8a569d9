"""Where among lines a traceback stands that ended a process, and what its exceptions say.

Source: Python's traceback.py and faulthandler; the marks that torch's excepthook adds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

CONTINUED_MAX = 12
"""Lines of one exception's message after its first."""
RANK = re.compile(r"\[rank\d+\]:(?: |$)")
"""What torch's excepthook puts in front of each line of a traceback. Its log lines have no space there."""
MARGIN = re.compile(r" +[|+] ?")
HEADER = re.compile(r"(?:  \+ Exception Group |Original )?Traceback \(most recent call last\):")
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
STACK = ("Current thread 0x", "Thread 0x", "Stack (most recent call first)")


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
        last = start - 1  # whoever is between the two begins where this one begins
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
    return line.startswith(("[", "terminate called", FATAL, *BY_THE_WAY)) or line in CHAINED


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
