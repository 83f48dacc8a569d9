"""Draws a node as SVG: NUMA nodes as blocks, GPUs and ports at their place in PCI, and the ranks on them."""

from __future__ import annotations

from itertools import pairwise

from launcher.machine.hardware import count_switched, is_link_between
from launcher.machine.network import Interface, leads_out
from launcher.views.block_svg import (
    CPU_HEIGHT,
    DEAD,
    RATES,
    block_height,
    draw_block,
    gpu_height,
    group_spots,
)
from launcher.views.drawing import Drawing, measure
from launcher.views.placement import (
    GAP,
    PAD,
    TILE,
    Block,
    Lane,
    place_blocks,
    place_label,
    place_lanes,
)
from launcher.views.topology import View, headline

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from launcher.machine.gpu_facts import GpuFacts

MARGIN = 24.0
BETWEEN, BETWEEN_WIDTH = 28.0, 5
TITLE_HEIGHT, SWITCH_HEIGHT, LANE_HEIGHT = 66.0, 30.0, 20.0
LEAST_WIDTH = 640.0
LINES = {"link": ("link", 4), "wire": ("wire", 2), "between": ("wire", BETWEEN_WIDTH)}
"""CSS class and width of each kind of line in the legend."""
STYLE = """
.page{fill:#ffffff}.block{fill:#f3f5f8;stroke:#cfd6de}.group{fill:#ffffff;stroke:#dde3e9}
.gpu{fill:#eef7e2;stroke:#76b900}.hidden{fill:#f0f1f3;stroke:#b5bcc4;stroke-dasharray:4 3}
.port{fill:#ffffff;stroke:#c3ccd6}.dead{fill:#fdecec;stroke:#dc2626}
.bus{fill:#dfe5ec;stroke:#b8c2cc}.switch{fill:#dcefc2;stroke:#76b900}.free{fill:#e4e8ed}
.share{fill:#d6e4fb;stroke:#8fb3ee}.rank{fill:#1d4ed8}.chip{fill:#f3f9ea;stroke:#76b900}
.wire{stroke:#9aa6b2;fill:none}.link{stroke:#6aa800;fill:none}
.strong{fill:#1c2128}.weak{fill:#59636e}.bad{fill:#c81e1e}.warn{fill:#9a5b00}.on{fill:#ffffff}
@media (prefers-color-scheme: dark){
.page{fill:#0d1117}.block{fill:#161b22;stroke:#30363d}.group{fill:#0d1117;stroke:#2a3038}
.gpu{fill:#1b2a0e;stroke:#76b900}.hidden{fill:#1a1e24;stroke:#4a525b}
.port{fill:#12171e;stroke:#3b444d}.dead{fill:#3a1214;stroke:#f04444}
.bus{fill:#262d36;stroke:#414a54}.switch{fill:#263d10;stroke:#76b900}.free{fill:#232a32}
.share{fill:#14294a;stroke:#31589c}.rank{fill:#2f66e8}.chip{fill:#16210c;stroke:#76b900}
.wire{stroke:#5b6570}.link{stroke:#86c82a}
.strong{fill:#e8edf2}.weak{fill:#a1abb5}.bad{fill:#ff7b72}.warn{fill:#e3a64a}}
"""


def render_svg(view: View) -> str:
    """Return the drawing as an SVG file, readable on light and dark backgrounds."""
    blocks = place_blocks(view.hardware, MARGIN, BETWEEN)
    right = max([block.x + block.width for block in blocks], default=MARGIN)
    width = max(LEAST_WIDTH, right + MARGIN)
    spots = dict(_gpu_spots(blocks))
    lanes = place_lanes(spots, _direct_links(view.hardware.gpus))
    drawing = Drawing()
    top = TITLE_HEIGHT + _nvlink_height(view, lanes)
    bottom = top + max([block_height(block, gpu_height(view)) for block in blocks], default=0.0)
    marks = Drawing()  # drawn first, as the page's height depends on it; joined on top of the page below
    y = _draw_interfaces(marks, view, bottom + GAP, width)
    y = _draw_legend(marks, view, y + GAP, width)
    height = _draw_notes(marks, view, y, width) + MARGIN / 2
    drawing.rectangle("page", 0, 0, width, height, radius=10)
    _draw_title(drawing, view, width)
    for left, right_block in pairwise(blocks):
        middle = bottom - CPU_HEIGHT / 2
        drawing.path("wire", f"M{left.x + left.width:g} {middle:g}H{right_block.x:g}", BETWEEN_WIDTH)
    for block in blocks:
        draw_block(drawing, view, block, top, bottom)
    _draw_switch(drawing, view, spots, top)
    _draw_lanes(drawing, lanes, top)
    return drawing.joined(marks).render(width, height, headline(view.hardware), STYLE)


