"""How soon does a job run again? ``python -m benchmarks.restarts [--quick] [--only PART ...]``

On simulated nodes with a network of their own each, the last rank of a job kills itself by SIGKILL. It takes
the time just before; all ranks of the next attempt take the time in their first line, by the same clock.
Beside ours: torchrun with an agent on each node, a shell loop that starts mpirun until it succeeds, and, for
scale, a shell on one node that only starts as many ranks. A job is left alone until its start is over, and
only then a rank dies. Parts:

- ``small``: 2 nodes and 4 nodes of 2 ranks, which import nothing.
- ``large``: 64 nodes of one such rank. All of them share this machine's CPUs.
- ``train``: 2 nodes of 2 ranks with PyTorch, until each has taken a step. The others wait for the dead rank
  in an allreduce. Horovod elastic's survivors go on without the node of the failure.
- ``load``: 2,000 nodes, of which one process plays all but node 0: see `benchmarks.restart_load`.

Large jobs of peers come last; after eight minutes nothing more is started, and the tables say so. Needs root,
for the nodes. On a machine that others use, milliseconds mean little: the tables say how busy it was.

The promises: less than 300 ms without frameworks, where the machine can start the ranks alone in that time;
at least 10 times as fast as torchrun; for 2,000 nodes less than 1 s from node 0's decision until the last
node has been told to start.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.jobs import NotMeasured
from benchmarks.machine import OtherLoad, describe_machine
from benchmarks.peers import OURS
from benchmarks.restart_jobs import (
    RESTARTS,
    TORCHRUN,
    Contender,
    Recovery,
    find_contenders,
    find_horovod,
    find_trainers,
    measure_floor_ms,
    run_job,
)
from benchmarks.restart_load import Restart, measure_load
from benchmarks.tables import cell, markdown, progress, promise

PROMISE_MS, PROMISE_RATIO, PROMISE_LOAD_MS = 300.0, 10.0, 1000.0
SMALL, LARGE, TRAIN = ((2, 2), (4, 2)), (64, 1), (2, 2)
LOAD_NODES = 2000
FLOOR_RUNS = 5
HOROVOD_LIMIT_S = 90.0
PARTS = ("load", "small", "train", "large")
BUDGET_S = 460.0
FLOOR = "a shell starts as many ranks"


class Found(NamedTuple):
    """What was measured of one contender; ``trouble``: why not all of it could be."""

    contender: Contender
    recoveries: list[Recovery]
    trouble: str


def measure(
    contenders: Sequence[Contender], shape: tuple[int, int], mode: str, jobs: int, failures: int, until: float
) -> list[Found]:
    """Return the recoveries of all contenders, job by job in turn; one that cannot is not tried again."""
    found = {contender.name: Found(contender, [], "") for contender in contenders}
    for number in range(jobs):
        for contender, recoveries, trouble in list(found.values()):
            if trouble:
                continue
            if time.monotonic() > until:
                found[contender.name] = Found(contender, recoveries, "time is up")
                continue
            progress(f"{_name(shape)}, {mode}: job {number + 1} of {jobs}: {contender.name}")
            try:
                recoveries.extend(run_job(contender, shape, mode, failures, until))
            except NotMeasured as problem:
                found[contender.name] = Found(contender, recoveries, str(problem))
                progress(f"{contender.name}: {problem}")
    return list(found.values())


def _name(shape: tuple[int, int]) -> str:
    return f"{shape[0]} nodes x {shape[1]} rank{'s' if shape[1] > 1 else ''}"


# --- the tables


def spread(values: Sequence[float]) -> str:
    """Return the median, and the range of all values."""
    return f"{cell(statistics.median(values))} ({cell(min(values))} to {cell(max(values))})"


def show(found: Sequence[Found], *, has_steps: bool = False) -> list[str]:
    """Return a table of recoveries: medians, ranges, and ratios of the medians to ours."""
    head = ["launcher", "failures", "first rank runs, ms", "last rank runs, ms"]
    head += [*(["last rank's first step, ms"] if has_steps else []), "times ours"]
    ours = _middle(found, OURS, has_steps=has_steps)
    rows = []
    for contender, recoveries, trouble in found:
        if not recoveries:
            text = trouble.replace("|", "/")[:160]
            rows.append([contender.name, str(len(recoveries)), f"not again: {text}", *[""] * (len(head) - 3)])
            continue
        columns = [[one.first_ms for one in recoveries], [one.last_ms for one in recoveries]]
        if has_steps:
            columns.append([one.step_ms or 0.0 for one in recoveries])
        cells = [spread(column) for column in columns]
        ratio = "" if ours is None else cell(statistics.median(columns[-1]) / ours)
        count = f"{len(recoveries)}{', then not again' if trouble else ''}"
        rows.append([contender.name, count, *cells, ratio])
    return [*markdown(head, rows), ""]


def _middle(found: Sequence[Found], name: str, *, has_steps: bool = False) -> float | None:
    """Return the median until the last rank's first line, or its first step."""
    for contender, recoveries, _ in found:
        if contender.name == name and recoveries:
            return statistics.median(
                one.step_ms if has_steps and one.step_ms else one.last_ms for one in recoveries
            )
    return None


