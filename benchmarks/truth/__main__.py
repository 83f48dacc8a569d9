"""``python -m benchmarks.truth``: see ``--help``. Prints a table of all faults, and what was not right.

Needs torch, and namespaces.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import defaultdict
from pathlib import Path

from benchmarks.machine import describe_machine
from benchmarks.tables import markdown, progress
from benchmarks.truth.jobs import LAUNCHERS, Job, World, list_launchers
from benchmarks.truth.judge import Verdict, judge
from launcher.core.blocks import Block, read_blocks
from launcher.rehearse.cluster import Cluster

PARTS = ("rank", "node", "cause", "retry", "status", "clean")
HEADS = ("rank right", "node right", "cause right", "retry right", "exit code right", "clean")


def main() -> None:
    """Run the jobs and print what came out."""
    faults = {block.name: block for block in read_blocks(str(Path(__file__).with_name("faults.txt")))}
    parser = argparse.ArgumentParser(prog="python -m benchmarks.truth")
    parser.add_argument("--only", nargs="+", default=list(faults), choices=list(faults), metavar="FAULT")
    parser.add_argument("--with", dest="launchers", nargs="+", default=list_launchers(), choices=[*LAUNCHERS])
    parser.add_argument("--world", nargs="+", default=["2x2"], help="nodes x ranks of each")
    parser.add_argument("--runs", type=int, default=1, help="of each fault, world and launcher")
    parser.add_argument("--seed", type=int, default=1, help="which rank is the victim")
    asked = parser.parse_args()
    worlds = [World(*map(int, text.split("x"))) for text in asked.world]
    verdicts: dict[tuple[str, str], list[Verdict]] = defaultdict(list)
    wrong: list[str] = []
    for name in asked.only:
        for world in worlds:
            for run in range(asked.runs):
                victim = random.Random(f"{asked.seed} {name} {world} {run}").randrange(world.size)
                for launcher in asked.launchers:
                    found = inject(launcher, faults[name], victim, world)
                    verdicts[name, launcher].append(found)
                    bad = [part for part in PARTS if getattr(found, part) is False]
                    line = f"{launcher}, {name} at rank {victim} of {world.nodes}x{world.each}: "
                    line += f"{', '.join(bad) or 'nothing'} wrong; {found.said}"
                    progress(line)
                    wrong += [f"- {line}"] if bad else []
    print(describe_machine())
    for launcher in asked.launchers:
        rows = {name: verdicts[name, launcher] for name in asked.only}
        print("", f"{launcher}:", "", *_tabulate(faults, rows), sep="\n")
    print("", "What went wrong:", "", *wrong, sep="\n")


def inject(launcher: str, fault: Block, victim: int, world: World) -> Verdict:
    """Run one job with one fault."""
    with tempfile.TemporaryDirectory(prefix="truth_") as name:
        with Cluster(world.nodes) as cluster:
            job = Job(cluster, world, launcher, fault, victim, Path(name))
            outcome = job.run()
            for one in job.launchers:
                one.kill()  # nsenter stops with a frozen node, and would keep the node's processes
                one.wait()
        return judge(launcher, fault, victim, world, outcome)


def _tabulate(faults: dict[str, Block], verdicts: dict[str, list[Verdict]]) -> list[str]:
    """Return the lines of a table: how many verdicts on each fault were right, and the seconds to the end."""
    rows = []
    for name, found in verdicts.items():
        times = sorted(one.seconds for one in found if one.seconds is not None)
        middle = f"{times[len(times) // 2]:.1f}" if times else "never"
        rows.append([faults[name].fields["text"], str(len(found)), *_count(found), middle])
    all_found = [one for found in verdicts.values() for one in found]
    rows.append(["all", str(len(all_found)), *_count(all_found), ""])
    return markdown(["fault", "jobs", *HEADS, "median s"], rows)


def _count(found: list[Verdict]) -> list[str]:
    """Return how many are right in each part; where not all say something, of how many."""
    cells = []
    for part in PARTS:
        said = [getattr(one, part) for one in found if getattr(one, part) is not None]
        counted = f"{sum(said)}" if len(said) == len(found) else f"{sum(said)} of {len(said)}"
        cells.append(counted if said else "-")
    return cells


if __name__ == "__main__":
    main()
