"""Destinations of output: our standard output and error, and the files of a log directory.

A destination that is slow, full or closed must neither block the loop that watches the processes nor end the
job. Output that it does not accept yet waits in a queue. Output lost by an error is counted, and the error is
reported once.

Nothing here changes flags that other programs share with us: with O_NONBLOCK on our descriptor 1, any other
program that writes to that terminal or pipe would lose output.
"""

from __future__ import annotations

import os
import select
import stat
import time
from errno import EBADF, ECONNRESET, EINVAL, ENOTCONN, EPIPE

from launcher.core.files import append_file, rename_file
from launcher.core.log import render

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    Bytes = bytes | bytearray | memoryview

BACKLOG_LIMIT_BYTES = 1 << 20
"""With more than this queued, stop reading the output that fills the queue."""

# Python adds O_CLOEXEC to both.
_OWN_FLAGS = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY
_FOREVER = frozenset((EPIPE, EBADF, ECONNRESET, EINVAL, ENOTCONN))
"""Permanent errors. Others can pass: a disk gets free space, a quota is raised."""
_FLUSH_BYTES = 1 << 16
ROTATED_MAX = 5
"""Number of files of a log beside the one that is written: ``FILE.1`` is the newest of them."""
LINE_LIMIT_BYTES = 1 << 16
"""A line that begins at the end of a file makes it so much larger before it is torn."""
_WHOLE = 1 << 30
_PIPE_STEP_BYTES = 4096
"""A pipe or socket that polls as writable accepts PIPE_BUF bytes without blocking, pipe(7)."""
_TERMINAL_STEP_BYTES = 128
"""A terminal polls as writable while any space is free. Space is freed in units of 256 bytes
(drivers/tty/tty_buffer.c), and a newline takes two bytes.
"""


class Console:
    """One destination. Never raises, and never blocks if the destination can be polled.

    Attributes:
        name: Its name in messages, e.g. ``"standard output"``.
        is_terminal: Whether it is a terminal.
        place: Device and inode; the output of two consoles with the same place is mixed there.
        poll_fd: Descriptor to poll for EPOLLOUT before `flush`, while `backlog_bytes` is not 0. None if epoll
            cannot wait for it (regular files, /dev/null): nothing is queued for long there.
        lost_bytes: Number of bytes given to us that will never arrive.
        error: The first error, for `take_complaint`.
        torn: Whether an error cut a line off: the next output would be appended to its beginning.
    """

    def __init__(self, fd: int, name: str) -> None:
        """Write to an open descriptor, which the caller must close."""
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
        """Number of bytes in the queue."""
        return len(self._backlog)

    def write(self, data: Bytes) -> None:
        """Write as much as possible now, and queue the rest."""
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
        """Write as much of the queue as possible now."""
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
        """Count the queue as lost, and write nothing after this."""
        self._gone = True
        self._lose()
        if self._own_fd >= 0:
            os.close(self._own_fd)
            self._own_fd = -1

    def columns(self) -> int:
        """Return the width of the terminal in columns; 80 if unknown."""
        try:
            return os.get_terminal_size(self._fd).columns or 80
        except OSError:
            return 80

    def take_complaint(self) -> str | None:
        """Return the first error as a message, only once; None without an error."""
        if self.error is None or self._told:
            return None
        self._told = True
        return (
            f"{self.name}: {self.error.strerror}: output for it is dropped and counted"
            f"{'' if self._gone else ' until this is fixed'}; the processes continue"
        )

    def _open(self, status: os.stat_result) -> None:
        """Choose how to write without blocking and without changing flags that other programs share."""
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
        """Write as much as possible; return the number of bytes written, and the error if one occurred."""
        view, taken = memoryview(data), 0
        try:
            while taken < len(view) and (self._gate is None or self._gate.poll(0)):
                taken += os.write(self._fd, view[taken : taken + self._step_bytes])
        except BlockingIOError:
            pass
        except OSError as error:
            # Without its traceback, which would keep this frame and the data alive.
            return taken, OSError(error.errno, error.strerror)
        finally:
            if taken:
                self._ends_inside = view[taken - 1] not in b"\r\n"
                self.torn = False
        return taken, None

    def _fail(self, error: OSError) -> None:
        """Record the first error, and count the queue as lost."""
        self.error = self.error or error
        self._gone = error.errno in _FOREVER
        self.torn = self._ends_inside
        self._lose()

    def _lose(self) -> None:
        self.lost_bytes += len(self._backlog)
        self._backlog.clear()