def show_promises(
    found: Sequence[Found], shape: tuple[int, int], floor_ms: Sequence[float]
) -> tuple[list[str], bool]:
    """Return the lines about what was promised, and whether all of it was kept.

    Args:
        found: What was measured.
        shape: Number of nodes, and of ranks on each.
        floor_ms: How long this machine takes to start so many ranks at all. Where that is more than what is
            promised of a restart, nothing is.
    """
    ours, peer = _middle(found, OURS), _middle(found, TORCHRUN)
    words = f"For scale, {FLOOR} on this machine: {spread(floor_ms)} ms to the last one's first line"
    lines, kept = [f"{words}.", ""], True
    if statistics.median(floor_ms) > PROMISE_MS:
        lines = [f"{words}; that alone is more than the {PROMISE_MS:g} ms of the promise.", ""]
    elif ours is not None:
        lines.append(promise(f"ms until the last rank runs again, {_name(shape)}", PROMISE_MS, ours))
        kept = ours <= PROMISE_MS
    if ours is not None and peer is not None:
        words = f"times as fast as torchrun, {_name(shape)}"
        lines.append(promise(words, PROMISE_RATIO, peer / ours, least=True))
        kept = kept and peer / ours >= PROMISE_RATIO
    return [*lines, ""], kept and ours is not None


# --- the parts


def describe_others(found: Sequence[Found]) -> str:
    """Return how much of the machine others used: at rest, because ranks on nodes count as others."""
    shares = [one.others_percent for _, recoveries, _ in found for one in recoveries]
    if not shares:
        return ""
    words = f"{statistics.median(shares):.0f} % (up to {max(shares):.0f} %)"
    return f"Just before the deaths, when the jobs were at rest, everybody else used {words} of the CPUs."


def measure_bare(shape: tuple[int, int], jobs: int, failures: int, until: float) -> bool:
    """Measure and print what restarts ranks that import nothing; return whether the promises hold."""
    found = measure(find_contenders(), shape, "bare", jobs, failures, until)
    print(f"### {_name(shape)} that import nothing ({jobs} jobs with {failures} failures each)\n")
    print("From the death of a rank until the ranks of the next attempt run; medians, and in brackets all:\n")
    print("\n".join(show(found)))
    lines, kept = show_promises(
        found, shape, [measure_floor_ms(shape[0] * shape[1]) for _ in range(FLOOR_RUNS)]
    )
    print("\n".join(lines))
    print(f"{describe_others(found)}\n")
    return kept


def measure_train(jobs: int, failures: int, until: float) -> None:
    """Measure and print what restarts training."""
    found = measure(find_trainers(), TRAIN, "train", jobs, failures, until)
    horovod = find_horovod()
    progress(horovod.name)
    recoveries: list[Recovery] = []
    trouble = ""
    try:
        recoveries.extend(run_job(horovod, TRAIN, "horovod", 1, until, HOROVOD_LIMIT_S))
    except NotMeasured as problem:
        trouble = str(problem)
    found.append(Found(horovod, recoveries, trouble))
    print(f"### {_name(TRAIN)}, PyTorch with gloo ({jobs} jobs with {failures} failures each)\n")
    print("\n".join(show(found, has_steps=True)))
    print(f"{describe_others(found)}\n")


def measure_many(failures: int) -> bool:
    """Measure and print a restart of 2,000 nodes; return whether the promise holds."""
    load = OtherLoad()
    progress(f"{LOAD_NODES:,} nodes, {failures} failures")
    found = measure_load(LOAD_NODES, failures)
    print(f"### {LOAD_NODES:,} nodes, all but node 0 in one process ({failures} failures of one job)\n")
    titles = {
        "stop_ms": "a failure is reported: all are told to stop",
        "decide_ms": "the last node has ended: node 0 tells the first of the next attempt",
        "again_ms": "node 0 has decided: all know of the next attempt",
        "start_ms": "node 0 has decided: all are told to start",
        "whole_ms": "a failure is reported: all are told to start",
        "cpu_ms": "CPU time of node 0 in the whole of that",
    }
    rows = [[title, spread([getattr(one, name) for one in found])] for name, title in titles.items()]
    print("\n".join([*markdown(["from: until", "ms"], rows), ""]))
    told, started = (statistics.median(times) for times in _decided(found))
    words = f"ms from node 0's decision until all {LOAD_NODES:,} nodes"
    print(promise(f"{words} know of it", PROMISE_LOAD_MS, told))
    print(promise(f"{words} are told to start", PROMISE_LOAD_MS, started))
    print(f"\nEverybody else used {load.percent():.0f} % of the CPUs meanwhile.\n")
    return max(told, started) <= PROMISE_LOAD_MS


def _decided(found: Sequence[Restart]) -> tuple[list[float], list[float]]:
    return [one.again_ms for one in found], [one.start_ms for one in found]


def main() -> int:
    """Measure, and print the tables; the exit status says whether the promises hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a look: no 64 nodes, fewer failures")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="only these parts")
    asked = parser.parse_args()
    print(f"{describe_machine()}; load {os.getloadavg()[0]:.1f} at the start.\n")
    versions = {one.name: one.version for one in (*find_contenders(), find_horovod())}
    print("\n".join([*markdown(["launcher", "version"], [list(pair) for pair in versions.items()]), ""]))
    kept, until = [], time.monotonic() + BUDGET_S
    if "load" in asked.only:
        kept.append(measure_many(2 if asked.quick else RESTARTS))
    if "small" in asked.only:
        kept += [measure_bare(shape, 2 if asked.quick else 5, 1, until) for shape in SMALL]
    if "train" in asked.only:
        measure_train(1, 2 if asked.quick else RESTARTS, until)
    if "large" in asked.only and not asked.quick:
        kept.append(measure_bare(LARGE, 1, RESTARTS, until))
    return int(not all(kept))


if __name__ == "__main__":
    raise SystemExit(main())
