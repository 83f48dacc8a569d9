"""Is the slow rank named? ``python -m benchmarks.stragglers [ROUNDS] [JOBS]``: real jobs, real disturbances.

Each job is four ranks that compute, pause and reduce with gloo. Again and again one rank is disturbed for 45
seconds, and then none for 40. ``launcher status`` is asked every 5 seconds. A disturbance counts as named
if the rank, and no other one, is named within 60 seconds of its start; a healthy stretch as quiet if none
is named at its end. Jobs run beside each other, so the machine is busy.

Needs root for the CPU limit (cgroup v1 or v2), and torch.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.machine import OtherLoad, describe_machine
from benchmarks.tables import markdown

RANKS = 4
DISTURBED_S, HEALTHY_S, ASK_EVERY_S, START_S = 45.0, 40.0, 5.0, 45.0
JOB = """
import os, sys, time
import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, folder = dist.get_rank(), sys.argv[1]
weights, total = torch.randn(192, 192), torch.zeros(1000)
while True:
    work = 25 if os.path.exists(f"{folder}/work-{rank}") else 5
    for _ in range(work):
        weights = torch.nn.functional.normalize(weights @ weights)
    if os.path.exists(f"{folder}/sleep-{rank}"):
        time.sleep(0.02)
    dist.all_reduce(total)
    time.sleep(0.005)
"""
V1, V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


class Job:
    """One job, which runs until it is closed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "job.py").write_text(JOB)
        line = (sys.executable, "-m", "launcher", "run", "--nproc-per-node", str(RANKS), "--", sys.executable)
        self.launcher = subprocess.Popen(
            [*line, str(folder / "job.py"), str(folder)], stderr=subprocess.DEVNULL
        )

    def ask(self) -> dict[str, Any]:
        """Return what ``launcher status --json`` prints."""
        words = ("status", "--json", "--job", str(self.launcher.pid))
        done = subprocess.run(
            [sys.executable, "-m", "launcher", *words], capture_output=True, text=True, check=False
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def named(self) -> set[int]:
        """Return the ranks that are named."""
        return {rank for one in self.ask()["stragglers"] for rank in one["ranks"]}

    def row(self, rank: int) -> dict[str, Any]:
        """Return what the status says of a rank."""
        rows: list[dict[str, Any]] = [row for node in self.ask()["nodes"] for row in node["ranks"]]
        return next(row for row in rows if row["rank"] == rank)

    def pid(self, rank: int) -> int:
        """Return the process of a rank."""
        return int(self.row(rank)["pid"])

    def close(self) -> None:
        """End it."""
        self.launcher.terminate()
        self.launcher.wait()


@contextmanager
def stopped(job: Job, rank: int) -> Iterator[None]:
    """Stop the rank for 100 ms in each second."""
    pid, over = job.pid(rank), threading.Event()

    def pulse() -> None:
        while not over.wait(0.9):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.1)
            os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=pulse)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def limited(job: Job, rank: int) -> Iterator[None]:
    """Limit the rank to half of what it uses of a CPU."""
    pid = job.pid(rank)
    base = V1 if V1.is_dir() else V2
    group, home = base / f"straggler-{pid}", base
    group.mkdir()
    quota_us = max(1000, int(100_000 * job.row(rank)["pace"].get("running", 0.02) / 2))
    if base is V1:
        (group / "cpu.cfs_period_us").write_text("100000")
        (group / "cpu.cfs_quota_us").write_text(str(quota_us))
    else:
        (group / "cpu.max").write_text(f"{quota_us} 100000")
    (group / "cgroup.procs").write_text(str(pid))
    try:
        yield
    finally:
        (home / "cgroup.procs").write_text(str(pid))
        group.rmdir()


@contextmanager
def flagged(job: Job, name: str) -> Iterator[None]:
    """Have a rank of the job do something else, by a file."""
    path = job.folder / name
    path.touch()
    try:
        yield
    finally:
        path.unlink()


KINDS: dict[str, Callable[[Job, int], Any]] = {
    "stopped 100 ms each second": stopped,
    "a CPU limit": limited,
    "sleep in its step": lambda job, rank: flagged(job, f"sleep-{rank}"),
    "five times the work": lambda job, rank: flagged(job, f"work-{rank}"),
}


def measure(job: Job, kinds: list[str], seed: int, found: list[tuple[str, float | None, bool, bool]]) -> None:
    """Disturb a job by each kind, and add (kind, seconds until named, whether others were, whether quiet)."""
    chance = random.Random(seed)
    time.sleep(START_S)
    for kind in kinds:
        quiet = not job.named()
        rank, began = chance.randrange(RANKS), time.monotonic()
        named_s, others = None, False
        with KINDS[kind](job, rank):
            while time.monotonic() < began + DISTURBED_S:
                time.sleep(ASK_EVERY_S)
                names = job.named()
                others = others or bool(names - {rank})
                if named_s is None and names == {rank}:
                    named_s = time.monotonic() - began
        found.append((kind, named_s, others, quiet))
        print(
            f"{kind}: rank {rank} named after {named_s}, others {others}, quiet before {quiet}",
            file=sys.stderr,
        )
        time.sleep(HEALTHY_S)


def main() -> None:
    """Measure, and print the table."""
    rounds, count = (int(word) for word in (*sys.argv[1:], *("2", "3")[len(sys.argv) - 1 :]))
    load, found = OtherLoad(), list[tuple[str, float | None, bool, bool]]()
    with tempfile.TemporaryDirectory() as folder:
        jobs = []
        for number in range(count):
            place = Path(folder, str(number))
            place.mkdir()
            jobs.append(Job(place))
        threads = [
            threading.Thread(target=measure, args=(job, list(KINDS) * rounds, number, found))
            for number, job in enumerate(jobs)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for job in jobs:
            job.close()
    rows = []
    for kind in KINDS:
        of_kind = [one for one in found if one[0] == kind]
        named = sorted(one[1] for one in of_kind if one[1] is not None)
        worst = f"{named[-1]:.0f}" if named else "-"
        rows.append([kind, f"{len(named)} of {len(of_kind)}", worst, str(sum(one[2] for one in of_kind))])
    hits = sum(one[1] is not None for one in found)
    wrong = sum(one[2] for one in found) + sum(not one[3] for one in found)
    f1 = 2 * hits / (2 * hits + wrong + len(found) - hits)
    print(f"{describe_machine()}; {load.percent():.0f} % of the CPUs used by others\n")
    print("\n".join(markdown(["disturbance", "named", "after at most, s", "another rank named, too"], rows)))
    quiet = sum(one[3] for one in found)
    print(f"\nhealthy stretches without a name: {quiet} of {len(found)}; F1 {f1:.3f}")


if __name__ == "__main__":
    main()
