"""What a process is doing: from /proc, from its stacks in either notation, and the few frames that matter."""

from __future__ import annotations

import os
import re

from launcher.core.redact import printable, quote_command
from launcher.hang.limits import C_NAME_LENGTH, DUMPED_LINE_LENGTH, FRAMES_MAX, THREADS_MAX
from launcher.hang.model import Answer, Frame, Thread
from launcher.machine.calls import read_call
from launcher.machine.process import (
    read_command,
    read_environ,
    read_file,
    read_link,
    read_name,
    read_stat,
)

_HEAD = re.compile(
    r"(?P<which>Current thread|Thread) (?P<id>0x[0-9a-f]{1,16})\b.*\(most recent call first\):"
)
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d{1,9}) in (?P<function>.*)')
_CUT_OFF = "\n..."
"""End of a dump of more than 100 threads; the frames of a long stack end in an indented one."""
PACKAGES = re.compile(r".*/(?:site|dist)-packages/")
LIBRARY = re.compile(r".*/lib(?:64)?/python3(?:\.\d+t?)?/|.*/python3\d*\.zip/|<frozen ")
_NAMELESS = re.compile(r"0x[0-9a-f]+$")
"""Name that py-spy gives a C function without a symbol: its address."""
COMMAND_LENGTH = 200
_OPTIONS = re.compile(r"-([a-zA-Z?]+)$")


def look_at(rank: int, pid: int) -> Answer | None:
    """Return what is known about a process without its help; None if it is gone."""
    found = read_stat(pid)
    if found is None:
        return None
    words = read_command(pid)
    kernel = read_file(f"/proc/{pid}/wchan").decode("ascii", "replace").strip()
    return Answer(
        rank,
        pid,
        command=quote_command(words or [f"[{read_name(pid)}]"], COMMAND_LENGTH),
        state=found.state,
        call=read_call(pid),
        kernel=printable(kernel) if kernel != "0" else "",
        folder=read_link(f"/proc/{pid}/cwd"),
        is_python=_is_python(pid),
    )


def explain_unarmed(pid: int, site: str) -> str:
    """Return why a Python has not run our ``sitecustomize``; empty if unknown.

    Args:
        pid: Its PID.
        site: Directory that the launcher has put into its PYTHONPATH.
    """
    environ = read_environ(pid)
    if site not in environ.get("PYTHONPATH", "").split(os.pathsep):
        if "LAUNCHER_STACKS_FILE" not in environ:
            return "it does not have the job's environment"
        return "a script has replaced PYTHONPATH (PYTHONPATH=DIR:$PYTHONPATH keeps the launcher's)"
    for word in read_command(pid)[1:]:
        options = _OPTIONS.match(word)
        if options is None:
            break
        if set(options[1]) & set("EIS"):
            return f"python {word} leaves the launcher's sitecustomize out"
    return "" if _is_interpreter(pid) else "a program with Python inside may not read PYTHONPATH"


def _is_python(pid: int) -> bool:
    # Or a program with another name that embeds Python.
    return _is_interpreter(pid) or b"/libpython3" in read_file(f"/proc/{pid}/maps")


def _is_interpreter(pid: int) -> bool:
    return os.path.basename(read_link(f"/proc/{pid}/exe")).startswith(("python", "pypy"))


def parse_faulthandler(text: str) -> tuple[Thread, ...]:
    """Return the threads of a dump by faulthandler, the main thread first.

    The main thread is the oldest and comes last. Of more than 100 threads faulthandler leaves the oldest out;
    then we put the thread that received the signal in its place.

    The process can have written anything: what is longer than what faulthandler writes is left out.

    Source:
        Python/traceback.c, _Py_DumpTracebackThreads.
    """
    found: list[tuple[str, list[Frame]]] = []
    main = 0
    for line in text.splitlines():
        line = line[:DUMPED_LINE_LENGTH]
        head, frame = _HEAD.match(line), _FRAME.match(line)
        if head:
            if len(found) == THREADS_MAX:
                break
            if head["which"] != "Thread":
                main = len(found)
            found.append((f"thread {head['id']}", []))
        elif frame and found and len(found[-1][1]) < FRAMES_MAX:
            found[-1][1].append(Frame(frame["file"], int(frame["line"]), frame["function"]))
    threads = [Thread(name, tuple(frames)) for name, frames in found]
    if not text.rstrip().endswith(_CUT_OFF):
        main = len(threads) - 1
    return (*threads[main : main + 1], *threads[:main], *threads[main + 1 :])


def parse_py_spy(text: str) -> tuple[Thread, ...]:
    """Return the threads of ``py-spy dump --json``, with or without C functions, the main thread first.

    Raises:
        ValueError: The text is not what py-spy writes.
    """
    import json

    try:
        threads = [_thread(item) for item in json.loads(text)]
    except (KeyError, TypeError) as error:
        raise ValueError(f"unexpected output: {error!r}") from error
    return tuple(sorted(threads, key=lambda thread: not thread.name.startswith("MainThread ")))


def _thread(item: dict[str, object]) -> Thread:
    frames = item["frames"]
    if not isinstance(frames, list):
        raise TypeError("frames")
    found = (_frame(frame) for frame in frames)
    return Thread(
        f"{item['thread_name'] or 'thread'} ({item['os_thread_id']})",
        tuple(frame for frame in found if not (frame.line == 0 and _NAMELESS.match(frame.function))),
    )


def _frame(item: dict[str, object]) -> Frame:
    name, library = str(item["name"]), item.get("module")
    if library is None:
        return Frame(str(item["filename"]), int(str(item["line"])), name)
    return Frame(str(library), 0, name if len(name) <= C_NAME_LENGTH else f"{name[:C_NAME_LENGTH]}...")


def is_users(frame: Frame) -> bool:
    """Whether a frame belongs neither to an installed package nor to Python itself."""
    return not PACKAGES.match(frame.file) and not LIBRARY.match(frame.file)
