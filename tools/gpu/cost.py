"""What the launcher costs here: starts, steps, and its own processor time while it watches GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from statistics import median

from part import LAUNCHER, Part, find_result, read, small_environ

SECONDS = 8
STARTS = 11


def start(part: Part) -> None:
    """``launcher run -- true`` over a bare Python, in turns."""
    ways = {
        "python -c pass": (sys.executable, "-c", "pass"),
        "launcher run -- true": (*LAUNCHER, "run", "--", "true"),
        "launcher run --nproc-per-node 1 --standalone -- true": (
            *LAUNCHER, "run", "--standalone", "--nproc-per-node", "1", "--", "true"),
    }  # fmt: skip
    found: dict[str, list[float]] = {name: [] for name in ways}
    with part.step("start"):
        for _ in range(STARTS):
            for name, words in ways.items():
                began = time.perf_counter()  # `Part.run` would add up to 50 ms
                done = subprocess.run(words, env=small_environ(), capture_output=True, check=False)
                found[name].append(1e3 * (time.perf_counter() - began))
                if done.returncode:
                    part.check(name, 0, done.returncode)
        part.figure("ms", {name: round(median(values), 1) for name, values in found.items()})


def steps(part: Part) -> None:
    """Steps alone, and under the launcher with and without its watch; the launcher's share of a processor."""
    alone = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29556",
    }
    ways: dict[str, tuple[tuple[str, ...] | None, dict[str, str]]] = {
        "bare": (None, alone),
        "with the watch": (("--stall-timeout", "30", "--progress"), {}),
        "without": (("--stall-timeout", "0", "--no-progress", "--no-check"), {}),
    }
    for name, (flags, environ) in ways.items():
        word = name.replace(" ", "-")
        with part.step(name):
            marker = os.path.join(part.logs, f"{part.name}.{word}.begun")
            program = part.program("steps", str(SECONDS), marker)
            if flags is None:
                job = part.start(word, program, environ)
            else:
                job = part.start_job(word, flags, *program, environ=environ)
            part.check(f"{name}: it begins", True, job.wait_for(marker, 30))
            first, began = read_cpu_s(job.process.pid), time.monotonic()
            time.sleep(SECONDS)
            used = 100 * (read_cpu_s(job.process.pid) - first) / (time.monotonic() - began)
            done = job.wait(20)
            part.check(f"{name}: status", 0, done.status)
            own = None if flags is None else round(used, 4)
            part.figure(f"{name}: steps", {**find_result(done.out), "launcher's % of a core": own})
            if flags is not None:
                part.check(f"{name}: % of a core", "less than 0.5", own, right=used < 0.5)


def read_cpu_s(pid: int) -> float:
    """Return the processor time of a process without its children."""
    return int((read(f"/proc/{pid}/schedstat") or "0").split()[0]) / 1e9
