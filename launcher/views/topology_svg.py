"""A drawing of a node: NUMA nodes as blocks, GPUs and ports where they hang, and the ranks on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from launcher.assignment import Assigned
from launcher.machine.cpus import render_cpu_list
from launcher.machine.gpu_facts import GpuFacts
from launcher.machine.hardware import Part, count_switched, is_link_between
from launcher.machine.infiniband import Port
from launcher.machine.network import Interface, leads_out
from launcher.views.drawing import Drawing, measure
from launcher.views.placement import (
    GAP,
    PAD,
    TILE,
    Block,
    Group,
    Lane,
    place_blocks,
    place_label,
    place_lanes,
)
from launcher.views.topology import View, headline, show_memory, show_rate, show_state

MARGIN = 24.0
BETWEEN, BETWEEN_WIDTH = 28.0, 5
GPU_HEIGHT, PORT_HEIGHT, BUS_HEIGHT, WIRE = 76.0, 80.0, 22.0, 22.0
EMPTY_HEIGHT = 44.0
LINE, STATE_LINES = 14.0, 2
"""Lines of a GPU's tile for what is remarkable: as many as some GPU needs, and no more than these."""
TITLE_HEIGHT, SWITCH_HEIGHT, LANE_HEIGHT = 66.0, 30.0, 20.0
CPU_HEIGHT = 66.0
LEAST_WIDTH = 640.0
RANKS_LIMIT = 32
"""More shares of CPUs than this are not told apart in one bar."""
RATES = (
    (800, "#7c3aed"),
    (400, "#0d9467"),
    (200, "#2563eb"),
    (100, "#0e8fb0"),
    (25, "#b7791f"),
    (0, "#7d8590"),
)
"""The least Gb/s of each colour."""
LINES = {"link": ("link", 4), "wire": ("wire", 2), "between": ("wire", BETWEEN_WIDTH)}
"""Class and width of the lines in the legend."""
DEAD = "#dc2626"
NO_RATE = "#9aa4ae"
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
    bottom = top + max([_block_height(block, _gpu_height(view)) for block in blocks], default=0.0)
    marks = Drawing()  # what the end of the page depends on is drawn first, and the page below it
    y = _draw_interfaces(marks, view, bottom + GAP, width)
    y = _draw_legend(marks, view, y + GAP, width)
    height = _draw_notes(marks, view, y, width) + MARGIN / 2
    drawing.rectangle("page", 0, 0, width, height, radius=10)
    _draw_title(drawing, view, width)
    for left, right_block in pairwise(blocks):
        middle = bottom - CPU_HEIGHT / 2
        drawing.path("wire", f"M{left.x + left.width:g} {middle:g}H{right_block.x:g}", BETWEEN_WIDTH)
    for block in blocks:
        _draw_block(drawing, view, block, top, bottom)
    _draw_switch(drawing, view, spots, top)
    _draw_lanes(drawing, lanes, top)
    return drawing.joined(marks).render(width, height, headline(view.hardware), STYLE)


def _gpu_spots(blocks: Sequence[Block]) -> Iterator[tuple[int, float]]:
    """Yield the left edge of each GPU's tile."""
    for block in blocks:
        for group, x in _group_spots(block):
            for place, part in enumerate(group.gpus):
                if part.gpu is not None:
                    yield part.gpu.index, x + PAD + place * (TILE + GAP)


def _group_spots(block: Block) -> Iterator[tuple[Group, float]]:
    x = block.x + PAD
    for group in block.groups:
        yield group, x
        x += group.width + GAP


def _direct_links(gpus: Sequence[GpuFacts]) -> list[tuple[int, int, int]]:
    """Return (GPU, GPU, how many NVLinks) of each pair that has some of its own; both ends may say so."""
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


def _rows(groups: Sequence[Group]) -> tuple[bool, bool]:
    """Return whether there are GPUs, and whether there are ports, in any of some groups."""
    return any(group.gpus for group in groups), any(group.ports for group in groups)


def _gpu_height(view: View) -> float:
    """Return the height of all GPUs' tiles."""
    lines = [len(_state_lines(view, gpu)) for gpu in view.hardware.gpus]
    return GPU_HEIGHT + LINE * max(lines, default=0)


def _state_lines(view: View, gpu: GpuFacts) -> list[str]:
    """Return what is remarkable about a GPU, in lines that fit its tile; the last one may be cut."""
    lines: list[str] = []
    state = show_state(gpu, gpu.index in view.visible)
    for word in [] if state in ("ok", "?") else state.split(", "):
        longer = f"{lines[-1]}, {word}" if lines else word
        if lines and (len(lines) == STATE_LINES or measure(longer, 10) <= TILE - 18):
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _block_height(block: Block, gpu_height: float) -> float:
    return PAD + (_group_height(block, gpu_height) or EMPTY_HEIGHT) + CPU_HEIGHT + PAD


