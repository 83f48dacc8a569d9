"""The facts of the GPUs that are exposed to us: from NVML, or without it from the driver's files.

NVML takes tens of milliseconds, and seconds where no process keeps the GPUs initialized: it is asked by
``launcher snapshot`` and ``launcher topology``, never on the way to a start. Whatever it refuses, does not
support or answers in another form is None; nothing here raises.

Source: NVIDIA NVML API reference; NVIDIA driver README, "The /proc Interface".
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref
from itertools import count
from types import ModuleType
from typing import Any

from launcher.host import Host
from launcher.machine.gpu_facts import AMD, GpuFacts, MigInstance, NvLink
from launcher.machine.numa import (
    DRIVER_GPUS,
    PCI_DEVICES,
    parse_pci_address,
    read_gpus,
    render_pci_address,
)
from launcher.machine.sysfs import read_number

AMD_DEVICES = "/sys/bus/pci/drivers/amdgpu"
DEVICE_LIMIT = 256
LINK_LIMIT = 36
"""Of one GPU; NVML says how many it has only by refusing the next."""
NODE_WORDS = 16
"""64-bit words of a set of NUMA nodes: the kernel counts to 1024 at most."""
THROTTLE = (
    *("idle", "application clocks", "power cap", "hardware slowdown", "sync boost", "hot (software)"),
    *("hot (hardware)", "power brake", "display clocks", "board limit", "reliability"),
)
"""What the bits of NVML's mask mean, lowest first."""
FABRIC_COMPLETED = 3


def read_gpu_facts(host: Host) -> tuple[GpuFacts, ...]:
    """Return the GPUs of this machine that are exposed to us, by PCI address."""
    found = _by_nvml(host) or _by_driver(host)
    return tuple(GpuFacts(**{**vars(gpu), "index": index}) for index, gpu in enumerate(found))


def read_amd_gpus(host: Host) -> tuple[GpuFacts, ...]:
    """Return AMD's GPUs: those that their driver has. Only where they are is known."""
    names = [name for name in host.list_folder(AMD_DEVICES) if host.read_link(f"{AMD_DEVICES}/{name}")]
    addresses = sorted(filter(None, map(parse_pci_address, names)))
    return tuple(
        GpuFacts(index, AMD, address, numa_node=read_number(host, f"{PCI_DEVICES}/{address}/numa_node"))
        for index, address in enumerate(map(render_pci_address, addresses))
    )


def _by_driver(host: Host) -> list[GpuFacts]:
    """Return the GPUs of the driver's files; where they do not tell which are ours, only how many."""
    gpus = read_gpus(host)
    if not gpus:
        return [GpuFacts(index) for index in range(len(host.gpu_minors()))]
    return [
        GpuFacts(0, address=gpu.address, uuid=gpu.uuid, name=_model(host, gpu.address), numa_node=gpu.node)
        for gpu in gpus
    ]


