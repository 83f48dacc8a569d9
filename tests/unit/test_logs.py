"""The output of several processes on one terminal, pipe or file: whole lines, every byte, no waiting."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.output.console import BACKLOG_LIMIT_BYTES, Console, LogFile, Screen, share_screens
from launcher.output.formats import HOLD_S, PlainLines
from launcher.output.prefixes import PALETTE, fill_template, make_prefix
from launcher.output.streams import PARTIAL_LIMIT_BYTES, READ_BYTES, TAIL_BYTES, Stream
from tests.unit.platforms_model import deterministic

LIMIT_S = 60
LATE_S = float("inf")
NOBODY = 65534
ESCAPE = b"\x1b"
LINE = re.compile(rb"([^\r\n]*)(\r\n|\r|\n|\Z)")


@pytest.fixture(autouse=True)
def _nothing_blocks() -> Iterator[None]:
    """End a test in which a write blocks, instead of waiting for it."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"blocked for {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(LIMIT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def closing(*fds: int) -> Iterator[None]:
    """Close descriptors at the end; some may be closed already."""
    try:
        yield
    finally:
        for fd in fds:
            with contextlib.suppress(OSError):
                os.close(fd)


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Be a user who may not open what root owns, as after su and sudo -u."""
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


class Source:
    """A pipe as a process would have it, and the stream that reads it."""

    def __init__(
        self, screen: Screen | None, prefix: bytes, file: LogFile | None = None, lines: bool | None = None
    ) -> None:
        reader, self.writer = os.pipe()
        os.set_blocking(self.writer, False)
        keeps_lines = bool(prefix) if lines is None else lines
        self.stream = Stream(reader, screen, PlainLines(prefix) if keeps_lines else None, file)

    def write(self, data: bytes, read: Callable[[], object] | None = None) -> None:
        """Write and let the stream read until all has been passed on."""
        while data:
            count = os.write(self.writer, data)
            data = data[count:]
            while waits(self.stream.fd):
                (read or self.stream.read)()

    def close(self) -> None:
        os.close(self.writer)
        os.close(self.stream.fd)


def waits(fd: int) -> bool:
    """Return whether a read would give something."""
    gate = select.poll()
    gate.register(fd, select.POLLIN)
    return any(event & select.POLLIN for _, event in gate.poll(0))


class Output:
    """A destination that is an anonymous regular file, and what has arrived there."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("output")
        self.console = Console(self.fd, "standard output")
        self.screen = Screen(self.console)

    @property
    def bytes(self) -> bytes:
        return os.pread(self.fd, os.fstat(self.fd).st_size, 0)

    def close(self) -> None:
        self.console.close()
        os.close(self.fd)


@pytest.fixture
def output() -> Iterator[Output]:
    made = Output()
    yield made
    made.close()


class Terminal:
    """A pseudo-terminal, 24 x 80, and what a person would see on it."""

    def __init__(self, columns: int = 80) -> None:
        self.master, self.slave = os.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.console = Console(self.slave, "standard output")
        self.screen = Screen(self.console)

    def bytes(self) -> bytes:
        """Return all that was written, with the driver's newlines made plain again; closes the terminal."""
        self.console.close()
        os.close(self.slave)
        parts = []
        with contextlib.suppress(OSError):  # EIO is the end
            while part := os.read(self.master, 1 << 16):
                parts.append(part)
        os.close(self.master)
        return b"".join(parts).replace(b"\r\n", b"\n")

    def lines(self) -> list[str]:
        """Return the screen; closes the terminal."""
        return render(self.bytes())


def render(data: bytes) -> list[str]:
    """Return what a terminal of endless height shows: newline, carriage return, erase to the end, colours."""
    rows, row, column = [""], 0, 0
    for token in re.findall(r"\x1b\[[0-9;]*[A-Za-z]|[\s\S]", data.decode(errors="replace")):
        if token == "\n":
            row, column = row + 1, 0
            rows += [""] * (row + 1 - len(rows))
        elif token == "\r":
            column = 0
        elif token == "\x1b[K":
            rows[row] = rows[row][:column]
        elif not token.startswith("\x1b"):
            text = rows[row].ljust(column)
            rows[row] = text[:column] + token + text[column + 1 :]
            column += 1
    return rows


def demultiplex(data: bytes, prefixes: list[bytes], inserted: set[int]) -> list[bytes]:
    """Return what each process wrote, from prefixed output and the offsets of inserted newlines."""
    found = [b""] * len(prefixes)
    for match in LINE.finditer(data):
        text, end = match.groups()
        if not text and not end:
            continue
        if text.startswith(b"launcher: "):
            assert end == b"\n"
            continue
        (index,) = [i for i, prefix in enumerate(prefixes) if text.startswith(prefix)]
        kept = b"" if match.start(2) in inserted else end
        found[index] += text[len(prefixes[index]) :] + kept
    return found


FRAGMENTS = st.sampled_from(
    [
        *(b"\n", b"\n", b"\r", b"\r\n", b"\r\r\n", b"\n\r", b"\0", b"\xff", b"\xe2\x82", b"caf\xe9"),
        *("é".encode(), "€".encode()[:1], "€".encode()[1:], "😀".encode()[:3], "😀".encode()),
        *(b"a", b"word ", b"[rank 1] ", b"[rank", b"launcher: ", b"\x1b[31m", b"\x1b[K"),
        *(b"x" * 4096, b"y" * PARTIAL_LIMIT_BYTES, b"z\n" * (READ_BYTES // 2)),
    ]
)
CHUNKS = st.lists(FRAGMENTS, max_size=6).map(b"".join)
STEPS = st.lists(st.tuples(st.integers(0, 3), st.one_of(CHUNKS, st.none())), max_size=40)


@deterministic(200)
@given(steps=STEPS, colour=st.booleans())
def test_taking_prefixes_away_gives_back_every_stream(
    steps: list[tuple[int, bytes | None]], colour: bool
) -> None:
    """Any bytes in any chunks, held lines shown or not, messages in between: nothing is lost or mixed.

    But for carriage returns at the start of a line, where the cursor is already.
    """
    output = Output()
    prefixes = [make_prefix(f"[rank {rank}] ", rank, colour) for rank in range(3)]
    sources = [Source(output.screen, prefix) for prefix in prefixes]
    written = [b"", b"", b""]
    inserted: set[int] = set()

    def watch(act: Callable[[], object]) -> None:
        count, size = output.screen.inserted_newlines, os.fstat(output.fd).st_size
        act()
        if output.screen.inserted_newlines != count:
            assert output.screen.inserted_newlines == count + 1
            inserted.add(size)

    for index, chunk in steps:
        if index == 3:
            watch(lambda: output.screen.notice("a message", "message"))
        elif chunk is None:
            watch(lambda index=index: sources[index].stream.flush_partial(LATE_S))  # type: ignore[misc]
        else:
            written[index] += chunk
            stream = sources[index].stream
            sources[index].write(chunk, lambda stream=stream: watch(stream.read))  # type: ignore[misc]
    for source in sources:
        watch(source.stream.finish)
        source.close()
    result = output.bytes
    output.close()
    found = demultiplex(result, prefixes, inserted)
    assert [text.replace(b"\r", b"") for text in written] == [text.replace(b"\r", b"") for text in found]
    assert all(
        len(before) - len(after) <= before.count(b"\r") for before, after in zip(written, found, strict=True)
    )
    assert all(result[offset : offset + 1] == b"\n" for offset in inserted)


@deterministic(50)
@given(chunks=st.lists(CHUNKS, max_size=20))
def test_without_a_prefix_bytes_pass_untouched(chunks: list[bytes]) -> None:
    """Output without a prefix is the same bytes, at once."""
    output = Output()
    source = Source(output.screen, b"")
    written = b""
    for chunk in chunks:
        source.write(chunk)
        written += chunk
        assert written == output.bytes
    source.close()
    output.close()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"one\ntwo\n", b"[rank 0] one\n[rank 0] two\n"),
        (b"\n\n", b"[rank 0] \n[rank 0] \n"),
        (b" 10%\r 20%\r", b"[rank 0]  10%\r[rank 0]  20%\r"),
        (b"dos\r\nunix\n", b"[rank 0] dos\r\n[rank 0] unix\n"),
        (b"x\r\r\ny\n", b"[rank 0] x\r[rank 0] \r\n[rank 0] y\n"),
        (b"\0\xff\n", b"[rank 0] \0\xff\n"),
        (b"\r[rank 0] \n", b"[rank 0] [rank 0] \n"),
    ],
)
def test_every_line_begins_with_its_prefix(output: Output, data: bytes, expected: bytes) -> None:
    r"""A line ends with \n, \r\n or \r; the end stays what it was, and so does everything in the line."""
    source = Source(output.screen, b"[rank 0] ")
    source.write(data)
    assert expected == output.bytes
    source.close()


def test_a_line_end_in_two_parts_is_one(output: Output) -> None:
    r"""\r and \n that come in two reads still end one line."""
    source = Source(output.screen, b"[rank 0] ")
    source.write(b"one\r")
    source.write(b"\ntwo\n")
    assert output.bytes == b"[rank 0] one\r\n[rank 0] two\n"
    source.close()


def test_a_line_waits_for_its_end_but_not_for_ever(output: Output) -> None:
    """A prompt is shown when its time has come, not before, and goes on without a second prefix."""
    source = Source(output.screen, b"[rank 0] ")
    began_s = time.monotonic()
    source.write(b"password: ")
    due_s = source.stream.hold_until_s
    assert due_s is not None
    assert began_s <= due_s - HOLD_S <= time.monotonic()
    source.stream.flush_partial(due_s - 0.001)
    assert output.bytes == b""
    source.stream.flush_partial(due_s)
    assert output.bytes == b"[rank 0] password: "
    assert source.stream.hold_until_s is None
    source.write(b"..")
    assert output.bytes == b"[rank 0] password: .."
    source.write(b".\n")
    assert output.bytes == b"[rank 0] password: ...\n"
    source.close()


def test_a_line_waits_from_its_own_beginning(output: Output) -> None:
    """What is added to a line does not make it wait longer; the next line has its own time."""
    source = Source(output.screen, b"[rank 0] ")
    source.write(b"1")
    first_s = source.stream.hold_until_s
    source.write(b"2")
    assert source.stream.hold_until_s == first_s
    source.write(b"3\n4")
    assert first_s is not None
    assert source.stream.hold_until_s is not None
    assert source.stream.hold_until_s > first_s
    source.stream.flush_partial(first_s)
    assert output.bytes == b"[rank 0] 123\n"
    source.close()


def test_a_line_that_ends_in_time_is_not_torn(output: Output) -> None:
    """Two processes that write text and newline apart, as python -u does, give whole lines."""
    first, second = Source(output.screen, b"[rank 0] "), Source(output.screen, b"[rank 1] ")
    first.write(b"loss")
    second.write(b"accuracy")
    second.write(b"\n")
    first.write(b"\n")
    assert output.bytes == b"[rank 1] accuracy\n[rank 0] loss\n"
    assert output.screen.inserted_newlines == 0
    first.close()
    second.close()


def test_somebody_elses_open_line_is_ended_first(output: Output) -> None:
    """A shown partial line gets a newline before another process writes, and its rest a prefix."""
    first, second = Source(output.screen, b"[rank 0] "), Source(output.screen, b"[rank 1] ")
    first.write(b"half")
    first.stream.flush_partial(LATE_S)
    second.write(b"line\n")
    first.write(b" rest\n")
    assert output.bytes == b"[rank 0] half\n[rank 1] line\n[rank 0]  rest\n"
    assert output.screen.inserted_newlines == 1
    first.close()
    second.close()


def test_a_character_is_not_torn_by_the_clock(output: Output) -> None:
    """A held line is shown up to its last whole character; the end of the stream shows the rest."""
    source = Source(output.screen, b"[rank 0] ")
    source.write("10 €".encode()[:-1])
    source.stream.flush_partial(LATE_S)
    assert output.bytes == b"[rank 0] 10 "
    assert source.stream.hold_until_s is None
    source.stream.finish()
    assert output.bytes == b"[rank 0] " + "10 €".encode()[:-1]
    source.close()


@pytest.mark.parametrize("text", ["a", "é", "€", "😀"])
def test_a_whole_character_is_not_held_back(output: Output, text: str) -> None:
    """A prompt that ends in a character of 1 to 4 bytes is shown with it."""
    source = Source(output.screen, b"[rank 0] ")
    source.write(text.encode())
    source.stream.flush_partial(LATE_S)
    assert output.bytes == b"[rank 0] " + text.encode()
    source.close()


def test_lines_without_a_prefix_are_whole_on_request(output: Output) -> None:
    """Several processes without prefixes need not tear each other's lines."""
    first, second = (Source(output.screen, b"", lines=True) for _ in range(2))
    first.write(b"lo")
    second.write(b"one\ntw")
    first.write(b"ss\r\n")
    second.stream.finish()
    first.write(b"end\n")
    assert output.bytes == b"one\nloss\r\ntw\nend\n"
    first.close()
    second.close()


def test_messages_stand_on_lines_of_their_own(output: Output) -> None:
    """A notice ends whatever line is open, says who speaks, and obeys no control characters."""
    source = Source(output.screen, b"")
    source.write(b"no end")
    output.screen.notice("first\nsecond \x1b[31mred\r", "message")
    source.write(b"more\n")
    expected = b"no end\nlauncher: first\nlauncher: second \\x1b[31mred\\r\nmore\n"
    assert expected == output.bytes
    source.close()


def test_a_stream_keeps_its_tail_and_its_file(tmp_path: Path) -> None:
    """The log file has every byte, untouched; the tail the last 32 KiB; both without any screen."""
    path = tmp_path / "stdout.log"
    path.write_bytes(b"before\n")
    file = LogFile(str(path))
    source = Source(None, b"[rank 0] ", file)
    before_ns = time.monotonic_ns()
    data = os.urandom(100_000)
    source.write(data)
    source.stream.finish()
    assert path.read_bytes() == b"before\n" + data
    assert source.stream.tail == data[-TAIL_BYTES:]
    assert before_ns <= source.stream.last_ns <= time.monotonic_ns()
    source.close()
    file.close()


def test_the_end_of_a_stream_is_told(output: Output) -> None:
    """Reading returns True while the pipe is open, also when it is empty, and False at its end."""
    source = Source(output.screen, b"[rank 0] ")
    assert source.stream.read()
    os.write(source.writer, b"last words")
    os.close(source.writer)
    assert source.stream.read()
    assert not source.stream.read()
    source.stream.finish()
    assert output.bytes == b"[rank 0] last words"
    os.close(source.stream.fd)


def test_finishing_reads_what_was_written_and_no_more(output: Output) -> None:
    """A daemon that holds the pipe, or never stops writing, does not keep the launcher."""
    # What a dead process left in its pipe is passed on although a daemon still holds the pipe open.
    source = Source(output.screen, b"[rank 0] ")
    os.write(source.writer, b"x\n" * 30_000)
    source.stream.finish()
    assert output.bytes == b"[rank 0] x\n" * 30_000
    source.close()
    # A daemon that never stops writing to a dead process's pipe does not keep the launcher.
    endless = os.open("/dev/zero", os.O_RDONLY)
    null = os.open("/dev/null", os.O_WRONLY)
    with closing(endless, null):
        stream = Stream(endless, Screen(Console(null, "standard output")), PlainLines(b"[rank 0] "), None)
        stream.finish()
        assert stream.tail == bytes(TAIL_BYTES)


MEMORY = """
import os, sys
from launcher.output.formats import PlainLines
from launcher.output.console import Console
from launcher.output.console import Screen
from launcher.output.streams import Stream

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))

reader, writer = os.pipe()
if os.fork() == 0:
    os.close(reader)
    piece = bytes(1 << 20)
    for _ in range(1 << 10):
        os.write(writer, piece)
    os._exit(0)
os.close(writer)
stream = Stream(reader, Screen(Console(1, "standard output")), PlainLines(b"[rank 0] "), None)
gate, before = __import__("select").poll(), peak()
gate.register(reader)
while gate.poll() and stream.read():
    pass
stream.finish()
print((peak() - before) // 1024, file=sys.stderr)
"""


@pytest.mark.slow
def test_a_line_of_a_gibibyte_runs_in_bounded_memory() -> None:
    """A process that writes 1 GiB without one line end costs the launcher less than 8 MiB."""
    with open("/dev/null", "wb") as null:
        done = subprocess.run(
            [sys.executable, "-c", MEMORY], stdout=null, stderr=subprocess.PIPE, check=True, timeout=LIMIT_S
        )
    assert int(done.stderr) < 8


def test_a_long_line_passes_in_pieces_of_one_process(output: Output) -> None:
    """More than 64 KiB without an end is passed on; others still begin on a new line."""
    first, second = Source(output.screen, b"[rank 0] "), Source(output.screen, b"[rank 1] ")
    first.write(b"x" * 3 * PARTIAL_LIMIT_BYTES)
    second.write(b"short\n")
    first.write(b"y\n")
    lines = output.bytes.split(b"\n")
    assert lines[0].startswith(b"[rank 0] xxx")
    assert len(lines[0]) > PARTIAL_LIMIT_BYTES
    assert lines[1] == b"[rank 1] short"
    assert lines[2].replace(b"x", b"") == b"[rank 0] y"
    assert sum(line.count(b"x") for line in lines) == 3 * PARTIAL_LIMIT_BYTES
    first.close()
    second.close()


def test_a_bar_that_begins_with_a_carriage_return_has_one_prefix(output: Output) -> None:
    """Each state of tqdm's bar is a carriage return and the bar; the prefix is once before each bar."""
    first, second = Source(output.screen, b"[rank 0] "), Source(output.screen, b"[rank 1] ")
    first.write(b"\r 10%")
    first.stream.flush_partial(time.monotonic() + 1)
    first.write(b"\r 20%")
    first.stream.flush_partial(time.monotonic() + 1)
    second.write(b"\r\nempty above\n")
    first.write(b"\r 30%\n")
    expected = b"[rank 0]  10%\r[rank 0]  20%\n[rank 1] \r\n[rank 1] empty above\n[rank 0]  30%\n"
    assert output.bytes == expected
    first.close()
    second.close()


def contrast(colour: int, ground: float) -> float:
    """Return the WCAG contrast of a colour of xterm's 6 x 6 x 6 cube to a ground of a luminance."""
    levels = (0, 95, 135, 175, 215, 255)
    index = colour - 16
    channels = [levels[index // 36] / 255, levels[index // 6 % 6] / 255, levels[index % 6] / 255]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    low, high = sorted((luminance, ground))
    return (high + 0.05) / (low + 0.05)


def test_prefixes_are_readable_on_any_ground() -> None:
    """Each colour stands out from black and from white, and the 8 processes of a node differ."""
    assert len(set(PALETTE)) == 8
    assert min(contrast(colour, ground) for colour in PALETTE for ground in (0.0, 1.0)) >= 4
    assert make_prefix("[rank 11] ", 11, colour=False) == b"[rank 11] "
    assert render(make_prefix("[rank 11] ", 11, colour=True)) == ["[rank 11] "]
    third, fourth = (make_prefix(f"[rank {rank}] ", rank, colour=True) for rank in (3, 4))
    assert third != fourth.replace(b"rank 4", b"rank 3")


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("[rank${rank}]: ", "[rank5]: "),
        ("[${role_name}-$local_rank:$rank]:", "[trainer-1:5]:"),
        ("$$ ${rank ${host} $ ", "$ ${rank ${host} $ "),
        ("\x1b]0;title\x07\n\r\u202e$rank", "\\x1b]0;title\\x07\\n\\r\\u202e5"),
        ("\udcff$rank", "\\udcff5"),
    ],
)
def test_a_template_of_torchruns_is_filled_and_obeyed_by_no_terminal(template: str, filled: str) -> None:
    """What it does not know stays as it is; a prefix has no control characters, and no line end."""
    assert fill_template(template, "trainer", 5, 1) == filled
    assert make_prefix(filled, 5, colour=False) == filled.encode()


def test_progress_bars_of_two_processes_share_a_terminal() -> None:
    """On a terminal a line that follows somebody's bar takes its place, and leaves nothing of it."""
    terminal = Terminal()
    first, second = Source(terminal.screen, b"[rank 0] "), Source(terminal.screen, b"[rank 1] ")
    first.write(b" 10%|#         |\r 20%|##        |\r")
    second.write(b"epoch\n")
    first.write(b" 30%|###       |\r")
    terminal.screen.notice("hello", "message")
    first.write(b"100%|##########|\ndone\n")
    first.close()
    second.close()
    assert terminal.lines() == [
        *("[rank 1] epoch", "launcher: hello", "[rank 0] 100%|##########|", "[rank 0] done", ""),
    ]


def test_files_and_pipes_get_no_escape_codes(output: Output) -> None:
    """Without a terminal nothing is erased or drawn, whatever is asked for."""
    first, second = Source(output.screen, b"[rank 0] "), Source(output.screen, b"[rank 1] ")
    output.screen.status(b"2 processes")
    first.write(b" 10%\r")
    second.write(b"x\r")
    output.screen.notice("hello", "message")
    output.screen.clear()
    assert output.bytes == b"[rank 0]  10%\r[rank 1] x\rlauncher: hello\n"
    first.close()
    second.close()


def test_a_dumb_terminal_gets_no_escape_codes() -> None:
    """Where the caller says so, a terminal is treated as a file."""
    terminal = Terminal()
    screen = Screen(terminal.console, escapes=False)
    first, second = Source(screen, b"[rank 0] "), Source(screen, b"[rank 1] ")
    screen.status(b"2 processes")
    first.write(b" 10%\r")
    second.write(b"x\n")
    first.close()
    second.close()
    assert ESCAPE not in terminal.bytes()


def test_the_status_line_stays_below_the_output_and_vanishes() -> None:
    """Drawn after output, not over an open line, and not twice; after clear nothing of it is left."""
    # It is taken away before output and drawn after it, the last one is the one to be seen.
    terminal = Terminal()
    source = Source(terminal.screen, b"[rank 0] ")
    terminal.screen.status(b"2 up, 1 s, a long text")
    source.write(b"one\n")
    terminal.screen.status(b"2 up, 2 s")
    source.write(b"two\nthree\n")
    terminal.screen.notice("hello", "message")
    source.close()
    expected = ["[rank 0] one", "[rank 0] two", "[rank 0] three", "launcher: hello", "2 up, 2 s"]
    assert expected == terminal.lines()
    # After clear nothing of it is left, and nothing draws it again.
    terminal = Terminal()
    source = Source(terminal.screen, b"[rank 0] ")
    terminal.screen.status(b"2 up")
    terminal.screen.clear()
    source.write(b"one\n")
    source.close()
    data = terminal.bytes()
    assert render(data) == ["[rank 0] one", ""]
    assert data == b"2 up\r\x1b[K[rank 0] one\n"
    # While a prompt or a progress bar stands at the bottom there is no status line.
    terminal = Terminal()
    source = Source(terminal.screen, b"")
    terminal.screen.status(b"2 up")
    source.write(b"password: ")
    terminal.screen.status(b"2 up, 2 s")
    source.write(b"\n 10%\r")
    terminal.screen.status(b"2 up, 3 s")
    source.write(b" 20%\ndone\n")
    source.close()
    data = terminal.bytes()
    assert data == b"2 up\r\x1b[Kpassword: \n 10%\r 20%\ndone\n2 up, 3 s"


def test_the_status_line_is_as_wide_as_the_terminal_and_drawn_once() -> None:
    """A text that would wrap is cut; the same status costs a terminal nothing."""
    # A text that would wrap is cut, by characters, and control characters are not obeyed.
    terminal = Terminal(columns=20)
    terminal.screen.status("é\x1b[2J".encode() + b"0123456789" * 3)
    assert terminal.lines() == ["é\\x1b[2J01234567890"]
    # A status that has not changed costs a terminal nothing.
    terminal = Terminal()
    for _ in range(5):
        terminal.screen.status(b"2 up")
    assert terminal.bytes() == b"2 up"


def test_a_stalled_terminal_gets_no_status_lines() -> None:
    """While nobody reads the terminal, the status line does not fill the queue; it comes back after."""
    terminal = Terminal()
    source = Source(terminal.screen, b"[rank 0] ")
    terminal.screen.status(b"2 up, 0 s")
    termios.tcflow(terminal.slave, termios.TCOOFF)
    source.write(b"one\n")
    queued = terminal.console.backlog_bytes
    for second in range(100):
        terminal.screen.status(b"2 up, %d s" % second)
    assert terminal.console.backlog_bytes <= queued + len(b"\r\x1b[K")
    termios.tcflow(terminal.slave, termios.TCOON)
    terminal.console.drain(time.monotonic() + LIMIT_S)
    terminal.screen.status(b"2 up, 100 s")
    source.close()
    assert terminal.lines() == ["[rank 0] one", "2 up, 100 s"]


def test_standard_output_and_error_share_a_place() -> None:
    """Where both lead to one terminal or pipe, neither writes into the other's line."""
    reader, writer = os.pipe()
    other = os.dup(writer)
    out, err = share_screens(Console(writer, "standard output"), Console(other, "standard error"))
    assert out is err
    first, second = Source(out, b"[rank 0] "), Source(err, b"[rank 0] ")
    first.write(b"half")
    first.stream.flush_partial(LATE_S)
    second.write(b"error\n")
    assert os.read(reader, 100) == b"[rank 0] half\n[rank 0] error\n"
    first.close()
    second.close()
    out.console.close()
    err.console.close()
    with closing(reader, writer, other):
        pass


def test_different_places_are_kept_apart(output: Output) -> None:
    """Where standard error leads elsewhere, an open line here does not matter there."""
    other = Output()
    out, err = share_screens(output.console, other.console)
    assert out is not err
    other.close()


def drain_slowly(console: Console, reader: int, expected: bytes) -> None:
    """Read in small pieces, flushing when epoll says so, and compare all bytes."""
    assert console.poll_fd is not None
    received = bytearray()
    with select.epoll() as queue:
        queue.register(console.poll_fd, select.EPOLLOUT)
        while len(received) < len(expected):
            if console.backlog_bytes and queue.poll(0):
                console.flush()
            received += os.read(reader, 3001)
    assert console.backlog_bytes == 0
    assert bytes(received) == expected
    assert console.lost_bytes == 0


def check_stall(console: Console, reader: int) -> None:
    """Write to somebody who does not read, then let them read everything."""
    written = b""
    for size in (1, 100, 5000, 70_001, 1 << 20):
        data = os.urandom(size)
        console.write(data)
        written += data
    console.flush()
    console.write(b"more")
    assert console.backlog_bytes > len(written) // 2
    drain_slowly(console, reader, written + b"more")


def test_any_kind_of_pipe_does_not_block_us(tmp_path: Path) -> None:
    """A pipe that nobody reads, a socket, a fifo."""
    # Writes to a full pipe return, queue, and arrive complete and in order when it is read again.
    reader, writer = os.pipe()
    console = Console(writer, "standard output")
    with closing(reader, writer):
        check_stall(console, reader)
        console.close()
    # A socket cannot be opened again, and still never blocks.
    ours, theirs = socket.socketpair()
    console = Console(ours.fileno(), "standard output")
    check_stall(console, theirs.fileno())
    console.close()
    assert ours.getblocking()
    ours.close()
    theirs.close()
    # A named pipe is like any other pipe.
    os.mkfifo(tmp_path / "fifo")
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(tmp_path / "fifo", os.O_WRONLY)
    os.set_blocking(reader, True)
    console = Console(writer, "standard output")
    with closing(reader, writer):
        check_stall(console, reader)
        console.close()
    # Nobody else who writes to our standard output finds it non-blocking.
    reader, writer = os.pipe()
    before = fcntl.fcntl(writer, fcntl.F_GETFL)
    console = Console(writer, "standard output")
    console.write(b"x" * (1 << 20))
    assert fcntl.fcntl(writer, fcntl.F_GETFL) == before
    assert not before & os.O_NONBLOCK
    assert console.poll_fd is not None
    assert not os.get_inheritable(console.poll_fd)
    console.close()
    with closing(reader, writer):
        pass


@pytest.mark.root
def test_another_users_pipe_as_standard_output() -> None:
    """After su or sudo -u a pipe cannot be opened again; it still never blocks."""
    reader, writer = os.pipe()
    with as_nobody():
        console = Console(writer, "standard output")
    assert console.poll_fd == writer
    with closing(reader, writer):
        check_stall(console, reader)
        console.close()


@pytest.mark.root
@pytest.mark.parametrize("own", [True, False], ids=["own", "of another user"])
def test_a_stalled_terminal_does_not_block_us(own: bool) -> None:
    """A terminal that nobody reads, or that was stopped with Ctrl-S, takes what it can; the rest waits."""
    master, slave = os.openpty()
    raw = termios.tcgetattr(slave)
    raw[1] &= ~termios.OPOST
    termios.tcsetattr(slave, termios.TCSANOW, raw)
    with contextlib.nullcontext() if own else as_nobody():
        console = Console(slave, "standard output")
    assert (console.poll_fd == slave) is not own
    with closing(master, slave):
        check_stall(console, master)
        termios.tcflow(slave, termios.TCOOFF)
        console.write(b"stopped")
        assert console.backlog_bytes == len("stopped")
        termios.tcflow(slave, termios.TCOON)
        drain_slowly(console, master, b"stopped")
        console.close()


def test_draining_waits_for_the_reader_until_its_deadline() -> None:
    """At the end what is queued is written if somebody reads, and counted as lost if nobody does."""
    reader, writer = os.pipe()
    console = Console(writer, "standard output")
    data = os.urandom(1 << 20)
    console.write(data)
    console.drain(time.monotonic() + 0.01)
    assert console.backlog_bytes == len(data) - (1 << 16)
    helper = subprocess.Popen(["sha256sum"], stdin=reader, stdout=subprocess.PIPE)
    os.close(reader)
    console.drain(time.monotonic() + LIMIT_S)
    assert console.backlog_bytes == 0
    console.close()
    os.close(writer)
    output, _ = helper.communicate(timeout=LIMIT_S)
    assert output.split()[0].decode() == hashlib.sha256(data).hexdigest()
    assert console.lost_bytes == 0


def test_what_is_queued_at_the_end_is_counted() -> None:
    """Closing with a reader that never read says how much is lost."""
    reader, writer = os.pipe()
    console = Console(writer, "standard output")
    console.write(b"x" * 100_000)
    console.close()
    assert console.lost_bytes == 100_000 - (1 << 16)
    console.write(b"late")
    assert console.lost_bytes == 100_004 - (1 << 16)
    with closing(reader, writer):
        pass


def test_a_closed_reader_is_told_once() -> None:
    """After EPIPE, with a queue or without, output is dropped and counted; nobody is disturbed."""
    reader, writer = os.pipe()
    console = Console(writer, "standard output")
    assert console.take_complaint() is None
    console.write(b"x" * 100_000)
    os.close(reader)
    console.flush()
    assert console.error is not None
    assert console.error.errno == errno.EPIPE
    console.write(b"y" * 10)
    assert console.lost_bytes == 100_000 - (1 << 16) + 10
    assert console.backlog_bytes == 0
    expected = "standard output: Broken pipe: output for it is dropped and counted; the processes continue"
    assert console.take_complaint() == expected
    assert console.take_complaint() is None
    console.close()
    os.close(writer)


def test_a_reader_that_goes_wakes_the_loop() -> None:
    """A queue whose reader has gone does not wait for ever: epoll reports it, and flush drops it."""
    reader, writer = os.pipe()
    console = Console(writer, "standard output")
    console.write(b"x" * 100_000)
    assert console.poll_fd is not None
    with select.epoll() as queue:
        queue.register(console.poll_fd, select.EPOLLOUT)
        assert queue.poll(0) == []
        os.close(reader)
        assert queue.poll(LIMIT_S) != []
    console.flush()
    assert console.backlog_bytes == 0
    console.close()
    os.close(writer)


def test_a_full_device_is_told_once_and_tried_again() -> None:
    """ENOSPC neither raises nor ends anything; each later write is tried, and counted."""
    file = LogFile("/dev/full")
    file.write(b"x" * 1000)
    file.write(b"y")
    assert file.lost_bytes == 1001
    assert file.error is not None
    assert file.error.errno == errno.ENOSPC
    assert file.take_complaint() == (
        "/dev/full: No space left on device: output for it is dropped and counted"
        " until this is fixed; the processes continue"
    )
    assert file.take_complaint() is None
    assert file.poll_fd is None
    file.close()


def test_a_file_that_can_grow_again_goes_on_with_a_new_line(output: Output) -> None:
    """What is cut off by a limit or a full disk is counted, and nothing is glued to what is left of it."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    source = Source(output.screen, b"[rank 0] ")
    source.write(b"one\n")
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
        source.write(b"two is too long\n")
        source.write(b"three\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    source.write(b"four\nfive\n")
    assert not output.console.torn
    assert output.bytes == b"[rank 0] one\n[rank 0\n[rank 0] four\n[rank 0] five\n"
    assert output.console.error is not None
    assert output.console.error.errno == errno.EFBIG
    assert output.console.lost_bytes == len("] two is too long\n" + "\n[rank 0] three\n")
    source.close()


def test_a_closed_descriptor_is_a_place_like_any_other() -> None:
    """A console on a descriptor that is not open counts what is lost, and says why."""
    reader, writer = os.pipe()
    os.close(reader)
    os.close(writer)
    console = Console(writer, "standard error")
    console.write(b"x" * 10)
    console.drain(time.monotonic() + 1)
    assert console.lost_bytes == 10
    assert console.take_complaint() is not None
    console.close()


def test_a_file_is_written_at_the_shared_offset(tmp_path: Path) -> None:
    """Others who write to the same redirected file are not overwritten."""
    fd = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    console = Console(fd, "standard output")
    os.write(fd, b"shell\n")
    console.write(b"launcher\n")
    os.write(fd, b"shell again\n")
    assert (tmp_path / "log").read_bytes() == b"shell\nlauncher\nshell again\n"
    assert console.poll_fd is None
    console.close()
    os.close(fd)


def test_the_limit_leaves_room_for_a_read() -> None:
    """The queue of a supervisor that stops reading at the limit stays near it, whatever is written."""
    reader, writer = os.pipe()
    screen = Screen(Console(writer, "standard output"))
    source = Source(screen, make_prefix("[rank 0] ", 0, colour=True))
    while screen.console.backlog_bytes <= BACKLOG_LIMIT_BYTES:
        os.write(source.writer, b"\n" * 4096 * 8)
        source.stream.read()
    assert screen.console.backlog_bytes <= 2 * BACKLOG_LIMIT_BYTES
    source.close()
    screen.console.close()
    with closing(reader, writer):
        pass
