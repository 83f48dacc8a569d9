"""The measurements: all processes over all sizes, or pairs of nodes."""

from __future__ import annotations

from launcher.bandwidth.definitions import ELEMENT_BYTES, Sample, render_size, render_time
from launcher.bandwidth.options import ITERS, SLOW_BELOW, WARMUP
from launcher.bandwidth.pairs import Pair, merge, plan_rounds, plan_steps, slow_links
from launcher.core.errors import NotReady

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.bandwidth.job import BandwidthJob, Group
    from launcher.bandwidth.options import Options
    from launcher.bandwidth.pairs import Link


def sweep(group: Group, options: Options) -> tuple[list[Sample], str]:
    """Measure one size after the other; return the samples, and why there are no more (else empty).

    All processes of a group make the same decisions, because each decision rests on a mean over all of them.
    """
    samples: list[Sample] = []
    for size_bytes in options.sizes:
        ahead_s = foresee_s(samples, size_bytes)
        if ahead_s > options.limit_s:
            return samples, f"no more: {render_size(size_bytes)} would take {render_time(ahead_s)} each"
        samples.append(_measure(group, size_bytes, options))
    return samples, ""


def foresee_s(samples: Sequence[Sample], size_bytes: int) -> float:
    """Return the seconds that a larger size will take, estimated from the last two; 0 before there are two.

    The estimate is a line through both: the time of a small message is latency, and says nothing about a
    large one.
    """
    if len(samples) < 2:
        return 0.0
    before, last = samples[-2:]
    slope_s = max(0.0, last.time_s - before.time_s) / (last.size_bytes - before.size_bytes)
    return last.time_s + slope_s * (size_bytes - last.size_bytes)


def _measure(group: Group, size_bytes: int, options: Options) -> Sample:
    count = size_bytes // ELEMENT_BYTES
    is_right = group.is_sum_right(count)
    once_s = group.time(count, 1)
    fitting = max(1, int(options.limit_s / once_s))
    group.time(count, min(WARMUP - 1, fitting))
    iterations = min(ITERS, fitting)
    return Sample(size_bytes, group.time(count, iterations), group.size, iterations, is_right)


def measure_pairs(
    job: BandwidthJob, backend: str, units: Sequence[Sequence[int]], options: Options
) -> tuple[Pair, ...]:
    """Measure every two units, then those that look slow again, alone; all processes get the same result.

    Args:
        job: This process and the others.
        backend: The backend to measure.
        units: The ranks of each unit.
        options: The sizes, and the seconds for each.
    """
    rounds = plan_rounds(len(units))
    pairs = _measure_rounds(job, backend, units, options, rounds, "round")
    again = plan_steps(link for link in slow_links(pairs, SLOW_BELOW) if len(rounds[0]) > 1)
    return merge(pairs, _measure_rounds(job, backend, units, options, again, "again"))


def _measure_rounds(
    job: BandwidthJob,
    backend: str,
    units: Sequence[Sequence[int]],
    options: Options,
    rounds: Sequence[Sequence[Link]],
    name: str,
) -> tuple[Pair, ...]:
    pairs: list[Pair] = []
    for number, links in enumerate(rounds):
        mine = [link for link in links if job.identity.rank in (*units[link[0]], *units[link[1]])]
        result = None
        if mine:
            label = f"{name} {number}, pair {mine[0]}"
            result = _measure_pair(job, backend, label, units, mine[0], options)
        # Check, warm-up and iterations of each size take this long at most.
        longest_s = 4 * options.limit_s * len(options.sizes)
        found = job.gather(f"{name} {number}", result, longest_s)
        pairs += [_pair(link, found[min(units[link[0]])], len(links) == 1) for link in links]
    return tuple(pairs)


def _measure_pair(
    job: BandwidthJob, backend: str, label: str, units: Sequence[Sequence[int]], link: Link, options: Options
) -> dict[str, object]:
    """Return latency and bandwidth of a pair that this process belongs to, or why the measurement failed."""
    ranks = sorted((*units[link[0]], *units[link[1]]))
    try:
        with job.group(label, backend, ranks) as group:
            samples, _ = sweep(group, options)
    except NotReady as error:
        return {"failure": error.problems[0].what}
    wrong = [render_size(sample.size_bytes) for sample in samples if not sample.is_right]
    return {
        "latency_s": samples[0].time_s,
        "bus_gbps": max(sample.bus_gbps for sample in samples),
        "failure": f"wrong sums at {', '.join(wrong)}" if wrong else "",
    }


def _pair(link: Link, found: dict[str, object], was_alone: bool) -> Pair:
    latency_s, bus_gbps = found.get("latency_s"), found.get("bus_gbps")
    return Pair(
        nodes=link,
        latency_s=latency_s if isinstance(latency_s, float) else None,
        bus_gbps=bus_gbps if isinstance(bus_gbps, float) else 0.0,
        was_alone=was_alone,
        failure=str(found.get("failure", "")),
    )