def _model(host: Host, address: str) -> str | None:
    for line in (host.read_text(f"{DRIVER_GPUS}/{address}/information") or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "Model" and value.strip().isprintable():
            return value.strip() or None
    return None


class _Nvml:
    """NVML's functions, with None for every way of not answering."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module

    def ask(self, name: str, *arguments: Any) -> Any:
        """Return what a function answers: None if the library, the driver or the GPU has no such thing."""
        try:
            return getattr(self.module, name)(*arguments)
        except (self.module.NVMLError, AttributeError, TypeError, ValueError, OSError):
            return None

    def text(self, name: str, *arguments: Any) -> str | None:
        """Return an answer that is a text; older libraries have bytes."""
        found = self.ask(name, *arguments)
        text = found.decode("ascii", "replace") if isinstance(found, bytes) else found
        return text if isinstance(text, str) and text else None

    def number(self, name: str, *arguments: Any) -> int | None:
        """Return an answer that is a number."""
        found = self.ask(name, *arguments)
        return found if isinstance(found, int) else None


def _by_nvml(host: Host) -> list[GpuFacts]:
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError, OSError):
        return []
    nvml = _Nvml(pynvml)
    try:
        handles = _handles(nvml, host.gpu_minors())
        return sorted((_read_gpu(nvml, handle, host) for handle in handles), key=_by_address)
    finally:
        nvml.ask("nvmlShutdown")


def _by_address(gpu: GpuFacts) -> tuple[int, ...]:
    return parse_pci_address(gpu.address or "") or ()


def _handles(nvml: _Nvml, minors: frozenset[str]) -> list[Any]:
    """Return the GPUs that we may use: NVML counts those too whose device files we were not given."""
    total = min(nvml.number("nvmlDeviceGetCount") or 0, DEVICE_LIMIT)
    found = [nvml.ask("nvmlDeviceGetHandleByIndex", index) for index in range(total)]
    return [handle for handle in found if handle is not None and _is_exposed(nvml, handle, minors)]


def _is_exposed(nvml: _Nvml, handle: Any, minors: frozenset[str]) -> bool:
    minor = nvml.number("nvmlDeviceGetMinorNumber", handle)
    return not minors or minor is None or str(minor) in minors


def _read_gpu(nvml: _Nvml, handle: Any, host: Host) -> GpuFacts:
    address = _address(nvml.ask("nvmlDeviceGetPciInfo", handle))
    capability = nvml.ask("nvmlDeviceGetCudaComputeCapability", handle)
    cluster, clique = _read_fabric(nvml, handle)
    ecc = nvml.ask("nvmlDeviceGetEccMode", handle)
    rows = nvml.ask("nvmlDeviceGetRemappedRows", handle)
    pending = nvml.number("nvmlDeviceGetRetiredPagesPendingStatus", handle)
    waits = [bool(state) for state in (pending, rows and rows[2]) if state is not None]
    return GpuFacts(
        index=0,
        address=address,
        uuid=nvml.text("nvmlDeviceGetUUID", handle),
        name=nvml.text("nvmlDeviceGetName", handle),
        capability=None if capability is None else "{}.{}".format(*capability),
        memory_bytes=_memory(nvml, handle),
        numa_node=_read_node(nvml, handle, host, address),
        links=_read_links(nvml, handle),
        mig=_read_mig(nvml, handle),
        fabric_cluster=cluster,
        fabric_clique=clique,
        has_ecc=None if ecc is None else bool(ecc[0]),
        retired_pages=_count_pages(nvml, handle),
        remapped_rows=None if rows is None else rows[0] + rows[1],
        remapping_failed=None if rows is None else bool(rows[3]),
        needs_reset=any(waits) if waits else None,
        throttle=_read_throttle(nvml, handle),
    )


def _address(info: Any) -> str | None:
    """Return the address in a structure that names a PCI device; NVML's has eight digits of domain."""
    text = getattr(info, "busId", None)
    text = text.decode("ascii", "replace") if isinstance(text, bytes) else text
    parsed = parse_pci_address(text) if isinstance(text, str) else None
    is_real = parsed is not None and parsed[0] < 1 << 20 and parsed[1] < 1 << 8
    return render_pci_address(parsed) if parsed is not None and is_real else None


def _memory(nvml: _Nvml, handle: Any) -> int | None:
    total = getattr(nvml.ask("nvmlDeviceGetMemoryInfo", handle), "total", None)
    return total if isinstance(total, int) else None


def _read_node(nvml: _Nvml, handle: Any, host: Host, address: str | None) -> int | None:
    """Return the nearest NUMA node: the kernel's word for the device, else NVML's if it is one node."""
    node = read_number(host, f"{PCI_DEVICES}/{address}/numa_node") if address else None
    if node is not None:
        return node
    words = nvml.ask("nvmlDeviceGetMemoryAffinity", handle, NODE_WORDS, 0) or ()
    nodes = [64 * place + bit for place, word in enumerate(words) for bit in range(64) if word >> bit & 1]
    return nodes[0] if len(nodes) == 1 else None


def _read_links(nvml: _Nvml, handle: Any) -> tuple[NvLink, ...] | None:
    """Return the active links by their other end; None if this GPU has none that NVML can ask about."""
    ends: dict[tuple[str | None, str | None], int] = {}
    for link in range(LINK_LIMIT):
        state = nvml.number("nvmlDeviceGetNvLinkState", handle, link)
        if state is None:
            if link == 0:
                return None
            break
        if state:
            end = _read_end(nvml, handle, link)
            ends[end] = ends.get(end, 0) + 1
    gbps = _read_link_rate(nvml, handle) if ends else None
    return tuple(NvLink(to, address, number, gbps) for (to, address), number in ends.items())


def _read_end(nvml: _Nvml, handle: Any, link: int) -> tuple[str | None, str | None]:
    kind = nvml.number("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
    address = _address(nvml.ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link))
    return {0: "gpu", 1: "cpu", 2: "switch"}.get(-1 if kind is None else kind), address


def _read_link_rate(nvml: _Nvml, handle: Any) -> float | None:
    """Return the Gb/s of one link; NVML has megabytes."""
    field = getattr(nvml.module, "NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON", 90)
    values = nvml.ask("nvmlDeviceGetFieldValues", handle, [field])
    if not values or values[0].nvmlReturn != 0:
        return None
    megabytes = int(values[0].value.uiVal)
    return megabytes * 8 / 1000 or None


def _read_mig(nvml: _Nvml, handle: Any) -> tuple[MigInstance, ...] | None:
    mode = nvml.ask("nvmlDeviceGetMigMode", handle)
    if mode is None:
        return None
    total = nvml.number("nvmlDeviceGetMaxMigDeviceCount", handle) or 0 if mode[0] else 0
    parts = [nvml.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, index) for index in range(total)]
    return tuple(
        MigInstance(
            nvml.text("nvmlDeviceGetUUID", part) or "",
            nvml.text("nvmlDeviceGetName", part),
            _memory(nvml, part),
        )
        for part in parts
        if part is not None
    )


def _read_fabric(nvml: _Nvml, handle: Any) -> tuple[str | None, int | None]:
    """Return cluster and clique of multi-node NVLink; both None where the GPU is in none."""
    info = nvml.ask("c_nvmlGpuFabricInfoV_t")
    if info is None or nvml.ask("nvmlDeviceGetGpuFabricInfoV", handle, byref(info)) is None:
        return None, None
    cluster = bytes(info.clusterUuid)
    if info.state != FABRIC_COMPLETED or info.status != 0 or not any(cluster):
        return None, None
    digits = iter(cluster.hex())
    groups = ["".join(next(digits) for _ in range(size)) for size in (8, 4, 4, 4, 12)]
    return "-".join(groups), int(info.cliqueId)


def _count_pages(nvml: _Nvml, handle: Any) -> int | None:
    lists = [nvml.ask("nvmlDeviceGetRetiredPages", handle, cause) for cause in (0, 1)]
    known: Sequence[Any] = [pages for pages in lists if pages is not None]
    return sum(map(len, known)) if known else None


def _read_throttle(nvml: _Nvml, handle: Any) -> tuple[str, ...] | None:
    mask = nvml.number("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if mask is None:  # before driver 535
        mask = nvml.number("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    if mask is None:
        return None
    return tuple(name for bit, name in zip(count(), THROTTLE) if mask >> bit & 1)
