"""No test leaves a process behind: a mark in the environment finds what has wandered off."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

MARK = "LAUNCHER_TEST_MARK"
DEADLINE_S = 5.0


def find_marked(mark: str) -> list[str]:
    """Return a line for each living process with this mark, but ourselves."""
    found = []
    entry = f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int(folder.name) == os.getpid() or entry not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if state not in "ZX":
            found.append(f"{folder.name} {state} {line[:200]}")
    return found


@pytest.fixture(autouse=True)
def no_process_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever a test starts has ended with it, or the test fails."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    yield
    deadline = time.monotonic() + DEADLINE_S
    while (left := find_marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.01)  # between two looks at /proc, which tells nobody when it changes
    for line in left:
        os.kill(int(line.split()[0]), 9)
    assert left == [], "processes of this test still run"
