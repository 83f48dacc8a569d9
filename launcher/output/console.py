"""Places that output goes to: our standard output and error, and the files of a log directory.

A place that is slow, full or gone must neither stop the loop that watches the processes nor end the
job: what does not fit waits in a queue, what an error takes away is counted, and the error is told
once.

Nothing here changes the flags of a description that other programs share: with O_NONBLOCK on our
descriptor 1, whatever else writes to that terminal or pipe would lose output.
"""

from __future__ import annotations

import os
import select
import stat
import time
from errno import EBADF, ECONNRESET, EINVAL, ENOTCONN, EPIPE

TYPE_CHECKING = False
if TYPE_CHECKING:
    Bytes = bytes | bytearray | memoryview

BACKLOG_LIMIT_BYTES = 1 << 20
"""With more than this queued, stop reading what feeds the queue."""

# Python adds O_CLOEXEC to both.
_OWN_FLAGS = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY
_LOG_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY | os.O_NOFOLLOW | os.O_NONBLOCK
_FOREVER = frozenset((EPIPE, EBADF, ECONNRESET, EINVAL, ENOTCONN))
"""Errors that stay; the others pass: a disk is freed, a quota raised."""
_FLUSH_BYTES = 1 << 16
_WHOLE = 1 << 30
_PIPE_STEP_BYTES = 4096
"""A pipe or socket that polls writable takes PIPE_BUF bytes without blocking, pipe(7)."""
_TERMINAL_STEP_BYTES = 128
"""A terminal polls writable while anything is free, and what is free comes in units of 256 bytes
(drivers/tty/tty_buffer.c); a newline takes two of them."""


class Console:
    """One place that we write to. Never raises and, on anything that can be waited for, never blocks.

    Attributes:
        name: What messages call it, e.g. ``"standard output"``.
        is_terminal: Whether it is a terminal.
        place: Device and inode; what two consoles write to the same place is mixed there.
        poll_fd: What to wait on for EPOLLOUT while `backlog_bytes` is not 0, before `flush`. None
            where epoll cannot wait (regular files, /dev/null): nothing is queued for long there.
        lost_bytes: How much was given to us and will never arrive.
        error: The first error, for `take_complaint`.
        torn: An error cut a line off: what comes next would be glued to its beginning.
    """

    def __init__(self, fd: int, name: str) -> None:
        """Write to an open descriptor, which stays the caller's to close."""
        self.name = name
        self.is_terminal = os.isatty(fd)
        self.place = (0, -fd)
        self.poll_fd: int | None = None
        self.lost_bytes = 0
        self.error: OSError | None = None
        self.torn = False
        self._told = self._gone = self._ends_inside = False
        self._backlog = bytearray()
        self._fd, self._own_fd = fd, -1
        self._step_bytes = _WHOLE
        self._gate: select.poll | None = None
        try:
            self._open(os.fstat(fd))
        except OSError as error:
            self._fail(error)

    @property
    def backlog_bytes(self) -> int:
        """How much is queued now."""
        return len(self._backlog)

    def write(self, data: Bytes) -> None:
        """Write what fits now and queue the rest."""
        if self._gone:
            self.lost_bytes += len(data)
        elif self._backlog:
            self._backlog += data
        else:
            taken, error = self._put(data)
            self._backlog += data[taken:]
            if error is not None:
                self._fail(error)

    def flush(self) -> None:
        """Write from the queue what fits now."""
        while self._backlog:
            chunk = bytes(self._backlog[:_FLUSH_BYTES])
            taken, error = self._put(chunk)
            del self._backlog[:taken]
            if error is not None:
                self._fail(error)
            elif taken < len(chunk):
                return

    def drain(self, deadline_s: float) -> None:
        """Wait until the queue is empty, or until ``time.monotonic()`` is ``deadline_s``."""
        gate = select.poll()
        gate.register(self._fd, select.POLLOUT)
        self.flush()
        while self._backlog:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return
            gate.poll(left_s * 1000)
            self.flush()

    def close(self) -> None:
        """Count what is still queued as lost; nothing is written after this."""
        self._gone = True
        self._lose()
        if self._own_fd >= 0:
            os.close(self._own_fd)
            self._own_fd = -1

    def columns(self) -> int:
        """Return the width of the terminal; 80 where it does not say."""
        try:
            return os.get_terminal_size(self._fd).columns or 80
        except OSError:
            return 80

    def take_complaint(self) -> str | None:
        """Return the first error as a sentence for people; None if there is none, or it was taken."""
        if self.error is None or self._told:
            return None
        self._told = True
        return (
            f"{self.name}: {self.error.strerror}: output for it is dropped and counted"
            f"{'' if self._gone else ' until that is mended'}; the processes go on"
        )

    def _open(self, status: os.stat_result) -> None:
        """Choose how to write without blocking and without changing flags that others share."""
        self.place = (status.st_dev, status.st_ino)
        if self.is_terminal or stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode):
            try:
                self._fd = self._own_fd = os.open(f"/proc/self/fd/{self._fd}", _OWN_FLAGS)
            except OSError:  # a socket, another user's pipe or terminal (su, sudo -u), no /proc
                self._step_bytes = _TERMINAL_STEP_BYTES if self.is_terminal else _PIPE_STEP_BYTES
                self._gate = select.poll()
                self._gate.register(self._fd, select.POLLOUT)
        self.poll_fd = self._fd if _can_wait(self._fd) else None

    def _put(self, data: Bytes) -> tuple[int, OSError | None]:
        """Write until nothing more fits; return how much was taken, and what stopped us if an error did."""
        view, taken = memoryview(data), 0
        try:
            while taken < len(view) and (self._gate is None or self._gate.poll(0)):
                taken += os.write(self._fd, view[taken : taken + self._step_bytes])
        except BlockingIOError:
            pass
        except OSError as error:
            # Without its traceback, which would hold this frame and the data.
            return taken, OSError(error.errno, error.strerror)
        finally:
            if taken:
                self._ends_inside = view[taken - 1] not in b"\r\n"
                self.torn = False
        return taken, None

    def _fail(self, error: OSError) -> None:
        """Remember the first error; what was to be written is lost."""
        self.error = self.error or error
        self._gone = error.errno in _FOREVER
        self.torn = self._ends_inside
        self._lose()

    def _lose(self) -> None:
        self.lost_bytes += len(self._backlog)
        self._backlog.clear()