class LogFile(Console):
    """A file of the log directory, opened for appending, with the guarantees of a console.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, path: str, rotate_bytes: int = 0, *, inside: tuple[int, str] | None = None) -> None:
        """Open or create the file, and the directories above it.

        Args:
            path: Its path, for messages.
            rotate_bytes: Size at which it gets another name, and a new file begins; 0 for never.
            inside: A folder's descriptor, and the path from there, by which it is found; None for ``path``.
        """
        self._at = None if inside is None else inside[0]
        self._path = path if inside is None else inside[1]
        fd = append_file(self._path, makes_folders=True, at=self._at)
        super().__init__(fd, path)
        if self._own_fd >= 0:  # a fifo or a terminal
            os.close(fd)
        self._own_fd = self._fd
        status = os.fstat(self._fd)
        self._size, self._refused = status.st_size, ""
        self._limit = rotate_bytes if stat.S_ISREG(status.st_mode) else 0

    def write(self, data: Bytes) -> None:
        """Write to the file; a new one begins between two lines if possible."""
        while self._limit and self._size + len(data) > self._limit and not self._backlog:
            count = self._find_cut(bytes(data))
            if count == len(data):
                break
            if count:
                super().write(data[:count])
            data = data[count:]
            self._rotate()
        self._size += len(data)
        super().write(data)

    def take_complaint(self) -> str | None:
        """Return the first error as a message, only once; None without an error."""
        refused, self._refused = self._refused, ""
        return refused or super().take_complaint()

    def _find_cut(self, data: bytes) -> int:
        """Return how many bytes still belong into this file."""
        room = max(0, self._limit - self._size)
        end = data.rfind(b"\n", 0, room) + 1
        if end or (self._size and not self._ends_inside):
            return end
        end = data.find(b"\n") + 1  # a line has begun here, or is longer than a whole file
        is_long = self._size + (end or len(data)) > self._limit + LINE_LIMIT_BYTES
        return room if is_long else end or len(data)

    def _rotate(self) -> None:
        """Rename the file, the older ones and the last of them away; go on in it if that fails."""
        endings = ["", *(f".{number}" for number in range(1, ROTATED_MAX + 1))]
        name = os.path.basename(self._path)
        try:
            for older, newer in zip(endings[:0:-1], endings[-2::-1], strict=True):
                rename_file(f"{self._path}{newer}", f"{name}{older}", at=self._at)
            fd = append_file(self._path, new=True, at=self._at)
        except OSError as error:
            self._refused, self._limit = f"{self.name}: no new file: {error.strerror}; this one grows on", 0
            return
        os.close(self._fd)
        self._fd = self._own_fd = fd
        self._size, self._ends_inside = 0, False


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
    """Return the screens of standard output and error; the same screen for both if they have one destination.

    Then all output goes through ``out``: two queues for one terminal would tear lines.
    """
    screen = Screen(out, escapes=escapes)
    return screen, screen if out.place == err.place else Screen(err, escapes=escapes)


class Screen:
    """One destination, and the state of its last line.

    Attributes:
        console: The destination.
        inserted_newlines: Number of unfinished lines that were ended so that another writer could write.
        written: Number of bytes of output that it was given.
        awaits_typing: Whether a process waits for what is typed: a status line would overwrite that.
    """

    def __init__(self, console: Console, *, escapes: bool = True) -> None:
        """Start with the cursor at the beginning of a line.

        Args:
            console: The destination.
            escapes: Whether a terminal understands escape codes (``TERM`` is not ``dumb``). A destination
                that is not a terminal never gets any.
        """
        self.console = console
        self.inserted_newlines = self.written = 0
        self._escapes = escapes and console.is_terminal
        self._writer: object = None
        self._line = _FRESH
        self._status = b""
        self._drawn = b""
        self.awaits_typing = False

    def put(self, writer: object, prefix: bytes, text: Bytes) -> None:
        """Write bytes of one writer, on lines of its own.

        Args:
            writer: The writer, compared by identity.
            prefix: For the first line, unless it continues a line of this writer.
            text: Not empty; its second and later lines have their prefixes already.
        """
        lead = self._lead_in(writer, prefix, text[0])
        self._writer, self._line = writer, _STATE_AFTER.get(text[-1], _OPEN)
        self._send(lead, text)

    def notice(self, text: str, event: str, fields: Mapping[str, object] | None = None) -> None:
        """Write a message of the launcher; see `launcher.core.log.render`."""
        self.put(None, b"", render(text, event, fields))

    def status(self, text: bytes) -> None:
        """Show a status line below all output, on a terminal; an empty text removes it.

        It is hidden while a line of output is unfinished, while a progress bar is in its place, and while a
        process waits for what is typed.

        Args:
            text: UTF-8 without escape codes, one column per character; cut to the terminal's width.
        """
        self._status = text
        self._send(b"", b"")

    def clear(self) -> None:
        """Remove the status line."""
        self.status(b"")

    def is_open_for(self, writer: object) -> bool:
        """Return whether the last line is this writer's and is unfinished."""
        return self._line == _OPEN and self._writer is writer

    def _lead_in(self, writer: object, prefix: bytes, first: int) -> bytes:
        """Return the bytes needed between the last byte written and the first of this writer."""
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
        """Write output after removing the status line, and draw the status line again."""
        wanted = self._clip_status()
        if text or wanted != self._drawn:
            before = _ERASE_LINE if self._drawn else b""
            self._drawn = wanted
            self.written += len(text)
            self.console.write(b"".join((before, lead, text, wanted)))

    def _clip_status(self) -> bytes:
        """Return the status line as it fits now; empty if it cannot be shown."""
        if not (self._status and self._escapes) or self._line != _FRESH or self.console.backlog_bytes:
            return b""
        if self.awaits_typing:
            return b""
        from launcher.core.redact import printable

        text = printable(self._status.decode(errors="replace"))
        return text[: self.console.columns() - 1].encode()
