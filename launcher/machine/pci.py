"""Distances between devices in the PCI tree, with the names of ``nvidia-smi topo -m``."""

from __future__ import annotations

SELF, PIX, PXB, PHB, NODE, SYS, UNKNOWN = "X", "PIX", "PXB", "PHB", "NODE", "SYS", "?"
MEANINGS = {
    PIX: "one PCI switch between them",
    PXB: "several PCI switches between them",
    PHB: "the same PCI host bridge",
    NODE: "the same NUMA node; no shared host bridge that /sys shows",
    SYS: "another NUMA node",
    UNKNOWN: "not known",
}
"""Distances from near to far, with their meanings."""
NEAREST = tuple(MEANINGS)


def relate(a: tuple[str, ...], a_node: int | None, b: tuple[str, ...], b_node: int | None) -> str:
    """Return the distance between two devices, by their paths in the PCI tree and their NUMA nodes.

    /sys shows each port of a switch as a bridge. So two devices at one switch have at most two path entries
    each below their shared path: the bridge and the device itself.
    """
    shared = 0
    while shared < min(len(a), len(b)) and a[shared] == b[shared]:
        shared += 1
    if shared > 1:
        return PIX if max(len(a), len(b)) - shared <= 2 else PXB
    if shared == 1:
        return PHB
    if a_node is None or b_node is None:
        return UNKNOWN
    return NODE if a_node == b_node else SYS
