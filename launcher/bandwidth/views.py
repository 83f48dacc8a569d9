"""Renders measurements, for users and for tools.

JSON, version 1: bandwidths in Gb/s (10^9 bits per second), times in seconds, sizes in bytes; see
docs/bandwidth.md.
"""

from __future__ import annotations

import json

from launcher.bandwidth.definitions import Sample, render_gbps, render_size, render_time
from launcher.core.frozen import frozen
from launcher.core.redact import printable, redact

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from launcher.bandwidth.expect import Expectation, Verdict
    from launcher.bandwidth.members import Member
    from launcher.bandwidth.pairs import Pair, Slow

VERSION = 1
BITS_PER_BYTE = 8
MATRIX_LIMIT = 16
"""Maximum number of columns, because more do not fit in a terminal: then only the slowest pairs are
listed."""
LISTED = 10


@frozen
class Setup:
    """The library that was measured, and the nodes.

    Attributes:
        backend: ``nccl`` or ``gloo``.
        library: Versions of the library and of torch; with NCCL the GPU too.
        members: The nodes.
    """

    backend: str
    library: str
    members: tuple[Member, ...]

    @property
    def process_count(self) -> int:
        """Number of processes on all nodes."""
        return sum(len(member.ranks) for member in self.members)

    def __str__(self) -> str:
        processes, nodes = _count(self.process_count, "process"), _count(len(self.members), "node")
        return f"all-reduce of float32, {processes} on {nodes}, {self.library}"


def render_sweep(
    setup: Setup, samples: Sequence[Sample], ended: str, expectation: Expectation, verdict: Verdict
) -> str:
    """Return a table of sizes, in the units of nccl-tests and of data sheets, and the verdict."""
    best = max(samples, key=lambda sample: sample.bus_gbps)
    lines = [str(setup), "", f"{'size':>10}{'time':>11}{'algbw':>10}{'busbw':>10}{'busbw':>10}"]
    lines.append(f"{'':>21}{'GB/s':>10}{'GB/s':>10}{'Gb/s':>10}")
    lines += [_sample_line(sample) for sample in samples]
    lines += [ended] if ended else []
    lines += ["", f"latency        {render_time(samples[0].time_s)} at {render_size(samples[0].size_bytes)}"]
    at = render_size(best.size_bytes)
    lines.append(
        f"bus bandwidth  {_gigabytes(best.bus_gbps)} GB/s = {render_gbps(best.bus_gbps)} Gb/s at {at}"
    )
    if expectation.gbps is not None:
        lines.append(f"expected       {render_gbps(expectation.gbps)} Gb/s: {expectation.of}")
    wrong = [render_size(sample.size_bytes) for sample in samples if not sample.is_right]
    lines += [f"WRONG SUMS     at {', '.join(wrong)}: data was corrupted in transit"] if wrong else []
    lines += [f"verdict        {verdict.text}", *(f"  look at: {hint}" for hint in verdict.hints)]
    return _join(lines)


def _sample_line(sample: Sample) -> str:
    algorithm, bus = _gigabytes(sample.algorithm_gbps), _gigabytes(sample.bus_gbps)
    cells = f"{render_size(sample.size_bytes):>10}{render_time(sample.time_s):>11}{algorithm:>10}{bus:>10}"
    return f"{cells}{render_gbps(sample.bus_gbps):>10}{'' if sample.is_right else '  WRONG SUM'}"


def _gigabytes(gbps: float) -> str:
    return render_gbps(gbps / BITS_PER_BYTE)


def sweep_json(
    setup: Setup, samples: Sequence[Sample], ended: str, expectation: Expectation, verdict: Verdict
) -> str:
    """Return the same as JSON, for tools."""
    return _dump(
        {
            **_describe(setup, "sweep"),
            "samples": [
                {**vars(sample), "algorithm_gbps": sample.algorithm_gbps, "bus_gbps": sample.bus_gbps}
                for sample in samples
            ],
            "ended": ended,
            "best_bus_gbps": max(sample.bus_gbps for sample in samples),
            "latency_s": samples[0].time_s,
            "expected": vars(expectation),
            "verdict": vars(verdict),
        }
    )


