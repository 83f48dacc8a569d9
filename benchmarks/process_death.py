"""How long from a process's death to the launcher's exit, and with which status?

Two processes. One exits with status 3, while the other obeys SIGTERM, or ignores it; or one is killed
by SIGKILL. Both ends are seen by this script through pidfds, in one `poll`: from the kernel's notice
of the death to that of the launcher's exit. All launchers start together; when they are at rest, it
happens to one after the other, except where SIGTERM is ignored: there all wait at the same time.
"""

from __future__ import annotations

import os
import random
import select
import signal
import time
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import psutil

from benchmarks.jobs import Job, Stage, status_of
from benchmarks.peers import LOOP, OURS, Peer
from benchmarks.process_parent import SETTLE_S, start_all
from benchmarks.tables import cell, markdown, progress

PROMISE_MS = 50.0


class Death(NamedTuple):
    """One death.

    Attributes:
        exit_s: Seconds until the launcher's exit; None if it still ran after the limit.
        status: The launcher's.
        left: How many of its processes that are ranks still ran when it was gone.
    """

    exit_s: float | None
    status: int
    left: int


Deaths = dict[tuple[str, str], list[Death]]


class Case(NamedTuple):
    """One way to go: what the processes do, what ends the first of them, how long we watch."""

    mode: str
    number: signal.Signals
    limit_s: float


CASES = {
    "obeys": Case("wait", signal.SIGUSR1, 10.0),
    "ignores": Case("ignore", signal.SIGUSR1, 40.0),  # longer than the grace of any launcher here, 30 s
    "killed": Case("wait", signal.SIGKILL, 10.0),
}


def measure(stage: Stage, peers: Sequence[Peer], rounds: int) -> tuple[Deaths, dict[str, str]]:
    """Return the deaths of each (launcher, case); where SIGTERM is ignored, of one round only."""
    deaths: Deaths = {}
    troubles: dict[str, str] = {}
    able = [peer for peer in peers if peer.name != LOOP]  # it has no idea of failure
    for number in range(rounds):
        for name, case in CASES.items():
            if name == "ignores" and number:
                continue
            progress(f"death: round {number + 1} of {rounds}, {name}")
            # Who once did not end at all will not do so in the next round.
            here = [p for p in able if all(d.exit_s is not None for d in deaths.get((p.name, name), []))]
            jobs = start_all(stage, here, case.mode, troubles)
            time.sleep(SETTLE_S)
            for group in [jobs] if name == "ignores" else [[job] for job in jobs]:
                time.sleep(random.uniform(0, 1))  # in no fixed relation to anybody's polling
                for job, death in zip(group, kill_one(group, case), strict=True):
                    deaths.setdefault((job.peer.name, name), []).append(death)
                    stage.end(job)
    return deaths, troubles


def kill_one(jobs: Sequence[Job], case: Case) -> list[Death]:
    """End the first process of each job, and watch until all launchers have gone, or up to the limit."""
    poll = select.poll()
    watched: dict[int, tuple[int, str]] = {}
    seen: dict[tuple[int, str], int] = {}
    left: dict[int, int] = {}
    for index, job in enumerate(jobs):
        for pid, what in ((job.ranks[0], "process"), (job.process.pid, "launcher")):
            descriptor = os.pidfd_open(pid)
            watched[descriptor] = (index, what)
            poll.register(descriptor, select.POLLIN)
    deadline = time.monotonic() + case.limit_s
    for job in jobs:
        os.kill(job.ranks[0], case.number)
    while watched and (remaining := deadline - time.monotonic()) > 0:
        events = poll.poll(remaining * 1e3)
        now = time.monotonic_ns()
        for descriptor, _ in events:
            index, what = watched[descriptor]
            seen[watched.pop(descriptor)] = now
            if what == "launcher":
                left[index] = sum(_runs(pid) for pid in jobs[index].ranks)
            poll.unregister(descriptor)
            os.close(descriptor)
    for descriptor in watched:
        os.close(descriptor)
    return [
        _death(job, seen.get((i, "process")), seen.get((i, "launcher")), left.get(i, 0))
        for i, job in enumerate(jobs)
    ]


def _death(job: Job, died_ns: int | None, ended_ns: int | None, left: int) -> Death:
    if died_ns is None or ended_ns is None:
        return Death(None, 0, left)
    return Death((ended_ns - died_ns) / 1e9, status_of(job.process.wait()), left)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def report(peers: Sequence[Peer], deaths: Deaths) -> list[str]:
    """Return the table."""
    head = ["launcher", "the other obeys SIGTERM, ms", "status", "ignores it, s", "status"]
    head += ["one killed by SIGKILL, ms", "status", "processes left behind"]
    rows = []
    for peer in peers:
        if peer.name == LOOP:
            continue
        cells = []
        for name, factor in (("obeys", 1e3), ("ignores", 1.0), ("killed", 1e3)):
            cells += _cells(deaths.get((peer.name, name)), factor, CASES[name].limit_s)
        left = max((d.left for name in CASES for d in deaths.get((peer.name, name), [])), default=0)
        rows.append([peer.name, *cells, str(left)])
    return markdown(head, rows)


def _cells(deaths: Sequence[Death] | None, factor: float, limit_s: float) -> list[str]:
    if not deaths:
        return ["failed", ""]
    times = [death.exit_s for death in deaths if death.exit_s is not None]
    if len(times) < len(deaths):
        return [f"not within {limit_s:g} s", "none"]
    statuses = sorted({death.status for death in deaths})
    return [cell(factor * median(times)), " or ".join(map(str, statuses))]


def promises(deaths: Deaths) -> list[tuple[str, float, float]]:
    """Return what we promise: the words, the limit, and our value."""
    ours = [death.exit_s for death in deaths.get((OURS, "obeys"), []) if death.exit_s is not None]
    return (
        [("ms from a death to the exit when the other obeys", PROMISE_MS, 1e3 * median(ours))] if ours else []
    )
