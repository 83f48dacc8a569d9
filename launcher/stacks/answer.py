"""What a process has answered, and the two notations it comes in. Pure."""

from __future__ import annotations

import re

from launcher.core.frozen import frozen


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


_HEAD = re.compile(r"(?P<which>Current thread|Thread) (?P<id>0x[0-9a-f]+).*\(most recent call first\):")
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d{1,9}) in (?P<function>.*)')
_CUT_OFF = "\n..."
"""How the dump of more than 100 threads ends; the frames of a long stack end in an indented one."""


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
