"""Draws a NUMA node as a block with its GPUs, its ports, and each rank's share of its CPUs."""

from __future__ import annotations

from launcher.machine.cpus import render_cpu_list
from launcher.views.drawing import Drawing, measure
from launcher.views.placement import GAP, PAD, TILE, Block, Group
from launcher.views.topology import View, show_memory, show_rate, show_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from launcher.machine.gpu_facts import GpuFacts
    from launcher.machine.hardware import Part
    from launcher.machine.infiniband import Port
    from launcher.planning.assignment import Assigned

GPU_HEIGHT, PORT_HEIGHT, BUS_HEIGHT, WIRE = 76.0, 80.0, 22.0, 22.0
EMPTY_HEIGHT = 44.0
LINE, STATE_LINES = 14.0, 2
"""Height of a state line, and the most of them in a GPU's tile; all tiles are as high as the highest."""
CPU_HEIGHT = 66.0
RANKS_LIMIT = 32
"""Maximum number of ranks that one CPU bar shows; with more it shows none."""
RATES = (
    (800, "#7c3aed"),
    (400, "#0d9467"),
    (200, "#2563eb"),
    (100, "#0e8fb0"),
    (25, "#b7791f"),
    (0, "#7d8590"),
)
"""Minimum Gb/s of each colour, fastest first."""
DEAD = "#dc2626"
NO_RATE = "#9aa4ae"


def group_spots(block: Block) -> Iterator[tuple[Group, float]]:
    """Yield the groups of a block, each with its left edge."""
    x = block.x + PAD
    for group in block.groups:
        yield group, x
        x += group.width + GAP


def _rows(groups: Sequence[Group]) -> tuple[bool, bool]:
    """Return whether any of these groups has GPUs, and whether any has ports."""
    return any(group.gpus for group in groups), any(group.ports for group in groups)


def gpu_height(view: View) -> float:
    """Return the height of a GPU's tile, which is the same for all GPUs."""
    lines = [len(_state_lines(view, gpu)) for gpu in view.hardware.gpus]
    return GPU_HEIGHT + LINE * max(lines, default=0)


def _state_lines(view: View, gpu: GpuFacts) -> list[str]:
    """Return the notable state of a GPU in lines that fit its tile; a last line that is too long is cut."""
    lines: list[str] = []
    state = show_state(gpu, gpu.index in view.visible)
    for word in [] if state in ("ok", "?") else state.split(", "):
        longer = f"{lines[-1]}, {word}" if lines else word
        if lines and (len(lines) == STATE_LINES or measure(longer, 10) <= TILE - 18):
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def block_height(block: Block, tile_height: float) -> float:
    """Return the height of a block, given the height of its GPUs' tiles."""
    return PAD + (_group_height(block, tile_height) or EMPTY_HEIGHT) + CPU_HEIGHT + PAD


def _group_height(block: Block, tile_height: float) -> float:
    has_gpus, has_ports = _rows(block.groups)
    if not block.groups:
        return 0.0
    gpus = tile_height + WIRE if has_gpus else 0.0
    rows = max(group.rows for group in block.groups)
    ports = WIRE + rows * (PORT_HEIGHT + GAP) - GAP if has_ports else 0.0
    return PAD + gpus + BUS_HEIGHT + ports + PAD


def draw_block(drawing: Drawing, view: View, block: Block, top: float, bottom: float) -> None:
    """Draw a block between its upper and its lower edge."""
    drawing.rectangle("block", block.x, top, block.width, bottom - top, radius=10)
    for group, x in group_spots(block):
        _draw_group(drawing, view, block, group, x, top + PAD)
    if not block.groups:
        middle = block.x + block.width / 2
        text = "no GPU and no RDMA port"
        drawing.text("weak", middle, top + PAD + 26, text, block.width - 2 * PAD, centre=True)
    _draw_cpus(drawing, view, block, bottom - CPU_HEIGHT - PAD / 2)


def _draw_group(drawing: Drawing, view: View, block: Block, group: Group, x: float, top: float) -> None:
    has_gpus, _ = _rows(block.groups)
    height = gpu_height(view)
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
        if row:  # past the ports above it, not through them
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


def rate_colour(port: Port) -> str:
    """Return the colour for the rate of an active port."""
    if port.rate_gbps is None:
        return NO_RATE
    return next(colour for least, colour in RATES if port.rate_gbps >= least)


def _draw_cpus(drawing: Drawing, view: View, block: Block, y: float) -> None:
    """Draw a NUMA node's name, and its CPUs as a bar with each rank's share."""
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
    """Return the ranks that are bound to some of these CPUs, each with those CPUs, in order of the first one.

    Returns none if there are more than `RANKS_LIMIT`.
    """
    here = set(cpus)
    shares = [(process, sorted(here.intersection(process.cpus or ()))) for process in assigned]
    found = sorted((pair for pair in shares if pair[1]), key=lambda pair: (pair[1][0], pair[0].rank))
    return found if len(found) <= RANKS_LIMIT else []
