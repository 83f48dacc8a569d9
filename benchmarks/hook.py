"""What do the environment hook and stacks cost a starting Python? ``python -m benchmarks.hook [--runs 200]``

Virtual environments of the Python that runs this, with and without the hook; interleaved starts of an
empty script, medians of the processor time (user and system) of the whole process, which other load
hardly moves. The line itself is also run many times in one process. The promise: where no job has left
its signs, under 0.3 ms.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.machine import describe_machine
from benchmarks.startup import MPI
from benchmarks.tables import cell, markdown, promise
from launcher.hook.line import PTH, render_line, render_pth
from launcher.inprocess.marker import HOOKED, render_marker
from launcher.output.folder import SITE

PROMISE_MS = 0.3
ROUNDS = 2000
WITHOUT = "without the hook"
EMPTY = "without it, a .pth file with a comment"
NO_JOB = "with it, no job"
ARMED = "without it, as a rank that gives its stacks on request"


def make_environment(folder: Path) -> Path:
    """Make a virtual environment, and return its folder of packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.rglob("site-packages")
    return packages


def starts(root: Path) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Return what is compared: name to command line and variables."""
    make_environment(root / "plain")
    (make_environment(root / "hooked") / PTH).write_text(render_pth())
    asking = render_pth().replace(sys.implementation.cache_tag or "", "another")
    (make_environment(root / "other") / PTH).write_text(asking)
    script = root / "empty.py"
    script.write_text("")
    (make_environment(root / "empty") / PTH).write_text("# nothing\n")
    names = ("plain", "empty", "hooked", "other")
    plain, empty, hooked, asks = ([str(root / name / "bin" / "python"), str(script)] for name in names)
    mpi = {**MPI, "MASTER_ADDR": "10.77.0.4"}
    acted = {**mpi, HOOKED: render_marker("process", mpi, mpi)}
    return {
        WITHOUT: (plain, {}),
        ARMED: (plain, {"PYTHONPATH": SITE, "LAUNCHER_STACKS_FILE": str(root / "stacks.txt")}),
        EMPTY: (empty, {}),
        NO_JOB: (hooked, {}),
        "in a job, where it has acted already": (hooked, acted),
        "in a job, planned in this Python": (hooked, mpi),
        "in a job, by asking the launcher's Python": (asks, mpi),
    }


def measure(runs: int) -> dict[str, float]:
    """Return the median processor time of each start in ms."""
    with tempfile.TemporaryDirectory(prefix="launcher_bench_") as folder:
        table = starts(Path(folder))
        times: dict[str, list[float]] = {name: [] for name in table}
        for _ in range(runs + 2):
            for name, (argv, variables) in table.items():
                times[name].append(cpu_ms(argv, {"PATH": os.environ["PATH"], **variables}))
    return {name: median(values[2:]) for name, values in times.items()}  # the first ones warm caches


def cpu_ms(argv: list[str], environ: dict[str, str]) -> float:
    """Return the processor time of a program and of those that it has waited for."""
    pid = os.posix_spawn(argv[0], argv, environ)
    _, status, usage = os.wait4(pid, 0)
    assert status == 0, argv
    return (usage.ru_utime + usage.ru_stime) * 1e3


def measure_line() -> float:
    """Return the time of the line alone, compiled and run as `site` does, in ms."""
    line = render_line()
    names: dict[str, object] = {}
    taken = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        exec(line, names)
        taken.append((time.perf_counter() - started) * 1e3)
    return median(taken)


def main() -> int:
    """Print the table; the exit status says whether the promise holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    medians, line = measure(parser.parse_args().runs), measure_line()
    bare = medians[WITHOUT]
    rows = [(name, cell(value), cell(value - bare), f"{value / bare:.3f}") for name, value in medians.items()]
    print(f"{describe_machine()}; medians.\n")
    print("\n".join(markdown(("start of an empty script", "CPU, ms", "over bare, ms", "ratio"), rows)))
    print(f"\nThe line alone, compiled and run as `site` does, no job: {cell(line)} ms.\n")
    print(promise("ms for the line, no job", PROMISE_MS, line))
    return int(line > PROMISE_MS)


if __name__ == "__main__":
    sys.exit(main())