def render_pairs(setup: Setup, names: Sequence[str], pairs: Sequence[Pair], slow: Slow, how: str) -> str:
    """Return bandwidth and latency of all pairs, and which are slow; of many nodes only the slowest pairs.

    Args:
        setup: The library that was measured, and the nodes.
        names: Names of the units, by index.
        pairs: One for every two units.
        slow: The slow units and pairs.
        how: The order of the measurements, in words.
    """
    lines = [str(setup), f"{_count(len(pairs), 'pair')}, {how}", ""]
    if len(names) <= MATRIX_LIMIT:
        lines += _matrix("bus bandwidth, Gb/s", names, {p.nodes: render_gbps(p.bus_gbps) for p in pairs})
        latencies = {p.nodes: render_time(p.latency_s) if p.latency_s else "none" for p in pairs}
        lines += ["", *_matrix("latency", names, latencies)]
    else:
        slowest = sorted(pairs, key=lambda pair: pair.bus_gbps)[:LISTED]
        lines += ["the slowest pairs", *(f"  {_pair_line(pair, names)}" for pair in slowest)]
    lines += ["", *(f"failed: {_link(p.nodes, names)}: {p.failure}" for p in pairs if p.failure)]
    lines += [f"verdict: {line}" for line in pairs_verdict(names, pairs, slow)]
    return _join(lines)


def pairs_verdict(names: Sequence[str], pairs: Sequence[Pair], slow: Slow) -> tuple[str, ...]:
    """Return a line for each node, group of nodes, and link that is slow; one line if none is."""
    usual = f"{render_gbps(slow.usual_gbps)} Gb/s is usual"
    lines = []
    for group in slow.groups:
        touching = [pair.bus_gbps for pair in pairs if len({*group} & {*pair.nodes}) == 1]
        reached = f"{render_gbps(max(touching))} Gb/s at most, {usual}"
        if len(group) == 1:
            lines.append(f"{names[group[0]]} is slow with all others: {reached}")
        else:
            who = ", ".join(names[node] for node in group)
            slow_together = f"{who} are slow with all others, not among themselves: {reached}"
            lines.append(f"{slow_together}: check the switch or uplink that they share")
    by_link = {pair.nodes: pair for pair in pairs}
    for link in slow.links[:LISTED]:
        got = render_gbps(by_link[link].bus_gbps)
        lines.append(f"the link {_link(link, names)} is slow: {got} Gb/s, {usual}; both are fast with others")
    if len(slow.links) > LISTED:
        lines.append(f"{len(slow.links) - LISTED} more links are slow: --format json has all")
    if len(pairs) == 1:
        got = render_gbps(pairs[0].bus_gbps)
        return (f"{_link(pairs[0].nodes, names)}: {got} Gb/s; one pair has nothing to compare with",)
    return tuple(lines) or (f"no node and no link is slow: {usual}",)


def pairs_json(setup: Setup, names: Sequence[str], pairs: Sequence[Pair], slow: Slow, how: str) -> str:
    """Return the same as JSON, for tools."""
    return _dump(
        {
            **_describe(setup, "pairs"),
            "order": how,
            "pairs": [{**vars(pair), "nodes": [names[node] for node in pair.nodes]} for pair in pairs],
            "usual_bus_gbps": slow.usual_gbps,
            "slow_nodes": [names[group[0]] for group in slow.groups if len(group) == 1],
            "slow_groups": [[names[node] for node in group] for group in slow.groups if len(group) > 1],
            "slow_links": [[names[node] for node in link] for link in slow.links],
            "verdict": list(pairs_verdict(names, pairs, slow)),
        }
    )


def _matrix(title: str, names: Sequence[str], cells: dict[tuple[int, int], str]) -> Iterator[str]:
    width = max(8, *(len(name) + 2 for name in names), *(len(cell) + 2 for cell in cells.values()))
    yield title
    yield " " * width + "".join(f"{name:>{width}}" for name in names)
    for row, name in enumerate(names):
        texts = (cells.get((min(row, column), max(row, column)), "-") for column in range(len(names)))
        yield f"{name:<{width}}" + "".join(f"{text:>{width}}" for text in texts)


def _pair_line(pair: Pair, names: Sequence[str]) -> str:
    latency = render_time(pair.latency_s) if pair.latency_s else "failed"
    return f"{_link(pair.nodes, names)}: {render_gbps(pair.bus_gbps)} Gb/s, {latency}"


def _link(nodes: tuple[int, int], names: Sequence[str]) -> str:
    return f"{names[nodes[0]]} - {names[nodes[1]]}"


def _describe(setup: Setup, kind: str) -> dict[str, object]:
    nodes = [{**vars(member), "ways": vars(member.ways)} for member in setup.members]
    return {
        "version": VERSION,
        "kind": kind,
        "backend": setup.backend,
        "library": setup.library,
        "process_count": setup.process_count,
        "nodes": nodes,
    }


def _join(lines: Sequence[str]) -> str:
    """Return lines for a terminal, redacted and printable: other nodes sent names and variables in them."""
    return "".join(f"{printable(redact(line))}\n" for line in lines)


def _dump(document: dict[str, object]) -> str:
    return json.dumps(document, indent=1) + "\n"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 'es' if noun.endswith('s') else 's'}"
