"""How soon do all ranks of a node take their first step? ``python -m benchmarks.first_step [--quick]``

Ranks print, import torch, import two classes of transformers, or import torch and take part in an allreduce
by gloo. They are started by a shell loop, by ours without and with ``--preload``, and by the peers. Their
Python has all of these packages (LAUNCHER_BENCH_STACK). The time is that from the start of the launcher until
the last rank's line arrives at its standard output. Each round starts every launcher once.

``cold``: the page cache is dropped before each start, as on a node that has just pulled its image
(needs root).

Memory is that of all processes of the job while 8 ranks wait behind their allreduce: resident (pages that are
shared count for each process) and proportional (they count once), in MiB.

The promises: 8 ranks are at their first allreduce at least 4 times sooner than with torchrun, and within 1.5
times of what one process needs to import torch and do that.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import psutil

from benchmarks.jobs import Job, NotMeasured, Stage
from benchmarks.machine import OtherLoad, describe_machine
from benchmarks.peers import LOOP, OURS, Peer, find_peers, free_port
from benchmarks.tables import cell, markdown, progress, promise

RANK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "first_step_rank.py")
PRELOADED = f"{OURS} --preload"
COMPARED = ("torchrun, static rendezvous", "accelerate launch", "Open MPI 4.1 mpirun", "Open MPI 5 mpirun")
MODES = {
    "print": "",
    "torch": "torch",
    "transformers": "transformers,transformers.AutoModel,transformers.Trainer",
    "allreduce": "torch",
}
"""What a rank does, and what is preloaded for that."""
SHELL_LOOP = 'i=0; while [ $i -lt "$0" ]; do RANK=$i WORLD_SIZE=$0 "$@" & i=$((i+1)); done; wait'
SOONER, OF_ONE = 4.0, 1.5
TORCHRUN = COMPARED[0]
LIMIT_S = 300.0
MIB = 1 << 20


class Row(NamedTuple):
    """One launcher, and what it is given for each mode."""

    name: str
    peer: Peer
    preloads: bool = False


def find_rows() -> list[Row]:
    """Return the launchers that are here, in the order of the tables."""
    peers = {peer.name: peer for peer in find_peers() if peer.present}
    loop = peers[LOOP]._replace(words=lambda count: ["/bin/sh", "-c", SHELL_LOOP, str(count)])
    rows = [Row(LOOP, loop), Row(OURS, peers[OURS]), Row(PRELOADED, peers[OURS], preloads=True)]
    return rows + [Row(name, peers[name]) for name in COMPARED if name in peers]


def begin(stage: Stage, row: Row, count: int, mode: str, *words: str) -> tuple[Job, float]:
    """Return a job, and the seconds until the line of its last rank; ``words``: the ranks wait behind it."""
    options = ("--preload", MODES[mode]) if row.preloads else ()
    python = os.path.join(os.environ["LAUNCHER_BENCH_STACK"], "bin", "python")
    environ = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    job = stage.start_command(row.peer, count, (python, RANK, mode, *words), options, environ)
    return job, (job.see_lines(count) - job.started_ns) / 1e9


def start(stage: Stage, row: Row, count: int, mode: str) -> float:
    """Return the seconds until the line of the last rank of a job that then ends."""
    job, took_s = begin(stage, row, count, mode)
    job.process.wait(LIMIT_S)
    stage.end(job)
    return took_s


def measure(
    stage: Stage, rows: Sequence[Row], counts: Sequence[int], modes: Sequence[str], rounds: int, *, cold: bool
) -> dict[tuple[str, str, int], list[float]]:
    """Return seconds by launcher, mode and number of ranks."""
    found: dict[tuple[str, str, int], list[float]] = {}
    for turn in range(rounds):
        for mode in modes:
            for count in counts:
                progress(f"{'cold ' if cold else ''}{mode}, {count} ranks, round {turn + 1} of {rounds}")
                for row in rows:
                    if row.preloads and not MODES[mode]:
                        continue
                    if cold:
                        drop_caches()
                    try:
                        found.setdefault((row.name, mode, count), []).append(start(stage, row, count, mode))
                    except NotMeasured as trouble:
                        progress(f"{row.name}: {trouble}")
    return found


def drop_caches() -> None:
    """Have the kernel forget the files that it has read."""
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3")


def weigh(stage: Stage, row: Row, count: int) -> tuple[float, float]:
    """Return resident and proportional MiB of all processes of a job whose ranks wait."""
    job, _ = begin(stage, row, count, "allreduce", "stay")
    seen = [one for one in job.processes() if one.status() != psutil.STATUS_ZOMBIE]
    infos = [one.memory_full_info() for one in seen]
    stage.end(job)
    return sum(one.rss for one in infos) / MIB, sum(one.pss for one in infos) / MIB


def report(
    found: dict[tuple[str, str, int], list[float]],
    rows: Sequence[Row],
    counts: Sequence[int],
    cache: str = "",
) -> None:
    """Print a table for each mode; ``cache``: what the heads say of the page cache."""
    for mode in MODES:
        if not any(key[1] == mode for key in found):
            continue
        print(f"\n#### {mode}, seconds until the last rank's line: median (span)\n")
        heads = [f"{count} rank{'s' if count > 1 else ''}, {mode}{cache}" for count in counts]
        table = [
            [row.name, *(_cell(found.get((row.name, mode, count), [])) for count in counts)]
            for row in rows
            if any((row.name, mode, count) in found for count in counts)
        ]
        print("\n".join(markdown(["launcher", *heads], table)))


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "failed"
    return f"{cell(median(values))} ({cell(min(values))} to {cell(max(values))})"


def main() -> int:
    """Measure, print the tables, and say whether the promises hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a look: one round, 8 ranks, allreduce")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    counts, modes = ((8,), ("allreduce",)) if asked.quick else ((1, 2, 8), tuple(MODES))
    rounds = 1 if asked.quick else asked.rounds
    rows = find_rows()
    print(f"{describe_machine()}\n")
    print("\n".join(markdown(["launcher", "version"], [[row.name, row.peer.version] for row in rows])))
    load = OtherLoad()
    with Stage() as stage:
        found = measure(stage, rows, counts, modes, rounds, cold=False)
        single = [start(stage, rows[0], 1, "allreduce") for _ in range(rounds)]
        report(found, rows, counts)
        if not asked.quick and os.geteuid() == 0:
            print("\n### With a cold page cache")
            report(measure(stage, rows, (8,), ("torch", "allreduce"), 1, cold=True), rows, (8,), ", cold")
        print("\n### Memory of 8 ranks behind their allreduce, MiB\n")
        weights = [(row.name, *map(cell, weigh(stage, row, 8))) for row in rows]
        print("\n".join(markdown(["launcher", "resident", "proportional"], weights)))
    print(f"\nEverybody else used {load.percent():.0f} % of the CPUs meanwhile.\n")
    ours = median(found[PRELOADED, "allreduce", 8])
    sooner, of_one = median(found[TORCHRUN, "allreduce", 8]) / ours, ours / median(single)
    print(promise("times sooner than torchrun, 8 ranks at their first allreduce", SOONER, sooner, least=True))
    print(promise("times one process, 8 ranks at their first allreduce", OF_ONE, of_one))
    return int(sooner < SOONER or of_one > OF_ONE)


if __name__ == "__main__":
    sys.exit(main())
