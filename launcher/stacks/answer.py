"""What a process has answered, in either notation, and the few frames of it that a reader looks for. Pure."""

from __future__ import annotations

import re

from launcher.core.frozen import frozen

_HEAD = re.compile(r"(?P<which>Current thread|Thread) (?P<id>0x[0-9a-f]+).*\(most recent call first\):")
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d{1,9}) in (?P<function>.*)')
_CUT_OFF = "\n..."
"""How the dump of more than 100 threads ends; the frames of a long stack end in an indented one."""
_PACKAGES = re.compile(r".*/(?:site|dist)-packages/")
_LIBRARY = re.compile(r".*/lib(?:64)?/python3(?:\.\d+t?)?/|.*/python3\d*\.zip/|<frozen ")
_COLLECTIVES = re.compile(
    r"torch/(?:distributed|nn/parallel)/|horovod/|mpi4py/|deepspeed/comm/|tensorflow/python/distribute/"
)
"""Packages in which a process waits for others. What they call and what calls them stands elsewhere."""
_TRACKERS = re.compile(r".*/multiprocessing/(?:resource_tracker|forkserver)\.py")
_STARTERS = re.compile(r".*/subprocess\.py")
_BEGIN = re.compile(r".*/multiprocessing/process\.py")
"""A forked child has its parent's frames below this one: where it was made, not what it does."""
_PHRASES = {
    **dict.fromkeys(("clock_nanosleep", "nanosleep"), "in sleep"),
    **dict.fromkeys(("poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait"), "in poll"),
    **dict.fromkeys(("wait4", "waitid"), "for a child process"),
    "futex": "for a lock or a thread",
    "flock": "for a file lock",
}
RUNNING = "running"
"""What /proc/PID/syscall says of a process that is in no system call."""


@frozen
class Frame:
    """One line of a stack."""

    file: str
    line: int
    function: str


@frozen
class Thread:
    """One thread of a process, its innermost frame first."""

    name: str
    frames: tuple[Frame, ...] = ()


@frozen
class Answer:
    """What is known about one process that takes part in a stall.

    Attributes:
        rank: Rank of the process that was started, from which this one descends (or is it).
        pid: Its pid.
        command: Its command line, fit for display.
        state: R, S, D, T ... as ps shows it.
        call: System call in which its main thread waits; ``"running"`` if in none, empty if unknown.
        kernel: Function of the kernel in which it waits, empty if unknown.
        folder: Its working directory, empty if unknown.
        is_python: Whether it is a Python interpreter.
        threads: Its Python threads, the main thread first; empty if they are not known.
        means: Where the threads come from: ``"faulthandler"``, ``"py-spy"``.
        why: Why there are no threads.
    """

    rank: int
    pid: int
    command: str = ""
    state: str = ""
    call: str = ""
    kernel: str = ""
    folder: str = ""
    is_python: bool = False
    threads: tuple[Thread, ...] = ()
    means: str = ""
    why: str = ""

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The main thread's frames, innermost first."""
        return self.threads[0].frames if self.threads else ()

    def with_threads(self, threads: tuple[Thread, ...], means: str) -> Answer:
        """Return the same with stacks."""
        return self._replace(threads=threads, means=means, why="" if threads else f"{means}: no thread")

    def without_threads(self, why: str) -> Answer:
        """Return the same with one more reason why there are no stacks."""
        return self._replace(why="; ".join(filter(None, (self.why, why))))

    def _replace(self, **changes: object) -> Answer:
        return Answer(**{**vars(self), **changes})


