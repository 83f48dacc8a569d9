"""Where the output of each process goes, and the pipes, files and screens on the way.

A process gets our own descriptor wherever nothing has to be done with what it writes; else a pipe:
where lines need a prefix, where they go to a file (which may be on a disk that gets full, and then must
not end the process), and for standard error, whose last lines belong to the truth about a failure. A
single process at a terminal keeps the terminal.
"""

from __future__ import annotations

import os
import time

from launcher.core.model import STDERR, STDOUT, Supervision
from launcher.output.console import BACKLOG_LIMIT_BYTES, Console, LogFile, Screen, share_screens
from launcher.output.folder import RunFolder, cannot_write
from launcher.output.streams import Stream, fill_template, make_prefix
from launcher.process.spawn import Child, Streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.process.loop import Loop
    from launcher.recovery.progress import ProgressGate

DRAIN_S = 5.0
"""How long a reader of our output may take, at the end, for what it has not read yet."""
TEMPLATE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
"""torchrun's variable for what lines begin with."""
NAMES = {STDOUT: "stdout", STDERR: "stderr"}


class OutputRouter:
    """All that the processes of one run write.

    Attributes:
        sees_all: Whether we know of all that is written.
        has_colour: Whether our own words may have colours.
    """

    def __init__(
        self,
        watch: Supervision,
        loop: Loop,
        environ: Mapping[str, str],
        *,
        several: bool,
        shares_terminal: bool,
    ) -> None:
        self._watch, self._loop = watch, loop
        self._consoles = (Console(1, "standard output"), Console(2, "standard error"))
        escapes = environ.get("TERM") != "dumb"
        self._screens = dict(
            zip((STDOUT, STDERR), share_screens(*self._consoles, escapes=escapes), strict=True)
        )
        self._template = environ.get(TEMPLATE, "")
        # mpirun gives its ranks a terminal for standard output alone, and what they say ends in a file
        both = all(console.is_terminal for console in self._consoles)
        self.has_colour = escapes and both and not environ.get("NO_COLOR")
        self._shares_terminal = shares_terminal
        self.expect(several=several)
        # A process in a group of its own would be stopped for reading what is typed
        self._typed_in = not shares_terminal and os.isatty(0)
        self.progress: ProgressGate | None = None
        self._streams: dict[int, Stream] = {}
        self._holding: set[Stream] = set()
        self._errors: dict[int, Stream] = {}
        self._written: dict[int, list[Stream]] = {}
        self._files: list[LogFile] = []
        self._open: list[int] = []
        self._paused: list[Stream] = []
        self._complaints: set[tuple[bool, int | None]] = set()
        self._since = self._ended_s = time.monotonic()

    # --- start

    def expect(self, *, several: bool) -> None:
        """Take it that there will be several processes, or one; before the first is started."""
        self._several = several
        self._merges = not several and self._screens[STDOUT] is self._screens[STDERR]
        self.sees_all = self._needs_pipe(STDOUT)

    def open(self, index: int, child: Child, folder: RunFolder, attempt: int) -> Streams:
        """Return what a process gets as its standard streams.

        Raises:
            NotReady: A log file cannot be written.
        """
        fds: dict[int, int | None] = {}
        self._written[index] = []
        for bit in (STDERR, STDOUT):
            path = folder.log_path(attempt, child.folder, NAMES[bit]) if child.route.to_file & bit else None
            fds[bit] = self._open_one(index, child, bit, path, fds)
        stdin = None
        if self._typed_in:
            stdin = self._keep(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        return Streams(stdin, fds[STDOUT], fds[STDERR])

    def _open_one(
        self, index: int, child: Child, bit: int, path: str | None, fds: dict[int, int | None]
    ) -> int | None:
        shown = child.route.to_console & bit
        if path is None and not shown and bit == STDOUT:
            return self._keep(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC))
        if path is None and not self._needs_pipe(bit):
            return None
        if self._merges and bit == STDOUT and not child.route.to_file and fds[STDERR] is not None:
            return fds[STDERR]  # one pipe, as it is one place: what was written first stays first
        return self._open_pipe(index, child, bit, path, shown=bool(shown))

    def _needs_pipe(self, bit: int) -> bool:
        """Whether something is to be done with what a single process writes to a stream."""
        if self._several or self._watch.prefix or self._watch.stall_timeout_s or self._watch.progress:
            return True
        if self._shares_terminal or self._consoles[1].is_terminal:
            return False
        return bit == STDERR or self._merges

    def _open_pipe(self, index: int, child: Child, bit: int, path: str | None, *, shown: bool) -> int:
        reading, writing = os.pipe()  # both close on exec
        screen = self._screens[bit]
        prefix = make_prefix(self._label(child), child.rank, self.has_colour) if self._watch.prefix else b""
        file = None if path is None else _log_file(path)
        if file is not None:
            self._files.append(file)
        stream = Stream(reading, screen if shown else None, prefix, file, lines=self._several or None)
        self._streams[reading] = stream
        self._written[index].append(stream)
        if bit == STDERR:
            self._errors[index] = stream
        self._loop.add(reading, lambda: self._read(stream))
        return self._keep(writing)

    def _label(self, child: Child) -> str:
        """Return what stands before a line of a process; the user's template is for what has a rank."""
        if not self._template or child.called:
            return f"[{child.name}] "
        return fill_template(self._template, child.environ.get("ROLE_NAME", ""), child.rank, child.local_rank)

    def _keep(self, fd: int) -> int:
        self._open.append(fd)
        return fd

    def started(self) -> None:
        """The process has its descriptors; ours are closed, so that the end of a pipe is its end."""
        while self._open:
            os.close(self._open.pop())

    # --- while it runs

    @property
    def due(self) -> float | None:
        """When `fire` has something to do."""
        holds = (stream.hold_until_s for stream in self._holding)
        return min((hold for hold in holds if hold is not None), default=None)

    def fire(self, now: float) -> None:
        """Pass on lines that have waited for their end long enough."""
        for stream in tuple(self._holding):
            stream.flush_partial(now)
            self._note_hold(stream)
        self._watch_backlog()

    @property
    def last_s(self) -> float:
        """When anything was written last, monotonic seconds; start of the attempt before that."""
        return max([self._since, self._ended_s, *(stream.last_ns / 1e9 for stream in self._streams.values())])

    def wrote_s(self, index: int) -> float | None:
        """Return when a process wrote last or was started (monotonic s); None if we do not see all of it."""
        streams = self._written.get(index)
        return max(stream.last_ns / 1e9 for stream in streams) if streams and self.sees_all else None

    def _read(self, stream: Stream) -> None:
        more = stream.read()
        if self.progress is not None and self.progress.wants_output:
            self.progress.read(stream.tail)
        self._note_hold(stream)
        if not more:
            self._end(stream)
        self._watch_backlog()
        if any(console.backlog_bytes > BACKLOG_LIMIT_BYTES for console in self._consoles):
            self._pause()

    def _note_hold(self, stream: Stream) -> None:
        if stream.hold_until_s is None:
            self._holding.discard(stream)
        else:
            self._holding.add(stream)

    def _end(self, stream: Stream) -> None:
        stream.finish()
        self._ended_s = max(self._ended_s, stream.last_ns / 1e9)
        self._loop.remove(stream.fd)
        os.close(stream.fd)
        if stream in self._paused:  # by the time we resume, its number may be another's
            self._paused.remove(stream)
        self._holding.discard(stream)
        del self._streams[stream.fd]

    def _pause(self) -> None:
        """Our reader is slow: so are the processes from now on, as if they wrote to it themselves."""
        for stream in self._streams.values():
            if self._loop.watches(stream.fd):
                self._loop.remove(stream.fd)
                self._paused.append(stream)

    def _resume(self) -> None:
        while self._paused:
            stream = self._paused.pop()
            self._loop.add(stream.fd, lambda stream=stream: self._read(stream))  # type: ignore[misc]

    def _watch_backlog(self) -> None:
        """Wait for readers where something is queued; say once where something was lost."""
        for console in self._consoles:
            fd = console.poll_fd
            if fd is not None and console.backlog_bytes and not self._loop.watches(fd):
                self._loop.add(fd, lambda console=console: self._flush(console), writable=True)  # type: ignore[misc]
        for place in (*self._consoles, *self._files):
            complaint = place.take_complaint()
            # A full disk is said once, not once for each of the files on it.
            reason = isinstance(place, LogFile), None if place.error is None else place.error.errno
            if complaint is not None and reason not in self._complaints:
                self._complaints.add(reason)
                self.say(complaint)

    def _flush(self, console: Console) -> None:
        console.flush()
        if not console.backlog_bytes:
            if console.poll_fd is not None:
                self._loop.remove(console.poll_fd)
            self._resume()
        self._watch_backlog()

    # --- words of our own

    @property
    def screen(self) -> Screen:
        """Where we speak: standard error."""
        return self._screens[STDERR]

    def say(self, text: str) -> None:
        """Write a message of the launcher."""
        self.screen.notice(text)

    def write(self, text: str) -> None:
        """Write lines of ours that are ready to be shown."""
        self.screen.put(None, b"", text.encode("utf-8", "replace"))

    def show(self, text: str) -> None:
        """Show a status line; an empty text takes it away."""
        self.screen.status(text.encode("utf-8", "replace"))

    # --- the end

    def read_rest(self, index: int) -> None:
        """Read what a process that has ended has left in its pipe for standard error."""
        stream = self._errors.get(index)
        if stream is not None and stream.fd in self._streams:
            stream.catch_up()
            self._note_hold(stream)
            self._watch_backlog()

    def read_errors(self, index: int) -> bytes:
        """Return the last of what a process wrote to standard error, as far as we have seen it."""
        stream = self._errors.get(index)
        return b"" if stream is None else stream.tail

    def shown_since(self, index: int) -> int | None:
        """Return how many bytes stand below the last errors of a process; None where none are shown."""
        stream = self._errors.get(index)
        return None if stream is None else stream.shown_since

    def end_attempt(self) -> None:
        """All processes have ended: pass on what they have left in their pipes."""
        for stream in tuple(self._streams.values()):
            self._end(stream)
        self._watch_backlog()
        deadline = time.monotonic() + DRAIN_S
        for file in self._files:  # a restart opens others: the limit of open files is not for us alone
            file.drain(deadline)
            file.close()
        self._since = time.monotonic()

    def close(self) -> None:
        """Give readers of our output a moment, and say how much they will never see."""
        self.screen.clear()
        deadline = time.monotonic() + DRAIN_S
        lost = [file.lost_bytes for file in self._files if file.lost_bytes]
        if lost:
            files = f"{len(lost)} of {len(self._files)} log files"
            self.say(f"{sum(lost)} bytes of output were lost: they are missing in {files}")
        for console in self._consoles:
            console.drain(deadline)
        for console in self._consoles:
            console.close()
            if console.lost_bytes and console is not self.screen.console:
                self.say(f"{console.name}: {console.lost_bytes} bytes of output were lost")


def _log_file(path: str) -> LogFile:
    try:
        return LogFile(path)
    except OSError as error:
        raise cannot_write(path, error) from error
