"""What does a start through the launcher cost? ``python -m benchmarks.startup [--runs 20]``

Each line is a median of interleaved runs on the interpreter that runs this script, in milliseconds,
and the difference and ratio to a bare ``python -c pass`` measured in the same run. The promise:
``launcher run -- true`` at PROCESS scope costs at most 30 ms over it, and ``--help`` takes at most 60 ms.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from statistics import median

from benchmarks.machine import describe_machine
from benchmarks.tables import cell, markdown, promise

PROMISE_MS, HELP_MS = 30.0, 60.0
RUN = "python -m launcher run -- true"
MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_MCA_orte_num_nodes": "2",
    "OMPI_MCA_orte_hnp_uri": "1.0;tcp://10.77.0.4:5",
    "OMPI_MCA_orte_local_daemon_uri": "1.1;tcp://10.77.0.5:6",
}


def commands() -> dict[str, tuple[list[str], dict[str, str]]]:
    """Return what is compared: name to command line and variables."""
    launcher = [sys.executable, "-m", "launcher"]
    found = shutil.which("launcher", path=os.path.dirname(sys.executable))
    table = {
        "python -c pass": ([sys.executable, "-c", "pass"], {}),
        f"{RUN} (PROCESS scope)": ([*launcher, "run", "--", "true"], MPI),
        f"{RUN} (NODE scope, 1 process)": ([*launcher, "run", "--", "true"], {}),
        "python -m launcher --help": ([*launcher, "--help"], {}),
    }
    if found:
        table["launcher --help (console script)"] = ([found, "--help"], {})
        table["launcher run -- true (PROCESS scope, console script)"] = ([found, "run", "--", "true"], MPI)
    return table


def measure(runs: int) -> dict[str, float]:
    """Return the median of each command in ms; rounds are interleaved, so that drift hits all alike."""
    table = commands()
    times: dict[str, list[float]] = {name: [] for name in table}
    base = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    for _ in range(runs + 1):
        for name, (argv, variables) in table.items():
            started = time.perf_counter()
            subprocess.run(argv, env={**base, **variables}, check=True, stdout=subprocess.DEVNULL)
            times[name].append((time.perf_counter() - started) * 1e3)
    return {name: median(values[1:]) for name, values in times.items()}  # the first one warms caches


def main() -> int:
    """Print the table; the exit status says whether the promises hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    medians = measure(parser.parse_args().runs)
    bare = medians["python -c pass"]
    rows = [(name, cell(value), cell(value - bare), f"{value / bare:.2f}") for name, value in medians.items()]
    print(f"{describe_machine()}; medians.\n")
    print("\n".join(markdown(("command", "ms", "over bare, ms", "ratio"), rows)))
    cost = medians[f"{RUN} (PROCESS scope)"] - bare
    print(f"\n{promise('ms over bare, PROCESS scope', PROMISE_MS, cost)}")
    slowest = max(value for name, value in medians.items() if "--help" in name)
    print(promise("ms for --help", HELP_MS, slowest))
    return int(cost > PROMISE_MS or slowest > HELP_MS)


if __name__ == "__main__":
    sys.exit(main())
