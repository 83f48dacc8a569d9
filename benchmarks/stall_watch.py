"""What does the watch for stalls cost a healthy job? ``python -m benchmarks.stall_watch``

The worst case for it is a job that writes nothing: then CPU time, network and storage of its ranks are read
once a minute. Jobs of 8 ranks, and of 8 ranks with 7 children each, run beside each other with the watch and
with ``--stall-timeout 0``; each rank has open files and connections. The CPU time of their launchers counts,
from before the watch is loaded.

Then steps of a little work and an allreduce by gloo, in turns without the watch, with it, and without it
again; the watch reads 60 times as often as by default, so that seconds have as many readings as minutes.

The promise: less than 0.1 % of a core.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

from benchmarks.machine import OtherLoad, describe_machine
from benchmarks.peers import CHECKOUT
from benchmarks.tables import markdown, progress, promise
from tests.process.starting import clean_environ

PROMISE_PERCENT = 0.1
WATCHED_S = 300.0
SETTLE_S = 30.0
LIMIT_S = 300.0
STEPS = 4000
OFTEN_S = 10.0
"""The time of a stall for the steps: 60 times less than the default."""
SHAPES = {"8 ranks": (8, 0), "64 processes": (8, 7)}
WITH: tuple[str, ...] = ()
WITHOUT = ("--stall-timeout", "0")
SILENT = """
import os, socket, subprocess, sys, time
server = socket.create_server(("127.0.0.1", 0))
pairs = [(socket.create_connection(server.getsockname()), server.accept()) for _ in range(8)]
files = [open(os.devnull) for _ in range(50)]
children = [subprocess.Popen(["sleep", sys.argv[2]]) for _ in range(int(sys.argv[1]))]
time.sleep(float(sys.argv[2]))
for child in children:
    child.wait()
"""
OFTEN = f"""
import runpy, sys
import launcher.planning.supervision as supervision
supervision.IDLE_TIMEOUT_S = {OFTEN_S}
sys.argv[0] = "launcher"
runpy.run_module("launcher", run_name="__main__", alter_sys=True)
"""


def start(way: tuple[str, ...], count: int, flags: tuple[str, ...], *command: str) -> subprocess.Popen[bytes]:
    """Start a job of one node."""
    # The silent ranks never meet, and the check whether they do would cost more than all the rest
    shape = ("--nproc-per-node", str(count), "--no-check", "--no-progress", "--no-meeting")
    line = (sys.executable, *way, "run", *shape, *flags, "--", *command)
    return subprocess.Popen(line, env=clean_environ(), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def count_cpu_s(process: subprocess.Popen[bytes]) -> float:
    """Return the CPU time of a launcher, without its children, to the nanosecond."""
    return int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[0]) / 1e9


def measure_shares(folder: Path, watched_s: float) -> dict[str, tuple[float, float]]:
    """Return the CPU time of each shape's launcher without the watch and with it, in percent of a core."""
    script = folder / "silent.py"
    script.write_text(SILENT)
    lasts = str(SETTLE_S + watched_s + 30)
    jobs = [
        (name, start(("-m", "launcher"), ranks, flags, sys.executable, str(script), str(children), lasts))
        for name, (ranks, children) in SHAPES.items()
        for flags in (WITHOUT, WITH)
    ]
    progress(f"{len(jobs)} silent jobs: {watched_s:g} s")
    time.sleep(SETTLE_S)
    began, before = time.monotonic(), [count_cpu_s(job) for _, job in jobs]
    time.sleep(watched_s)
    seconds = time.monotonic() - began
    used = [100 * (count_cpu_s(job) - first) / seconds for (_, job), first in zip(jobs, before, strict=True)]
    if any(job.wait(LIMIT_S) for _, job in jobs):
        raise RuntimeError("a silent job has failed")
    return {name: (used[2 * place], used[2 * place + 1]) for place, name in enumerate(SHAPES)}


def run_steps(flags: tuple[str, ...], path: Path) -> tuple[float, float]:
    """Return the quickest tenth and the median of a run's steps, ms."""
    steps = str(Path(CHECKOUT) / "benchmarks" / "steps.py")
    job = start(("-c", OFTEN), 2, flags, sys.executable, steps, str(path), str(STEPS))
    if job.wait(LIMIT_S):
        raise RuntimeError("a job that makes steps has failed")
    taken = json.loads(path.read_text())
    return quantiles(taken, n=10)[0] / 1e6, median(taken) / 1e6


def measure_steps(folder: Path, rounds: int) -> list[tuple[str, ...]]:
    """Return the rows of the table: steps without the watch, with it, and without it again."""
    found = []
    for index in range(rounds):
        runs = [run_steps(flags, folder / "steps.json") for flags in (WITHOUT, WITH, WITHOUT)]
        found.append(runs)
        progress(f"steps: round {index + 1} of {rounds}: {', '.join(f'{quick:.3f}' for quick, _ in runs)} ms")
    rows = []
    for place, name in enumerate(("quickest tenth", "median")):
        columns = [[runs[turn][place] for runs in found] for turn in range(3)]
        watch, control = (
            [second / first for first, second in zip(columns[0], columns[turn], strict=True)]
            for turn in (1, 2)
        )
        ends = [f"{median(one):.3f} ({min(one):.3f} to {max(one):.3f})" for one in (watch, control)]
        rows.append((name, *(f"{median(column):.3f}" for column in columns), *ends))
    return rows


def main() -> int:
    """Measure, and print the tables; the exit status says whether the promise holds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=WATCHED_S, help="of the silent jobs")
    parser.add_argument("--rounds", type=int, default=5, help="of the steps")
    asked = parser.parse_args()
    load = OtherLoad()
    with tempfile.TemporaryDirectory() as name:
        shares = measure_shares(Path(name), asked.seconds)
        steps = measure_steps(Path(name), asked.rounds)
    rows = [
        (shape, f"{without:.4f}", f"{watch:.4f}", f"{watch - without:.4f}")
        for shape, (without, watch) in shares.items()
    ]
    print(describe_machine())
    print(f"\nCPU time of the launcher over {asked.seconds:g} s of a silent job, % of a core:\n")
    print("\n".join(markdown(("job", "without the watch", "with it", "the watch"), rows)))
    print(f"\n{STEPS} steps of 2 ranks, {asked.rounds} rounds, ms; the watch reads 60 times as often:\n")
    head = ("steps", "without", "with", "without again", "with / without", "without / without")
    print("\n".join(markdown(head, steps)))
    print(f"\nEverybody else used {load.percent():.0f} % of the CPUs meanwhile.\n")
    worst = max(watch for _, watch in shares.values())
    print(promise("% of a core for a silent job", PROMISE_PERCENT, worst))
    return int(worst > PROMISE_PERCENT)


if __name__ == "__main__":
    raise SystemExit(main())
