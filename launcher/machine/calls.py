"""Tells in which system call a process waits."""

from __future__ import annotations

import os

from launcher.core.blocks import read_rows
from launcher.machine.process import read_file

MACHINES = {"x86_64": 1, "aarch64": 2}
"""Columns of the numbers in calls.txt."""
RUNNING = "running"
"""Text of /proc/PID/syscall for a process that is in no system call."""


def _list_calls() -> dict[str, str]:
    """Return the names of this machine's calls by their numbers; none if the machine is not known."""
    try:
        column = MACHINES[os.uname().machine]
    except (OSError, KeyError):  # uname is refused
        return {}
    return {row[column]: row[0] for row in read_rows("machine/calls.txt")}


CALLS = _list_calls()


def read_call(pid: int) -> str:
    """Return the system call of a main thread, `RUNNING`, or empty: unknown, or a wait outside of one."""
    words = read_file(f"/proc/{pid}/syscall").decode("ascii", "replace").split()
    if not words or words[0] == "-1":
        return ""
    return words[0] if words[0] == RUNNING else CALLS.get(words[0], f"system call {words[0]}")