def parse_faulthandler(text: str) -> tuple[Thread, ...]:
    """Return the threads of a dump by faulthandler, the main thread first.

    The main thread is the oldest and stands last. Of more than 100 threads faulthandler leaves the
    oldest out; then the one that took the signal stands for it.

    Source:
        Python/traceback.c, _Py_DumpTracebackThreads.
    """
    threads: list[Thread] = []
    main = 0
    for line in text.splitlines():
        head, frame = _HEAD.match(line), _FRAME.match(line)
        if head:
            if head["which"] != "Thread":
                main = len(threads)
            threads.append(Thread(f"thread {head['id']}"))
        elif frame and threads:
            found = Frame(frame["file"], int(frame["line"]), frame["function"])
            threads[-1] = Thread(threads[-1].name, (*threads[-1].frames, found))
    if not text.rstrip().endswith(_CUT_OFF):
        main = len(threads) - 1
    return (*threads[main : main + 1], *threads[:main], *threads[main + 1 :])


def parse_py_spy(text: str) -> tuple[Thread, ...]:
    """Return the threads of ``py-spy dump --json``, the main thread first.

    Raises:
        ValueError: It is not what py-spy writes.
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
    return Thread(
        f"{item['thread_name'] or 'thread'} ({item['os_thread_id']})",
        tuple(Frame(str(frame["filename"]), int(frame["line"]), str(frame["name"])) for frame in frames),
    )


@frozen
class Spot:
    """Where a process is.

    Attributes:
        inner: The innermost frame.
        package: The innermost frame of an installed package, where ``inner`` is Python's own library.
        users: The innermost frame of the user's own code.
        folder: The process's working directory.
        in_collective: Whether it waits for other processes.
    """

    inner: Frame
    package: Frame | None
    users: Frame | None
    folder: str
    in_collective: bool

    def render(self, call: str) -> str:
        """Return e.g. ``in all_reduce (torch/distributed/distributed_c10d.py:2501) <- train.py:47``.

        Args:
            call: The system call that the process waits in, `RUNNING`, or empty.
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
        # What a user's own line waits in is written in C and has no frame: the kernel knows it.
        within = "" if function == "<module>" else f" in {function}"
        return f"{_PHRASES.get(call, f'in {call}')} ({where}{within})"


def find_spot(answer: Answer) -> Spot | None:
    """Return where a process is by its main thread; None if that is not known."""
    if not answer.frames:
        return None
    inner, frames = answer.frames[0], _own_frames(answer.frames)
    users = next((frame for frame in frames if is_users(frame)), None)
    # Only what the user's code has called: torch/distributed/ also stands below it, in @record.
    called = frames[: frames.index(users)] if users else frames
    package = next((frame for frame in called if _PACKAGES.match(frame.file)), None)
    # An import runs the body of a module: that takes time, and waits for nothing.
    calls = [frame for frame in called if frame.function != "<module>"]
    waits = any(_COLLECTIVES.match(_PACKAGES.sub("", frame.file)) for frame in calls)
    return Spot(inner, None if package is inner else package, users, answer.folder, waits)


def _own_frames(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    last = next((at for at, frame in enumerate(frames) if _BEGIN.match(frame.file)), len(frames))
    return frames[: last + 1]


def is_users(frame: Frame) -> bool:
    """Whether a frame is neither of an installed package nor of Python itself."""
    return not _PACKAGES.match(frame.file) and not _LIBRARY.match(frame.file)


def is_tracker(answer: Answer) -> bool:
    """Whether it is one of multiprocessing's own helpers, which wait by profession."""
    return any(_TRACKERS.match(frame.file) for frame in answer.frames)


def is_starter(answer: Answer) -> bool:
    """Whether all that it does is to wait for a process that it has started."""
    return bool(answer.frames) and _STARTERS.match(answer.frames[0].file) is not None


def place(frame: Frame, folder: str) -> str:
    """Return ``train.py:47``, ``torch/distributed/distributed_c10d.py:2501``: what one looks for."""
    file = _LIBRARY.sub("", _PACKAGES.sub("", frame.file))
    if folder and file.startswith(f"{folder}/"):
        file = file[len(folder) + 1 :]
    return f"{file.removesuffix('>') if frame.file.startswith('<frozen') else file}:{frame.line}"
