"""Reads the place of devices in the PCI tree, the distances between them, and the speed of their links.

Source: Linux Documentation/ABI/testing/sysfs-bus-pci (numa_node, max_link_speed, max_link_width). The names
of distances are those of ``nvidia-smi topo -m``.
"""

from __future__ import annotations

from typing import TypeVar

from launcher.core.frozen import frozen
from launcher.machine.numa import PCI_DEVICES, parse_pci_path
from launcher.machine.sysfs import read_line, read_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.machine.host import Host

T = TypeVar("T", float, int)

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
IDENTIFIERS = ("class", "vendor", "device", "subsystem_vendor", "subsystem_device")


@frozen
class PciFunction:
    """A device or a bridge in the PCI tree.

    Attributes:
        address: PCI address as the kernel writes it, e.g. ``0000:01:00.0``.
        path: Root, bridges, and the address itself; empty if /sys does not show them.
        numa_node: Its NUMA node; None if the kernel reports none.
        identifiers: (name, hexadecimal number with 0x) of the readable `IDENTIFIERS`.
        speed_gtps: Maximum speed of device and slot together, in GT/s per lane; None if unknown.
        width: Maximum width of device and slot together, in lanes; None if unknown.
    """

    address: str
    path: tuple[str, ...] = ()
    numa_node: int | None = None
    identifiers: tuple[tuple[str, str], ...] = ()
    speed_gtps: float | None = None
    width: int | None = None


def read_function(host: Host, address: str) -> PciFunction:
    """Return the PCI function with an address, as /sys shows it."""
    folder = f"{PCI_DEVICES}/{address}"
    path = parse_pci_path(host.read_link(folder) or "")
    texts = [(name, read_line(host, f"{folder}/{name}") or "") for name in IDENTIFIERS]
    above = f"{PCI_DEVICES}/{path[-2]}" if len(path) > 2 else None
    return PciFunction(
        address=address,
        path=path if path and path[-1] == address else (),
        numa_node=read_number(host, f"{folder}/numa_node"),
        identifiers=tuple((name, text) for name, text in texts if _is_hexadecimal(text)),
        speed_gtps=_least([_read_speed(host, place) for place in (folder, above) if place]),
        width=_least([_read_width(host, place) for place in (folder, above) if place]),
    )


def _is_hexadecimal(text: str) -> bool:
    digits = text.removeprefix("0x")
    return digits != text and 0 < len(digits) <= 8 and not digits.strip("0123456789abcdef")


def _least(values: list[T | None]) -> T | None:
    return min((value for value in values if value), default=None)


def _read_speed(host: Host, folder: str) -> float | None:
    return parse_speed(read_line(host, f"{folder}/max_link_speed") or "")


def _read_width(host: Host, folder: str) -> int | None:
    width = read_number(host, f"{folder}/max_link_width")
    return width if width and width <= 32 else None  # 255 means unknown


def parse_speed(text: str) -> float | None:
    """Return 16.0 for ``16.0 GT/s PCIe``; None if the text does not begin with a rate."""
    number, _, unit = text.partition(" ")
    whole, _, rest = number.partition(".")
    is_rate = whole.isascii() and whole.isdecimal() and len(whole) <= 3 and (rest or "0").isdecimal()
    return float(number) or None if is_rate and rest.isascii() and unit.startswith("GT/s") else None


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
