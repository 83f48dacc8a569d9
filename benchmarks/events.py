"""What do events cost a job? ``python -m benchmarks.events``: JSON log, events file, traces, metrics, all.

Three jobs of two processes: one that ends at once, one that sleeps for two seconds, so that every helper
of the launcher has started and done its work, and one that writes lines of 80 bytes. CPU time is that of
the launcher, its helpers and the two processes. The spans go to a receiver in this process, which decodes
them; its CPU time is not counted. The launcher's output goes to a null device.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.machine import describe_machine
from benchmarks.tables import cell, markdown, progress
from launcher.machine.host import Host
from tests.process.otlp import Receiver, receive
from tests.process.starting import clean_environ

MIB = 256
"""Written by each process of the last job."""
WRITES = f"piece = b'x' * 79 + b'\\n'\nimport os\nfor _ in range({MIB << 10}): os.write(1, piece * 13)"
JOBS: dict[str, tuple[str, ...]] = {
    "true": ("true",),
    "sleep 2": ("sleep", "2"),
    f"{2 * MIB} MiB of lines": (sys.executable, "-I", "-S", "-c", WRITES),
}
OFF, ALL = "nothing", "all of it"


class Way(NamedTuple):
    """What is switched on: flags and variables."""

    flags: tuple[str, ...]
    environ: Mapping[str, str]


def name_ways(folder: Path, receiver: Receiver) -> dict[str, Way]:
    """Return what is compared."""
    ways = {
        OFF: Way((), {}),
        "--log-format json": Way(("--log-format", "json"), {}),
        "--events": Way(("--events", str(folder / "events.jsonl")), {}),
        "traces": Way((), receiver.environ),
        "--metrics-port": Way(("--metrics-port", str(Host().free_port())), {}),
    }
    flags = tuple(word for way in ways.values() for word in way.flags)
    return {**ways, ALL: Way(flags, receiver.environ)}


def measure(way: Way, command: Sequence[str]) -> tuple[float, float]:
    """Run a job, and return its wall time and its CPU time in milliseconds."""
    line = [sys.executable, "-m", "launcher", "run", "--nproc-per-node", "2", *way.flags, "--", *command]
    began = time.perf_counter()
    job = subprocess.Popen(
        line, env=clean_environ(**way.environ), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(job.pid, 0)
    job.returncode = os.waitstatus_to_exitcode(status)
    assert job.returncode == 0, line
    return 1000 * (time.perf_counter() - began), 1000 * (used.ru_utime + used.ru_stime)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="runs of each job and way (7)")
    rounds = parser.parse_args().rounds
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder, receive() as receiver:
        ways = name_ways(Path(folder), receiver)
        for number in range(rounds):
            for job, command in JOBS.items():
                progress(f"events: round {number + 1}, {job}")
                for name, way in ways.items():  # one after the other, so that load hits all alike
                    found.setdefault((name, job), []).append(measure(way, command))
        expected = 2 * rounds * len(JOBS)
        jobs = len(receiver.named("job"))
    head = [f"{job}: {what}" for job in JOBS for what in ("wall ms", "CPU ms")]
    rows = [
        [name, *(cell(median(one[place] for one in found[name, job])) for job in JOBS for place in (0, 1))]
        for name in ways
    ]
    print(f"{describe_machine()}; medians of {rounds}; {jobs} traces of {expected} jobs have arrived.\n")
    print("\n".join(markdown(("on", *head), rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
