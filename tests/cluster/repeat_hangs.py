"""Runs each job of `tests.cluster.test_hangs` several times, and prints how often rank and line were right.

    python -m tests.cluster.repeat_hangs [--times 10] [--nodes 2 4] [KIND ...]

``said in`` is the time from the moment the last rank was ready to hang until the report is whole on node 0:
the stall timeout of 3 s, and what it took to notice and to ask all ranks. Ctrl-C prints the table of the runs
until then.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from launcher.rehearse.cluster import Cluster
from tests.cluster.hanging import jobs
from tests.cluster.test_hangs import FAILURES, HANGS
from tests.cluster.together import Done, Job

OTHERS = {**FAILURES, "shorter": "shorter", "paused": "others"}
"""Jobs that fail, or whose node is paused, with the mark of the line that must be said."""


class Seen(NamedTuple):
    """What one run has shown."""

    right_rank: bool
    right_line: bool
    right_records: bool
    said_in_s: float = 0.0


def run_once(kind: str, rank: int, nodes: int) -> Seen:
    """Run a job to its end."""
    with tempfile.TemporaryDirectory() as folder, Cluster(nodes) as cluster:
        job = Job(cluster, Path(folder))
        try:
            if kind == "paused":
                return judge(job, jobs.run_paused(job, rank // jobs.PER_NODE), kind, rank)
            jobs.start(job, kind, rank, *(jobs.STOPS if kind in HANGS else ()))
            hung = max(path.stat().st_mtime for path in job.folder.glob("ready-*"))
            while job.launchers[0].poll() is None and len(jobs.read_stall(job.errors[0].read_text())) < 3:
                time.sleep(0.01)  # between two looks: there is nothing to wait on
            said_in_s = time.time() - hung
            return judge(job, job.wait(), kind, rank)._replace(said_in_s=said_in_s)
        except AssertionError as error:
            print(f"--- {kind}, rank {rank} on {nodes} nodes: {error}", flush=True)
            return Seen(False, False, False)
        finally:
            job.close()


def judge(job: Job, done: dict[int, Done], kind: str, rank: int) -> Seen:
    """Return whether rank and line are right on node 0, and both in the records of all nodes."""
    own, others = (jobs.find_line(mark) for mark in HANGS.get(kind) or [OTHERS[kind]] * 2)
    is_stall = kind in HANGS or kind == "paused"
    report = (jobs.read_stall if is_stall else jobs.read_failure)(done[0].err)
    records = [jobs.read_record(job, node.index) for node in job.cluster.nodes]

    def is_named(text: str) -> bool:
        if kind == "paused":
            return f"node {rank // jobs.PER_NODE}" in text
        return jobs.names_rank(text, rank)

    text = "\n".join(report)
    seen = Seen(
        bool(report) and is_named(report[0]),
        bool(re.search(own, text) and re.search(others, text)),
        all(is_named(one["verdict"]) and re.search(own, str(one)) for one in records),
    )
    if not all(seen[:3]):
        print(f"--- {kind}, rank {rank}\n{done[0].err}\n{records[-1]['verdict']}", flush=True)
    return seen


def main() -> None:
    """Run all, and print a row for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("kinds", nargs="*", default=[*HANGS, *OTHERS])
    given = parser.parse_args()
    found: dict[tuple[str, int], list[Seen]] = {}
    with contextlib.suppress(KeyboardInterrupt):
        for at in range(given.times):
            for nodes in given.nodes:
                for kind in given.kinds:
                    count = nodes * jobs.PER_NODE
                    # The launcher of node 0 cannot be paused: it is the one that reports
                    rank = max(count - 1 - at % count, jobs.PER_NODE if kind == "paused" else 0)
                    seen = run_once(kind, rank, nodes)
                    found.setdefault((kind, nodes), []).append(seen)
                    print(f"{at + 1}: {kind} {nodes}x{jobs.PER_NODE} rank {rank}: {seen}", flush=True)
    titles = "".join(f"{title:>12}" for title in ("right rank", "right line", "records"))
    print(f"\n{'':12}{'ranks':8}{titles}{'said in s':>12}{'at most':>9}")
    for (kind, nodes), runs in sorted(found.items(), key=lambda item: item[0][1]):
        marks = (f"{sum(one[at] for one in runs)}/{len(runs)}" for at in range(3))
        times = [one.said_in_s for one in runs if one.said_in_s]
        row = "".join(f"{mark:>12}" for mark in marks)
        row += f"{median(times):12.1f}{max(times):9.1f}" if times and kind in HANGS else ""
        print(f"{kind:12}{nodes}x{jobs.PER_NODE:<6}{row}")


if __name__ == "__main__":
    main()
