"""Starts `tests.cluster.hanging.hang` on all nodes, and reads what the launchers say of it."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

from launcher.core.ranks import render_ranges
from tests.cluster.together import Done, Job, own_environ

SCRIPT = Path(__file__).parent / "hang.py"
PER_NODE = 2
SAYS = "launcher: "
STALL = f"{SAYS}stalled: "
VERDICT = re.compile(r"^launcher: \S.* (?:failed|ended) first: ")
STOPS = ("--stall-timeout", "3", "--on-stall", "stop")
REPORTS = ("--stall-timeout", "3")
START_S = 300.0
"""Eight ranks import torch on the CPUs of one busy machine."""


def start(job: Job, kind: str, rank: int, *flags: str, **environ: str) -> None:
    """Start it on every node, and wait until all ranks are where one of them differs."""
    command = (sys.executable, str(SCRIPT), kind, str(rank), str(job.folder))
    for node in job.cluster.nodes:
        file = ("--failure-file", str(failure_file(job, node.index)))
        job.start(
            node.index, *flags, *file, "--", *command, environ=own_environ(**environ), per_node=PER_NODE
        )
    count = PER_NODE * len(job.cluster.nodes)
    job.wait_until(lambda: len(list(job.folder.glob("ready-*"))) == count, "all ranks are ready", START_S)


def failure_file(job: Job, node: int) -> Path:
    """Return the path of a node's failure record."""
    return job.folder / f"failure-{node}.json"


def read_record(job: Job, node: int) -> dict[str, Any]:
    """Return a node's failure record."""
    record = json.loads(failure_file(job, node).read_text())
    assert isinstance(record, dict)
    return record


def find_line(mark: str) -> str:
    """Return file and line of the script's line with this mark, as a pattern."""
    (number,) = (n for n, line in enumerate(SCRIPT.read_text().splitlines(), 1) if f"# [{mark}]" in line)
    return rf'hang\.py(?::|", line ){number}\b'  # as in a report, or in a dump of faulthandler


def read_stall(log: str) -> list[str]:
    """Return the lines of the first stall report in a log; none if there is none."""
    lines = log.splitlines()
    first = next((at for at, line in enumerate(lines) if line.startswith(STALL)), len(lines))
    last = first + 1
    while last < len(lines) and lines[last].startswith(f"{SAYS}  "):
        last += 1
    return lines[first:last]


def read_failure(log: str) -> list[str]:
    """Return the lines of the failure report in a log, which are its last ones."""
    lines = log.splitlines()
    first = next((at for at, line in enumerate(lines) if VERDICT.match(line)), len(lines))
    return lines[first:]


def names_rank(text: str, rank: int) -> bool:
    """Whether a text speaks of this rank and of no other one."""
    return bool(re.search(rf"\brank {rank}\b", text)) and not re.search(r"\branks \d", text)


def find_evidence(record: dict[str, Any], ranks: str) -> str:
    """Return what a record holds on these ranks, e.g. ``"0-2"``, as text; empty for nothing."""
    return "\n".join(json.dumps(one) for one in record.get("evidence") or () if one["ranks"] == ranks)


def others_than(rank: int, count: int) -> str:
    """Return all other ranks as in a report: ``"0-2"``, ``"0-4, 6-7"``."""
    return render_ranges(one for one in range(count) if one != rank)


def run_paused(job: Job, index: int) -> dict[int, Done]:
    """Run a job of which one node is paused, as a container or a machine is, until the others have ended."""
    start(job, "paused", 0, *STOPS)
    node = job.cluster.nodes[index]
    job.on(node, ("sh", "-c", "kill -STOP -1"))
    done = job.wait(*(other for other in job.launchers if other != index))
    job.on(node, ("sh", "-c", "kill -CONT -1"))
    job.launchers[index].send_signal(signal.SIGCONT)  # nsenter has stopped, too
    return {**done, **job.wait(index)}


def end(job: Job) -> dict[int, Done]:
    """End a job that only reports, and return how its launchers ended."""
    job.signal(0, signal.SIGTERM)
    return job.wait()
