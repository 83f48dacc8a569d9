"""Entry point: ``launcher run -- python -m launcher.bandwidth``, once per process of the job."""

from __future__ import annotations

import os
import sys

from launcher.bandwidth.expect import judge, plan_expectation, read_ways
from launcher.bandwidth.job import BandwidthJob
from launcher.bandwidth.nodes import choose_backend, describe_process, list_units, read_nodes
from launcher.bandwidth.pairs import Pair, explain_slow, find_slow, plan_rounds, render_pairs, slow_links
from launcher.core.errors import LauncherError, make_error, print_problems
from launcher.core.redact import printable, redact
from launcher.machine.host import Host
from launcher.options.parser import make_parser

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping, Sequence

    from launcher.bandwidth.nodes import MeasuredNode
    from launcher.bandwidth.pairs import Link

DESCRIPTION = "measure the bandwidth between the processes of a job and compare it with the hardware"
SIZES = tuple(1 << power for power in (10, 14, 18, 22, 26, 30))
"""Bytes, from latency to bandwidth."""
PAIR_SIZES = tuple(1 << power for power in (10, 18, 26))
LIMIT_S, PAIR_LIMIT_S = 10.0, 2.0
"""Seconds per size: fewer iterations fit in, and larger sizes are skipped."""
WRONG_SUMS = 1


def parse_options(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of a command line.

    Raises:
        UsageError: The command line is not valid.
    """
    parser = make_parser("bandwidth", "[options]", DESCRIPTION)
    parser.epilog = (
        "Same as: launcher run -- python -m launcher.bandwidth [options]. Pass the flags of "
        "launcher run there, or as variables: LAUNCHER_NPROC_PER_NODE=2 launcher bandwidth."
    )
    text = "measure each pair of nodes (on one node: each pair of processes) to find a slow node or link"
    parser.add_argument("--pairs", action="store_true", help=text)
    return parser.parse_args(argv)


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Measure together with the other processes; rank 0 reports. Return the exit status."""
    try:
        return run(parse_options(argv), environ)
    except LauncherError as error:
        print_problems(error)
        return error.exit_status


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Find the other processes, measure, and leave them. Return the exit status."""
    job = BandwidthJob(environ)
    ways = None if job.local_rank else read_ways(Host(), environ)
    nodes = read_nodes(job.gather("facts", describe_process(job.torch, environ, ways)))
    try:
        library = job.use(choose_backend(nodes))
        lines, status = (_measure_pairs if options.pairs else _measure_all)(job, nodes)
    finally:
        job.leave()
    if job.rank == 0:
        title = f"all-reduce of float32, processes: {job.world_size}, nodes: {len(nodes)}, {library}"
        for line in (title, "", *lines):
            print(printable(redact(line)), flush=True)  # other nodes sent names and variables in them
    return status


def _measure_all(job: BandwidthJob, nodes: Sequence[MeasuredNode]) -> tuple[list[str], int]:
    samples = job.sweep("all", range(job.world_size), SIZES, LIMIT_S)
    verdict = judge(max(sample.bus_gbps for sample in samples), plan_expectation(nodes, job.backend), nodes)
    are_right = all(sample.is_right for sample in samples)
    head = f"{'bytes':>13}{'time':>15}{'busbw, GB/s':>13}{'busbw, Gb/s':>13}"
    return [head, *map(str, samples), "", *verdict], 0 if are_right else WRONG_SUMS


def _measure_pairs(job: BandwidthJob, nodes: Sequence[MeasuredNode]) -> tuple[list[str], int]:
    """Measure every two units, then those that look slow again, alone."""
    units = list_units(nodes)
    if len(units) < 2:
        raise make_error("bandwidth-pairs")
    names, ranks = tuple(units), tuple(units.values())
    pairs = _measure_rounds(job, ranks, plan_rounds(len(units)), "round")
    again = [(link,) for link in slow_links(list(pairs.values())) if len(units) > 3]
    pairs.update(_measure_rounds(job, ranks, again, "again"))
    measured = list(pairs.values())
    return [*render_pairs(names, measured), "", *explain_slow(names, measured, find_slow(measured))], 0


def _measure_rounds(
    job: BandwidthJob, units: Sequence[Sequence[int]], rounds: Iterable[Sequence[Link]], name: str
) -> dict[Link, Pair]:
    """Return the pairs of some rounds, the same on all processes."""
    pairs: dict[Link, Pair] = {}
    for number, links in enumerate(rounds):
        mine = {}
        for link in links:
            ranks = sorted((*units[link[0]], *units[link[1]]))
            if job.rank in ranks:
                mine = job.measure_pair(f"{name} {number} {link}", ranks, PAIR_SIZES, PAIR_LIMIT_S)
        # Check, warm-up and iterations of each size take this long at most.
        found = job.gather(f"{name} {number}", mine, 4 * PAIR_LIMIT_S * len(PAIR_SIZES))
        pairs.update((link, Pair(link, **found[min(units[link[0]])])) for link in links)
    return pairs


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
