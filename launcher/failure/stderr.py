"""Last output of a process: its traceback, from its error file or its stderr, and the lines around it.

Nothing here trusts its input: a failed process wrote the file and the stream. Apart from escape codes, text
stays unchanged until `presentable` makes it safe to show.
"""

from __future__ import annotations

import itertools
import json
import re

from launcher.core.frozen import frozen
from launcher.core.redact import shorten
from launcher.core.signal import signal
from launcher.failure.model import ProcessExit
from launcher.failure.text import HEADER, RANK, clean_lines, compile_kind, read_kind, read_pairs
from launcher.inprocess.process import WRITER
from launcher.machine.files import read_own

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from launcher.failure.model import ProcessExit

OF_AN_EXCEPTION = 1
"""Exit status of a Python that an exception has ended, which its parent often passes on."""
STDERR_BYTES = 32 << 10
"""Size of the end of a process's stderr that is kept; a text of this length has lost its beginning."""
CPP_FRAME = "frame #"
FIRST_CHARS = 1 << 12
"""Of a message only the first line is shown, and of that not more than this."""
CONTINUED_MAX = 12
"""Maximum number of lines of an exception's message after the first."""
WHOLE_MAX = 40
"""The same for a message that ends the output."""
FATAL = "Fatal Python error:"
TERMINATE = "terminate called"
"""Beginning of the message of a C++ program that aborts."""
STILL_RUNS = f"{TERMINATE} without an active exception"
"""Its message if a thread still runs that should have ended before."""
STACK = ("Current thread 0x", "Thread 0x", "Stack (most recent call first)")
ERROR_FILE_BYTES = 1 << 20
MARGIN, RAISED, FRAME, INSTALLED = map(compile_kind, ("margin", "raised", "frame", "installed"))
CHAINED, REMOTE, ASIDE, AFTER = map(compile_kind, ("chained", "remote", "aside", "after"))
HELP, AT_EXIT, NO_MESSAGE = map(compile_kind, ("help", "at exit", "no message"))
BOX, RULE = compile_kind("box"), "\u2500\u2500\u2500"
"""A line across such a box."""
NAMES = ("Error", "Exception", "Interrupt", "Timeout", "Expired")
_SUMMARY, _ROOT_CAUSE, _FAILED = map(compile_kind, ("summary", "root cause", "failed"))
_OWN_ERROR = compile_kind("own error")
_WORDS = {words: getattr(signal, name) for words, name in read_pairs("words").items()}
_TOLD = [re.compile(row.replace("WORDS", "|".join(_WORDS))) for row in read_kind("told").items]


@frozen
class LastOutput:
    """The last output of a process, without secrets but not yet safe for a terminal.

    Attributes:
        traceback: Lines of its traceback, with chained exceptions and groups; empty without one.
        source: ``"error file"``, ``"stderr"``, or ``"faulthandler"`` for the stacks at a fatal signal; None
            without a traceback or message.
        exception: The exception raised last, e.g. ``"ValueError: no"``; empty if unknown.
        messages: The lines of the traceback with messages of exceptions, without files and lines of code.
        lines: The other lines of its stderr, oldest first, without empty ones.
        note: Why its error file could not be used; empty if it could, or does not exist.
        was_ending: Whether the exception ended Python: it is in the error file, or nothing follows its
            traceback except the message of a C++ abort.
    """

    traceback: tuple[str, ...] = ()
    source: str | None = None
    exception: str = ""
    messages: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    note: str = ""
    was_ending: bool = False


def read_words_of(death: ProcessExit) -> LastOutput:
    """Return the last output of a process, without that of other processes in its files."""
    return read_last_output(death.stderr, death.error_file, death.pid, death.code)


