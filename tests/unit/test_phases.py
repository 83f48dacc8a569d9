"""Limits of silence by phase: until the first progress, and while a rank writes a file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from launcher.core.environ import Malformed
from launcher.core.errors import LauncherError
from launcher.observers.phases import Phases
from launcher.observers.stall import StallDetector
from launcher.options.flag_values import limits
from tests.unit.test_engines import TRAIN, plan


class Clock:
    """A job that writes nothing, with a clock that the test moves; this process is its only rank."""

    def __init__(self, of_phases: Mapping[str, float], private: str | None = None) -> None:
        self.now = self.output = 0.0
        self.progressed = False
        self.said: list[tuple[float, str]] = []
        phases = Phases(of_phases, lambda: self.progressed, lambda: [os.getpid()], private)
        self.stall = StallDetector(
            100, lambda: self.output, lambda what: self.said.append((self.now, what)), lambda: None,
            started=0.0, phases=phases,
        )  # fmt: skip

    def run_until(self, end: float) -> None:
        """Fire whenever it is due."""
        while self.stall.due is not None and self.stall.due <= end:
            self.now = self.stall.due
            self.stall.fire(self.now)


def test_until_the_first_progress_another_limit_holds() -> None:
    """A start that compiles is no hang in a step."""
    clock = Clock({"first": 300})
    clock.run_until(290)
    assert clock.said == []
    clock.run_until(310)
    assert clock.said == [(300.0, "no output for 5 min, before the first progress")]
    clock = Clock({"first": 300})
    clock.run_until(50)
    clock.progressed, clock.output = True, 60.0
    clock.run_until(1000)
    assert clock.said == [(160.0, "no output for 100 s")]


def test_while_a_file_is_written_another_limit_holds(tmp_path: Path) -> None:
    """One that was open before, or that is only read, is no checkpoint."""
    log, checkpoint = tmp_path / "log", tmp_path / "step-9.pt"
    with log.open("w"), log.open():
        clock = Clock({"save": 300})
        clock.run_until(50)
        clock.output = 51.0
        with checkpoint.open("wb"):
            clock.run_until(1000)
        assert clock.said == [(355.0, f"no output for 5 min, while a file is written: {checkpoint}")]
        clock = Clock({"save": 300})
        clock.run_until(50)
        clock.output = 51.0
        clock.run_until(1000)
        assert clock.said == [(155.0, "no output for 104 s")]


def test_our_own_files_are_no_checkpoint(tmp_path: Path) -> None:
    """A rank writes its dumps and stacks into the directory of the run."""
    clock = Clock({"save": 300}, str(tmp_path))
    clock.run_until(50)
    clock.output = 51.0
    with (tmp_path / "stacks").open("w"):
        clock.run_until(1000)
    assert [when for when, _ in clock.said] == [155.0]


@pytest.mark.parametrize(
    "text", ["first=30m", "10m,later=1h", "10m,first", "10m,first=", "10m,first=1,first=2", "10m,"]
)
def test_what_is_no_limit_is_refused(text: str) -> None:
    """With the form that is expected."""
    with pytest.raises(Malformed):
        limits("first", "save")(text)


def test_limits_are_seconds_and_durations() -> None:
    """One alone is a number, as before."""
    parse = limits("first", "save")
    assert parse("10m") == 600.0
    assert parse("90, first=30m ,save=1h") == (("", 90.0), ("first", 1800.0), ("save", 3600.0))


def test_the_plan_has_them_and_the_first_progress_must_be_known() -> None:
    """Without a pattern or a file nothing ends the first phase."""
    limits = "10m,first=30m,save=1h"
    watch = plan(*TRAIN, stall_timeout=limits, progress_pattern="step").supervision
    assert (watch.stall_timeout_s, watch.stall_limits) == (600.0, (("first", 1800.0), ("save", 3600.0)))
    with pytest.raises(LauncherError, match=r"first= .* does nothing without --progress-pattern"):
        plan(*TRAIN, stall_timeout="10m,first=30m")