def _group_height(block: Block, gpu_height: float) -> float:
    has_gpus, has_ports = _rows(block.groups)
    if not block.groups:
        return 0.0
    gpus = gpu_height + WIRE if has_gpus else 0.0
    rows = max(group.rows for group in block.groups)
    ports = WIRE + rows * (PORT_HEIGHT + GAP) - GAP if has_ports else 0.0
    return PAD + gpus + BUS_HEIGHT + ports + PAD


def _draw_title(drawing: Drawing, view: View, width: float) -> None:
    name, _, rest = headline(view.hardware).partition(": ")
    room = width - 2 * MARGIN
    drawing.text("strong", MARGIN, 32, name, room, size=19, bold=True)
    drawing.text("weak", MARGIN, 52, rest, room, size=12)


def _draw_block(drawing: Drawing, view: View, block: Block, top: float, bottom: float) -> None:
    drawing.rectangle("block", block.x, top, block.width, bottom - top, radius=10)
    for group, x in _group_spots(block):
        _draw_group(drawing, view, block, group, x, top + PAD)
    if not block.groups:
        middle = block.x + block.width / 2
        text = "no GPU and no RDMA port"
        drawing.text("weak", middle, top + PAD + 26, text, block.width - 2 * PAD, centre=True)
    _draw_cpus(drawing, view, block, bottom - CPU_HEIGHT - PAD / 2)


def _draw_group(drawing: Drawing, view: View, block: Block, group: Group, x: float, top: float) -> None:
    has_gpus, _ = _rows(block.groups)
    height = _gpu_height(view)
    drawing.rectangle("group", x, top, group.width, _group_height(block, height), radius=8)
    gpu_top = top + PAD
    bus = gpu_top + (height + WIRE if has_gpus else 0.0)
    below = bus + BUS_HEIGHT
    for place, part in enumerate(group.gpus):
        left = x + PAD + place * (TILE + GAP)
        drawing.path("wire", f"M{left + TILE / 2:g} {gpu_top + height:g}V{bus:g}", 2)
        _draw_gpu(drawing, view, part, left, gpu_top, height)
    for place, part in enumerate(group.ports):
        row, column = divmod(place, group.columns)
        left, y = x + PAD + column * (TILE + GAP), below + WIRE + row * (PORT_HEIGHT + GAP)
        steps = f"M{left + TILE / 2:g} {below:g}V{y:g}"
        if row:  # beside the ports above it, not through them
            turn, side = below + WIRE / 2, left - GAP / 2
            steps = f"M{left + GAP:g} {below:g}V{turn:g}H{side:g}V{y + PORT_HEIGHT / 2:g}H{left:g}"
        drawing.path("wire", steps, 2)
        _draw_port(drawing, part, left, y)
    inner = group.width - 2 * PAD
    drawing.rectangle("bus", x + PAD, bus, inner, BUS_HEIGHT, radius=4)
    drawing.text("weak", x + group.width / 2, bus + 15, group.name, inner - 8, size=10.5, centre=True)


def _draw_gpu(drawing: Drawing, view: View, part: Part, x: float, y: float, height: float) -> None:
    gpu = part.gpu
    if gpu is None:
        return
    is_visible = gpu.index in view.visible
    drawing.rectangle("gpu" if is_visible else "hidden", x, y, TILE, height)
    used = drawing.text("strong", x + 9, y + 19, f"GPU {gpu.index}", TILE - 18, size=13, bold=True)
    ranks = [process.rank for process in view.assigned if gpu.index in process.gpus]
    if ranks:
        _draw_rank(drawing, ranks, x + TILE - 7, y + 7, TILE - 26 - used)
    room = TILE - 18
    name = (gpu.name or gpu.vendor).removeprefix("NVIDIA ").removeprefix("Tesla ")
    drawing.text("strong", x + 9, y + 37, name, room, size=11)
    drawing.text("weak", x + 9, y + 52, _memory(gpu), room, size=10.5)
    drawing.text("weak", x + 9, y + 66, gpu.address or "PCI address not known", room, size=10)
    for place, line in enumerate(_state_lines(view, gpu), start=1):
        drawing.text("warn", x + 9, y + 66 + LINE * place, line, room, size=10)


def _memory(gpu: GpuFacts) -> str:
    return "" if gpu.memory_bytes is None else show_memory(gpu.memory_bytes)