def read_last_output(
    stderr: bytes, error_file: str | None, pid: int = 0, code: int = OF_AN_EXCEPTION
) -> LastOutput:
    """Return the last output of a process. Never raises, never waits.

    The error file may come from a child of this process. The child's exception explains the end of this
    process only if its exit status is that of an exception in Python (a shell's status is that of its last
    command).

    Args:
        stderr: The end of its stderr, at most `STDERR_BYTES`.
        error_file: The file for torch's ``@record`` or our hook; it may not exist.
        pid: Its process id; 0 if unknown.
        code: Its exit code, as from `os.waitstatus_to_exitcode`.
    """
    lines = clean_lines(stderr.decode("utf-8", "replace"), cut=len(stderr) >= STDERR_BYTES)
    place = find_traceback(lines)
    while place and is_own_error(read_messages(lines[place[0] : place[1]])[1]):
        earlier = find_traceback(lines[: place[0]])
        if earlier is None:
            break
        lines, place = lines[: place[0]], earlier
    block = [bare(line) for line in lines[place[0] : place[1]]] if place else []
    rest = lines[: place[0]] + lines[place[1] :] if place else lines
    messages, exception = read_messages(block) if block else find_raised(lines)
    recorded, writer, note = read_error_file(error_file)
    if recorded is not None and code != OF_AN_EXCEPTION and writer not in ("", str(pid)):
        raised = read_messages(clean_lines(recorded[1]))[1] or recorded[0]
        if code < 0 and raised == exception:  # the child's exception does not explain the signal
            block, messages, exception = [], (), ""
        recorded, note = None, f"its error file was written by its child process {writer}: {raised}"
    if recorded is None:
        source = ("faulthandler" if block[0].startswith(FATAL) else "stderr") if block else None
        follows = next((line for line in lines[place[1] :] if line), "") if place else ""
        was_ending = HEADER.match(block[0]) is not None if block else False
        was_ending = was_ending and (not follows or follows.startswith(TERMINATE))
        return LastOutput(tuple(block), source, exception, messages, _other_lines(rest), note, was_ending)
    theirs = clean_lines(recorded[1])
    if theirs:
        told, raised = read_messages(theirs)
        same = raised == exception
        others = _other_lines(rest if same else lines)
        return LastOutput(tuple(theirs), "error file", raised or recorded[0], told, others, was_ending=True)
    told = (recorded[0], *messages)
    return LastOutput(tuple(block), "error file", recorded[0], told, _other_lines(rest), was_ending=True)


def read_uncaught(tail: bytes) -> str:
    """Return the exception whose traceback ends an output, which nothing has caught; empty without one."""
    words = read_last_output(tail, None) if b"Traceback (most recent call last)" in tail else LastOutput()
    aside = words.lines[-1:] and ASIDE.match(words.lines[-1])
    return words.exception if words.was_ending and not aside else ""


def read_words_of_others(stderr: bytes) -> Iterator[LastOutput]:
    """Yield the tracebacks in a text of several processes: the last one of each, or all, newest first."""
    lines = clean_lines(stderr.decode("utf-8", "replace"), cut=len(stderr) >= STDERR_BYTES)
    apart: dict[str, list[str]] = {}
    for line in lines:
        prefix = RANK.match(line)
        if prefix is not None:
            apart.setdefault(prefix[0].rstrip(), []).append(line)
    if len(apart) > 1:
        for some in apart.values():
            place = find_traceback(some)
            if place is not None:
                yield _read_block(some, place)
    elif any(_SUMMARY.match(line) for line in lines):
        while (place := find_traceback(lines)) is not None:
            yield _read_block(lines, place)
            lines = lines[: place[0]]


def _read_block(lines: Sequence[str], place: tuple[int, int]) -> LastOutput:
    block = [bare(line) for line in lines[place[0] : place[1]]]
    messages, exception = read_messages(block)
    return LastOutput(tuple(block), "stderr", exception, messages, _other_lines(lines[: place[0]]))


