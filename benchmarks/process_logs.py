"""How much output passes through a launcher, and what does that cost?

Two processes write lines of 80 bytes at once, 8 KiB per write as Python does to a pipe, so that most
writes end inside of a line. The clock runs from the word to write until the last byte has arrived at
the reader of the launcher's stdout (a pipe, read to nowhere). CPU time is that of all the launcher's
processes. A small run before it, read line by line, says whether all lines arrived whole.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import time
from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from benchmarks.jobs import Job, NotMeasured, Stage, cpu_ns
from benchmarks.peers import LOOP, OURS, Peer
from benchmarks.rank import BLOCK_BYTES, LINE_BYTES, block
from benchmarks.tables import cell, markdown, progress

PROCESSES = 2
QUIET_S = 1.0
"""When all was written and nothing came for so long, all has come: torchrun's tee looks every 0.1 s."""
LIMIT_S = 20.0
"""Who needs longer is measured once, by what had arrived until then."""
CHECKED_BLOCKS = 4
MIB = 1024 * 1024
LOGS = "{logs}"
JSON = ["--log-format", "json"]
WAYS: dict[str, list[tuple[str, list[str]]]] = {
    # The launcher's name -> title and options of each way that is measured.
    LOOP: [("nothing in between", [])],
    OURS: [
        ("prefixes", ["--prefix"]),
        ("--tee 3", ["--tee", "3", "--log-dir", LOGS]),
        ("--timestamps", ["--timestamps"]),
        ("--log-format json", JSON),
        ("--dedupe", ["--dedupe"]),
        ("--tee 3, JSON, rotating", ["--tee", "3", "--log-dir", LOGS, *JSON, "--log-rotate", "1G"]),
    ],
    "torchrun, static rendezvous": [("--tee 3", ["--tee", "3", "--log-dir", LOGS])],
    "horovodrun --gloo": [("prefixes (default)", [])],
    "Open MPI 4.1 mpirun": [("--tag-output", ["--tag-output"])],
    "Open MPI 5 mpirun": [("--output tag", ["--output", "tag"])],
    "MPICH mpiexec": [("-prepend-rank", ["-prepend-rank"])],
}


class Flow(NamedTuple):
    """One run.

    Attributes:
        mib: What the processes wrote.
        wall_s: Until the last byte had arrived.
        cpu_s: Of the launcher.
        complete: All had been written and had arrived within the limit.
    """

    mib: float
    wall_s: float
    cpu_s: float
    complete: bool


class Way(NamedTuple):
    """One launcher with options; the name is the row's."""

    name: str
    peer: Peer
    options: list[str]


class Check(NamedTuple):
    """What the small run said: of the lines in words, and bytes that arrived for each that was written."""

    lines: str
    growth: float


class Flows(NamedTuple):
    """What was measured, by the name of the way: runs, the small run, what went wrong."""

    runs: dict[str, list[Flow]]
    checks: dict[str, Check]
    troubles: dict[str, str]

    def slow(self, name: str) -> bool:
        """Return whether a run was stopped by the limit."""
        return not all(flow.complete for flow in self.runs.get(name, []))


def find_ways(peers: Sequence[Peer]) -> list[Way]:
    """Return all that is measured."""
    return [Way(f"{p.name}: {title}", p, options) for p in peers for title, options in WAYS.get(p.name, [])]


def measure(stage: Stage, ways: Sequence[Way], rounds: int, blocks: int) -> Flows:
    """Let each launcher pass ``blocks`` per process, once per round."""
    flows = Flows({}, {}, {})
    for number in range(rounds):
        for way in ways:
            if way.name in flows.troubles or flows.slow(way.name):
                continue
            progress(f"logs: round {number + 1} of {rounds}, {way.name}")
            try:
                check = flows.checks.get(way.name) or check_lines(stage, way)
                flows.checks[way.name] = check
                flows.runs.setdefault(way.name, []).append(flow_once(stage, way, blocks, check.growth))
            except NotMeasured as trouble:
                flows.troubles[way.name] = str(trouble)
    return flows


def flow_once(stage: Stage, way: Way, blocks: int, growth: float) -> Flow:
    """Let all processes write so many blocks each; ``growth`` is that of the `Check`.

    Raises:
        NotMeasured: They did not start, or the launcher ended early.
    """
    job = _start(stage, way, blocks)
    reader = _Reader(job)
    try:
        helpers = job.helpers()
        cpu = cpu_ns(helpers)
        started = time.monotonic()
        job.tell_ranks(signal.SIGUSR1)
        written = PROCESSES * blocks * BLOCK_BYTES
        complete = reader.read_all(started + LIMIT_S, written)
        passed = written if complete else reader.count / growth
        return Flow(passed / MIB, reader.last - started, (cpu_ns(helpers) - cpu) / 1e9, complete)
    finally:
        reader.close()
        stage.end(job)


