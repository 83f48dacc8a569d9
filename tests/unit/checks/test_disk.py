"""Disk space of log files and temporary files."""

from __future__ import annotations

from pathlib import Path

from launcher.checks.finding import OK, PROBLEM, WARNING
from tests.unit.checks.cases import Machine, case, levels, looker, only

look = looker("disk")

GIB = 1 << 30


def test_both_folders_have_space(tmp_path: Path) -> None:
    """One that is not made yet has that of the one above it; without --log-dir only temporary files."""
    # A folder that is not made yet has the space of the one above it.
    host = Machine(tmp_path, spaces={"/logs": (GIB, 10 << 20), "/scratch": (GIB, GIB // 2)})
    found = look(case(host, {"TMPDIR": "/scratch"}, log_dir="/logs/run/1"))
    assert levels(found) == [PROBLEM, WARNING]
    assert found[0].found == "10 MiB free in /logs/run/1" and found[0].fix.endswith("--log-dir DIR")
    assert found[1].fix == "free the disk, or name another one with TMPDIR"
    # Without --log-dir only temporary files.
    host = Machine(tmp_path, spaces={"/tmp": (9 * GIB, 5 * GIB)})
    assert only(look(case(host))).level == OK