def _other_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the lines without empty ones and frames of C++ stacks."""
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
    """Return the first and the end index of the traceback that ended a process; None without one.

    The last one counts, with all tracebacks chained to it. One that Python prints without ending the process
    (an ignored exception, in a thread, at exit) counts only if there is no other. A later dump of
    faulthandler wins, because it shows the fatal error.
    """
    headers = [index for index, line in enumerate(lines) if HEADER.match(_inner(line))]
    found = None
    last = len(headers) - 1
    while found is None and last >= 0:
        start = _chain_start(lines, headers, last)
        if not ASIDE.match(_before(lines, headers[start])):
            found = headers[start], _block_end(lines, headers[last])
        last = start - 1  # go on with the headers before this chain
    if found is None and headers:
        found = headers[_chain_start(lines, headers, len(headers) - 1)], _block_end(lines, headers[-1])
    fatal = max((index for index, line in enumerate(lines) if line.startswith(FATAL)), default=-1)
    if fatal >= (found[1] if found else 0):
        return fatal, _stacks_end(lines, fatal + 1)
    return found


def read_messages(block: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Return (all messages of a traceback's exceptions, the message of the last exception)."""
    if block and block[0].startswith(FATAL):
        return (block[0],), block[0]
    messages: list[str] = []
    last, expected, below = "", False, False
    for line in block:
        inner = _inner(line)
        if HEADER.match(inner) or HEADER.match(line):
            expected = expected or "|" not in line  # for a group, the message of the group itself
            below = False  # from the exception on, indented lines are of its message
        elif inner and (below or inner[0] not in ' \t+-"') and not CHAINED.match(inner):
            below = True
            messages.append(inner.strip())
            if expected:
                last, expected = inner, False
    return tuple(messages), last


