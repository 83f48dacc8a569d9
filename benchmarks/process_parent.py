"""What does a launcher cost while its processes run: memory, and CPU time over 30 idle seconds?

Two processes sleep. All launchers run at the same time, so that they share the same half minute.
Measured from outside: resident memory at its end, CPU by each process's own clock (nanoseconds, all
threads) and its reaped children. Of the resident memory a page that several processes share is counted once
for each; the proportional memory divides it among them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import psutil

from benchmarks.jobs import Job, NotMeasured, Stage, cpu_ns
from benchmarks.peers import OURS, Peer
from benchmarks.tables import cell, markdown, progress

PROMISE_MIB, PROMISE_SHARED_MIB = 25.0, 15.0
PROMISE_PERCENT = 0.1
SETTLE_S = 3.0
"""After its processes have started, a launcher may still be importing."""
MIB = 1024 * 1024


class Parent(NamedTuple):
    """A launcher at rest.

    Attributes:
        main_mib: Resident memory of the process that was started.
        sum_mib: Of all its processes that are not ranks.
        shared_mib: Their proportional memory.
        processes: How many those are.
        cpu_s: CPU time they used in ``over_s`` seconds.
    """

    main_mib: float
    sum_mib: float
    shared_mib: float
    processes: int
    cpu_s: float
    over_s: float


def measure(
    stage: Stage, peers: Sequence[Peer], rounds: int, idle_s: float
) -> tuple[dict[str, list[Parent]], dict[str, str]]:
    """Return what each launcher costs, once per round, and what went wrong, by name."""
    found: dict[str, list[Parent]] = {}
    troubles: dict[str, str] = {}
    for number in range(rounds):
        progress(f"parent: round {number + 1} of {rounds}, {idle_s:g} s")
        jobs = start_all(stage, peers, "wait", troubles)
        time.sleep(SETTLE_S)
        before = [(time.monotonic(), {p.pid: cpu_ns([p]) for p in job.helpers()}) for job in jobs]
        time.sleep(idle_s)
        for job, (since, cpu) in zip(jobs, before, strict=True):
            found.setdefault(job.peer.name, []).append(_look(job, since, cpu))
            stage.end(job)
    return found, troubles


def start_all(stage: Stage, peers: Sequence[Peer], mode: str, troubles: dict[str, str]) -> list[Job]:
    """Start two processes through each launcher; return the jobs whose processes all run."""
    jobs = [stage.start(peer, 2, mode) for peer in peers if peer.name not in troubles]
    for job in list(jobs):
        try:
            job.wait_for_ranks(2)
        except NotMeasured as trouble:
            troubles[job.peer.name] = str(trouble)
            jobs.remove(job)
            stage.end(job)
    return jobs


def _look(job: Job, since: float, before: dict[int, int]) -> Parent:
    helpers = job.helpers()
    cpu = sum(cpu_ns([process]) - before.get(process.pid, 0) for process in helpers)
    over_s = time.monotonic() - since
    sizes = [_weigh(process) for process in helpers]
    main = sizes[0][0] if helpers and helpers[0].pid == job.process.pid else 0.0
    resident, shared = (sum(column) for column in zip(*sizes, strict=True)) if sizes else (0.0, 0.0)
    return Parent(main, resident, shared, len(helpers), cpu / 1e9, over_s)


def _weigh(process: psutil.Process) -> tuple[float, float]:
    """Return resident and proportional MiB."""
    try:
        info = process.memory_full_info()
    except psutil.NoSuchProcess:
        return 0.0, 0.0
    return info.rss / MIB, info.pss / MIB


def report(peers: Sequence[Peer], found: dict[str, list[Parent]]) -> list[str]:
    """Return the table."""
    rows = []
    over = median(parent.over_s for parents in found.values() for parent in parents) if found else 0.0
    for peer in peers:
        parents = found.get(peer.name)
        rows.append([peer.name, *(_cells(parents) if parents else ["failed"] * 5)])
    cpu = f"CPU in {over:.0f} idle s, ms"
    memory = ("memory of the main one, MiB", "of all, MiB", "proportional, MiB")
    return markdown(["launcher", "its processes", *memory, cpu], rows)


def _cells(parents: Sequence[Parent]) -> list[str]:
    processes = str(round(median(parent.processes for parent in parents)))
    main = cell(median(parent.main_mib for parent in parents))
    return [
        processes,
        main,
        cell(median(p.sum_mib for p in parents)),
        cell(median(p.shared_mib for p in parents)),
        cell(1e3 * median(p.cpu_s for p in parents)),
    ]


def promises(found: dict[str, list[Parent]]) -> list[tuple[str, float, float]]:
    """Return what we promise: the words, the limit, and our value."""
    ours = found.get(OURS)
    if not ours:
        return []
    percent = median(100 * parent.cpu_s / parent.over_s for parent in ours)
    return [
        ("MiB of memory, all of its processes", PROMISE_MIB, median(parent.sum_mib for parent in ours)),
        (
            "MiB of proportional memory, all of its processes",
            PROMISE_SHARED_MIB,
            median(parent.shared_mib for parent in ours),
        ),
        ("% of a core while idle", PROMISE_PERCENT, percent),
    ]
