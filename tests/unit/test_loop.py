"""The loop: a fault of our own neither ends it nor keeps it busy."""

from __future__ import annotations

import os
import time

import pytest

from launcher.process import loop as loops
from launcher.process.loop import Later, Loop
from tests.saying import keep


class Broken:
    """A timer that cannot even say when it is due."""

    @property
    def due(self) -> float | None:
        """Fail."""
        raise RuntimeError("no time")

    def fire(self, now: float) -> None:
        """Never called."""


def turn_for(loop: Loop, seconds: float) -> int:
    """Return how often the loop turned in that time."""
    over = Later(time.monotonic() + seconds, lambda: None)
    loop.timers.append(over)
    turns = 0
    while over.due is not None:
        loop.turn()
        turns += 1
    return turns


@pytest.mark.slow
def test_a_handler_that_always_fails_rests() -> None:
    """Its descriptor stays ready: without a rest the loop would take a whole CPU, in silence."""
    said: list[str] = []
    loop = Loop(keep(said))
    reading, writing = os.pipe()
    os.write(writing, b".")
    loop.add(reading, lambda: 1 / 0)  # type: ignore[arg-type]
    assert turn_for(loop, 1.0) < 20
    assert 1 <= len(said) <= 3 + 1
    assert said[0] == "internal launcher error, the job continues: ZeroDivisionError: division by zero"


def test_a_handler_that_is_mended_is_called_at_once() -> None:
    """One success, and the next event does not wait."""
    loop = Loop(keep([]))
    reading, writing = os.pipe()
    seen: list[bytes] = []

    def handle() -> None:
        data = os.read(reading, 1)
        seen.append(data)
        if data == b"!":
            raise RuntimeError("once")

    loop.add(reading, handle)
    os.write(writing, b"!a")
    loop.turn_until(lambda: len(seen) == 2, 5.0)
    os.write(writing, b"b")
    began = time.monotonic()
    loop.turn_until(lambda: len(seen) == 3, 5.0)
    assert seen == [b"!", b"a", b"b"] and time.monotonic() - began < 1.0


def test_a_timer_that_cannot_say_when_ends_nothing() -> None:
    """The others are called all the same."""
    said: list[str] = []
    loop = Loop(keep(said))
    loop.timers.append(Broken())
    assert turn_for(loop, 0.5) < 20
    assert said and "no time" in said[0]


def test_faults_are_counted_aloud() -> None:
    """After the first ones, from time to time: a job that goes on for weeks tells that it is not well."""
    said: list[str] = []
    loop = Loop(keep(said))
    for _ in range(10):
        loop.guard(lambda: 1 / 0)  # type: ignore[arg-type]
    assert len(said) == loops.FAULTS_SAID
    loop._said_at -= loops.SAY_AGAIN_S
    loop.guard(lambda: 1 / 0)  # type: ignore[arg-type]
    assert said[-1].startswith("11 internal launcher errors so far, the job continues: ZeroDivisionError")
