"""What does the launcher cost over a bare mpirun? ``python -m benchmarks.mpirun_start [--rounds 9]``

Two simulated nodes, two ranks on each, and ``launcher serve`` on the second, started with the head. Ranks
are bare ``python -I -S`` that print a line. Measured from the start of ``launcher run --engine mpirun`` on
the head to the arrival of the last rank's line at the reader of its stdout, and to its exit. Beside it, in
turn, runs the very line that the launcher plans (``launcher plan``), without our rank wrapper: the same
options and variables, and a remote shell that costs next to nothing.

Then ranks that sleep: what our processes hold in memory on either node, and how long it takes from the
end of one rank of node 1 with status 3 to the head's exit. The end of a process is the kernel's notice
of it, through pidfds. Needs root, for the nodes.

The promise: the last line at most 300 ms later than with the bare mpirun, for every MPI.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from statistics import median

from benchmarks.machine import describe_machine
from benchmarks.mpirun_measure import NAMES, PARTS, Death, Result, measure
from benchmarks.mpirun_nodes import BARE, NODES, OURS
from benchmarks.process_start import Start
from benchmarks.tables import cell, markdown, promise
from tests.mpis import FAMILIES

PROMISE_MS = 300.0


def report(results: Mapping[str, Result]) -> list[str]:
    """Return the three tables."""
    starts, deaths = [], []
    for family, result in results.items():
        ours, bare, over = typical(result.starts[OURS]), typical(result.starts[BARE]), _over(result)
        starts.append([NAMES[family], *(f"{cell(line)} / {cell(end)}" for line, end in (ours, bare, over))])
        deaths.append([NAMES[family], *_deaths(result.deaths[OURS]), *_deaths(result.deaths[BARE])])
    return [
        "Milliseconds to the last rank's first line / to the exit:",
        "",
        *markdown(["MPI", OURS, BARE, "more"], starts),
        "",
        "From the end of a rank of node 1, with status 3, to the exit of the head, and its status:",
        "",
        *markdown(["MPI", f"{OURS}, ms", "status", f"{BARE}, ms", "status"], deaths),
        "",
        "Memory at rest, MiB (a page that processes share is counted for each of them):",
        "",
        *markdown(["what", "head's node", "other node"], _memory(results)),
    ]


def typical(starts: Sequence[Start]) -> Start:
    """Return the medians."""
    return Start(median(start.line_ms for start in starts), median(start.exit_ms for start in starts))


def _over(result: Result) -> Start:
    return typical(result.starts[OURS]).minus(typical(result.starts[BARE]))


def _deaths(deaths: Sequence[Death]) -> list[str]:
    return [
        cell(median(death.exit_ms for death in deaths)),
        " or ".join(sorted({str(death.status) for death in deaths})),
    ]


def _memory(results: Mapping[str, Result]) -> list[list[str]]:
    """Return the rows: medians over the MPIs of what each part has on each node."""
    rows = []
    for part in dict.fromkeys(PARTS.values()):
        cells = []
        for node in range(NODES):
            sums = [
                sum(one.mib for one in result.memory if (one.node, one.part) == (node, part))
                for result in results.values()
            ]
            cells.append(cell(median(sums)) if any(sums) else "")
        rows.append([part, *cells])
    return rows


def main() -> int:
    """Print the tables; the exit status says whether the promise holds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9, help="starts of each kind (9)")
    parser.add_argument("--only", choices=FAMILIES, nargs="+", default=list(FAMILIES), help="only these MPIs")
    asked = parser.parse_args()
    print(f"{describe_machine()}; load {os.getloadavg()[0]:.1f} at the start; {asked.rounds} starts each\n")
    results = {family: measure(family, asked.rounds) for family in asked.only}
    over = {NAMES[family]: _over(result).line_ms for family, result in results.items()}
    print("\n".join(report(results)))
    print()
    worst = max(over, key=lambda name: over[name])
    print(promise(f"ms more than bare mpirun, {worst}", PROMISE_MS, over[worst]))
    return int(over[worst] > PROMISE_MS)


if __name__ == "__main__":
    sys.exit(main())
