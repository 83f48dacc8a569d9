"""Ask processes by the signal that `launcher.hook` has made them answer."""

from __future__ import annotations

import os
import signal
import stat
from errno import ESRCH

from launcher.hook import STACK_SIGNAL, STACKS_NAME
from launcher.stacks.answer import Answer, parse_faulthandler
from launcher.stacks.look import READ_LIMIT_BYTES, has_signal, list_links

ANSWER_S = 2.0
"""How long a process may take to answer."""
SETTLE_S = 0.06
"""An answer that has not grown for so long is complete."""


_in_use: set[str] = set()
"""Files into which somebody answers: two who ask at a time, for a stall and for a user, take turns."""


class Lane:
    """The processes that answer into one file: a rank's, and what it has started. One after the other.

    Attributes:
        path: The file.
        unanswered: Those who did not answer, with the reason, and those who were not asked for it.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.unanswered: list[Answer] = []
        self._waiting: list[Answer] = []
        self._answered: list[Answer] = []
        self._asked: Answer | None = None
        self._asked_at = self._grown_at = 0.0
        self._start = self._size = 0

    @property
    def complete(self) -> bool:
        """Whether there is nobody left to ask."""
        return self._asked is None and not self._waiting

    def add(self, answer: Answer) -> None:
        """Ask one more."""
        self._waiting.append(answer)

    def take_answered(self) -> list[Answer]:
        """Return what has come in since the last time."""
        taken, self._answered = self._answered, []
        return taken

    def go_on(self, now: float) -> None:
        """Take an answer that is complete, and ask the next."""
        if self._asked is not None:
            self._look(self._asked, now)
        while self._asked is None and self._waiting and self.path not in _in_use:
            self._ask(self._waiting.pop(0), now)

    def close(self) -> None:
        """Ask no longer."""
        if self._asked is not None:
            self._release()

    def _release(self) -> None:
        self._asked = None
        _in_use.discard(self.path)

    def _ask(self, answer: Answer, now: float) -> None:
        try:
            self._start = self._size = os.stat(self.path).st_size
            ask(answer.pid, self.path)
        except OSError as error:
            self.unanswered.append(answer.without_threads(f"it cannot be asked: {error.strerror}"))
            return
        self._asked, self._asked_at, self._grown_at = answer, now, now
        _in_use.add(self.path)

    def _look(self, answer: Answer, now: float) -> None:
        text = read_from(self.path, self._start)
        if len(text) != self._size - self._start:
            self._size, self._grown_at = self._start + len(text), now
        elif text.endswith(b"\n") and now - self._grown_at >= SETTLE_S and not is_answering(answer.pid):
            threads = parse_faulthandler(text.decode("utf-8", "replace"))
            self._answered.append(answer.with_threads(threads, "faulthandler"))
            self._release()
            return
        if now - self._asked_at > ANSWER_S:
            # When it comes, it will stand among the answers of whoever would be asked next.
            silent = answer.without_threads(f"it does not answer within {ANSWER_S:g} s")
            self.unanswered += [silent, *self._waiting]
            self._release()
            self._waiting.clear()


def ask(pid: int, path: str) -> None:
    """Send the stack signal to a process that is ready for it, and to no other: it would end.

    Raises:
        OSError: It is gone, not ours, or not ready any more.
    """
    pidfd = os.pidfd_open(pid)  # from here on the pid cannot come to mean another process
    try:
        if find_stacks_file(pid, os.path.dirname(path)) != path:
            raise OSError(ESRCH, "it has closed its file")
        signal.pidfd_send_signal(pidfd, STACK_SIGNAL)
    finally:
        os.close(pidfd)


def find_stacks_file(pid: int, folder: str | None) -> str | None:
    """Return the file below ``folder`` in which a process answers the stack signal; None if it does not.

    It must catch the signal and have the file open itself: then the handler is the hook's, and what
    the handler writes to is no other file that has got the number of one that a script has closed.
    """
    if folder is None or not has_signal(pid, "SigCgt", STACK_SIGNAL):
        return None
    for link in list_links(f"/proc/{pid}/fd"):
        if link.startswith(f"{folder}/") and link.endswith(STACKS_NAME):
            return link
    return None


def is_answering(pid: int) -> bool:
    """Whether the main thread still writes: within the handler it blocks the signal."""
    return has_signal(pid, "SigBlk", STACK_SIGNAL) or has_signal(pid, "ShdPnd", STACK_SIGNAL)


def read_from(path: str, start: int) -> bytes:
    """Return what a regular file holds behind ``start``, at most 1 MiB; empty if it is none any more."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.pread(fd, READ_LIMIT_BYTES, start) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError:
        return b""
    finally:
        os.close(fd)
