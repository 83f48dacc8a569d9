"""What a process is doing: from /proc, from its stacks in either notation, and the few frames that matter."""

from __future__ import annotations

import os
import re

from launcher.core.frozen import frozen, replace
from launcher.core.redact import printable, quote_command
from launcher.hang.limits import C_NAME_LENGTH, DUMPED_LINE_LENGTH, FRAMES_MAX, THREADS_MAX
from launcher.hang.model import Answer, Frame, Thread
from launcher.machine.calls import RUNNING, read_call
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
_PACKAGES = re.compile(r".*/(?:site|dist)-packages/")
_LIBRARY = re.compile(r".*/lib(?:64)?/python3(?:\.\d+t?)?/|.*/python3\d*\.zip/|<frozen ")
_COLLECTIVES = re.compile(
    r"torch/(?:distributed/(?!elastic/)|nn/parallel/|autograd/(?:graph|__init__)\.py)"
    r"|horovod/|mpi4py/|deepspeed/comm/|tensorflow/python/distribute/"
)
"""Packages in which a process waits for others. Their callers, and what they call, are in other packages.
A backward pass counts: DDP and FSDP reduce gradients inside torch's engine, without a Python frame."""
_QUERIES = frozenset(
    [
        *("get_rank", "get_world_size", "get_backend", "get_node_local_rank", "get_group_rank"),
        *("get_global_rank", "get_process_group_ranks", "is_initialized", "is_available"),
    ]
)
"""Functions of these packages that do not wait: a rank may call them in an endless loop."""
_WRAPPERS = re.compile(r"torch/distributed/c10d_logger\.py")
"""What stands between a call of the user's code and the function of that name."""
_TRACKERS = re.compile(r".*/multiprocessing/(?:resource_tracker|forkserver)\.py")
_STARTERS = re.compile(r".*/subprocess\.py|.*/torch/distributed/elastic/(?:agent|multiprocessing)/")
_BEGIN = re.compile(r".*/multiprocessing/process\.py")
"""Start of a forked child. Its outer frames are its parent's: they show where it was made, not what it
does."""
_PHRASES = {
    **dict.fromkeys(("clock_nanosleep", "nanosleep"), "in sleep"),
    **dict.fromkeys(("poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait"), "in poll"),
    **dict.fromkeys(("wait4", "waitid"), "for a child process"),
    "futex": "for a lock or a thread",
    "flock": "for a file lock",
}
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
        return "a script has set PYTHONPATH anew (PYTHONPATH=DIR:$PYTHONPATH keeps the launcher's)"
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


@frozen
class Spot:
    """Where a process is.

    Attributes:
        inner: The innermost frame.
        package: The innermost frame of an installed package; None if that is ``inner``, or if there is none.
        users: The innermost frame of the user's own code; None if there is none.
        folder: The working directory of the process.
        collective: What the user's code called and which waits for other processes; None if it does not wait
            for them.
    """

    inner: Frame
    package: Frame | None
    users: Frame | None
    folder: str
    collective: Frame | None

    @property
    def in_collective(self) -> bool:
        """Whether it waits for other processes."""
        return self.collective is not None

    @property
    def call(self) -> object:
        """The call in the user's code: equal for ranks that wait for each other anywhere inside it."""
        if self.collective is None or self.users is None:
            return self
        return self.users, self.folder, self.collective.file, self.collective.function

    def without_inside(self) -> Spot:
        """Return the place of the call alone."""
        return self if self.collective is None else replace(self, inner=self.collective, package=None)

    def render(self, call: str) -> str:
        """Return e.g. ``in all_reduce (torch/distributed/distributed_c10d.py:2501) <- train.py:47``.

        Args:
            call: System call in which the process waits, `RUNNING`, or empty.
        """
        text = self._render_inner(call)
        if self.package is not None:
            text += f" <- {self.package.function} ({place(self.package, self.folder)})"
        if self.users is not None and self.users is not self.inner:
            text += f" <- {place(self.users, self.folder)}"
        return text

    def _render_inner(self, call: str) -> str:
        where, function = place(self.inner, self.folder), self.inner.function
        if self.users is not self.inner or call in ("", RUNNING):
            return f"in {function} ({where})"
        # A line of the user's code waits in C code, which has no frame; the system call shows for what.
        within = "" if function == "<module>" else f" in {function}"
        return f"{_PHRASES.get(call, f'in {call}')} ({where}{within})"


def find_spot(answer: Answer) -> Spot | None:
    """Return where the main thread of a process is; None if unknown."""
    if not answer.frames:
        return None
    inner, frames = answer.frames[0], _own_frames(answer.frames)
    users = next((frame for frame in frames if is_users(frame)), None)
    # Only what the user's code called: torch/distributed/ is also among its callers, in @record.
    called = frames[: frames.index(users)] if users else frames
    package = next((frame for frame in called if _PACKAGES.match(frame.file)), None)
    # An import runs the body of a module, which takes time but waits for no process.
    calls = [frame for frame in called if frame.function != "<module>"]
    waits = [frame for frame in calls if _COLLECTIVES.match(_PACKAGES.sub("", frame.file))]
    outer = [frame for frame in waits if not _WRAPPERS.match(_PACKAGES.sub("", frame.file))] or waits
    collective = outer[-1] if outer and outer[-1].function not in _QUERIES else None
    return Spot(inner, None if package is inner else package, users, answer.folder, collective)


def _own_frames(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    last = next((at for at, frame in enumerate(frames) if _BEGIN.match(frame.file)), len(frames))
    return frames[: last + 1]


def is_users(frame: Frame) -> bool:
    """Whether a frame belongs neither to an installed package nor to Python itself."""
    return not _PACKAGES.match(frame.file) and not _LIBRARY.match(frame.file)


def is_tracker(answer: Answer) -> bool:
    """Whether a process is one of multiprocessing's own helpers, which always wait."""
    return any(_TRACKERS.match(frame.file) for frame in answer.frames)


def is_starter(answer: Answer) -> bool:
    """Whether a process does nothing but wait for a process that it started."""
    return bool(answer.frames) and _STARTERS.match(answer.frames[0].file) is not None


def place(frame: Frame, folder: str) -> str:
    """Return a short file and line: ``train.py:47``, ``torch/distributed/distributed_c10d.py:2501``."""
    file = _LIBRARY.sub("", _PACKAGES.sub("", frame.file))
    if folder and file.startswith(f"{folder}/"):
        file = file[len(folder) + 1 :]
    return f"{file.removesuffix('>') if frame.file.startswith('<frozen') else file}:{frame.line}"
