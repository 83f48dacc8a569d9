"""Draws bus bandwidth over size as SVG: logarithmic axes, and a line at the expected bandwidth."""

from __future__ import annotations

from html import escape
from math import ceil, floor, log2, log10

from launcher.bandwidth.definitions import Sample, render_gbps, render_size, render_time
from launcher.core.redact import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from launcher.bandwidth.expect import Expectation

WIDTH, HEIGHT = 880, 540
LEFT, RIGHT, TOP, BOTTOM = 84, 852, 104, 468
"""Edges of the plot area, in user units."""
LABEL_GAP = 74
"""Minimum distance between the labels of two sizes."""
TITLE_WIDTH = 92
"""Number of characters that fit in one line."""
STYLE = """
    text { font-family: system-ui, 'Segoe UI', Helvetica, Arial, sans-serif; font-size: 13px; fill: #475569 }
    .title { font-size: 19px; font-weight: 600; fill: #0f172a }
    .verdict { font-size: 14px; fill: #0f172a }
    .grid { stroke: #e2e8f0 } .minor { stroke: #f1f5f9 } .axis { stroke: #94a3b8 }
    .measured { fill: none; stroke: #0369a1; stroke-width: 2.5; stroke-linejoin: round }
    .point { fill: #0369a1; stroke: #ffffff; stroke-width: 1.5 } .wrong { fill: #dc2626 }
    .value { fill: #0369a1; font-weight: 600 }
    .expected { stroke: #15803d; stroke-width: 2; stroke-dasharray: 7 5 } .limit { fill: #15803d }
"""


def render_plot(samples: Sequence[Sample], expectation: Expectation, title: str, verdict: str) -> str:
    """Return an SVG document.

    Args:
        samples: Samples in order of size.
        expectation: Its bandwidth is a dashed line, if there is one.
        title: Description of the measurement.
        verdict: Text of the verdict.
    """
    shown = [sample for sample in samples if sample.bus_gbps > 0]
    values = [sample.bus_gbps for sample in shown] + ([expectation.gbps] if expectation.gbps else [])
    scale = _Scale([sample.size_bytes for sample in samples], values or [1.0])
    parts = [
        *_head(title, verdict),
        *_size_axis(scale),
        *_bandwidth_axis(scale),
        *_expected(scale, expectation),
        *_measured(scale, shown),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


class _Scale:
    """Positions of sizes and bandwidths; the axes end at whole powers of 2 and of 10."""

    def __init__(self, sizes: Sequence[int], values: Sequence[float]) -> None:
        self.first, self.last = floor(log2(min(sizes))), ceil(log2(max(sizes)))
        self.last += self.first == self.last
        self.lowest, self.highest = floor(log10(min(values))), ceil(log10(max(values) * 1.05))

    def x(self, size_bytes: float) -> float:
        share = (log2(size_bytes) - self.first) / (self.last - self.first)
        return LEFT + share * (RIGHT - LEFT)

    def y(self, gbps: float) -> float:
        share = (log10(gbps) - self.lowest) / (self.highest - self.lowest)
        return BOTTOM - share * (BOTTOM - TOP)


def _head(title: str, verdict: str) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img">'
    )
    yield f"<title>{_text(title)}</title>"
    yield f"<style>{STYLE}</style>"
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
    yield '<text class="title" x="28" y="36">Bus bandwidth over size</text>'
    yield f'<text x="28" y="58">{_text(_cut(title))}</text>'
    yield f'<text class="verdict" x="28" y="80">{_text(_cut(verdict))}</text>'


def _cut(text: str) -> str:
    return text if len(text) <= TITLE_WIDTH * 1.3 else text[: int(TITLE_WIDTH * 1.3)] + "…"


