"""Output router: sends the output of each process through pipes to files and screens.

A process gets our own descriptor if its output needs no work. Otherwise it gets a pipe: if lines need a
prefix, if they go to a file (a full disk must not end the process), and for standard error, whose last lines
explain a failure. A single process at a terminal keeps the terminal.
"""

from __future__ import annotations

import os
import time

from launcher.core.log import CLOCK, PREFIX, use_style
from launcher.core.supervision import STDERR, STDOUT, Supervision
from launcher.output.console import BACKLOG_LIMIT_BYTES, Console, LogFile, Screen, share_screens
from launcher.output.folder import RunFolder
from launcher.output.prefixes import NAMES, LineFormats
from launcher.output.stdin import StandardInput
from launcher.output.streams import Stream
from launcher.process.signal_file import TYPED
from launcher.process.spawn import Child, Streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from launcher.process.loop import Loop
    from launcher.recovery.progress import ProgressGate

DRAIN_S = 5.0
"""Seconds at the end in which readers of our output can read the rest."""
TEMPLATE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
"""torchrun's variable for the prefix of lines."""


class OutputRouter:
    """The output of all processes of one run.

    Attributes:
        sees_all: Whether we see everything that is written.
        has_colour: Whether our own messages may have colours.
        first_s: Monotonic time in seconds of the first output since this was set to None.
        listener: Gets each message of the launcher as an event: its name, its text, its fields.
    """

    def __init__(
        self,
        watch: Supervision,
        loop: Loop,
        environ: Mapping[str, str],
        *,
        several: bool,
        shares_terminal: bool,
        lends_terminal: bool = True,
        node: int | None = None,
    ) -> None:
        self._watch, self._loop, self._log = watch, loop, watch.log
        self.set_node(node)
        self._consoles = (Console(1, "standard output"), Console(2, "standard error"))
        escapes = environ.get("TERM") != "dumb" and not watch.log.as_json
        self._screens = dict(
            zip((STDOUT, STDERR), share_screens(*self._consoles, escapes=escapes), strict=True)
        )
        self._attempt = 0
        # mpirun gives its ranks a terminal for standard output only, although the output may end in a file
        both = all(console.is_terminal for console in self._consoles)
        self.has_colour = escapes and both and not environ.get("NO_COLOR")
        template = environ.get(TEMPLATE, "")
        self._formats = LineFormats(watch, template, several=several, has_colour=self.has_colour)
        self._shares_terminal = shares_terminal
        self._mapped = tuple(one for one, sent in watch.signal_map if one in TYPED and sent != one)
        self.expect(several=several)
        readers = None if shares_terminal else watch.stdin
        self.stdin = StandardInput(readers, lends_terminal=lends_terminal)
        self._reader: Stream | None = None
        self.progress: ProgressGate | None = None
        self.first_s: float | None = None
        self.listener: Callable[[str, str, Mapping[str, object]], None] | None = None
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
        """Set whether there will be several processes; before the first one is started."""
        self._formats.several = several
        is_shared = self._screens[STDOUT] is self._screens[STDERR]
        self._merges = is_shared and not several and not self._log.as_json
        self.sees_all = self._needs_pipe(STDOUT)

    def open(self, index: int, child: Child, folder: RunFolder, attempt: int) -> Streams:
        """Return the standard streams for a process.

        Raises:
            NotReady: A log file cannot be written.
        """
        fds: dict[int, int | None] = {}
        self._written[index] = []
        self._attempt = attempt
        for bit in (STDERR, STDOUT):
            file = None
            if child.route.to_file & bit:
                file = folder.open_log(attempt, child.folder, NAMES[bit], self._log.rotate_bytes)
                self._files.append(file)
            fds[bit] = self._open_one(index, child, bit, file, fds.get(STDERR))
        stdin = self.stdin.open(child)
        if stdin is not None:
            self._open.append(stdin)
        has_terminal = stdin is None and self.stdin.is_terminal
        if has_terminal and self._written[index]:
            self._reader = self._written[index][-1]  # its standard output, where prompts go
        ignored = self._mapped if has_terminal else ()
        return Streams(stdin, fds[STDOUT], fds[STDERR], has_terminal, ignored)

    def _open_one(
        self, index: int, child: Child, bit: int, file: LogFile | None, errors: int | None
    ) -> int | None:
        """Return the descriptor of a stream for a process; ``errors``: that of its standard error."""
        shown = bool(child.route.to_console & bit)
        if file is None and not shown and bit == STDOUT and not self._watch.restarts.progress_pattern:
            writing = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        elif file is None and not self._needs_pipe(bit):
            return None
        elif self._merges and bit == STDOUT and not child.route.to_file and errors is not None:
            return errors  # one pipe for one destination keeps the order of writes
        else:
            reading, writing = os.pipe()  # both close on exec
            screen = self._screens[bit]
            stream = Stream(
                reading,
                screen if shown else None,
                self._formats.choose(child, bit, screen, self._attempt),
                file,
                search=None if self.progress is None else self.progress.follow(),
            )
            self._streams[reading] = stream
            self._written[index].append(stream)
            if bit == STDERR:
                self._errors[index] = stream
            self._loop.add(reading, lambda: self._read(stream))
        self._open.append(writing)
        return writing

    def _needs_pipe(self, bit: int) -> bool:
        """Whether the output of a single process to this stream needs work by us."""
        watch = self._watch
        if self._formats.keeps_lines or watch.stall_timeout_s or watch.progress:
            return True
        if watch.restarts.progress_pattern:
            return True
        if self._shares_terminal or self._consoles[1].is_terminal:
            return False
        return bit == STDERR or self._merges

    def started(self) -> None:
        """Close our copies of the processes' descriptors, so that their pipes end with them."""
        while self._open:
            os.close(self._open.pop())

    # --- while it runs

    @property
    def due(self) -> float | None:
        """When to call `fire`."""
        holds = [*(stream.hold_until_s for stream in self._holding), *self._formats.dues]
        return min((hold for hold in holds if hold is not None), default=None)

    def fire(self, now: float) -> None:
        """Forward lines that have waited long enough for their end."""
        for stream in tuple(self._holding):
            stream.flush_partial(now)
            self._note_hold(stream)
        self._formats.release(now)
        self._watch_backlog()

    @property
    def last_s(self) -> float:
        """Monotonic time in seconds of the last output; before any, of the start of the attempt."""
        return max([self._since, self._ended_s, *(stream.last_ns / 1e9 for stream in self._streams.values())])

    def wrote_s(self, index: int) -> float | None:
        """Return when a process last wrote or started (monotonic s); None if we do not see all its output."""
        streams = self._written.get(index)
        return max(stream.last_ns / 1e9 for stream in streams) if streams and self.sees_all else None

    def _read(self, stream: Stream) -> None:
        more = stream.read()
        self._note_hold(stream)
        if stream is self._reader:
            self._note_prompt()
        if not more:
            self._end(stream)
        elif self.first_s is None:
            self.first_s = stream.last_ns / 1e9
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
        if stream in self._paused:  # when we resume, its number may belong to another descriptor
            self._paused.remove(stream)
        self._holding.discard(stream)
        del self._streams[stream.fd]

    def _pause(self) -> None:
        """Stop reading because our reader is slow: the processes wait, as if they wrote to it directly."""
        for stream in self._streams.values():
            if self._loop.watches(stream.fd):
                self._loop.remove(stream.fd)
                self._paused.append(stream)

    def _watch_backlog(self) -> None:
        """Wait for readers if output is queued, and report once that output was lost."""
        for console in self._consoles:
            fd = console.poll_fd
            if fd is not None and console.backlog_bytes and not self._loop.watches(fd):
                self._loop.add(fd, lambda console=console: self._flush(console), writable=True)  # type: ignore[misc]
        for place in (*self._consoles, *self._files):
            complaint = place.take_complaint()
            # A full disk is reported once, not once for each file on it.
            reason = isinstance(place, LogFile), None if place.error is None else place.error.errno
            if complaint is not None and reason not in self._complaints:
                self._complaints.add(reason)
                self.say(complaint, "output-lost")

    def _flush(self, console: Console) -> None:
        console.flush()
        if not console.backlog_bytes:
            if console.poll_fd is not None:
                self._loop.remove(console.poll_fd)
            while self._paused:
                stream = self._paused.pop()
                self._loop.add(stream.fd, lambda stream=stream: self._read(stream))  # type: ignore[misc]
        self._watch_backlog()

    # --- our own messages

    @property
    def screen(self) -> Screen:
        """The screen for our messages: standard error."""
        return self._screens[STDERR]

    def set_node(self, node: int | None) -> None:
        """Set the rank of this node, for JSON; None if unknown."""
        use_style(as_json=self._log.as_json, timestamps=self._log.timestamps, node=node)

    def say(self, text: str, event: str, **fields: object) -> None:
        """Write a message of the launcher; see `Say`."""
        self._formats.release()
        self.screen.notice(text, event, {"attempt": self._attempt, **fields})
        self.pass_on(text, event, fields)

    def say_as_is(self, text: str, event: str, **fields: object) -> None:
        """Write a message of the launcher that has prefixes already, and needs no escaping."""
        lines = text.removesuffix("\n").split("\n")
        bare = "\n".join(line.removeprefix(PREFIX) for line in lines)
        if self._log.as_json:
            self.say(bare, event, **fields)
            return
        self._formats.release()
        moment = f"{CLOCK.read()} " if self._log.timestamps else ""
        told = "".join(f"{moment}{line}\n" for line in lines)
        self.screen.put(None, b"", told.encode("utf-8", "replace"))
        self.pass_on(bare, event, fields)

    def pass_on(self, text: str, event: str, fields: Mapping[str, object]) -> None:
        """Pass on an event: of a message that was written, or of one that is not shown here."""
        if self.listener is not None:
            self.listener(event, text, fields)

    def show(self, text: str) -> None:
        """Show a status line; an empty text removes it."""
        self._note_prompt()
        self.screen.status(text.encode("utf-8", "replace"))

    def _note_prompt(self) -> None:
        """Note whether the process with the terminal waits for what is typed, as far as that can be seen."""
        asks = self._reader is not None and self._reader.tail[-1:] not in b"\r\n"
        for screen in self._screens.values():
            screen.awaits_typing = asks or self.stdin.has_new_modes()

    # --- the end

    def read_rest(self, index: int) -> None:
        """Read the rest of standard error from the pipe of a process that has ended."""
        stream = self._errors.get(index)
        if stream is not None and stream.fd in self._streams:
            stream.catch_up()
            self._note_hold(stream)
            self._watch_backlog()

    def read_errors(self, index: int) -> bytes:
        """Return the end of what a process wrote to standard error, as far as we have read it."""
        stream = self._errors.get(index)
        return b"" if stream is None else stream.tail

    def read_tails(self, index: int) -> list[bytes]:
        """Return the end of each output of a process that goes through us."""
        return [stream.tail for stream in self._written.get(index, ())]

    def shown_since(self, index: int) -> int | None:
        """Return the number of bytes shown below the last errors of a process; None if none are shown."""
        stream = self._errors.get(index)
        return None if stream is None else stream.shown_since

    def end_attempt(self) -> None:
        """Forward the rest of all pipes, because all processes have ended."""
        for stream in tuple(self._streams.values()):
            self._end(stream)
        self._formats.finish()
        self._watch_backlog()
        deadline = time.monotonic() + DRAIN_S
        for file in self._files:  # a restart opens others, and the number of open files is limited
            file.drain(deadline)
            file.close()
        self._since = time.monotonic()

    def close(self) -> None:
        """Give readers of our output time to read the rest, and report the number of bytes that they miss."""
        self._formats.release()
        self.screen.clear()
        deadline = time.monotonic() + DRAIN_S
        lost = [file.lost_bytes for file in self._files if file.lost_bytes]
        if lost:
            files = f"{len(lost)} of {len(self._files)} log files"
            self.say(f"{sum(lost)} bytes of output were lost: they are missing in {files}", "output-lost")
        for console in self._consoles:
            console.drain(deadline)
        for console in self._consoles:
            console.close()
            if console.lost_bytes and console is not self.screen.console:
                self.say(f"{console.name}: {console.lost_bytes} bytes of output were lost", "output-lost")
