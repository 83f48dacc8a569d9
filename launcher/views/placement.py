"""Places the parts in the drawing of a node: groups in NUMA nodes, and lanes for NVLinks. Pure."""

from __future__ import annotations

from itertools import takewhile

from launcher.core.frozen import frozen
from launcher.machine.hardware import Hardware, NumaNode, Part
from launcher.machine.pci import NODE, PHB, PIX, PXB, UNKNOWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TILE, GAP, PAD = 136.0, 10.0, 12.0
BLOCK_LEAST = 300.0


@frozen
class Group:
    """Parts of one NUMA node that share a box in the drawing.

    Attributes:
        reach: Distance between any two of them, as in the matrix.
        name: Label of the box: the switch or host bridge that they share, if any.
        gpus, ports: The parts, in order; ports that are not InfiniBand come last.
    """

    reach: str
    name: str
    gpus: tuple[Part, ...]
    ports: tuple[Part, ...]

    @property
    def rows(self) -> int:
        """Number of rows of ports; a single row may be one port wider than the GPUs above it."""
        across = max(len(self.gpus), 2 if self.gpus else 4)
        return 1 if len(self.ports) <= across + 1 else -(-len(self.ports) // across)

    @property
    def columns(self) -> int:
        """Number of tiles side by side."""
        return max(len(self.gpus), -(-len(self.ports) // self.rows), 1)

    @property
    def width(self) -> float:
        """Width of its box."""
        return self.columns * TILE + (self.columns - 1) * GAP + 2 * PAD


@frozen
class Block:
    """A NUMA node with its groups, and the x of its left edge."""

    node: NumaNode
    groups: tuple[Group, ...]
    x: float

    @property
    def width(self) -> float:
        """Width of its box."""
        inner = sum(group.width for group in self.groups) + GAP * max(len(self.groups) - 1, 0)
        return max(BLOCK_LEAST, inner + 2 * PAD)


@frozen
class Lane:
    """NVLinks between two GPUs, drawn as a bracket: from ``x1`` up to a lane, along it, down to ``x2``."""

    count: int
    level: int
    x1: float
    x2: float


def place_blocks(hardware: Hardware, x: float, gap: float) -> tuple[Block, ...]:
    """Return the blocks of the NUMA nodes from left to right; parts of no known node have their own block."""
    nodes = {node.number: node for node in hardware.nodes}
    for part in hardware.parts:
        nodes.setdefault(part.numa_node, NumaNode(part.numa_node))
    blocks: list[Block] = []
    for number, node in nodes.items():
        parts = [part for part in hardware.parts if part.numa_node == number]
        blocks.append(Block(node, group_parts(parts), x))
        x += blocks[-1].width + gap
    return tuple(blocks)


def group_parts(parts: Sequence[Part]) -> tuple[Group, ...]:
    """Group the parts of one NUMA node by what they share: a root port, a host bridge, or neither."""
    left = list(parts)
    groups: list[tuple[int, Group]] = []
    for depth in (2, 1):
        for top in dict.fromkeys(part.path[:depth] for part in left if len(part.path) > depth):
            members = [part for part in left if part.path[:depth] == top and len(part.path) > depth]
            if len(members) > 1:
                left = [part for part in left if part not in members]
                groups.append((parts.index(members[0]), _group(members)))
    for known in (True, False):
        members = [part for part in left if bool(part.path) is known]
        if members:
            groups.append((parts.index(members[0]), _ungrouped(known, members)))
    return tuple(group for _, group in sorted(groups, key=lambda pair: pair[0]))


def _group(members: Sequence[Part]) -> Group:
    above = zip(*(part.path[:-1] for part in members), strict=False)
    shared = [level[0] for level in takewhile(lambda level: len(set(level)) == 1, above)]
    short = shared[-1].removeprefix("pci").removeprefix("0000:")
    if len(shared) == 1:
        return _split(PHB, f"host bridge {short}", members)
    is_one = all(len(part.path) - len(shared) <= 2 for part in members)
    kind = "bridge" if len(shared) == 2 else "switch" if is_one else "switches"
    return _split(PIX if is_one else PXB, f"PCI {kind} {short}", members)


def _ungrouped(known: bool, members: Sequence[Part]) -> Group:
    if not known:
        return _split(UNKNOWN, "place in PCI not known", members)
    name = "a PCI host bridge for each" if len(members) > 1 else "PCI host bridge"
    return _split(NODE, name, members)


def _split(reach: str, name: str, members: Sequence[Part]) -> Group:
    gpus = tuple(part for part in members if part.gpu is not None)
    ports = [part for part in members if part.port is not None]
    return Group(reach, name, gpus, tuple(sorted(ports, key=_is_other_link)))


def _is_other_link(part: Part) -> bool:
    return part.port is not None and part.port.link_layer != "InfiniBand"


def place_lanes(spots: dict[int, float], links: Iterable[tuple[int, int, int]]) -> tuple[Lane, ...]:
    """Return brackets for direct NVLinks: short ones below long ones, and no two on top of each other.

    Args:
        spots: Left edge of each GPU's tile, by the GPU's index.
        links: (one GPU, other GPU, number of links).
    """
    pairs = sorted(
        (sorted((a, b), key=spots.__getitem__), count) for a, b, count in links if a in spots and b in spots
    )
    feet = _place_feet(spots, [(a, b) for (a, b), _ in pairs])
    lanes: list[Lane] = []
    for (a, b), count in sorted(pairs, key=lambda pair: spots[pair[0][1]] - spots[pair[0][0]]):
        x1, x2 = feet[a, b], feet[b, a]
        taken = {lane.level for lane in lanes if lane.x1 < x2 and x1 < lane.x2}
        lanes.append(Lane(count, min(set(range(len(lanes) + 1)) - taken), x1, x2))
    return tuple(lanes)


def _place_feet(spots: dict[int, float], pairs: Sequence[tuple[int, int]]) -> dict[tuple[int, int], float]:
    """Return the x of the bracket's foot on a GPU, by (this GPU, other GPU).

    On each side of a tile the bracket to the nearest GPU is outermost, so that few brackets cross.
    """
    feet: dict[tuple[int, int], float] = {}
    for gpu, left in spots.items():
        others = [b if a == gpu else a for a, b in pairs if gpu in (a, b)]
        before = sorted((other for other in others if spots[other] < left), key=lambda o: -spots[o])
        after = sorted((other for other in others if spots[other] >= left), key=lambda o: -spots[o])
        for place, other in enumerate((*before, *after), start=1):
            feet[gpu, other] = left + TILE * place / (len(others) + 1)
    return feet


def place_label(lane: Lane, lanes: Sequence[Lane], width: float) -> float:
    """Return the x of a bracket's label: the most central one at which no higher bracket crosses it."""
    feet = [x for other in lanes if other.level > lane.level for x in (other.x1, other.x2)]
    middle, room = (lane.x1 + lane.x2) / 2, (lane.x2 - lane.x1 - width) / 2
    steps = range(int(max(room, 0) / 2) + 1)
    spots = [middle + sign * 2 * step for step in steps for sign in (1, -1)]
    free = (x for x in spots if all(abs(foot - x) > width / 2 + 2 for foot in feet))
    return next(free, middle)