def _gpu_spots(blocks: Sequence[Block]) -> Iterator[tuple[int, float]]:
    """Yield the index of each GPU and the left edge of its tile."""
    for block in blocks:
        for group, x in group_spots(block):
            for place, part in enumerate(group.gpus):
                if part.gpu is not None:
                    yield part.gpu.index, x + PAD + place * (TILE + GAP)


def _direct_links(gpus: Sequence[GpuFacts]) -> list[tuple[int, int, int]]:
    """Return (GPU, GPU, number of NVLinks) of each directly linked pair; either end may report the links."""
    pairs = [(a, b) for place, a in enumerate(gpus) for b in gpus[place + 1 :]]
    counts = [(a.index, b.index, max(_count_direct(a, b), _count_direct(b, a))) for a, b in pairs]
    return [(a, b, count) for a, b, count in counts if count]


def _count_direct(a: GpuFacts, b: GpuFacts) -> int:
    return sum(link.count for link in a.links or () if is_link_between(link, b))


def _switched(gpus: Sequence[GpuFacts]) -> list[GpuFacts]:
    return [gpu for gpu in gpus if count_switched(gpu)]


def _nvlink_height(view: View, lanes: Sequence[Lane]) -> float:
    levels = max([lane.level + 1 for lane in lanes], default=0)
    switch = SWITCH_HEIGHT + 34 if _switched(view.hardware.gpus) else 0.0
    return switch + (levels * LANE_HEIGHT + 16 if levels else 0.0)


def _draw_title(drawing: Drawing, view: View, width: float) -> None:
    name, _, rest = headline(view.hardware).partition(": ")
    room = width - 2 * MARGIN
    drawing.text("strong", MARGIN, 32, name, room, size=19, bold=True)
    drawing.text("weak", MARGIN, 52, rest, room, size=12)


def _joined(*texts: str | None) -> str:
    return ", ".join(text for text in texts if text)


def _draw_switch(drawing: Drawing, view: View, spots: dict[int, float], top: float) -> None:
    """Draw the NVSwitches as one bar above the GPUs that have links to them."""
    gpus = [gpu for gpu in _switched(view.hardware.gpus) if gpu.index in spots]
    if not gpus:
        return
    left, right = min(spots[gpu.index] for gpu in gpus), max(spots[gpu.index] for gpu in gpus) + TILE
    for gpu in gpus:
        x = spots[gpu.index] + TILE / 2
        drawing.path("link", f"M{x:g} {TITLE_HEIGHT + SWITCH_HEIGHT:g}V{top + 2 * PAD:g}", 4)
        _draw_chip(drawing, f"NV{count_switched(gpu)}", x, TITLE_HEIGHT + SWITCH_HEIGHT + 17)
    drawing.rectangle("switch", left, TITLE_HEIGHT, right - left, SWITCH_HEIGHT, radius=8)
    middle, room = (left + right) / 2, right - left - 16
    drawing.text(
        "strong", middle, TITLE_HEIGHT + 20, _name_switch(gpus), room, size=12, bold=True, centre=True
    )


def _name_switch(gpus: Sequence[GpuFacts]) -> str:
    """Return the label of the switches, with the rate per GPU if all known rates and counts are equal."""
    links = [link for gpu in gpus for link in gpu.links or () if link.to == "switch"]
    rates = {link.gbps for link in links if link.gbps}
    counts = {count_switched(gpu) for gpu in gpus}
    if len(rates) != 1 or len(counts) != 1:
        return "NVSwitch"
    rate, count = rates.pop(), counts.pop()
    return f"NVSwitch: {rate * count / 8:.0f} GB/s each way for every GPU"


def _draw_lanes(drawing: Drawing, lanes: Sequence[Lane], top: float) -> None:
    feet = top + 2 * PAD
    for lane in sorted(lanes, key=lambda lane: -lane.level):
        y = top - 14 - lane.level * LANE_HEIGHT
        steps = f"M{lane.x1:g} {feet:g}V{y:g}H{lane.x2:g}V{feet:g}"
        drawing.path("link", steps, min(1.2 + 0.7 * lane.count, 5))
    for lane in lanes:
        text = f"NV{lane.count}"
        x = place_label(lane, lanes, measure(text, 10, bold=True) + 10)
        _draw_chip(drawing, text, x, top - 14 - lane.level * LANE_HEIGHT)


