"""Reads the layout of CPUs and GPUs: physical cores, NUMA nodes, and the NUMA node of each GPU.

NVML is not used: it costs tens of milliseconds and a library. The driver's directory in /proc lists the GPUs
that a container was given, and sysfs has the NUMA node of every PCI device.

Source: Linux Documentation/ABI/stable/sysfs-devices-node (cpulist), admin-guide/cputopology.rst
(thread_siblings_list), ABI/testing/sysfs-devices-system-cpu (smt/active), ABI/testing/sysfs-bus-pci
(numa_node); NVIDIA driver README, "The /proc Interface".
"""

from __future__ import annotations

from launcher.core.model import Core, Gpu, Layout
from launcher.core.ranks import CPU_LIMIT, is_number, parse_cpu_list
from launcher.machine.cgroup import read_cpuset
from launcher.machine.gpus import list_minors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.machine.host import Host

NODES = "/sys/devices/system/node"
CPUS = "/sys/devices/system/cpu"
PCI_DEVICES = "/sys/bus/pci/devices"
DRIVER_GPUS = "/proc/driver/nvidia/gpus"
DRIVER_DEVICES, AMD_DEVICES = "/sys/bus/pci/drivers/nvidia", "/sys/bus/pci/drivers/amdgpu"


def read_layout(host: Host, name_gpus: bool = True) -> Layout:
    """Return the CPUs of our affinity mask and cgroup by core and NUMA node, and the GPUs' NUMA nodes."""
    own, cpuset = host.affinity() or frozenset(), read_cpuset(host)
    return Layout(
        own=tuple(sorted(own)),
        cpuset=tuple(sorted(cpuset)),
        cores=read_cores(host, own | cpuset),
        gpus=read_gpus(host, name_gpus),
    )


def read_cores(host: Host, cpus: frozenset[int]) -> tuple[Core, ...]:
    """Return the physical cores of these CPUs, ordered by NUMA node, then by CPU.

    A CPU that no NUMA node lists is offline and left out: the kernel lists only online CPUs. If there are no
    NUMA nodes (a kernel without NUMA, a masked /sys), the node of all cores is None.
    """
    nodes = _read_nodes(host)
    left = {cpu: nodes.get(cpu) for cpu in sorted(cpus) if cpu in nodes or not nodes}
    alone = host.read_line(f"{CPUS}/smt/active") == "0"
    cores = []
    listed = 0
    while left:
        cpu = next(iter(left))
        node = left[cpu]
        text = None if alone else host.read_text(f"{CPUS}/cpu{cpu}/topology/thread_siblings_list")
        siblings = parse_cpu_list(text or "")
        listed += len(siblings)
        if listed > CPU_LIMIT:
            return ()  # no kernel has so many, but a snapshot may claim it
        members = tuple(sorted({cpu, *siblings} & left.keys()))
        for member in members:
            del left[member]
        cores.append(Core(members, node))
    return tuple(sorted(cores, key=lambda core: (-1 if core.node is None else core.node, core.cpus)))


def _read_nodes(host: Host) -> dict[int, int]:
    """Return the NUMA node of each CPU. Nodes with only memory list no CPU."""
    names = [name[4:] for name in host.list_folder(NODES) if name[:4] == "node" and is_number(name[4:], 5)]
    found: dict[int, int] = {}
    listed = 0
    for name in names:
        cpus = parse_cpu_list(host.read_text(f"{NODES}/node{name}/cpulist") or "")
        listed += len(cpus)
        if listed > CPU_LIMIT:
            return {}
        found |= dict.fromkeys(cpus, int(name))
    return found


def read_gpus(host: Host, name_gpus: bool = True) -> tuple[Gpu, ...]:
    """Return the exposed GPUs in CUDA's order; empty if it is unknown which ones are exposed.

    CUDA orders equal GPUs by PCI address. If the driver lists more GPUs than we have device files (a
    container that was given some of them), the minor numbers tell which are ours.
    """
    minors = list_minors(host)
    if not minors:
        return ()
    listed = host.list_folder(DRIVER_GPUS)
    addresses = sorted(filter(None, map(parse_pci_address, listed or host.list_folder(DRIVER_DEVICES))))
    names = [render_pci_address(address) for address in addresses]
    told: dict[str, dict[str, str]] = {}
    if listed and (name_gpus or len(names) != len(minors)):
        told = {name: read_information(host, name) for name in names}
    if len(names) != len(minors):
        names = [name for name in names if told.get(name, {}).get("Device Minor") in minors]
    if len(names) != len(minors):
        return ()
    return tuple(Gpu(name, read_numa_node(host, name), _uuid(told.get(name, {}))) for name in names)


def read_gpu_paths(host: Host) -> tuple[tuple[str, ...], ...]:
    """Return the PCI path of each GPU of the machine, also of those that are not exposed to us."""
    links = [
        f"{folder}/{name}"
        for folder in (DRIVER_DEVICES, AMD_DEVICES)
        for name in host.list_folder(folder)
        if parse_pci_address(name)
    ] or [f"{PCI_DEVICES}/{gpu.address}" for gpu in read_gpus(host, name_gpus=False)]
    return tuple(filter(None, (parse_pci_path(host.read_link(link) or "") for link in links)))


def parse_pci_address(text: str) -> tuple[int, int, int, int] | None:
    """Return domain, bus, device and function of e.g. ``0001:07:00.0``; None if it is not an address."""
    domain, _, rest = text.partition(":")
    bus, _, rest = rest.partition(":")
    device, _, function = rest.partition(".")
    try:
        return int(domain, 16), int(bus, 16), int(device, 16), int(function, 16)
    except ValueError:
        return None


def render_pci_address(address: tuple[int, int, int, int]) -> str:
    """Return an address as the kernel writes it, with four digits of domain; NVML writes eight."""
    domain, bus, device, function = address
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


def parse_pci_path(link: str) -> tuple[str, ...]:
    """Return the PCI part of the target of a device's link."""
    return tuple(name for name in link.split("/") if _is_pci_root(name) or parse_pci_address(name))


def _is_pci_root(name: str) -> bool:
    return name.startswith("pci") and parse_pci_address(f"{name[3:]}:0.0") is not None


def read_numa_node(host: Host, address: str) -> int | None:
    """Return the NUMA node of a PCI device; None if the kernel reports none."""
    return host.read_number(f"{PCI_DEVICES}/{address}/numa_node")


def read_information(host: Host, name: str) -> dict[str, str]:
    lines = (host.read_text(f"{DRIVER_GPUS}/{name}/information") or "").splitlines()
    pairs = [line.partition(":") for line in lines]
    return {key.strip(): value.strip() for key, _, value in pairs}


def _uuid(information: Mapping[str, str]) -> str | None:
    uuid = information.get("GPU UUID", "")
    return uuid if uuid.startswith("GPU-") and "?" not in uuid else None  # "?" until the GPU's first use