def _draw_rank(drawing: Drawing, ranks: Sequence[int], right: float, y: float, room: float) -> None:
    word = "rank" if len(ranks) == 1 else "ranks"
    text = f"{word} {render_cpu_list(ranks)}"
    width = min(measure(text, 10, bold=True) + 10, room)
    drawing.rectangle("rank", right - width, y, width, 16, radius=8)
    drawing.text("on", right - width / 2, y + 11.5, text, width - 8, size=10, bold=True, centre=True)


def _draw_port(drawing: Drawing, part: Part, x: float, y: float) -> None:
    port = part.port
    if port is None:
        return
    is_dead = port.state != "ACTIVE"
    drawing.rectangle("dead" if is_dead else "port", x, y, TILE, PORT_HEIGHT)
    drawing.rectangle("edge", x, y, 6, PORT_HEIGHT, radius=3, fill=DEAD if is_dead else rate_colour(port))
    room = TILE - 23
    drawing.text("strong", x + 14, y + 18, part.label, room, size=12, bold=True)
    drawing.text("weak", x + 14, y + 35, port.link_layer or "link not known", room, size=10.5)
    if is_dead:
        drawing.text("bad", x + 14, y + 51, port.state or "state not known", room, size=11, bold=True)
    else:
        rate = "rate not known" if port.rate_gbps is None else show_rate(port)
        drawing.text("strong", x + 14, y + 51, rate, room, size=11)
    drawing.text("weak", x + 14, y + 67, port.interface or "", room, size=10)


def _joined(*texts: str | None) -> str:
    return ", ".join(text for text in texts if text)


def rate_colour(port: Port) -> str:
    """Return the colour of an active port."""
    if port.rate_gbps is None:
        return NO_RATE
    return next(colour for least, colour in RATES if port.rate_gbps >= least)


def _draw_cpus(drawing: Drawing, view: View, block: Block, y: float) -> None:
    """Draw a node's name, and its CPUs as a bar with the share of each rank."""
    node, x, width = block.node, block.x + PAD, block.width - 2 * PAD
    name = "NUMA node not known" if node.number is None else f"NUMA node {node.number}"
    used = drawing.text("strong", x + 2, y + 16, name, width, size=13, bold=True)
    count = f"{len(node.cpus)} CPU{'' if len(node.cpus) == 1 else 's'}"
    text = f"{count}: {render_cpu_list(node.cpus)}" if node.cpus else "no CPUs of ours"
    drawing.text("weak", x + used + 14, y + 16, text, width - used - 16, size=11)
    shares = _shares(view.assigned, node.cpus)
    if not node.cpus:
        return
    drawing.rectangle("free", x, y + 26, width, 30, radius=5)
    for place, (process, own) in enumerate(shares):
        share = width / len(shares)
        left = x + place * share
        drawing.rectangle("share", left + 1, y + 26, share - 2, 30, radius=5)
        middle, room = left + share / 2, share - 8
        drawing.text("strong", middle, y + 39, f"rank {process.rank}", room, size=10, bold=True, centre=True)
        drawing.text("weak", middle, y + 51, render_cpu_list(own), room, size=9.5, centre=True)
    if not shares:
        bound = [process for process in view.assigned if process.cpus is not None]
        text = "no rank is bound to CPUs of this node" if bound else "ranks are not bound to CPUs"
        drawing.text("weak", x + width / 2, y + 45, text, width - 12, size=10.5, centre=True)


def _shares(assigned: Sequence[Assigned], cpus: Sequence[int]) -> list[tuple[Assigned, list[int]]]:
    """Return the ranks that are bound to some of these CPUs, in the order of their first one."""
    here = set(cpus)
    shares = [(process, sorted(here.intersection(process.cpus or ()))) for process in assigned]
    found = sorted((pair for pair in shares if pair[1]), key=lambda pair: (pair[1][0], pair[0].rank))
    return found if len(found) <= RANKS_LIMIT else []


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
    """Return what the switches give each GPU, if it is the same for all whose rate is known."""
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
    """Write a short text on a line, on a ground of its own."""
    width = measure(text, 10, bold=True) + 10
    drawing.rectangle("chip", x - width / 2, y - 8, width, 16, radius=8)
    drawing.text("strong", x, y + 3.5, text, width - 6, size=10, bold=True, centre=True)


def _draw_interfaces(drawing: Drawing, view: View, y: float, width: float) -> float:
    """Draw the interfaces that are no port's, and return where they end."""
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
    """Draw what the colours and lines mean, of those that occur; return where it ends."""
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
    """Yield (class, colour of its own, meaning)."""
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