def _draw_chip(drawing: Drawing, text: str, x: float, y: float) -> None:
    """Draw a short text on a line, with its own background."""
    width = measure(text, 10, bold=True) + 10
    drawing.rectangle("chip", x - width / 2, y - 8, width, 16, radius=8)
    drawing.text("strong", x, y + 3.5, text, width - 6, size=10, bold=True, centre=True)


def _draw_interfaces(drawing: Drawing, view: View, y: float, width: float) -> float:
    """Draw the interfaces that belong to no port, and return the y below them."""
    taken = {port.interface for port in view.hardware.ports}
    shown = [
        interface
        for interface in view.hardware.interfaces
        if interface.addresses and leads_out(interface) and interface.name not in taken
    ]
    if not shown:
        return y
    drawing.text("weak", MARGIN, y + 14, "Other network interfaces", width - 2 * MARGIN, size=11, bold=True)
    columns = max(int((width - 2 * MARGIN + GAP) // (TILE + GAP)), 1)
    for place, interface in enumerate(shown):
        row, column = divmod(place, columns)
        _draw_interface(drawing, interface, MARGIN + column * (TILE + GAP), y + 24 + row * 54)
    return y + 24 + 54 * -(-len(shown) // columns)


def _draw_interface(drawing: Drawing, interface: Interface, x: float, y: float) -> None:
    is_down = interface.is_up is False or interface.has_carrier is False
    drawing.rectangle("dead" if is_down else "port", x, y, TILE, 44)
    drawing.text("strong", x + 9, y + 18, interface.name, TILE - 18, size=11.5, bold=True)
    speed = None if interface.speed_mbps is None else f"{interface.speed_mbps / 1000:g} Gb/s"
    text = "down" if is_down else _joined(interface.kind, speed) or "kind not known"
    drawing.text("bad" if is_down else "weak", x + 9, y + 34, text, TILE - 18, size=10.5)


def _draw_legend(drawing: Drawing, view: View, y: float, width: float) -> float:
    """Draw the legend of the colours and lines that occur, and return the y below it."""
    x = MARGIN
    for kind, colour, text in _legend(view):
        needed = measure(text, 11) + 40
        if x + needed > width - MARGIN and x > MARGIN:
            x, y = MARGIN, y + 22
        if colour:
            drawing.rectangle(kind, x, y + 3, 18, 12, radius=3, fill=colour)
        elif kind in LINES:
            drawing.path(LINES[kind][0], f"M{x:g} {y + 9:g}H{x + 18:g}", LINES[kind][1])
        else:
            drawing.rectangle(kind, x, y + 3, 18, 12, radius=3)
        drawing.text("weak", x + 24, y + 13, text, needed - 30, size=11)
        x += needed
    return y + 26


def _legend(view: View) -> Iterator[tuple[str, str, str]]:
    """Yield the CSS class, the fill colour (empty for that of the class) and the meaning of each entry."""
    ports = view.hardware.ports
    active = [port for port in ports if port.state == "ACTIVE"]
    rates = {port.rate_gbps for port in active if port.rate_gbps is not None}
    for rate in sorted(rates, reverse=True):
        yield "edge", next(colour for least, colour in RATES if rate >= least), f"{rate:g} Gb/s"
    if len(active) < len(ports):
        yield "edge", DEAD, "port that is not active"
    if any(gpu.links for gpu in view.hardware.gpus):
        yield "link", "", "NVLink (NV4: four links)"
    if view.hardware.parts:
        yield "wire", "", "PCI"
    if len(view.hardware.nodes) > 1:
        yield "between", "", "between NUMA nodes"
    if any(process.gpus for process in view.assigned):
        yield "rank", "", "rank of this plan"
    if any(process.cpus for process in view.assigned):
        yield "share", "", "CPUs of one rank"
    if len(view.visible) < len(view.hardware.gpus):
        yield "hidden", "", "hidden by CUDA_VISIBLE_DEVICES"


def _draw_notes(drawing: Drawing, view: View, y: float, width: float) -> float:
    for note in view.notes:
        drawing.text("weak", MARGIN, y + 12, note, width - 2 * MARGIN, size=10.5)
        y += 17
    return y
