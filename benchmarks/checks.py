"""What do the checks cost? ``python -m benchmarks.checks [--rounds 21]``

In turn: ``launcher run -- true``, the same with ``--check``, and ``launcher check``, each as a whole process
under ``python -I -S`` (no site-packages but the launcher's needs). Then the quick checks alone, in one
process that has loaded them, on a recorded tree of an ND H200 v5 with 8 GPUs and 9 network ports, the
median of as many. NVML has no part in it: the quick checks do not ask it.

The promise: the quick checks in under 100 ms, whole process and all.
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

import psutil

from benchmarks.machine import OtherLoad, describe_machine
from benchmarks.peers import CHECKOUT
from benchmarks.tables import cell, markdown
from launcher.checks import run_checks
from launcher.checks.case import read_case
from tests.golden.fabrics import read_fabric, write_fabric
from tests.unit.machines import ND_V5

PROMISE_MS = 100.0
LINES = (("run", "--", "true"), ("run", "--check", "--", "true"), ("check",))
START = """
import sys
sys.path[:0] = sys.argv[1].split(":")
del sys.argv[1]
from launcher.__main__ import run_and_exit
run_and_exit()
"""


def start_ms(words: tuple[str, ...]) -> float:
    """Return how long a launcher takes as a process of its own."""
    path = f"{CHECKOUT}:{os.path.dirname(os.path.dirname(psutil.__file__))}"
    line = [sys.executable, "-I", "-S", "-c", START, path, *words]
    begun = time.perf_counter()
    subprocess.run(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return (time.perf_counter() - begun) * 1e3


def checks_ms(folder: Path, rounds: int) -> float:
    """Return how long the quick checks take on a machine with 8 GPUs, everything loaded."""
    host = ND_V5(folder)
    write_fabric(folder, read_fabric("nd96isr_h200_v5"))
    times = []
    for _ in range(rounds + 1):
        begun = time.perf_counter()
        run_checks(read_case(host, {}, None, ()), quick=True)
        times.append((time.perf_counter() - begun) * 1e3)
    return median(times[1:])  # the first loads the modules


def main() -> int:
    """Measure and print; the status is 1 if the promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    rounds = parser.parse_args().rounds
    load = OtherLoad()
    times: dict[tuple[str, ...], list[float]] = {words: [] for words in LINES}
    for _ in range(rounds):
        for words in LINES:
            times[words].append(start_ms(words))
    with tempfile.TemporaryDirectory() as folder:
        alone = checks_ms(Path(folder), rounds)
    rows = [(f"`launcher {' '.join(w)}`", cell(median(ms)), cell(min(ms))) for w, ms in times.items()]
    rows.append(("the quick checks alone, 8 GPUs and 9 ports", cell(alone), ""))
    others = f"others used {load.percent():.0f} % of the CPUs"
    print(f"{describe_machine()}; {rounds} rounds; {others}:\n")
    print("\n".join(markdown(("what", "median, ms", "best, ms"), rows)))
    more = median(times[LINES[1]]) - median(times[LINES[0]])
    print(f"\n--check adds {cell(more)} ms to a start (promise: under {PROMISE_MS:g}).")
    return int(more >= PROMISE_MS)


if __name__ == "__main__":
    sys.exit(main())
