"""Jobs to which something happens, and the fault matrix of docs/failures.md, which says what then."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from launcher.core.frozen import frozen
from launcher.machine.process import find_children
from launcher.process.watchdog import NAME as WATCHDOG
from tests.process.looking import wait_for
from tests.process.starting import DEADLINE_S, ROOT, clean_environ

PAGE = Path(ROOT, "docs", "failures.md")
HEADING = "Fault matrix"
ANYTHING = "..."
"""In the words of a row: whatever stands there."""
SLACK_S = 10.0
"""Added to the times of the table, which are those of a machine that has nothing else to do."""


@frozen
class Outcome:
    """How a launcher has ended.

    Attributes:
        status: Its exit status, as a shell says it.
        err: What was written to standard error.
        seconds: From the fault to its end.
    """

    status: int
    err: str
    seconds: float


@frozen
class Row:
    """One row of the table.

    Attributes:
        name: A parameter of a test, a test without ``test_``, or ``FILE::TEST`` elsewhere in this folder.
        words: What the launcher says; none where it says nothing.
        statuses: The numbers that its exit status may have; none where it is not its own.
        time: From the fault to its end, e.g. ``< 0.1 s``, ``grace + 5 s``.
    """

    name: str
    words: tuple[str, ...]
    statuses: tuple[int, ...]
    time: str

    def check(self, outcome: Outcome, grace_s: float) -> None:
        """Assert that all of it is so."""
        for words in self.words:
            pattern = ".*".join(map(re.escape, words.split(ANYTHING)))
            assert re.search(pattern, outcome.err), f"no {words!r} in:\n{outcome.err}"
        assert not self.statuses or outcome.status in self.statuses, outcome.err
        assert outcome.seconds < self.bound_s(grace_s), outcome.err

    def bound_s(self, grace_s: float) -> float:
        """Return how long it may take in a test with that ``--grace``."""
        numbers = re.findall(r"[0-9.]+", self.time)
        return SLACK_S + sum(map(float, numbers)) + (grace_s if "grace" in self.time else 0.0)


def read_rows() -> dict[str, Row]:
    """Return all rows by name."""
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {HEADING}\n")[2].partition("\n## ")[0]
    rows = [_row(line.split(" | ")) for line in re.findall(r"^\| (.+`) \|$", section, flags=re.MULTILINE)]
    assert rows and len({row.name for row in rows}) == len(rows), "no rows, or two of the same name"
    return {row.name: row for row in rows}


def _row(cells: Sequence[str]) -> Row:
    _, says, status, seconds, test = (cell.strip() for cell in cells)
    words = re.findall(r"`([^`]+)`", says)
    return Row(test.strip("`"), tuple(words), tuple(map(int, re.findall(r"\d+", status))), seconds)


class Job:
    """A launcher, and the processes that it has started."""

    def __init__(self, folder: Path, *words: str, before: Sequence[str] = ()) -> None:
        """Start ``launcher run WORDS``, with other words in front of it."""
        self.record = folder / "failure.json"
        self.since: float | None = None
        self.started = time.time()
        self.launcher = subprocess.Popen(
            [*before, sys.executable, "-m", "launcher", "run", "--failure-file", str(self.record), *words],
            env=clean_environ(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def ranks(self, count: int) -> dict[int, int]:
        """Wait until so many processes are there; return their pids by rank."""
        wait_for(lambda: len(self._ranks()) == count, f"{count} processes are started")
        return self._ranks()

    def watched_ranks(self, count: int) -> dict[int, int]:
        """Wait until the launcher watches for the end of so many processes; return their pids by rank."""
        ranks = self.ranks(count)
        wait_for(lambda: self._watched() >= {*ranks.values()}, f"{count} processes are watched")
        return ranks

    def _watched(self) -> set[int]:
        # A pidfd tells its process, see proc(5)
        infos = b"".join(map(read, map(str, Path(f"/proc/{self.launcher.pid}/fdinfo").glob("*"))))
        return {int(pid) for pid in re.findall(rb"^Pid:\t(\d+)$", infos, flags=re.MULTILINE)}

    def _ranks(self) -> dict[int, int]:
        # Before it has called exec, a process has the launcher's environment, without a rank.
        found = {pid: re.search(rb"\0RANK=(\d+)\0", read(f"/proc/{pid}/environ")) for pid in self.children()}
        return {int(rank[1]): pid for pid, rank in found.items() if rank}

    def watchdog(self, after: int = 0) -> int:
        """Wait for the watchdog, or for the one that comes after that one; return its pid."""
        found: list[int] = []

        def is_there() -> bool:
            found[:] = [pid for pid in self._watchdogs() if pid != after]
            return bool(found)

        wait_for(is_there, "there is a watchdog")
        return found[0]

    def _watchdogs(self) -> list[int]:
        return [pid for pid in self.children() if read(f"/proc/{pid}/comm") == f"{WATCHDOG}\n".encode()]

    def children(self) -> list[int]:
        """Return the children of the launcher."""
        return find_children(self.launcher.pid)

    def line(self) -> str:
        """Wait for the next line of its output, and return it."""
        assert self.launcher.stdout is not None
        return self.launcher.stdout.readline()

    def wait_until_ready(self, count: int) -> None:
        """Wait until that many processes have written ``ready``."""
        for _ in range(count):
            assert self.line().endswith("ready\n")

    def kill(self, pid: int, number: int = signal.SIGKILL) -> None:
        """Send a signal: the first one is the fault, from then on the time counts."""
        self.since = self.since or time.time()
        os.kill(pid, number)

    def end(self) -> Outcome:
        """Wait for the end. Without `kill`, the time is that since the first process ended."""
        _, err = self.launcher.communicate(timeout=DEADLINE_S)
        ended = time.time()
        since = self.since or self.started
        if self.since is None and self.record.is_file():
            since = json.loads(self.record.read_text())["ended_ns"] / 1e9
        code = self.launcher.returncode
        return Outcome(code if code >= 0 else 128 - code, err, ended - since)


def read(path: str) -> bytes:
    """Return what stands in a file of /proc; nothing if its process is gone."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