def find_raised(lines: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Return (lines of the message, the exception) of the last exception without a traceback, or ((), "")."""
    for index in range(len(lines) - 1, -1, -1):
        named = any(word in lines[index] for word in NAMES)
        found = RAISED.match(bare(lines[index])) if named else None
        if found is not None:
            end = min(_block_end(lines, index), index + 1 + CONTINUED_MAX)
            return (found["text"], *(bare(line) for line in lines[index + 1 : end])), found["text"]
    return (), ""


def find_user_frame(traceback: Sequence[str]) -> str:
    """Return the innermost frame of the user's own code, e.g. ``train.py:67 in step``; empty without one.

    A file below the script's directory has its path from there. A traceback of a DataLoader worker, a chained
    exception or a member of a group that stands last is the innermost.
    """
    is_fatal = bool(traceback) and traceback[0].startswith(FATAL)
    if is_fatal:  # the thread that failed, or the main thread, which is the last one
        heads = [place for place, line in enumerate(traceback) if line.startswith(STACK)] or [0]
        start = next((one for one in heads if traceback[one].startswith(STACK[0])), heads[-1])
        traceback = [traceback[0], *itertools.takewhile(bool, traceback[start:])]
    frames = _list_user_frames(traceback)
    if not frames:
        return ""
    if is_fatal:
        frames.reverse()  # the most recent call stands first
    folder = min((frame["file"].rpartition("/")[0] for frame in frames), key=len)
    found = frames[-1]
    name = f" in {found['name']}" if found["name"] not in (None, "<module>") else ""
    return f"{found['file'].removeprefix(f'{folder}/' if folder else '')}:{found['line']}{name}"


def find_script(traceback: Sequence[str]) -> str:
    """Return the file of the outermost frame of the user's own code; empty without one."""
    return next((frame["file"] for frame in _list_user_frames(traceback)), "")


def _list_user_frames(traceback: Sequence[str]) -> list[re.Match[str]]:
    matches = (FRAME.match(line) for line in traceback)
    return [frame for frame in matches if frame and not INSTALLED.search(frame["file"])]


def unbox(lines: Sequence[str]) -> tuple[str, ...]:
    """Return lines with each message that rich has drawn as a box on one line: ``TITLE: MESSAGE``."""
    kept: list[str] = []
    inside = False
    for line in lines:
        head = BOX.match(line)
        if head is not None and not head[1].startswith("Traceback"):
            inside = True
            kept.append(f"{head[1]}:")
        elif inside and line.startswith("\u2502"):
            text = line.strip("\u2502 ")
            if text.startswith(RULE):
                kept.append("")
            else:
                kept[-1] = f"{kept[-1]} {text}".strip()
        else:
            inside = inside and not line.startswith("\u2570")
            kept += [line] if not line.startswith("\u2570") else []
    return tuple(filter(None, kept))


def find_message(lines: Sequence[str], code: int) -> tuple[str, bool] | None:
    """Return (message, whether it is about the arguments) of a program that ends without a traceback.

    As `sys.exit("no data")`, click, argparse, Hydra and others write it: the last line with those that are
    indented below. None where the last line is one of a log.

    Args:
        lines: Its output, see `unbox`.
        code: Its exit status.
    """
    paragraphs: list[list[str]] = []
    for line in lines[-WHOLE_MAX:]:
        if AT_EXIT.search(line):
            continue
        if not paragraphs or not line.startswith((" ", "\t")):
            paragraphs.append([])
        paragraphs[-1].append(line)
    told = [one for one in paragraphs if not HELP.search(one[0])]
    if not paragraphs or not 0 < code < 126:
        return None
    message = " ".join(" ".join((told or paragraphs)[-1]).split())
    is_usage = len(told) < len(paragraphs) or (code == 2 and "rror: " in message[:80])
    return None if NO_MESSAGE.search(message) and not is_usage else (message, is_usage)


def bare(line: str) -> str:
    """Return a line without torch's rank prefix."""
    match = RANK.match(line)
    return line[match.end() :] if match else line


def _chain_start(lines: Sequence[str], headers: Sequence[int], last: int) -> int:
    """Return the index in ``headers`` at which the chain starts that header number ``last`` belongs to."""
    while last > 0:
        before = _before(lines, headers[last])
        chained = CHAINED.match(before) or REMOTE.match(before)
        inside = bare(lines[headers[last]]).startswith("Original ") or "|" in lines[headers[last]]
        if not (chained or inside):
            break
        last -= 1
    return last


def _block_end(lines: Sequence[str], header: int) -> int:
    """Return the index after the last line of the traceback that starts at a header."""
    end = header + 1
    while end < len(lines) and bare(lines[end])[:1] in (" ", "\t"):
        end += 1
    if RANK.match(lines[header]):  # each of its lines has the prefix
        while end < len(lines) and RANK.match(lines[end]):
            end += 1
    elif not lines[header].startswith(" "):  # in a group all lines are indented
        whole = len(lines) <= end + WHOLE_MAX  # little follows: blank lines are of the message, too
        limit = end + (WHOLE_MAX if whole else CONTINUED_MAX)
        while end < min(limit, len(lines)) and not any(
            kind.match(lines[end]) for kind in (AFTER, ASIDE, CHAINED)
        ):
            if not lines[end] and not whole:
                break
            end += 1
    return end


def _stacks_end(lines: Sequence[str], index: int) -> int:
    """Return the index after the stacks of a faulthandler dump."""
    end = index
    while index < len(lines) and (not lines[index] or lines[index].startswith((" ", "<", *STACK, "Python"))):
        index += 1
        end = index if lines[index - 1] else end
    return end


def _before(lines: Sequence[str], index: int) -> str:
    """Return the last line before an index that is not empty; "" without one."""
    for above in range(index - 1, -1, -1):
        text = _inner(lines[above]).strip()
        if text:
            return text
    return ""


def _inner(line: str) -> str:
    """Return a line without the rank prefix and the margin of an exception group."""
    text = bare(line)
    if HEADER.match(text):
        return text
    match = MARGIN.match(text)
    return text[match.end() :] if match else text


def read_error_file(path: str | None) -> tuple[tuple[str, str] | None, str, str]:
    """Return ((message, traceback), pid of the writer, "") of an error file, or (None, "", reason).

    The pid is empty if torch wrote the file. The reason is empty if there is no file.
    """
    if not path:
        return None, "", ""
    try:
        data = read_own(path, ERROR_FILE_BYTES)
    except FileNotFoundError:
        return None, "", ""
    except (OSError, ValueError) as error:
        return None, "", f"its error file cannot be read: {getattr(error, 'strerror', None) or error}"
    if len(data) > ERROR_FILE_BYTES:
        return None, "", f"its error file cannot be read: it is larger than {ERROR_FILE_BYTES >> 20} MiB"
    try:
        recorded = json.loads(data)["message"]
    except (ValueError, TypeError, KeyError, RecursionError):
        what = "not JSON with a message" if data.strip() else "empty"
        return None, "", f"its error file is not what torch writes: {what}"
    if isinstance(recorded, str):
        return (_first_line(recorded), recorded if HEADER.search(recorded) else ""), "", ""
    message = recorded.get("message") if isinstance(recorded, dict) else None
    extra = recorded.get("extraInfo") if isinstance(recorded, dict) else None
    extra = extra if isinstance(extra, dict) else {}
    stack = extra.get("py_callstack")
    if not isinstance(message, str) and not isinstance(stack, str):
        return None, "", "its error file is not what torch writes: no message"
    told = (_first_line(message), stack if isinstance(stack, str) else "")
    pid = str(extra.get("pid", "")) if extra.get("writer") == WRITER else ""
    return told, pid if pid.isdecimal() else "", ""


def _first_line(message: object) -> str:
    lines = clean_lines(shorten(message, FIRST_CHARS)) if isinstance(message, str) else []
    return lines[0] if lines else ""


def add_fatal_stacks(stderr: bytes, path: str | None, code: int) -> bytes:
    """Return a stderr with the stacks that Python has written at a fatal signal, unless it shows them itself.

    A Python that an exception ends may abort on its way out, in C++ threads: then the exception is the news.

    Args:
        stderr: The end of the stderr of a process that a signal has ended.
        path: The file for its stacks; it may not exist.
        code: Its exit code, negative for signals.
    """
    if code == -signal.SIGABRT and read_last_output(stderr, None).was_ending:
        return stderr
    try:
        data = read_own(path, ERROR_FILE_BYTES) if path else None
    except (OSError, ValueError):
        data = None
    fatal = FATAL.encode()
    if data is None or fatal not in data or fatal in stderr:
        return stderr
    stacks = data[data.rindex(fatal) :].partition(b"\nExtension modules: ")[0]
    return b"%s\n%s\n" % (stderr.rstrip(b"\n"), stacks[:STDERR_BYTES])


def read_root_cause(agent: ProcessExit) -> ProcessExit | None:
    """Return the exit of the process that torchrun's agent names as the root cause; None if it names none.

    Args:
        agent: The exit of the agent, with the end of its stderr, which its processes share.

    Source:
        torch/distributed/elastic/multiprocessing/errors/__init__.py, ChildFailedError.format_msg (2.13).
    """
    text = agent.stderr.decode("latin-1")  # a character for each byte
    blocks = list(_ROOT_CAUSE.finditer(text))
    # A text that has lost its beginning starts in the middle of a line
    whole = text.partition("\n")[2] if len(text) >= STDERR_BYTES else text
    spoken = list(_FAILED.finditer(whole))  # once for each attempt of its own
    found = blocks[-1] if blocks else spoken[-1] if spoken else None
    if found is None:
        return None
    file = found["file"].encode("latin-1").decode("utf-8", "replace").strip() if blocks else ""
    begin = whole.find("\n", spoken[-2].end()) if len(spoken) > 1 else 0
    shared = whole[begin : spoken[-1].start()] if spoken else ""
    own = re.sub(rf"(?m)^\[rank(?!{found['rank']}\])\d+\]:.*\n?", "", shared) if blocks else shared
    return ProcessExit(
        rank=int(found["rank" if blocks else "local"]),
        local_rank=int(found["local"]),
        pid=int(found["pid"]),
        code=int(found["code"]),
        ended_ns=agent.ended_ns,
        stderr=own.encode("latin-1"),
        shared=shared.encode("latin-1"),
        error_file=file if file.startswith("/") else None,
    )


def read_told_signal(lines: Sequence[str]) -> tuple[int, str] | None:
    """Return (signal, line) of the last line that names the signal that ended a child; None without one.

    SIGTERM does not count: a starter sends it to the children that still run when one has failed.
    """
    for line in reversed(lines):
        for pattern in _TOLD:
            found = pattern.search(line)
            number = _number(found[1]) if found else None
            if number not in (None, signal.SIGTERM):
                return number, line
    return None


def is_own_error(exception: str) -> bool:
    """Whether an exception only tells that a child of a starter has failed."""
    return _OWN_ERROR.match(exception) is not None


def _number(text: str) -> int | None:
    if text.isdecimal():
        return int(text) if 0 < int(text) < signal.NSIG else None
    return _WORDS.get(text.capitalize()) or getattr(signal, text, None)
