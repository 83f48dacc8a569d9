"""Lines of any bytes in any pieces: JSON gives every byte back, and no line of several ranks is lost."""

from __future__ import annotations

import base64
import json
import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.core.log import CLOCK, STYLE, guess_style, use_style
from launcher.core.supervision import STDOUT
from launcher.output.console import ROTATED_MAX, Console, LogFile, Screen
from launcher.output.dedupe import WAITING_BYTES, Deduped, SharedLines
from launcher.output.formats import JsonLines, PlainLines
from launcher.output.streams import PARTIAL_LIMIT_BYTES, Stream
from launcher.output.tracebacks import HELD_BYTES, SharedTracebacks, Tracebacks
from tests.unit.platforms_model import deterministic

FACTS = {"node": None, "rank": 7, "attempt": 0, "stream": "stderr"}
PIECES = st.sampled_from(
    [
        *(
            *(b"\n", b"\n", b"\r", b"\r\n", b"\0", b"\xff", b"\xe2\x82", b"\xac", b"\x1b[31m", b'"', b"\\"),
            b"\\n",
        ),
        *("é".encode(), "😀".encode()[:3], "😀".encode()[3:], b"\xed\xa0\x80", b"a", b"word ", b'"}\n{"x":1'),
        *(b"x" * 4096, b"y" * (PARTIAL_LIMIT_BYTES + 1), b"\x7f", "\u2028".encode(), "\x85".encode()),
    ]
)
CHUNKS = st.lists(st.lists(PIECES, max_size=6).map(b"".join), max_size=20)


class Sink:
    """A screen whose bytes can be read."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("sink")
        self.console = Console(self.fd, "standard output")
        self.screen = Screen(self.console)

    def take(self) -> bytes:
        """Return what was written; closes it."""
        self.console.close()
        found = os.pread(self.fd, os.fstat(self.fd).st_size, 0)
        os.close(self.fd)
        return found


def feed(form: JsonLines | PlainLines | Deduped, chunks: list[bytes], screen: Screen) -> None:
    """Let a stream read these chunks one by one, and its end."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    stream = Stream(reading, screen, form, None)
    for chunk in chunks:
        data = chunk
        while data:
            data = data[os.write(writing, data[: 1 << 15]) :]
            stream.read()
            stream.read()
        stream.flush_partial(stream.last_ns / 1e9 + len(chunk) % 7)  # sometimes after the hold
    os.close(writing)
    stream.finish()
    os.close(reading)


@deterministic(200)
@given(chunks=CHUNKS)
def test_the_objects_of_a_stream_are_its_bytes(chunks: list[bytes]) -> None:
    """One object per line, strict JSON in UTF-8; together with the newlines they are what was written."""
    sink = Sink()
    feed(JsonLines(CLOCK, FACTS), chunks, sink.screen)
    found = b""
    *lines, rest = sink.take().split(b"\n")
    for line in lines:
        one = json.loads(line.decode("utf-8", "strict"))
        text = str(one["text"]).encode("utf-8", "strict")
        found += base64.b64decode(one["base64"]) if "base64" in one else text
        found += b"" if one.get("unfinished") else b"\n"
        assert {name: one[name] for name in FACTS} == FACTS
        assert len(one["text"]) <= 2 * PARTIAL_LIMIT_BYTES + (1 << 15)
        assert not any(byte < 0x20 for byte in line)
    assert rest == b""
    assert found == b"".join(chunks)


WORDS = st.sampled_from([b"one", b"two", b"three", b"", b"x" * 70_000])
LINES = st.lists(st.tuples(st.integers(0, 2), st.lists(WORDS, min_size=1, max_size=5)), max_size=25)


