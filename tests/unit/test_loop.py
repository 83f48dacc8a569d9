"""The loop: a fault of our own neither ends it nor keeps it busy."""

from __future__ import annotations

import os
import time

import pytest

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


def test_a_timer_that_cannot_say_when_ends_nothing() -> None:
    """The others are called all the same."""
    said: list[str] = []
    loop = Loop(keep(said))
    loop.timers.append(Broken())
    assert turn_for(loop, 0.5) < 20
    assert said and "no time" in said[0]


def test_a_fault_of_what_prints_faults_is_no_other(capfd: pytest.CaptureFixture[str]) -> None:
    """What was to be done goes on: the launcher's own files are gone, for example."""

    def fail(text: str, event: str, **fields: object) -> None:
        raise ImportError(text)

    loop = Loop(fail)
    assert not loop.guard(lambda: [][0])
    assert capfd.readouterr().err == "launcher: internal launcher error, the job continues: IndexError\n"
