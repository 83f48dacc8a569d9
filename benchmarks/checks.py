"""What do the checks cost? ``python -m benchmarks.checks [--rounds 21]``

In turn: ``launcher run -- true``, the same with ``--check``, and ``launcher check``, each as a whole process
under ``python -I -S`` (no site-packages but the launcher's needs). Then the quick checks alone, in one
process that has loaded them, on a recorded tree of an ND H200 v5 with 8 GPUs and 9 network ports, the
median of as many. NVML has no part in it: the quick checks do not ask it.

Then the start of two processes of a job of several nodes, which has them made beside it unless told not to:
the time until both have written a line, and until the launcher has ended; and the same for processes
that go on for a second, until both have written.

The promises: the quick checks in under 100 ms, whole process and all; beside a job they cost its
start nothing.
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
from benchmarks.tables import cell, markdown, promise
from launcher.checks import run_checks
from launcher.checks.case import read_case
from tests.golden.fabrics import read_fabric, write_fabric
from tests.unit.machines import ND_V5

PROMISE_MS = 100.0
BESIDE_MS = 3.0
"""Less than what starts differ by from round to round, on few CPUs that others use."""
LINES = (("run", "--", "true"), ("run", "--check", "--", "true"), ("check",))
SEVERAL = (
    *("--nnodes", "2", "--node-rank", "0", "--master-addr", "10.1.1.1"),
    *("--nproc-per-node", "2", "--no-peers"),
)
FLAGS = (("--no-check",), ())
START = """
import sys
sys.path[:0] = sys.argv[1].split(":")
del sys.argv[1]
from launcher.cli.entry import run_and_exit
run_and_exit()
"""


def launcher(*words: str) -> list[str]:
    """Return the command line of a launcher without site-packages but what this program needs."""
    path = f"{CHECKOUT}:{os.path.dirname(os.path.dirname(psutil.__file__))}"
    return [sys.executable, "-I", "-S", "-c", START, path, *words]


def start_ms(words: tuple[str, ...]) -> float:
    """Return how long a launcher takes as a process of its own."""
    begun = time.perf_counter()
    subprocess.run(launcher(*words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return (time.perf_counter() - begun) * 1e3


def beside_ms(flags: tuple[str, ...], *, goes_on: bool) -> tuple[float, float]:
    """Return how long until two processes have written a line, and until their launcher has ended."""
    job = "echo line; exec sleep 0.5" if goes_on else "echo line"
    line = launcher("run", *flags, *SEVERAL, "--no-prefix", "--", "sh", "-c", job)
    begun = time.perf_counter()
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0) as process:
        text = b""
        while process.stdout and text.count(b"\n") < 2 and (data := process.stdout.read(100)):
            text += data
        written = time.perf_counter()
        process.wait()
    return (written - begun) * 1e3, (time.perf_counter() - begun) * 1e3


def measure_beside(rounds: int) -> tuple[list[tuple[str, str, str, str]], float]:
    """Return rows of a table, and how much later processes have written because of the checks."""
    times: dict[tuple[tuple[str, ...], bool], list[tuple[float, float]]] = {}
    for _ in range(rounds):
        for goes_on in (False, True):
            for flags in FLAGS:
                times.setdefault((flags, goes_on), []).append(beside_ms(flags, goes_on=goes_on))
    rows = []
    for (flags, goes_on), pairs in times.items():
        written, ended = ([pair[place] for pair in pairs] for place in (0, 1))
        what = f"2 processes{' that go on' if goes_on else ''}, {flags[0] if flags else 'checks beside them'}"
        rows.append((what, cell(median(written)), cell(min(written)), "" if goes_on else cell(median(ended))))
    with_checks, without = (
        median(written for goes_on in (False, True) for written, _ in times[flags, goes_on])
        for flags in reversed(FLAGS)
    )
    return rows, with_checks - without


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
    beside, later = measure_beside(rounds)
    print()
    print(
        "\n".join(markdown(("what", "both have written, median, ms", "best, ms", "exit, median, ms"), beside))
    )
    print(f"\n{promise('ms that --check adds to a start', PROMISE_MS, more)}")
    print(promise("ms later that a job's first lines come with checks beside it", BESIDE_MS, later))
    return int(more > PROMISE_MS or later > BESIDE_MS)


if __name__ == "__main__":
    sys.exit(main())
