"""The command line of ``python -m launcher.bandwidth``, and what it measures."""

from __future__ import annotations

from launcher.bandwidth.definitions import list_sizes
from launcher.core.frozen import frozen
from launcher.options.parser import make_parser, of_kind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

DESCRIPTION = "measure the bandwidth between the processes of a job and compare it with the hardware"
SWEEP = (1 << 10, 1 << 30, 4)
"""Smallest size, largest size, factor: from latency to bandwidth."""
PAIRS = (1 << 10, 1 << 26, 256)
"""The same for each pair: latency, and bandwidth at large sizes."""
ITERS, WARMUP = 20, 5
"""All-reduces per size, measured and before."""
LIMIT_S, PAIRS_LIMIT_S = 10.0, 2.0
"""Seconds per size: fewer iterations fit in, and sizes with a slower one are skipped."""
TIMEOUT_S = 120.0
"""How long the processes wait for each other at the start."""
SLOW_BELOW = 0.7
"""Fraction of the usual bandwidth below which a pair is slow."""


@frozen
class Options:
    """Options of the command, and the sizes and the seconds per size that follow from them."""

    sizes: tuple[int, ...]
    limit_s: float
    pairs: bool
    format: str
    output: str


def parse_options(argv: Sequence[str]) -> Options:
    """Return the options of a command line.

    Raises:
        UsageError: The command line is not valid.
    """
    parser = make_parser("bandwidth", "[options]", DESCRIPTION)
    parser.epilog = (
        "The same as: launcher run -- python -m launcher.bandwidth [options]. Flags of launcher run are "
        "given there, or as variables: LAUNCHER_NPROC_PER_NODE=2 launcher bandwidth."
    )
    add = parser.add_argument
    add(
        "--max-bytes", type=of_kind("size 1K"), metavar="SIZE", help="largest size (1GiB; with --pairs 64MiB)"
    )
    text = "measure each pair of nodes (on one node: each pair of processes) to find a slow node or link"
    add("--pairs", action="store_true", help=text)
    add("--format", choices=("text", "json"), default="text", help="output format (text)")
    text = "where rank 0 writes the report (standard output; launcher run puts [rank 0] before lines)"
    add("-o", "--output", metavar="FILE", default="-", help=text)
    words = parser.parse_args(argv)
    smallest, largest, factor = PAIRS if words.pairs else SWEEP
    sizes = list_sizes(smallest, words.max_bytes or largest, factor)
    limit_s = PAIRS_LIMIT_S if words.pairs else LIMIT_S
    return Options(sizes, limit_s, words.pairs, words.format, words.output)
