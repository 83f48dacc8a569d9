"""For `benchmarks.mpirun_start`: how long jobs of an MPI take to start and to end, and their memory."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.mpirun_nodes import BARE, COUNT, LIMIT_S, NODES, OURS, RANK, Jobs
from benchmarks.process_start import Start
from benchmarks.rank import FIRST_LINE
from benchmarks.tables import progress
from launcher.rehearse.cluster import Cluster

NAMES = {"openmpi4": "Open MPI 4", "openmpi5": "Open MPI 5", "mpich": "MPICH", "impi": "Intel MPI"}
PARTS = {
    "launcher run --engine mpirun": "head",
    "launcher serve": "serving launcher",
    "mpi/rank.py": "2 rank wrappers",
}
"""Words in command lines, and what such a process and its watchdog are to us."""
OUR_PROGRAMS = ("python", "python3")
"""mpirun's line, too, has the words of ours, and so have the shells between."""
SLACK_S = 1.0


class Death(NamedTuple):
    """Milliseconds from a rank's end to the exit, and the status."""

    exit_ms: float
    status: int


class Resident(NamedTuple):
    """A process at rest: the node's index, a row of ``PARTS``, its resident memory."""

    node: int
    part: str
    mib: float


def start_once(jobs: Jobs, who: str) -> Start:
    """Start a job of ranks that print, and wait for its end."""
    with jobs.job(who, "print") as (head, started_ns):
        line_ns = _see_lines(jobs, head)
        status = head.wait(LIMIT_S)
        ended_ns = time.monotonic_ns()
    if status:
        raise SystemExit(f"{who}: status {status}: {jobs.last_words()}")
    return Start((line_ns - started_ns) / 1e6, (ended_ns - started_ns) / 1e6)


def _see_lines(jobs: Jobs, head: subprocess.Popen[bytes]) -> int:
    assert head.stdout is not None
    seen = b""
    while seen.count(FIRST_LINE.encode()) < COUNT:
        ready, _, _ = select.select([head.stdout], [], [], LIMIT_S)
        data = os.read(head.stdout.fileno(), 65536) if ready else b""
        if not data:
            raise SystemExit(f"{seen.count(FIRST_LINE.encode())} of {COUNT} lines came: {jobs.last_words()}")
        seen += data
    return time.monotonic_ns()


def die_once(jobs: Jobs, who: str, *, look: bool) -> tuple[Death, list[Resident]]:
    """End one rank of node 1; before that, look at all processes if asked to."""
    reports = jobs.folder / "reports"
    reports.unlink(missing_ok=True)
    os.mkfifo(reports)
    descriptor = os.open(reports, os.O_RDWR | os.O_NONBLOCK)
    try:
        with jobs.job(who, "wait", str(reports)) as (head, _):
            _await_ranks(jobs, descriptor)
            found = _look(jobs) if look else []
            return _kill_one(jobs, head, str(reports)), found
    finally:
        os.close(descriptor)


def _await_ranks(jobs: Jobs, reports: int) -> None:
    seen = b""
    while seen.count(b"\n") < COUNT:
        ready, _, _ = select.select([reports], [], [], LIMIT_S)
        if not ready:
            raise SystemExit(f"{seen.count(bytes([10]))} of {COUNT} ranks started: {jobs.last_words()}")
        seen += os.read(reports, 4096)
    time.sleep(SLACK_S)  # a launcher may still be busy with the start


def _kill_one(jobs: Jobs, head: subprocess.Popen[bytes], reports: str) -> Death:
    """Make a rank of node 1 exit; wait for the launcher's end."""
    rank = next(process for process in psutil.process_iter() if _is_rank_of_node_1(process, reports))
    poll, seen = select.poll(), {}
    watched = {os.pidfd_open(pid): name for pid, name in ((rank.pid, "rank"), (head.pid, "head"))}
    for descriptor in watched:
        poll.register(descriptor, select.POLLIN)
    os.kill(rank.pid, signal.SIGUSR1)
    while len(seen) < len(watched):
        events = poll.poll(LIMIT_S * 1e3)
        now = time.monotonic_ns()
        if not events:
            raise SystemExit(f"{jobs.last_words()}: it does not end after {LIMIT_S:g} s")
        for descriptor, _ in events:
            seen[watched[descriptor]] = now
            poll.unregister(descriptor)
    for descriptor in watched:
        os.close(descriptor)
    return Death((seen["head"] - seen["rank"]) / 1e6, head.wait())


def _is_rank_of_node_1(process: psutil.Process, reports: str) -> bool:
    with contextlib.suppress(psutil.Error):
        words = process.cmdline()
        if words[3:6] == [RANK, "wait", reports]:
            environ = process.environ()
            names = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
            return next(environ[name] for name in names if name in environ) == str(COUNT - 1)
    return False


def _look(jobs: Jobs) -> list[Resident]:
    found = []
    for node in jobs.cluster.nodes:
        line = jobs.cluster.argv(node, ["ps", "-e", "-o", "rss=,args="])
        said = subprocess.run(line, check=True, capture_output=True, text=True, env=jobs.environ).stdout
        for rss, words in (row.split(None, 1) for row in said.splitlines()):
            part = name_part(words)
            if part is not None:
                found.append(Resident(node.index, part, int(rss) / 1024))
    return found


def name_part(words: str) -> str | None:
    """Return which of ``PARTS`` a command line is of."""
    if os.path.basename(words.split()[0]) not in OUR_PROGRAMS:
        return None
    return next((part for mark, part in PARTS.items() if mark in words), None)


class Result(NamedTuple):
    """What was measured with one MPI: by who started it, and what ours hold in memory."""

    starts: dict[str, list[Start]]
    deaths: dict[str, list[Death]]
    memory: list[Resident]


def measure(family: str, rounds: int) -> Result:
    """Start and end jobs of one MPI, ours and bare ones in turn; what comes first warms caches."""
    result = Result({OURS: [], BARE: []}, {OURS: [], BARE: []}, [])
    with tempfile.TemporaryDirectory() as folder, Cluster(NODES) as cluster:
        jobs = Jobs(cluster, family, Path(folder))
        for number in range(rounds + 1):
            progress(f"{NAMES[family]}: start {number} of {rounds}")
            for who in (OURS, BARE)[:: 1 if number % 2 else -1]:
                start = start_once(jobs, who)
                if number:
                    result.starts[who].append(start)
        for number in range(max(1, rounds // 3)):
            progress(f"{NAMES[family]}: death {number + 1} of {max(1, rounds // 3)}")
            for who in (OURS, BARE):
                death, memory = die_once(jobs, who, look=who == OURS and not number)
                result.deaths[who].append(death)
                result.memory.extend(memory)
    return result
