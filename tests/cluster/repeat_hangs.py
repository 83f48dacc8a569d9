"""Runs each hang of `tests.cluster.test_hangs` several times, and prints how often rank and line were right.

    python -m tests.cluster.repeat_hangs [--times 10] [--nodes 2 4] [KIND ...]

``report s`` is the time from the moment the last rank was ready to hang until node 0's report is whole: the
stall timeout of 3 s, and what it took to notice and to ask all ranks; the median, and the longest.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from launcher.rehearse.cluster import Cluster
from tests.cluster.hanging import jobs
from tests.cluster.test_hangs import HANGS
from tests.cluster.together import Job


class Seen(NamedTuple):
    """What one run has shown."""

    right_rank: bool
    right_line: bool
    right_records: bool
    report_s: float


def run_once(kind: str, rank: int, nodes: int) -> Seen:
    """Run a job that hangs to its end."""
    own, others = (jobs.find_line(mark) for mark in HANGS[kind])
    with tempfile.TemporaryDirectory() as folder, Cluster(nodes) as cluster:
        job = Job(cluster, Path(folder))
        try:
            jobs.start(job, kind, rank, *jobs.STOPS)
            hung = max(path.stat().st_mtime for path in job.folder.glob("ready-*"))
            while (job.launchers[0].poll()) is None and len(jobs.read_stall(job.errors[0].read_text())) < 3:
                time.sleep(0.01)  # between two looks: there is nothing to wait on
            report_s = time.time() - hung
            done = job.wait()
            report = jobs.read_stall(done[0].err)
            records = [jobs.read_record(job, node.index) for node in cluster.nodes]
        finally:
            job.close()
    text = "\n".join(report)
    named = [jobs.names_rank(one["verdict"], rank) and re.search(own, one["verdict"]) for one in records]
    is_right = Seen(
        bool(report) and jobs.names_rank(report[0], rank),
        bool(re.search(own, text) and re.search(others, text)),
        all(named),
        report_s,
    )
    if not all(is_right[:3]):
        print(
            f"--- {kind}, rank {rank} of {nodes} nodes\n{done[0].err}\n{records[-1]['verdict']}", flush=True
        )
    return is_right


def main() -> None:
    """Run all, and print a row for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("kinds", nargs="*", default=list(HANGS))
    given = parser.parse_args()
    rows = []
    for nodes in given.nodes:
        for kind in given.kinds:
            count = nodes * jobs.PER_NODE
            seen = [run_once(kind, (count - 1 + at) % count, nodes) for at in range(given.times)]
            marks = [f"{sum(one[at] for one in seen)}/{len(seen)}" for at in range(3)]
            times = [one.report_s for one in seen]
            row = f"{kind:12}{nodes}x{jobs.PER_NODE:<8}" + "".join(f"{mark:>12}" for mark in marks)
            rows.append(f"{row}{median(times):10.1f}{max(times):8.1f}")
            print(rows[-1], flush=True)
    titles = "".join(f"{title:>12}" for title in ("right rank", "right line", "records"))
    print(f"\n{'scenario':12}{'ranks':10}{titles}{'report s':>10}{'max':>8}")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