@deterministic(200)
@given(steps=LINES, expires=st.booleans())
def test_shared_lines_count_for_each_of_their_ranks(
    steps: list[tuple[int, list[bytes]]], expires: bool
) -> None:
    """Of each rank each line is there as often as it wrote it, whichever joined which."""
    sink = Sink()
    shared = SharedLines(sink.screen, 3)
    forms = [Deduped(JsonLines(CLOCK, {"rank": rank}), shared, rank, STDOUT) for rank in range(3)]
    written: Counter[tuple[int, str]] = Counter()
    for rank, lines in steps:
        forms[rank].show(sink.screen, forms[rank], b"".join(line + b"\n" for line in lines))
        written.update((rank, line.decode()) for line in lines)
        if expires and shared.due is not None:
            shared.release(shared.due)
    shared.release()
    assert shared.due is None
    shown: Counter[tuple[int, str]] = Counter()
    for line in sink.take().splitlines():
        one = json.loads(line)
        ranks = one.get("ranks", [one["rank"]])
        assert one["rank"] in ranks and ranks == sorted(set(ranks))
        shown.update((rank, one["text"]) for rank in ranks)
    assert shown == written


def test_the_rest_of_a_long_line_follows_its_beginning() -> None:
    """Before the lines after it, which may be those of another rank."""
    sink = Sink()
    shared = SharedLines(sink.screen, 2)
    forms = [Deduped(JsonLines(CLOCK, {"rank": rank}), shared, rank, STDOUT) for rank in range(2)]
    for rank, text in ((0, b"long 0"), (1, b"long 1"), (0, b" rest 0\nsame\n"), (1, b" rest 1\nsame\n")):
        forms[rank].show(sink.screen, forms[rank], text)
    shared.release()
    shown = [json.loads(line) for line in sink.take().splitlines()]
    assert [(one["rank"], one["text"]) for one in shown] == [
        (0, "long 0"), (1, "long 1"), (0, " rest 0"), (1, " rest 1"), (0, "same"),
    ]  # fmt: skip
    assert shown[-1]["ranks"] == [0, 1]


def test_a_flood_of_lines_waits_for_nothing() -> None:
    """More than a limit is shown at once: memory does not grow."""
    sink = Sink()
    shared = SharedLines(sink.screen, 2)
    form = Deduped(PlainLines(b"[rank 0] "), shared, 0, STDOUT)
    for number in range(100):
        form.show(sink.screen, form, b"".join(b"%d %d\n" % (number, line) for line in range(2000)))
    assert sink.screen.written > 100 * 2000 * 10 - 2 * WAITING_BYTES
    shared.release()
    assert sink.take().count(b"\n") == 100 * 2000