def check_lines(stage: Stage, way: Way) -> Check:
    """Return whether each line arrives as often as it was written, whole, after whatever prefix."""
    job = _start(stage, way, CHECKED_BLOCKS)
    kept: list[bytes] = []
    reader = _Reader(job, kept)
    try:
        job.tell_ranks(signal.SIGUSR1)
        written = PROCESSES * CHECKED_BLOCKS * BLOCK_BYTES
        if not reader.read_all(time.monotonic() + LIMIT_S, written):
            raise job.trouble(f"4 MiB did not come through in {LIMIT_S:g} s")
        lines = b"".join(kept).split(b"\n")
        if JSON[0] in way.options:
            lines = [str(json.loads(line)["text"]).encode() for line in lines if line]
        arrived = Counter(line[-(LINE_BYTES - 1) :] for line in lines)
        wanted = [line for pid in job.ranks for line in block(pid).splitlines()]
        broken = sum(max(0, CHECKED_BLOCKS - arrived[line]) for line in wanted)
        text = f"{100 * broken * LINE_BYTES / written:.2g} % damaged" if broken else "all whole"
        if LOGS in way.options:
            text += ", files complete" if _bytes_below(stage) >= written else ", files INCOMPLETE"
        return Check(text, reader.count / written)
    finally:
        reader.close()
        stage.end(job)


def _bytes_below(stage: Stage) -> int:
    found = os.walk(_logs(stage))
    return sum(os.path.getsize(os.path.join(folder, name)) for folder, _, names in found for name in names)


def _logs(stage: Stage) -> str:
    return os.path.join(stage.folder, "logs")


def _start(stage: Stage, way: Way, blocks: int) -> Job:
    logs = _logs(stage)
    shutil.rmtree(logs, ignore_errors=True)
    os.mkdir(logs)
    options = [logs if word == LOGS else word for word in way.options]
    job = stage.start(way.peer, PROCESSES, "write", str(blocks), options=options)
    try:
        job.wait_for_ranks(PROCESSES)
    except NotMeasured:
        stage.end(job)
        raise
    return job


class _Reader:
    """Reads a launcher's stdout, to nowhere or into memory."""

    def __init__(self, job: Job, kept: list[bytes] | None = None) -> None:
        self.job = job
        self.count = 0
        self.last = time.monotonic()
        self.kept = kept
        self.nowhere = os.open(os.devnull, os.O_WRONLY)

    def read_all(self, deadline: float, least: int) -> bool:
        """Read until every process has written all, as much has come, and nothing more does.

        Open MPI 5 takes all that its ranks write, and is silent for a while before it passes it on.

        Returns:
            False at the deadline.
        """
        reports = self.job.report_descriptor()
        while time.monotonic() < deadline:
            ready, _, _ = select.select([self.job.stdout, reports], [], [], QUIET_S)
            if reports in ready:
                self.job.hear()
            if self.job.stdout in ready:
                size = self._take()
                if not size:
                    raise self.job.trouble("its stdout ended early")
                self.last = time.monotonic()
                self.count += size
            if not ready and len(self.job.finished) == PROCESSES and self.count >= least:
                return True
        return False

    def _take(self) -> int:
        if self.kept is None:
            return os.splice(self.job.stdout, self.nowhere, MIB)
        self.kept.append(os.read(self.job.stdout, MIB))
        return len(self.kept[-1])

    def close(self) -> None:
        os.close(self.nowhere)


def report(ways: Sequence[Way], flows: Flows) -> list[str]:
    """Return the table."""
    rows = []
    for way in ways:
        runs = flows.runs.get(way.name)
        if way.name in flows.troubles or not runs:
            rows.append([way.name, "failed", "", "", ""])
            continue
        rate = cell(median(flow.mib / flow.wall_s for flow in runs))
        wall = cell(median(1e3 * flow.wall_s / flow.mib for flow in runs))
        cpu = cell(median(1e3 * flow.cpu_s / flow.mib for flow in runs))
        cut = f" (stopped after {LIMIT_S:g} s)" if flows.slow(way.name) else ""
        rows.append([way.name, rate + cut, wall, cpu, flows.checks[way.name].lines])
    return markdown(
        ["launcher", "MiB/s", "wall, ms per MiB", "CPU of the launcher, ms per MiB", "lines"], rows
    )
