"""Progress in the output of an attempt: each line is searched once, wherever it is and however it arrives."""

from __future__ import annotations

import os
import re
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.agent.timings import AttemptMoments
from launcher.core.supervision import Restarts
from launcher.recovery.progress import LINE_BYTES, LineSearch, ProgressGate


class Direct:
    """Searches at once, in this process."""

    found_s = None

    def __init__(self, pattern: str) -> None:
        self._pattern = re.compile(os.fsencode(pattern), re.MULTILINE)
        self.searched: list[int] = []
        self.has_found = False

    @property
    def is_over(self) -> bool:
        return self.has_found

    def begin(self) -> None:
        self.has_found = False

    def put(self, lines: bytes | bytearray) -> None:
        self.searched.append(len(lines))
        self.has_found = self.has_found or bool(self._pattern.search(lines))

    def finish(self) -> None: ...


def no_word(text: str, event: str) -> None:
    """Fail: there is nothing to say."""
    raise AssertionError(text, event)


def matches(pattern: str, *parts: bytes, ends: bool = True) -> bool | None:
    """Return whether a pattern is found in output that arrives in these parts."""
    gate = ProgressGate(Restarts(most=1), Direct(pattern), no_word)  # type: ignore[arg-type]
    gate.begin()
    lines = gate.follow()
    assert lines is not None
    for part in parts:
        lines.read(part)
    if ends:
        lines.finish()
    return gate.has_progressed()


@given(before=st.binary(max_size=300), cuts=st.lists(st.integers(0, 400), max_size=5), after=st.binary())
def test_a_line_counts_wherever_it_is_and_however_it_arrives(
    before: bytes, cuts: list[int], after: bytes
) -> None:
    whole = before.replace(b"step", b"") + b"\nstep 12\n" + after
    places = [0, *sorted(cuts), len(whole)]
    parts = [whole[start:end] for start, end in pairwise(places)]
    assert matches("^step [0-9]+$", *parts)


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        ((b"step 1", b"2 failed\n"), False),  # the end of a part is no end of a line
        ((b"step 1",), True),  # the end of the output is
        ((b"\rstep 1\rstep",), True),  # a progress bar
        ((b"a step 1\n",), False),
        ((b"step 1\r\n",), True),
    ],
)
def test_a_line_is_a_whole_line(parts: tuple[bytes, ...], found: bool) -> None:
    assert matches("^step [0-9]+$", *parts) is found


def test_a_line_without_an_end_is_searched_in_bounded_memory() -> None:
    """A match across two pieces of it is found, and each byte is searched at most twice."""
    for offset in range(-10, 10, 3):
        filler = b"x" * (2 * LINE_BYTES + offset)
        assert matches("step [0-9]", filler, b"st", b"ep 7", filler, ends=False)
    search = Direct("never")
    lines, searched = LineSearch(search), search.searched  # type: ignore[arg-type]
    for _ in range(10_000):
        lines.read(b"x" * 100)
    assert sum(searched) < 2.1 * 1_000_000 and max(searched) < 2 * LINE_BYTES + 200
    lines.read(b"\n")
    searched.clear()
    for _ in range(1000):
        lines.read(b"a line\n")
    assert sum(searched) == 7000


def test_an_attempt_that_has_made_progress_is_not_searched_any_more() -> None:
    search = Direct("step")
    gate = ProgressGate(Restarts(most=1), search, no_word)  # type: ignore[arg-type]
    lines = LineSearch(search)  # type: ignore[arg-type]
    gate.begin()
    assert gate.has_progressed() is False
    lines.read(b"step\n")
    assert gate.has_progressed()
    lines.read(b"another\n")
    assert search.searched == [5]
    gate.begin()
    assert gate.has_progressed() is False


def test_a_file_of_another_user_shows_no_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could keep a job alive that leads nowhere. One line says so; then it is as without a file."""
    path, said = tmp_path / "checkpoint", list[str]()
    gate = ProgressGate(
        Restarts(most=1, progress_file=str(path)), None, lambda text, event: said.append(f"{event}: {text}")
    )
    gate.begin()
    path.write_text("1")
    assert gate.has_progressed() is True
    gate.begin()
    path.write_text("12")
    status = path.stat()
    foreign = os.stat_result((*status[:4], 12345, *status[5:]))
    system = SimpleNamespace(stat=lambda name: foreign, geteuid=lambda: 0)
    monkeypatch.setattr("launcher.recovery.progress.os", system)
    assert gate.has_progressed() is None and gate.read_last_s() is None
    gate.begin()
    assert gate.has_progressed() is None
    assert said == [f"no-progress-file: {path} shows no progress: another user owns it"]


def test_a_failure_costs_what_was_done_since_the_last_progress() -> None:
    """Nothing if the work had not begun, or if the attempt did not fail."""
    attempt = AttemptMoments()
    attempt.started, attempt.ended = 10.0, 50.0
    assert attempt.lost_s() == 0.0
    attempt.has_failed = True
    assert attempt.lost_s() == 40.0
    attempt.saved = 45.0
    assert attempt.lost_s() == 5.0
    attempt.started = None
    assert attempt.lost_s() == 0.0
