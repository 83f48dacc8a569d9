"""Reads the RDMA ports of this node, and tells which of them are InfiniBand that a job can use.

A device under /sys/class/infiniband need not be InfiniBand: Azure's accelerated networking, RoCE, EFA and
Omni-Path are there too. A port is recognized by its link layer and its driver. Names prove little: ``mlx5_0``
may be InfiniBand, RoCE or accelerated networking. Only Omni-Path's device names are used as well.

A value counts only in the kernel's own format. A value that is missing, unreadable or in another format is
None, and the other values stay. A port is left out only if its directory's name is not a number, or if none
of link layer, state and rate can be read: then the port is gone.

Source: Linux Documentation/ABI/stable/sysfs-class-infiniband, drivers/infiniband/core/sysfs.c;
drivers/infiniband/hw/efa/efa_verbs.c (EFA's link layer is unspecified, which sysfs writes "Unknown").
"""

from __future__ import annotations

from itertools import islice

from launcher.core.frozen import frozen
from launcher.core.ranks import is_number, natural_order
from launcher.machine.numa import parse_pci_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from launcher.machine.host import Host

DEVICES = "/sys/class/infiniband"
VERBS = "/sys/class/infiniband_verbs"
LINK_LAYERS = ("InfiniBand", "Ethernet", "Unknown", "Unspecified")
STATES = ("NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER")
"""Port states, indexed by the number that the kernel writes before the name."""
OMNI_PATH = ("hfi", "opa")
"""Prefixes of Omni-Path's driver (hfi1) and devices (hfi1_0; opap1s0 if udev names them by PCI slot)."""
OWNERS_LIMIT = 8
"""Identifiers of a port that are asked for their interface; each may be a query to the firmware."""
PORTS_LIMIT = 256
"""More ports than any node has."""


@frozen
class Port:
    """A port of an RDMA device.

    Attributes:
        device: Name of the device under /sys/class/infiniband, e.g. ``mlx5_0``.
        number: Number of the port, from 1.
        link_layer: One of `LINK_LAYERS`; None if unknown.
        state: One of `STATES`; None if unknown.
        rate_gbps: Signalling rate in Gb/s; only meaningful if the port is ACTIVE.
        numa_node: NUMA node of the device; None if the kernel reports none.
        pci_path: PCI root and functions down to the device's own, e.g. ``("pci0000:00",
            "0000:00:01.0", "0000:01:00.0")``; empty for a software device.
        interface: Network interface of the port: IP over InfiniBand, or Ethernet.
        has_uverbs: Whether the device file that programs need is exposed to us; None if not recorded.
        driver: Kernel driver of the device, e.g. ``mlx5_core``, ``efa``.
    """

    device: str
    number: int
    link_layer: str | None = None
    state: str | None = None
    rate_gbps: float | None = None
    numa_node: int | None = None
    pci_path: tuple[str, ...] = ()
    interface: str | None = None
    has_uverbs: bool | None = None
    driver: str | None = None


def is_omni_path(port: Port) -> bool:
    """Whether a port is Omni-Path.

    Omni-Path reports the link layer InfiniBand too, but programs for InfiniBand verbs do not run well on it.
    """
    return any(name.startswith(OMNI_PATH) for name in (port.driver or "", port.device))


def is_usable(port: Port) -> bool:
    """Whether a port is InfiniBand, not Omni-Path, and connected to an active subnet."""
    return port.link_layer == "InfiniBand" and port.state == "ACTIVE" and not is_omni_path(port)


def read_ports(host: Host) -> tuple[Port, ...]:
    """Return the ports of all RDMA devices, mlx5_2 before mlx5_10."""
    exposed = read_verbs_devices(host)
    files = host.list_folder(VERBS) if exposed else ()
    verbs = {host.read_line(f"{VERBS}/{name}/ibdev"): name for name in files}
    ports = (
        port
        for device in sorted(host.list_folder(DEVICES), key=natural_order)
        for port in _read_device(host, device, None if exposed is None else verbs.get(device) in exposed)
    )
    return tuple(islice(ports, PORTS_LIMIT))


def read_verbs_devices(host: Host) -> frozenset[str] | None:
    """Return the names (uverbsN) of the RDMA device files exposed to us, None if unknown."""
    if host.is_recorded() and not host.list_folder("/dev"):
        return None
    return frozenset(name for name in host.list_folder("/dev/infiniband") if name.startswith("uverbs"))


def _read_device(host: Host, device: str, has_uverbs: bool | None) -> Iterator[Port]:
    folder = f"{DEVICES}/{device}"
    numbers = sorted(int(name) for name in host.list_folder(f"{folder}/ports") if is_number(name, 3))
    driver = host.read_link(f"{folder}/device/driver") if numbers else None
    for number in numbers:
        place = f"{folder}/ports/{number}"
        link_layer, state, rate = (
            host.read_line(f"{place}/{name}") for name in ("link_layer", "state", "rate")
        )
        if link_layer is None and state is None and rate is None:
            continue
        yield Port(
            device=device,
            number=number,
            link_layer=link_layer if link_layer in LINK_LAYERS else None,
            state=parse_state(state or ""),
            rate_gbps=parse_rate(rate or ""),
            numa_node=host.read_number(f"{folder}/device/numa_node"),
            pci_path=parse_pci_path(host.read_link(folder) or ""),
            interface=_read_interface(host, folder, number),
            has_uverbs=has_uverbs,
            driver=driver.rpartition("/")[2] if driver else None,
        )


def parse_state(text: str) -> str | None:
    """Return the name in e.g. ``4: ACTIVE``; None if the number does not belong to the name."""
    number, _, name = text.partition(": ")
    return name if name in STATES and number == str(STATES.index(name)) else None


def parse_rate(text: str) -> float | None:
    """Return the Gb/s in e.g. ``400 Gb/sec (4X NDR)`` or ``2.5 Gb/sec (1X SDR)``; None if 0 or malformed."""
    words = text.split()
    whole, _, rest = (words or [""])[0].partition(".")
    is_rate = is_number(whole, 6) and (rest or "0").isdecimal() and words[1:2] == ["Gb/sec"]
    return float(words[0]) or None if is_rate else None


def _read_interface(host: Host, folder: str, number: int) -> str | None:
    """Return the interface of the port's first identifier (over Ethernet), or else that of its device.

    A device with two ports has an interface for each; ``dev_port`` numbers the ports from 0. A port can have
    more interfaces (``ib0.8001`` of a partition); the first one is the port's own.
    """
    for index in range(OWNERS_LIMIT):
        owner = host.read_line(f"{folder}/ports/{number}/gid_attrs/ndevs/{index}")
        if owner is not None and _is_interface_name(owner):
            return owner
    for name in sorted(host.list_folder(f"{folder}/device/net"), key=natural_order):
        if host.read_number(f"{folder}/device/net/{name}/dev_port") in (number - 1, None):
            return name
    return None


def _is_interface_name(text: str) -> bool:
    """Whether the kernel accepts this name for an interface (net/core/dev.c, dev_valid_name)."""
    return len(text) < 16 and text not in (".", "..") and not set(text) & set(" \t/:")
