"""Running processes, side by side with the peers. ``python -m benchmarks.processes [--quick] [--only Q ...]``

Four questions, each in a module of its own that says how it measures: the time of a start
(`process_start`), what the parent costs at rest (`process_parent`), how fast a death ends the job
(`process_death`), how much output passes (`process_logs`). Prints Markdown; all launchers of a question
are measured in one interleaved run, and medians are shown. The status is 1 if a promise was broken.

Against another commit: ``git worktree add /tmp/before COMMIT`` and ``--before /tmp/before``. Beside
torchrun on two nodes, which are both this machine: ``--job nodes``. What ``--stay`` costs: ``--job ranks``.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks import process_death, process_logs, process_parent, process_start
from benchmarks.jobs import Stage
from benchmarks.machine import OtherLoad, describe_machine
from benchmarks.peers import Peer, find_both, find_on_nodes, find_peers, find_with_ranks
from benchmarks.rank import BLOCK_BYTES
from benchmarks.tables import markdown, promise

JOBS = {"node": find_peers, "nodes": find_on_nodes, "ranks": find_with_ranks}
QUESTIONS = ("start", "parent", "death", "logs")


class Effort(NamedTuple):
    """How much is measured."""

    counts: Sequence[int]
    rounds: int
    repeats: int
    idle_s: float
    mib: int


FULL = Effort((1, 2, 8, 32), rounds=4, repeats=5, idle_s=30.0, mib=512)
QUICK = Effort((2, 8), rounds=1, repeats=3, idle_s=5.0, mib=32)


class Section(NamedTuple):
    """One answered question: its Markdown, what we promised, and what went wrong."""

    lines: list[str]
    promises: list[tuple[str, float, float]]
    troubles: list[str]


def main() -> int:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a look, in 3 minutes: few rounds, small sizes")
    parser.add_argument(
        "--only", choices=QUESTIONS, nargs="+", default=QUESTIONS, help="only these questions"
    )
    parser.add_argument(
        "--before", help="measure beside the launcher of another checkout, not beside the peers"
    )
    parser.add_argument(
        "--job",
        choices=JOBS,
        default="node",
        help="on one node, on two, or whose ranks mpirun starts",
    )
    asked = parser.parse_args()
    peers = find_both(asked.before) if asked.before else JOBS[asked.job]()
    effort = QUICK if asked.quick else FULL
    if asked.job != "node":
        effort = effort._replace(counts=[count for count in effort.counts if count > 1])
    present = [peer for peer in peers if peer.present]
    print("\n".join(heading(peers)))
    promises = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the stage is left in order
    with Stage() as stage:
        for question in asked.only:
            others = OtherLoad()
            section = answer(question, stage, present, effort)
            said = [f"Failed: {text}  " for text in section.troubles]
            said.append(f"Everybody else used {others.percent():.0f} % of the CPUs meanwhile.")
            print("\n".join(["", *section.lines, "", *said]), flush=True)
            promises += section.promises
        left = stage.leftovers()
    print("\n".join(["", *promise_lines(promises)]))
    print(f"\nLeft behind on this machine: {'; '.join(left) or 'nothing'}.")
    return int(any(value > limit for _, limit, value in promises) or bool(left))


def heading(peers: list[Peer]) -> list[str]:
    """Return machine, load, and what each launcher is."""
    load = "/".join(f"{value:.1f}" for value in os.getloadavg())
    lines = [f"{describe_machine()}; load {load} at the start.", ""]
    return lines + markdown(["launcher", "version"], [[peer.name, peer.version] for peer in peers])


def answer(question: str, stage: Stage, peers: list[Peer], effort: Effort) -> Section:
    """Measure one question."""
    if question == "start":
        starts = process_start.measure(stage, peers, effort.counts, effort.rounds, effort.repeats)
        runs = f"{effort.rounds} rounds; {effort.repeats} runs in each for what starts quickly"
        title = f"### Start (medians of {runs})"
        said = [f"{name}, {count} processes: {text}" for (name, count), text in starts.troubles.items()]
        return Section(
            [title, "", *process_start.report(peers, starts)], process_start.promises(starts), said
        )
    if question == "parent":
        rounds = 1 if effort.rounds == 1 else 3
        found, troubles = process_parent.measure(stage, peers, rounds, effort.idle_s)
        title = f"### The parent at rest (2 processes that sleep; medians of {rounds})"
        lines = [title, "", *process_parent.report(peers, found)]
        return Section(
            lines, process_parent.promises(found), [f"{n}: {text}" for n, text in troubles.items()]
        )
    if question == "death":
        deaths, troubles = process_death.measure(stage, peers, effort.rounds)
        title = f"### From a death to the exit (2 processes, one exits with 3; medians of {effort.rounds})"
        lines = [title, "", *process_death.report(peers, deaths)]
        return Section(
            lines, process_death.promises(deaths), [f"{n}: {text}" for n, text in troubles.items()]
        )
    ways = process_logs.find_ways(peers)
    blocks = -(-effort.mib * 1024 * 1024 // BLOCK_BYTES)
    rounds = 1 if effort.rounds == 1 else 3
    flows = process_logs.measure(stage, ways, rounds, blocks)
    title = f"### Output (2 processes, {effort.mib} MiB each in lines of 80 bytes; medians of {rounds})"
    lines = [title, "", *process_logs.report(ways, flows)]
    return Section(lines, [], [f"{name}: {text}" for name, text in flows.troubles.items()])


def promise_lines(promises: list[tuple[str, float, float]]) -> list[str]:
    """Return one line for each promise: kept or not."""
    return [promise(*one) for one in promises]


if __name__ == "__main__":
    sys.exit(main())
