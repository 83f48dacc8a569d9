"""Where a process is: the few frames of a stack that a reader looks for. Pure."""

from __future__ import annotations

import re

from launcher.core.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.stacks.answer import Answer, Frame

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
    # The body of a module is run by who imports it: that takes time, and waits for nobody.
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
