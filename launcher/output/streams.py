"""The output of several processes on one terminal or log, without mixing their lines.

A `Stream` reads one pipe and passes whole lines on to a `Screen`, each with the prefix of its process.
Bytes pass as they are: taking away the prefixes, and the newlines that `Screen.inserted_newlines`
counts, gives back what each process wrote.

Nothing here loops over lines: a chunk of output takes a few operations on bytes, however many lines
it holds.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.output.console import Bytes, LogFile, Screen

HOLD_S = 0.2
"""How long a line without an end (a prompt, a progress bar) waits for its end."""
PARTIAL_LIMIT_BYTES = 1 << 16
"""A longer line is passed on in pieces."""
TAIL_BYTES = 1 << 15
READ_BYTES = 24 << 10
"""One read. With more than this, what a chunk is worked on in exceeds what the C library keeps between
two chunks (M_TRIM_THRESHOLD, 128 KiB), and page faults cost two thirds of the throughput. Pipes keep
the kernel's 64 KiB: larger ones were no faster, and an unprivileged user has 64 MiB of them in all."""
FINISH_BYTES = 1 << 20
"""As much as a pipe can hold that a process has enlarged (/proc/sys/fs/pipe-max-size)."""

PALETTE = (31, 130, 28, 162, 63, 64, 30, 133)
"""Colours of xterm-256, neighbours unlike each other, each with a contrast of at least 4 to black and to
white; no plain red, which reads as an error."""

_UNTOUCHED = object()
"""All streams without lines are one writer: nothing is put between their bytes."""


def make_prefix(text: str, number: int, colour: bool) -> bytes:
    r"""Return what stands before each line of a process: ``b"[rank 3] "``.

    Args:
        text: The same as text, printable.
        number: Which of the colours of `PALETTE` it has: neighbours differ.
        colour: Whether it has one.
    """
    if not colour:
        return text.encode()
    label = text.rstrip(" ")
    gap = text[len(label) :]
    return b"\x1b[38;5;%dm%s\x1b[0m%s" % (PALETTE[number % len(PALETTE)], label.encode(), gap.encode())


def fill_template(template: str, role: str, rank: int, local_rank: int) -> str:
    """Return the prefix that a template of torchrun's makes for one rank, printable.

    Source:
        torch/distributed/elastic/agent/server/local_elastic_agent.py (2.13), log_line_prefix_template.
    """
    from string import Template

    from launcher.core.redact import printable

    filled = Template(template).safe_substitute(role_name=role, rank=rank, local_rank=local_rank)
    return printable(filled)


