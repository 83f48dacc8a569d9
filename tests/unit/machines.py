"""Made-up machines: folders with the files of /sys, /proc and /dev that real ones have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.core.ranks import parse_cpu_list
from launcher.machine.host import Host

NVIDIA = "proc/driver/nvidia/gpus"


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write files below a folder."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def write_nodes(
    folder: Path, nodes: Mapping[int, str], siblings: Sequence[str] = (), smt: bool | None = None
) -> None:
    """Write NUMA nodes with their CPUs, and which CPUs are hardware threads of one core."""
    write(folder, {f"sys/devices/system/node/node{n}/cpulist": f"{cpus}\n" for n, cpus in nodes.items()})
    for text in siblings:
        for cpu in parse_cpu_list(text):
            path = f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
            write(folder, {path: f"{text}\n"})
    if smt is not None:
        write(folder, {"sys/devices/system/cpu/smt/active": f"{int(smt)}\n"})


def write_gpus(
    folder: Path,
    gpus: Sequence[tuple[str, int]],
    *,
    minors: Sequence[int] = (),
    exposed: Sequence[int] | None = None,
    uuids: Sequence[str] = (),
    proc: bool = True,
) -> None:
    """Write GPUs as (PCI address, NUMA node), with device files for those minors that are exposed."""
    minors = minors or range(len(gpus))
    for place, ((address, node), minor) in enumerate(zip(gpus, minors, strict=True)):
        uuid = uuids[place] if uuids else f"GPU-{place:04d}"
        information = (
            f"Model: \t\t NVIDIA H200\nIRQ:   \t\t 42\nGPU UUID: \t {uuid}\n"
            f"Bus Location: \t {address}\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n"
        )
        write(folder, {f"sys/bus/pci/devices/{address}/numa_node": f"{node}\n"})
        write(
            folder,
            {f"sys/bus/pci/drivers/nvidia/{address}/uevent": "", "sys/bus/pci/drivers/nvidia/bind": ""},
        )
        if proc:
            write(folder, {f"{NVIDIA}/{address}/information": information})
        if exposed is None or minor in exposed:
            write(folder, {f"dev/nvidia{minor}": "", "dev/nvidiactl": ""})


def recorded_gpus(gpus: Sequence[tuple[str, int, str]]) -> dict[str, str | None]:
    """Return the files of GPUs as (PCI address, NUMA node, UUID), in the form of a snapshot."""
    files: dict[str, str | None] = {"/dev/null": None}
    for minor, (address, node, uuid) in enumerate(gpus):
        files[f"/dev/nvidia{minor}"] = None
        files[f"/{NVIDIA}/{address}/information"] = f"GPU UUID: {uuid}\nDevice Minor: {minor}\n"
        files[f"/sys/bus/pci/devices/{address}/numa_node"] = f"{node}\n"
    return files


def recorded_cpus(cpus: str, nodes: Mapping[int, str] | None = None) -> dict[str, str]:
    """Return the files of a cgroup's CPUs and of NUMA nodes, in the form of a snapshot."""
    files = {f"/sys/devices/system/node/node{node}/cpulist": text for node, text in (nodes or {}).items()}
    return {"/sys/fs/cgroup/cpuset.cpus.effective": cpus, **files}


class Machine(Host):
    """A machine in a folder, and the CPUs that its launcher was given."""

    def __init__(self, root: Path, mask: str, cpuset: str | None = None) -> None:
        super().__init__(str(root))
        self.mask = parse_cpu_list(mask)
        write(root, {"proc/self/cgroup": "0::/\n"})
        write(root, {"sys/fs/cgroup/cpuset.cpus.effective": f"{mask if cpuset is None else cpuset}\n"})

    def affinity(self) -> frozenset[int]:
        return self.mask


class DGX(Machine):
    """8 GPUs on 2 NUMA nodes of 24 cores with 2 hardware threads each: 96 CPUs."""

    def __init__(self, root: Path, mask: str = "0-95", cpuset: str | None = None) -> None:
        super().__init__(root, mask, cpuset)
        nodes = {0: "0-23,48-71", 1: "24-47,72-95"}
        write_nodes(root, nodes, siblings=[f"{cpu},{cpu + 48}" for cpu in range(48)], smt=True)
        addresses = ("07", "0b", "48", "4c", "88", "8b", "c8", "cb")
        write_gpus(root, [(f"0000:{bus}:00.0", place // 4) for place, bus in enumerate(addresses)])


class ND_V5(Machine):  # noqa: N801 - Azure's name
    """Azure ND H100 v5 and ND H200 v5, by its NCCL topology file: 96 CPUs without siblings."""

    def __init__(self, root: Path, mask: str = "0-95", cpuset: str | None = None) -> None:
        super().__init__(root, mask, cpuset)
        write_nodes(root, {0: "0-47", 1: "48-95"}, smt=False)
        domains = ("0001", "0002", "0003", "0008", "0009", "000a", "000b", "000c")
        write_gpus(root, [(f"{domain}:00:00.0", place // 4) for place, domain in enumerate(domains)])


class ND_V4(Machine):  # noqa: N801
    """Azure ND A100 v4, by its NCCL topology file: 4 nodes, and GPU 0 is on node 1."""

    def __init__(self, root: Path, mask: str = "0-95", cpuset: str | None = None) -> None:
        super().__init__(root, mask, cpuset)
        write_nodes(root, {node: f"{24 * node}-{24 * node + 23}" for node in range(4)}, smt=False)
        domains = ("0001", "0002", "0003", "0004", "000b", "000c", "000d", "000e")
        nodes = (1, 1, 0, 0, 3, 3, 2, 2)
        write_gpus(root, [(f"{domain}:00:00.0", node) for domain, node in zip(domains, nodes, strict=True)])