def _size_axis(scale: _Scale) -> Iterator[str]:
    """Yield lines at powers of 2, as many as have room for their labels."""
    step = max(1, ceil((scale.last - scale.first) / ((RIGHT - LEFT) / LABEL_GAP)))
    for power in range(scale.first, scale.last + 1, step):
        x = scale.x(2**power)
        yield f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{BOTTOM}"/>'
        yield f'<text x="{x:.1f}" y="{BOTTOM + 20}" text-anchor="middle">{render_size(2**power)}</text>'
    middle = (LEFT + RIGHT) / 2
    yield f'<text x="{middle:.1f}" y="{BOTTOM + 46}" text-anchor="middle">size of the all-reduce</text>'
    yield f'<line class="axis" x1="{LEFT}" y1="{BOTTOM}" x2="{RIGHT}" y2="{BOTTOM}"/>'


def _bandwidth_axis(scale: _Scale) -> Iterator[str]:
    """Yield lines with labels at powers of 10, and thinner ones at their multiples."""
    for power in range(scale.lowest, scale.highest + 1):
        for digit in range(1, 10 if power < scale.highest else 2):
            y = scale.y(digit * 10.0**power)
            kind = "grid" if digit == 1 else "minor"
            yield f'<line class="{kind}" x1="{LEFT}" y1="{y:.1f}" x2="{RIGHT}" y2="{y:.1f}"/>'
        label = f"{10.0**power:,.0f}" if power >= 0 else f"{10.0**power:.{-power}f}"
        yield f'<text x="{LEFT - 10}" y="{scale.y(10.0**power) + 4:.1f}" text-anchor="end">{label}</text>'
    yield f'<line class="axis" x1="{LEFT}" y1="{TOP}" x2="{LEFT}" y2="{BOTTOM}"/>'
    y = (TOP + BOTTOM) / 2
    yield f'<text x="24" y="{y:.1f}" transform="rotate(-90 24 {y:.1f})" text-anchor="middle">Gb/s</text>'


def _expected(scale: _Scale, expectation: Expectation) -> Iterator[str]:
    if expectation.gbps is None:
        return
    y = scale.y(expectation.gbps)
    label = _text(_cut(f"{render_gbps(expectation.gbps)} Gb/s: {expectation.of}"))
    yield f'<line class="expected" x1="{LEFT}" y1="{y:.1f}" x2="{RIGHT}" y2="{y:.1f}"/>'
    yield f'<text class="limit" x="{LEFT + 12}" y="{y - 8:.1f}">{label}</text>'


def _measured(scale: _Scale, samples: Sequence[Sample]) -> Iterator[str]:
    if not samples:
        return
    points = [(scale.x(sample.size_bytes), scale.y(sample.bus_gbps)) for sample in samples]
    yield f'<polyline class="measured" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'
    for sample, (x, y) in zip(samples, points, strict=True):
        size, time = render_size(sample.size_bytes), render_time(sample.time_s)
        told = f"<title>{size}: {time}, {render_gbps(sample.bus_gbps)} Gb/s</title>"
        kind = "point" if sample.is_right else "point wrong"
        yield f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="4.5">{told}</circle>'
    best = max(samples, key=lambda sample: sample.bus_gbps)
    first = samples[0]
    x, y = scale.x(best.size_bytes), scale.y(best.bus_gbps)
    yield _label(x, y + 24, f"{render_gbps(best.bus_gbps)} Gb/s")
    if first is not best:
        y = scale.y(first.bus_gbps) + 24
        yield _label(scale.x(first.size_bytes), y, f"latency {render_time(first.time_s)}")


def _label(x: float, y: float, text: str) -> str:
    """Return a label below a point, kept inside the edges."""
    anchor = "start" if x < LEFT + 60 else "end" if x > RIGHT - 60 else "middle"
    shift = {"start": 8, "end": -4, "middle": 0}[anchor]
    y = min(y, BOTTOM - 8)
    return f'<text class="value" x="{x + shift:.1f}" y="{y:.1f}" text-anchor="{anchor}">{_text(text)}</text>'


def _text(text: str) -> str:
    return escape(printable(text))