class Stream:
    """One pipe from one process.

    Attributes:
        fd: The reading end, non-blocking from now on; the caller's to close.
        last_ns: When it last wrote (or this was made), by ``time.monotonic_ns()``.
        hold_until_s: When `flush_partial` has something to do, by ``time.monotonic()``; or None.
    """

    def __init__(
        self,
        fd: int,
        screen: Screen | None,
        prefix: bytes,
        file: LogFile | None,
        *,
        lines: bool | None = None,
    ) -> None:
        """Read from a pipe.

        Args:
            fd: Reading end of the pipe; no other reader of it.
            screen: Where its lines go, or None for nowhere.
            prefix: What each line begins with; it holds no line end.
            file: Where all of its bytes go untouched, or None.
            lines: Whether to keep lines whole. By default where there is a prefix; without, bytes
                pass at once and untouched, and streams that share a screen can tear each other's
                lines.
        """
        self.fd = fd
        self.last_ns = time.monotonic_ns()
        self.hold_until_s: float | None = None
        self._screen = screen
        self._prefix = prefix
        self._file = file
        self._lines = bool(prefix) if lines is None else lines
        self._partial = bytearray()
        self._recent = bytearray()
        self._ended = False
        self._shown_at: int | None = None
        os.set_blocking(fd, False)

    @property
    def tail(self) -> bytes:
        """The last `TAIL_BYTES` that were read."""
        return bytes(self._recent[-TAIL_BYTES:])

    @property
    def shown_since(self) -> int | None:
        """How many bytes were written to its screen since its own last ones; None where it has shown none."""
        if self._screen is None or self._shown_at is None:
            return None
        return self._screen.written - self._shown_at

    def _show(self, screen: Screen, writer: object, text: Bytes) -> None:
        screen.put(writer, self._prefix, text)
        self._shown_at = screen.written

    def read(self) -> bool:
        """Read once and pass on what came; return whether more can come (False: the end)."""
        return self._read() is not None

    def flush_partial(self, now_s: float) -> None:
        """Pass on a line that has waited for its end long enough, at ``time.monotonic()`` = ``now_s``."""
        if self.hold_until_s is not None and now_s >= self.hold_until_s:
            self._pass_on_partial(_whole_characters(self._partial))

    def catch_up(self) -> None:
        """Read all that was written before this call."""
        left = 0 if self._ended else FINISH_BYTES  # a process that goes on writing must not keep us here
        while left > 0:
            count = self._read()
            if not count:
                break
            left -= count

    def finish(self) -> None:
        """Pass on everything that was written before this call, ended lines or not."""
        self.catch_up()
        self._pass_on_partial(len(self._partial))

    def _read(self) -> int | None:
        """Return how many bytes came, 0 if none are there now, None at the end."""
        try:
            data = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return 0
        except OSError:  # the master of a terminal whose other side was closed says EIO
            return None
        if not data:
            self._ended = True
            return None
        self.last_ns = time.monotonic_ns()
        self._remember(data)
        if self._file is not None:
            self._file.write(data)
        if self._screen is not None:
            if self._lines:
                self._pass_on_lines(self._screen, data)
            else:
                self._show(self._screen, _UNTOUCHED, data)
        return len(data)

    def _remember(self, data: bytes) -> None:
        self._recent += data[-TAIL_BYTES:]
        if len(self._recent) > 2 * TAIL_BYTES:
            del self._recent[:-TAIL_BYTES]

    def _pass_on_lines(self, screen: Screen, data: bytes) -> None:
        """Pass on the lines that have ended; keep the beginning of the next, or pass it on if it may."""
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if end:
            lines = b"".join((self._partial, data[:end])) if self._partial else data[:end]
            self._partial.clear()
            self.hold_until_s = None
            self._show(screen, self, self._with_prefixes(lines))
        self._partial += data[end:]
        if not self._partial:
            return
        if len(self._partial) > PARTIAL_LIMIT_BYTES or screen.is_open_for(self):
            self._pass_on_partial(_whole_characters(self._partial))
        elif self.hold_until_s is None:
            self.hold_until_s = self.last_ns / 1e9 + HOLD_S

    def _with_prefixes(self, lines: bytes) -> Bytes:
        """Return lines with the prefix after each end but the last."""
        prefix = self._prefix
        if not prefix:
            return lines
        text = lines.replace(b"\n", b"\n" + prefix)
        if b"\r" in lines:
            # A prefix stands now after every \r and \n; the one inside of each \r\n goes away again.
            # Text of the process cannot be mistaken for it: its every \r has a prefix of ours behind.
            text = text.replace(b"\r", b"\r" + prefix)
            text = text.replace(b"\r" + prefix + b"\n", b"\r\n")
        return memoryview(text)[: -len(prefix)]

    def _pass_on_partial(self, count: int) -> None:
        """Pass on the first bytes of a line that has not ended."""
        self.hold_until_s = None
        if count and self._screen is not None:
            self._show(self._screen, self, bytes(self._partial[:count]))
            del self._partial[:count]


def _whole_characters(text: bytearray) -> int:
    """Return how many bytes are left without a UTF-8 character whose rest has yet to come."""
    for back in range(1, min(3, len(text)) + 1):
        byte = text[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(text) - back if back < needed else len(text)
    return len(text)