@deterministic(100)
@given(
    pieces=st.lists(st.binary(max_size=40_000).map(lambda data: data.replace(b"\0", b"\n")), max_size=30),
    limit=st.sampled_from([1 << 16, 100_000]),
)
def test_rotated_files_are_the_end_of_what_was_written(pieces: list[bytes], limit: int) -> None:
    """In order, none too large by more than a line; a file ends inside a line only if that is long."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "log")
        file = LogFile(path, limit)
        for piece in pieces:
            file.write(piece)
        file.close()
        names = [path, *(f"{path}.{number}" for number in range(1, ROTATED_MAX + 1))]
        found = [Path(name).read_bytes() for name in names if os.path.exists(name)][::-1]
    whole = b"".join(pieces)
    assert whole.endswith(b"".join(found))
    assert len(found) == 1 + ROTATED_MAX or b"".join(found) == whole
    assert all(len(one) <= limit + (1 << 16) for one in found)


def test_a_file_that_cannot_be_renamed_grows_on(tmp_path: Path) -> None:
    """It says so once, and nothing is lost."""
    path = tmp_path / "log"
    (tmp_path / "log.4").touch()
    (tmp_path / "log.5").mkdir()
    file = LogFile(str(path), 1 << 16)
    for _ in range(4):
        file.write(b"x" * 30_000 + b"\n")
    assert "grows on" in (file.take_complaint() or "")
    assert file.take_complaint() is None
    file.close()
    assert (path.stat().st_size, file.lost_bytes) == (4 * 30_001, 0)


@pytest.mark.parametrize(
    ("argv", "environ", "as_json"),
    [
        (["run", "--log-format", "json"], {}, True),
        (["run", "--log-format=json", "--", "x"], {}, True),
        (["run", "--", "x", "--log-format", "json"], {}, False),
        (["run", "--log-format"], {}, False),
        (["run"], {"LAUNCHER_LOG_FORMAT": "json"}, True),
        (["run", "--log-format", "text"], {"LAUNCHER_LOG_FORMAT": "json"}, False),
    ],
)
def test_the_style_of_an_early_error_is_that_of_the_line(
    argv: list[str], environ: dict[str, str], as_json: bool
) -> None:
    """The flag wins over the variable; words behind -- belong to the command."""
    try:
        guess_style(argv, environ)
        assert STYLE.as_json is as_json
    finally:
        use_style(as_json=False, timestamps=False)


def test_a_hidden_bar_keeps_only_its_last_state() -> None:
    """Lines in between are shown at once."""
    sink = Sink()
    feed(
        PlainLines(b"[1] ", bars=False),
        [b"\r1%", b"\r2%", b"\r3%\nline\n5%\r6%\r", b"7%\r\nend"],
        sink.screen,
    )
    assert sink.take() == b"[1] 3%\n[1] line\n[1] 7%\r\n[1] end"


def traceback_of(what: str, mark: str = "") -> bytes:
    """Return a traceback, with a mark before each of its lines."""
    lines = (
        "Traceback (most recent call last):",
        '  File "train.py", line 3, in <module>',
        f"ValueError: {what}",
    )
    return "".join(f"{mark}{line}\n" for line in lines).encode()


class Screens:
    """Three ranks whose tracebacks are shown once."""

    def __init__(self) -> None:
        self.sink = Sink()
        self.shared = SharedTracebacks(self.sink.screen)
        self.forms = [Tracebacks(PlainLines(b"[rank %d] " % rank), self.shared, rank) for rank in range(3)]

    def write(self, rank: int, text: bytes) -> None:
        """Let a rank write."""
        self.forms[rank].show(self.sink.screen, self.forms[rank], text)

    def take(self) -> list[str]:
        """Return the lines shown; ends all."""
        self.shared.finish()
        assert self.shared.due is None
        return self.sink.take().decode().splitlines()


def test_tracebacks_that_wait_together_are_one() -> None:
    """Line by line; torch's mark of the rank makes no difference, and is left out."""
    screens = Screens()
    texts = [traceback_of("a", f"[rank{rank}]: ").splitlines(keepends=True) for rank in range(3)]
    for lines_of_ranks in zip(*texts, strict=True):
        for rank, line in enumerate(lines_of_ranks):
            screens.write(rank, line)
    lines = screens.take()
    assert len(lines) == 3 and all(line.startswith("[ranks 0-2] ") for line in lines)
    assert b"".join(line.removeprefix("[ranks 0-2] ").encode() + b"\n" for line in lines) == traceback_of("a")


def test_a_later_traceback_that_is_the_same_is_a_line() -> None:
    """What one rank writes twice is shown twice; another traceback is shown, and so is what follows."""
    screens = Screens()
    screens.write(0, traceback_of("a"))
    screens.shared.release()  # a message of the launcher
    screens.write(1, b"before\n" + traceback_of("a"))
    screens.write(2, traceback_of("b"))
    screens.shared.release()
    screens.write(1, b"after\n")
    screens.write(0, traceback_of("a"))
    lines = screens.take()
    shown = [line for line in lines if "File" not in line and "Traceback" not in line]
    assert shown == [
        "[rank 0] ValueError: a",
        "[rank 1] before",
        "[rank 1] same traceback as rank 0, above",
        "[rank 2] ValueError: b",
        "[rank 1] after",
        "[rank 0] ValueError: a",
    ]


def test_an_unfinished_traceback_outlasts_a_message_of_the_launcher() -> None:
    """Its first half does not stand alone above the message; it waits no longer than its time."""
    screens = Screens()
    text = traceback_of("a")
    screens.write(0, text[:50])
    screens.shared.release()
    assert screens.sink.screen.written == 0 and screens.shared.due is not None
    screens.shared.release(screens.shared.due)
    assert screens.sink.screen.written
    screens.write(0, text[50:])
    assert b"".join(line.removeprefix("[rank 0] ").encode() + b"\n" for line in screens.take()) == text


def test_a_flood_after_a_traceback_is_shown() -> None:
    """More than a limit does not wait."""
    screens = Screens()
    screens.write(0, traceback_of("a"))
    screens.write(0, b"x" * HELD_BYTES + b"\n")
    assert screens.sink.screen.written > HELD_BYTES
    assert len(screens.take()) == 4