class LogFile(Console):
    """A file of the log directory, opened for appending. The same promises as a console's.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, path: str) -> None:
        """Open or create the file."""
        fd = os.open(path, _LOG_FLAGS, 0o666)
        super().__init__(fd, path)
        if self._own_fd >= 0:  # a fifo or a terminal
            os.close(fd)
        self._own_fd = self._fd


def _can_wait(fd: int) -> bool:
    with select.epoll(1) as queue:
        try:
            queue.register(fd, select.EPOLLOUT)
        except PermissionError:
            return False
    return True


_FRESH, _RETURNED, _OPEN = range(3)
_STATE_AFTER = {0x0A: _FRESH, 0x0D: _RETURNED}
_NEWLINE = 0x0A
_ERASE_TO_END = b"\x1b[K"
_ERASE_LINE = b"\r\x1b[K"


def share_screens(out: Console, err: Console, *, escapes: bool = True) -> tuple[Screen, Screen]:
    """Return the screens of standard output and error: one and the same where both lead to one place.

    Then everything goes through ``out``: two queues for one terminal would tear lines.
    """
    screen = Screen(out, escapes=escapes)
    return screen, screen if out.place == err.place else Screen(err, escapes=escapes)


class Screen:
    """One destination, and what stands on its last line.

    Attributes:
        console: Where it goes.
        inserted_newlines: How often an open line was ended so that another could write.
        written: Bytes of output that were given to it.
    """

    def __init__(self, console: Console, *, escapes: bool = True) -> None:
        """Begin with a cursor at the start of a line.

        Args:
            console: Where to write.
            escapes: Whether a terminal understands escape codes (``TERM`` is not ``dumb``); what is
                no terminal never gets any.
        """
        self.console = console
        self.inserted_newlines = self.written = 0
        self._escapes = escapes and console.is_terminal
        self._writer: object = None
        self._line = _FRESH
        self._status = b""
        self._drawn = b""

    def put(self, writer: object, prefix: bytes, text: Bytes) -> None:
        """Write the bytes of one writer, on a line of its own.

        Args:
            writer: Whose bytes these are; compared by identity.
            prefix: For the first line, unless it goes on with a line of this writer.
            text: Not empty; its second and later lines have their prefixes already.
        """
        lead = self._lead_in(writer, prefix, text[0])
        self._writer, self._line = writer, _STATE_AFTER.get(text[-1], _OPEN)
        self._send(lead, text)

    def notice(self, text: str) -> None:
        """Write a message of the launcher.

        Args:
            text: One or more lines; each gets ``launcher: `` in front, and is made safe for a terminal.
                Secrets are the caller's to take out (`launcher.core.redact.redact`).
        """
        from launcher.core.redact import printable

        lines = [f"launcher: {printable(line)}\n".encode() for line in text.split("\n")]
        self.put(None, b"", b"".join(lines))

    def status(self, text: bytes) -> None:
        """Show one line below all output, on a terminal; an empty text takes it away.

        It is not there while a line of output is open, or a progress bar stands where it would be.

        Args:
            text: UTF-8 without escape codes, a column per character; cut to the terminal's width.
        """
        self._status = text
        self._send(b"", b"")

    def clear(self) -> None:
        """Take the status line away."""
        self.status(b"")

    def is_open_for(self, writer: object) -> bool:
        """Return whether the last line is this writer's and has no end yet."""
        return self._line == _OPEN and self._writer is writer

    def _lead_in(self, writer: object, prefix: bytes, first: int) -> bytes:
        """Return what must stand between the last byte written and the first of this writer."""
        if self.console.torn:
            self._writer, self._line = None, _OPEN
        same = self._writer is writer and writer is not None
        if same and (self._line == _OPEN or (self._line == _RETURNED and first == _NEWLINE)):
            return b""
        if self._line == _OPEN:
            self.inserted_newlines += 1
            return b"\n" + prefix
        if self._line == _RETURNED and not same and self._escapes:
            return _ERASE_TO_END + prefix
        return prefix

    def _send(self, lead: bytes, text: Bytes) -> None:
        """Write output between taking the status line away and drawing it again."""
        wanted = self._clip_status()
        if text or wanted != self._drawn:
            before = _ERASE_LINE if self._drawn else b""
            self._drawn = wanted
            self.written += len(text)
            self.console.write(b"".join((before, lead, text, wanted)))

    def _clip_status(self) -> bytes:
        """Return the status line as it can stand there now; empty where it cannot."""
        if not (self._status and self._escapes) or self._line != _FRESH or self.console.backlog_bytes:
            return b""
        from launcher.core.redact import printable

        text = printable(self._status.decode(errors="replace"))
        return text[: self.console.columns() - 1].encode()
