"""The command line of ``python -m launcher.bandwidth``."""

from __future__ import annotations

import argparse

from launcher.bandwidth.definitions import list_sizes, parse_size, render_size
from launcher.core.frozen import frozen
from launcher.options.parser import make_parser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from launcher.options.parser import Parser

DESCRIPTION = "measure the bandwidth between the processes of a job and compare it with the hardware"
SWEEP = (1 << 10, 1 << 30, 4)
"""Smallest size, largest size, factor: from latency to bandwidth."""
PAIRS = (1 << 10, 1 << 26, 256)
"""The same for each pair: latency, and bandwidth at large sizes."""
SLOW_BELOW = 0.7
LIMIT_S, PAIRS_LIMIT_S = 10.0, 2.0
FORMATS = ("text", "json")
BACKENDS = ("auto", "nccl", "gloo")


@frozen
class Options:
    """Options of the command; see its own help."""

    sizes: tuple[int, ...]
    iters: int
    warmup: int
    limit_s: float
    backend: str
    pairs: bool
    one_by_one: bool
    slow_below: float
    timeout_s: float
    format: str
    output: str
    svg: str | None


def parse_options(argv: Sequence[str]) -> Options:
    """Return the options of a command line.

    Raises:
        UsageError: The command line is not valid.
    """
    parser = _make_parser()
    words = parser.parse_args(argv)
    smallest, largest, factor = PAIRS if words.pairs else SWEEP
    try:
        sizes = list_sizes(
            words.min_bytes or smallest,
            words.max_bytes or max(largest, words.min_bytes or 0),
            words.factor or factor,
        )
    except ValueError as error:
        parser.error(f"--min-bytes, --max-bytes, --factor: {error}")
    for flag, given in (("--one-by-one", words.one_by_one), ("--slow-below", words.slow_below)):
        if given and not words.pairs:
            parser.error(f"{flag} goes with --pairs")
    words.slow_below = words.slow_below or SLOW_BELOW
    if words.svg and words.pairs:
        parser.error("--svg draws bandwidth over size, which --pairs does not measure")
    words.limit_s = words.limit_s or (PAIRS_LIMIT_S if words.pairs else LIMIT_S)
    fields = ("iters", "warmup", "limit_s", "backend", "pairs", "one_by_one", "slow_below", "timeout_s")
    values = {name: getattr(words, name) for name in (*fields, "format", "output", "svg")}
    return Options(sizes=sizes, **values)


def _make_parser() -> Parser:
    parser = make_parser("bandwidth", "[options]", DESCRIPTION)
    parser.epilog = (
        "The same as: launcher run -- python -m launcher.bandwidth [options]. Flags of launcher run are "
        "given there, or as variables: LAUNCHER_NPROC_PER_NODE=2 launcher bandwidth."
    )
    add = parser.add_argument
    size = _value(parse_size)
    add("--min-bytes", type=size, metavar="SIZE", help=f"smallest size ({_text(SWEEP[0])})")
    text = f"largest size ({_text(SWEEP[1])}; with --pairs {_text(PAIRS[1])})"
    add("--max-bytes", type=size, metavar="SIZE", help=text)
    text = f"factor from one size to the next ({SWEEP[2]}; with --pairs {PAIRS[2]})"
    add("--factor", type=_value(_whole(2)), metavar="N", help=text)
    add("--iters", type=_value(_whole(1)), metavar="N", default=20, help="all-reduces per size (20)")
    text = "warm-up all-reduces before each size, not measured (5)"
    add("--warmup", type=_value(_whole(1)), metavar="N", default=5, help=text)
    text = "seconds per size: reduces iterations, skips sizes with a slower iteration (10; pairs 2)"
    add("--limit", dest="limit_s", type=_value(_seconds), metavar="S", help=text)
    text = "backend to measure: nccl if each process has a GPU, otherwise gloo (auto)"
    add("--backend", choices=BACKENDS, default="auto", help=text)
    text = "measure each pair of nodes (on one node: each pair of processes) to find a slow node or link"
    add("--pairs", action="store_true", help=text)
    text = "with --pairs: one pair at a time; by default pairs without a common node run at the same time"
    add("--one-by-one", action="store_true", help=text)
    text = "with --pairs: a pair is slow below this fraction of the usual bandwidth (0.7)"
    add("--slow-below", type=_value(_fraction), metavar="F", help=text)
    text = "seconds that processes wait for each other at the start (120)"
    add("--timeout", dest="timeout_s", type=_value(_seconds), metavar="S", default=120.0, help=text)
    add("--format", choices=FORMATS, default="text", help="output format (text)")
    text = "where rank 0 writes the report (standard output; launcher run puts [rank 0] before lines)"
    add("-o", "--output", metavar="FILE", default="-", help=text)
    add("--svg", metavar="FILE", help="where rank 0 draws bus bandwidth over size")
    return parser


def _text(size_bytes: int) -> str:
    return render_size(size_bytes).replace(" ", "")


def _value(parse: Callable[[str], float]) -> Callable[[str], float]:
    """Wrap a parser so that argparse prints our own message about a wrong value."""

    def parse_or_say(text: str) -> float:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error

    return parse_or_say


def _whole(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) <= 9 and int(text) >= least):
            raise ValueError(f"expected a whole number of {least} or more")
        return int(text)

    return parse


def _seconds(text: str) -> float:
    return _between(text, 0.01, 86400)


def _fraction(text: str) -> float:
    return _between(text, 0.01, 1)


def _between(text: str, least: float, most: float) -> float:
    expected = f"expected a number from {least:g} to {most:g}"
    try:
        value = float(text)
    except ValueError:
        raise ValueError(expected) from None
    if not least <= value <= most:  # a NaN fails this, too
        raise ValueError(expected)
    return value
