"""The clock: its year, and whether anything keeps it right."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from launcher.checks.finding import OK, PROBLEM, WARNING
from launcher.checks.node import read_clock
from launcher.machine.host import Host
from tests.unit.checks.cases import Machine, case, looker, only

look = looker("clock")

NOW = 1.8e9


@pytest.mark.parametrize(
    ("clock", "several", "level"),
    [
        ((0.0, True), False, PROBLEM),
        ((9e18, None), False, PROBLEM),
        ((float("nan"), None), False, PROBLEM),
        ((NOW, False), False, OK),
        ((NOW, False), True, WARNING),
        ((NOW, None), True, OK),
        ((NOW, True), True, OK),
    ],
)
def test_clocks(
    tmp_path: Path,
    clock: tuple[float, bool | None],
    several: bool,
    level: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A wrong year is a problem for one node, too; a clock that runs free only where there are several."""
    monkeypatch.setattr("launcher.checks.node.read_clock", lambda host: clock)
    assert only(look(case(Machine(tmp_path), spans_nodes=several))).level == level


def test_this_machine() -> None:
    """The kernel answers, or not, and the time is ours."""
    now_s, is_synchronized = read_clock(Host())
    assert abs(now_s - time.time()) < 5
    assert is_synchronized in (True, False, None)


def test_timesyncd_has_the_last_word(tmp_path: Path) -> None:
    """Its mark says that the clock was set, whatever the kernel knows."""
    (tmp_path / "run/systemd/timesync").mkdir(parents=True)
    (tmp_path / "run/systemd/timesync/synchronized").write_text("")
    assert read_clock(Host(str(tmp_path)))[1] is True
