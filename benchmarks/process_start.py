"""How long from the start of a launcher to the first line of its last process, and to its own exit?

The processes are bare ``python -I -S`` that print a line. A line counts when it arrives at the reader
of the launcher's stdout, so that a launcher which passes output on pays for that. Each round starts
every launcher in turn, the quick ones several times; a launcher's distance to the shell loop is taken
within the round, from the loop's median of that round.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from benchmarks.jobs import NotMeasured, Stage
from benchmarks.peers import LOOP, OURS, Peer
from benchmarks.tables import cell, markdown, progress

PROMISE_MS = 35.0
EXIT_LIMIT_S = 120.0


class Start(NamedTuple):
    """Milliseconds from the start to the last first line, and to the launcher's exit."""

    line_ms: float
    exit_ms: float

    def minus(self, other: Start) -> Start:
        """Return the distance to another."""
        return Start(self.line_ms - other.line_ms, self.exit_ms - other.exit_ms)


class Starts(NamedTuple):
    """What was measured: (launcher, count) to times, to distances from the loop, or to what went wrong."""

    counts: Sequence[int]
    times: dict[tuple[str, int], list[Start]]
    over_loop: dict[tuple[str, int], list[Start]]
    troubles: dict[tuple[str, int], str]


def measure(stage: Stage, peers: Sequence[Peer], counts: Sequence[int], rounds: int, repeats: int) -> Starts:
    """Start every launcher with every count, ``rounds`` times, the quick ones ``rounds * repeats`` times."""
    result = Starts(counts, {}, {}, {})
    for number in range(rounds):
        for count in counts:
            progress(f"start: round {number + 1} of {rounds}, {count} processes")
            _round(stage, peers, count, repeats, result)
    return result


def _round(stage: Stage, peers: Sequence[Peer], count: int, repeats: int, result: Starts) -> None:
    here: dict[str, list[Start]] = {}
    for repeat in range(repeats):
        for peer in peers:
            key = (peer.name, count)
            if key in result.troubles or (repeat and not peer.quick):
                continue
            try:
                here.setdefault(peer.name, []).append(start_once(stage, peer, count))
            except NotMeasured as trouble:
                result.troubles[key] = str(trouble)
    loop = here.get(LOOP)
    for name, starts in here.items():
        result.times.setdefault((name, count), []).extend(starts)
        if loop:
            overs = result.over_loop.setdefault((name, count), [])
            overs.extend(start.minus(middle(loop)) for start in starts)


def start_once(stage: Stage, peer: Peer, count: int) -> Start:
    """Start one launcher and wait for its end.

    Raises:
        NotMeasured: Lines are missing, or its status is not 0.
    """
    job = stage.start(peer, count, "print")
    try:
        line = job.see_lines(count)
        status = job.process.wait(EXIT_LIMIT_S)
        ended = time.monotonic_ns()
        if status:
            raise job.trouble("it failed")
        return Start((line - job.started_ns) / 1e6, (ended - job.started_ns) / 1e6)
    finally:
        stage.end(job)


def middle(starts: Sequence[Start]) -> Start:
    """Return the medians."""
    return Start(median(start.line_ms for start in starts), median(start.exit_ms for start in starts))


def report(peers: Sequence[Peer], result: Starts) -> list[str]:
    """Return the two tables: times, and distances to the loop."""
    heads = [f"{count} process{'es' if count > 1 else ''}" for count in result.counts]
    lines = ["Milliseconds to the first line of the last process / to the launcher's exit:", ""]
    lines += markdown(["launcher", *heads], _rows(peers, result, result.times))
    lines += ["", "Milliseconds over the shell loop in the same round (first line / exit):", ""]
    return lines + markdown(["launcher", *heads], _rows(peers, result, result.over_loop))


def _rows(
    peers: Sequence[Peer], result: Starts, values: dict[tuple[str, int], list[Start]]
) -> list[list[str]]:
    rows = []
    for peer in peers:
        cells = []
        for count in result.counts:
            starts = values.get((peer.name, count))
            text = " / ".join(cell(value) for value in middle(starts)) if starts else "failed"
            cells.append(text)
        rows.append([peer.name, *cells])
    return rows


def promises(result: Starts) -> list[tuple[str, float, float]]:
    """Return what we promise: the words, the limit, and our value."""
    ours = [middle(result.over_loop[OURS, n]).exit_ms for n in result.counts if (OURS, n) in result.over_loop]
    return (
        [("ms over the shell loop until the exit, at the worst count", PROMISE_MS, max(ours))] if ours else []
    )
