"""Look at other processes: poll /proc with a deadline, which is all there is to wait on."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

DEADLINE_S = 60.0  # on a busy machine torch takes 20 s to load


def wait_for(condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Poll until something is true; fail with words at the deadline."""
    assert is_true_by(condition, deadline_s), f"not within {deadline_s:g} s: {what}"


def is_true_by(condition: Callable[[], object], wait_s: float) -> bool:
    """Poll until something is true; return whether it is within these seconds."""
    deadline = time.monotonic() + wait_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.005)  # between two looks: there is nothing to wait on
    return True


def is_gone(pid: int) -> bool:
    """Whether a process has ended (a zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def read_pid(path: Path) -> int:
    """Wait for a file that holds a process id, and return it."""
    wait_for(lambda: path.exists() and path.read_text().endswith("\n"), f"{path.name} is written")
    return int(path.read_text())


def pending(pid: int) -> bool:
    """Whether a signal waits to be taken by a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return any(
        int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigPnd", "ShdPnd"))
    )
