"""Renders a node as a file for NCCL_TOPO_FILE, with known facts only; NCCL finds the rest itself.

NCCL adds missing attributes and drops unused elements, so nothing is guessed: no rank, no ``dev``, no
``gdr``, no kind of processor. Parts whose place is unknown are left out, because NCCL reads /sys itself.
NVLinks are left out, too: NCCL asks NVML when it starts, and a file would still list a link that has failed.

Source: NVIDIA NCCL, src/graph/xml.cc (format, version 1; limits of its parser) and topo.cc (meaning).
"""

from __future__ import annotations

import xml.etree.ElementTree as ET

from launcher.machine.gpu_facts import NVIDIA, GpuFacts
from launcher.machine.numa import parse_pci_address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.machine.hardware import Hardware, Part
    from launcher.machine.infiniband import Port

VERSION = "1"
BRIDGE, GPU, NIC = "0x060400", "0x030200", "0x020000"
"""PCI classes to use if /sys does not show them."""
UNKNOWN_NODE = "-1"
TEXT_LIMIT = 255
"""Maximum number of characters of one value: a longer one makes NCCL's parser fail, and so the job."""


def render_nccl_xml(hardware: Hardware) -> str:
    """Return the file's text."""
    system = ET.Element("system", version=VERSION)
    cpus = {node.number: _add_cpu(system, node.number, node.cpus) for node in hardware.nodes}
    placed: dict[str, ET.Element] = {}
    for part in hardware.parts:
        address = _address(part)
        if address is None:
            continue
        cpu = cpus.get(part.numa_node)
        if cpu is None:
            cpu = cpus[part.numa_node] = _add_cpu(system, part.numa_node, ())
        element = _add_path(cpu, part.path or (address,), hardware, placed, GPU if part.gpu else NIC)
        if part.gpu is not None:
            _add_gpu(element, part.gpu)
        elif part.port is not None and element.find("nic") is None:
            _add_nic(element, part.port, hardware.ports)
    for cpu in [cpu for cpu in system if len(cpu) == 0 and len(system) > 1]:
        system.remove(cpu)
    ET.indent(system)
    # NCCL's own parser takes a space before the end of an element for the start of another attribute
    return ET.tostring(system, encoding="unicode").replace(" />", "/>") + "\n"


def _address(part: Part) -> str | None:
    """Return a part's own PCI address; None if it has none, or if it is a GPU of another vendor."""
    if part.gpu is not None:
        return part.gpu.address if part.gpu.vendor == NVIDIA else None
    return part.path[-1] if part.path and parse_pci_address(part.path[-1]) else None


def _add_cpu(system: ET.Element, node: int | None, cpus: Sequence[int]) -> ET.Element:
    cpu = ET.SubElement(system, "cpu", numaid=UNKNOWN_NODE if node is None else str(node))
    mask = render_mask(cpus) if cpus else ""
    if 0 < len(mask) <= TEXT_LIMIT:
        cpu.set("affinity", mask)
    return cpu


def render_mask(cpus: Sequence[int]) -> str:
    """Return CPUs as a mask in the kernel's format: words of 32 bits, the highest first."""
    words = [0] * (max(cpus) // 32 + 1)
    for cpu in cpus:
        words[cpu // 32] |= 1 << cpu % 32
    return ",".join(f"{word:08x}" for word in reversed(words))


def _add_path(
    cpu: ET.Element, path: Sequence[str], hardware: Hardware, placed: dict[str, ET.Element], kind: str
) -> ET.Element:
    """Return the element of the last PCI address of a path; add it and its bridges if they are missing."""
    above = cpu
    addresses = [address for address in path if parse_pci_address(address)]
    for address in addresses:
        if address not in placed:
            default = kind if address == addresses[-1] else BRIDGE
            placed[address] = _add_pci(above, address, hardware, default)
        above = placed[address]
    return above


def _add_pci(above: ET.Element, address: str, hardware: Hardware, kind: str) -> ET.Element:
    known = hardware.function(address)
    facts = dict(known.identifiers) if known else {}
    element = ET.SubElement(above, "pci", {"busid": address, "class": facts.pop("class", kind)})
    for name, text in facts.items():
        element.set(name, text)
    if known and known.speed_gtps:
        element.set("link_speed", f"{known.speed_gtps:.1f} GT/s PCIe")
    if known and known.width:
        element.set("link_width", str(known.width))
    return element


def _add_gpu(pci: ET.Element, gpu: GpuFacts) -> None:
    element = ET.SubElement(pci, "gpu")
    major, dot, minor = (gpu.capability or "").partition(".")
    if dot and major.isdecimal() and minor.isdecimal():
        element.set("sm", major + minor)


def _add_nic(pci: ET.Element, port: Port, ports: Sequence[Port]) -> None:
    """Add a device with its net element, which NCCL finds by the device's name."""
    nic = ET.SubElement(pci, "nic")
    if len(port.device) > TEXT_LIMIT:
        return
    net = ET.SubElement(nic, "net", name=port.device)
    active = [other for other in ports if other.device == port.device and other.state == "ACTIVE"]
    if len(active) == 1 and active[0].rate_gbps:
        net.set("speed", str(round(active[0].rate_gbps * 1000)))
        net.set("port", str(active[0].number))
