"""Properties of each GPU, their use at this moment, and their errors as they come: NVML knows them.

NVML takes tens of milliseconds, and seconds if no process keeps the GPUs initialized. Only commands such as
``launcher snapshot`` and ``launcher topology``, and forks, ask it, never the launch path. A value that NVML
refuses, does not support or returns in another form is None, an empty tuple means that there is none; nothing
here raises. Without NVML, properties come from the driver's files, or from a snapshot.

Source: NVIDIA NVML API reference; NVIDIA driver README, "The /proc Interface".
"""

from __future__ import annotations

from launcher.core.frozen import frozen, replace
from launcher.machine.gpus import DEVICE_LIMIT, count_gpus, list_minors
from launcher.machine.numa import (
    AMD_DEVICES,
    parse_pci_address,
    read_gpus,
    read_information,
    read_numa_node,
    render_pci_address,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence, Set
    from types import ModuleType
    from typing import Any, TypeVar

    from launcher.machine.host import Host

    T = TypeVar("T")

NVIDIA, AMD = "NVIDIA", "AMD"
ENDS = ("gpu", "switch", "cpu")
"""Kinds of devices at the other end of an NVLink."""
PLAIN: dict[str, type] = {
    **dict.fromkeys(("uuid", "name"), str),
    **dict.fromkeys(("memory_bytes", "numa_node"), int),
    **dict.fromkeys(("has_ecc", "remapping_failed", "needs_reset"), bool),
}
"""Fields of `GpuFacts` that a snapshot has as they are."""
COUNT_LIMIT = 1 << 10
"""More links or throttle reasons than any GPU has; a snapshot's items beyond it are ignored."""
LINK_LIMIT = 36
"""Limit of links per GPU; NVML shows their number only by refusing the first one that does not exist."""
NODE_WORDS = 16
"""Number of 64-bit words of a set of NUMA nodes: the kernel supports at most 1024 nodes."""
THROTTLE = (
    *("idle", "application clocks", "power cap", "hardware slowdown", "sync boost", "hot (software)"),
    *("hot (hardware)", "power brake", "display clocks", "board limit", "reliability"),
)
"""Meanings of the bits of NVML's throttle mask, lowest bit first."""
KINDS = {0: "gpu", 1: "cpu", 2: "switch"}
"""Meanings of NVML's numbers for the other end of a link; 1 is a POWER processor."""
WAIT_MS = 60_000
"""Milliseconds of one wait for an event, which ends it at once."""
XID = "nvmlEventTypeXidCriticalError"
NUMBERS = {"nvmlEventTypeDoubleBitEccError": 48, "nvmlEventTypeDramRetirementFailure": 64}
"""Kinds of events without an Xid of their own, and the Xid that says the same."""


@frozen
class NvLink:
    """The active links from one GPU to one other device.

    Attributes:
        to: One of `ENDS`; None if NVML does not report it.
        address: PCI address of the other end; None if it is hidden (most VMs hide switches).
        count: Number of active links.
        gbps: Rate of one link in one direction, in Gb/s; None if unknown.
    """

    to: str | None
    address: str | None
    count: int
    gbps: float | None = None


@frozen
class GpuFacts:
    """A GPU that is exposed to us.

    Attributes:
        index: Its index among the exposed GPUs, in the order of PCI addresses.
        vendor: `NVIDIA` or `AMD`; for AMD only address and NUMA node are known.
        address: PCI address as the kernel writes it.
        numa_node: The nearest NUMA node.
        links: Active NVLinks, by their other end; None if NVML does not report them.
        has_ecc: Whether ECC is on for its memory.
        remapping_failed: Whether spare rows ran out: the GPU should be replaced.
        needs_reset: Whether pages or rows wait for the GPU's next reset.
        throttle: Reasons why its clocks are reduced; empty if they are not.
    """

    index: int
    vendor: str = NVIDIA
    address: str | None = None
    uuid: str | None = None
    name: str | None = None
    memory_bytes: int | None = None
    numa_node: int | None = None
    links: tuple[NvLink, ...] | None = None
    has_ecc: bool | None = None
    remapping_failed: bool | None = None
    needs_reset: bool | None = None
    throttle: tuple[str, ...] | None = None


def describe_gpu(gpu: GpuFacts) -> dict[str, object]:
    """Return a GPU as a JSON object, as in snapshots and ``launcher topology``."""
    fields: dict[str, object] = {**vars(gpu)}
    address = fields.pop("address")
    fields["pci_bus_id"] = address
    links = [
        {"to": link.to, "pci_bus_id": link.address, "count": link.count, "gbps": link.gbps}
        for link in gpu.links or ()
    ]
    fields["links"] = None if gpu.links is None else links
    fields["throttle"] = None if gpu.throttle is None else list(gpu.throttle)
    return fields


def parse_gpu(index: int, fields: Mapping[str, object]) -> GpuFacts:
    """Return a GPU from a snapshot; a field of the wrong type is None."""
    links, throttle = fields.get("links"), fields.get("throttle")
    return GpuFacts(
        index=index,
        vendor=AMD if fields.get("vendor") == AMD else NVIDIA,
        address=_parse_address(fields.get("pci_bus_id")),
        links=_parse_links(links) if isinstance(links, list) else None,
        throttle=tuple(map(str, throttle[:COUNT_LIMIT])) if isinstance(throttle, list) else None,
        **{name: _typed(fields, name, kind) for name, kind in PLAIN.items()},
    )


def _typed(fields: Mapping[str, object], name: str, kind: type) -> Any:
    value = fields.get(name)
    is_negative = isinstance(value, int) and value < 0
    return value if type(value) is kind and not is_negative else None


def _parse_address(value: object) -> str | None:
    parsed = parse_pci_address(value) if isinstance(value, str) else None
    return render_pci_address(parsed) if parsed and min(parsed) >= 0 else None


def _parse_links(items: list[object]) -> tuple[NvLink, ...]:
    found = []
    for fields in items[:COUNT_LIMIT]:
        if not isinstance(fields, dict):
            continue
        count = _typed(fields, "count", int)
        if count and count <= COUNT_LIMIT:
            to, gbps = str(fields.get("to")), fields.get("gbps")
            rate = float(gbps) if isinstance(gbps, int | float) and 0 < gbps < 1e6 else None
            found.append(
                NvLink(to if to in ENDS else None, _parse_address(fields.get("pci_bus_id")), count, rate)
            )
    return tuple(found)


def find_nvlink_gbps(gpus: Sequence[GpuFacts]) -> float | None:
    """Return the total rate of a GPU's NVLinks in one direction, in Gb/s; None if unknown.

    It is known only if every GPU reaches every other one by NVLink: through switches, or directly between two
    GPUs. With pairs or a mesh it depends on the GPUs that a job uses. The result is the minimum over all
    GPUs, because the slowest one limits the others.
    """
    ends = {"switch", "gpu"} if len(gpus) == 2 else {"switch"}
    rates = [_sum_links(gpu, ends) for gpu in gpus]
    known = [rate for rate in rates if rate]
    return min(known) if known and len(known) == len(rates) else None


def _sum_links(gpu: GpuFacts, ends: Set[str]) -> float | None:
    rates = [link.count * link.gbps for link in gpu.links or () if link.to in ends and link.gbps]
    return sum(rates) if gpu.links and len(rates) == len(gpu.links) else None


def find_gpu(gpus: Sequence[GpuFacts], name: str) -> GpuFacts | None:
    """Return the GPU that an entry of CUDA_VISIBLE_DEVICES names.

    None if the entry matches no exposed GPU, if a UUID prefix matches several, and for ``MIG-<uuid>``, which
    does not tell the GPU.

    Args:
        gpus: The exposed GPUs, in CUDA's order.
        name: An index, a UUID or a prefix of one, or ``MIG-GPU-<uuid>/1/0``.
    """
    if name.isascii() and name.isdecimal():
        return gpus[int(name[:9])] if int(name[:9]) < len(gpus) else None
    name = name.removeprefix("MIG-").partition("/")[0]
    if not name.startswith("GPU-"):
        return None
    meant = [gpu for gpu in gpus if (gpu.uuid or "").lower().startswith(name.lower())]
    return meant[0] if len(meant) == 1 else None


def read_gpu_facts(host: Host) -> tuple[GpuFacts, ...]:
    """Return all known properties of the exposed NVIDIA GPUs, in the order of their PCI addresses. Slow."""
    recorded = host.recorded("gpus")
    if isinstance(recorded, list):
        known = (gpu if isinstance(gpu, dict) else {} for gpu in recorded[:DEVICE_LIMIT])
        return tuple(parse_gpu(index, gpu) for index, gpu in enumerate(known))
    found = ([] if host.is_recorded() else _by_nvml(host)) or _by_driver(host)
    return tuple(replace(gpu, index=index) for index, gpu in enumerate(found))


def read_amd_gpus(host: Host) -> tuple[GpuFacts, ...]:
    """Return the GPUs of AMD's driver, with only their PCI addresses and NUMA nodes."""
    names = [name for name in host.list_folder(AMD_DEVICES) if host.read_link(f"{AMD_DEVICES}/{name}")]
    addresses = sorted(filter(None, map(parse_pci_address, names)))
    return tuple(
        GpuFacts(index, AMD, address, numa_node=read_numa_node(host, address))
        for index, address in enumerate(map(render_pci_address, addresses))
    )


def _by_driver(host: Host) -> list[GpuFacts]:
    """Return the GPUs in the driver's files; without properties if it is unknown which ones are ours."""
    gpus = read_gpus(host)
    if not gpus:
        return [GpuFacts(index) for index in range(count_gpus(host) or 0)]
    return [
        GpuFacts(0, address=gpu.address, uuid=gpu.uuid, name=_model(host, gpu.address), numa_node=gpu.node)
        for gpu in gpus
    ]


def _model(host: Host, address: str) -> str | None:
    model = read_information(host, address).get("Model", "")
    return model if model and model.isprintable() else None


class _Nvml:
    """NVML's functions, which return None instead of an error."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module

    def ask(self, take: Callable[[Any], T | None], name: str, *arguments: Any) -> T | None:
        """Return the result of ``take`` for a function's answer.

        None if the library, the driver or the GPU does not support it, or answers in another form.
        """
        try:
            return take(getattr(self.module, name)(*arguments))
        except (self.module.NVMLError, AttributeError, LookupError, TypeError, ValueError, OSError):
            return None

    def list_all(self) -> list[tuple[int, Any]]:
        """Return the index and the handle of each GPU that answers, also of those that are not exposed."""
        total = min(self.ask(_number, "nvmlDeviceGetCount") or 0, DEVICE_LIMIT)
        found = [(index, self.ask(_as_it_is, "nvmlDeviceGetHandleByIndex", index)) for index in range(total)]
        return [(index, handle) for index, handle in found if handle is not None]

    def list_exposed(self, host: Host) -> list[Any]:
        """Return the GPUs whose device files we have."""
        minors = list_minors(host)

        def is_ours(gpu: Any) -> bool:
            minor = self.ask(_number, "nvmlDeviceGetMinorNumber", gpu)
            return not minors or minor is None or str(minor) in minors

        return [gpu for _, gpu in self.list_all() if is_ours(gpu)]


def _open() -> _Nvml | None:
    """Return NVML, initialized; None without it or without a driver."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError, OSError):
        return None
    return _Nvml(pynvml)


def _as_it_is(answer: Any) -> Any:
    return answer


def _text(answer: Any) -> str | None:
    """Return an answer as text; older libraries return bytes."""
    text = answer.decode("ascii", "replace") if isinstance(answer, bytes) else answer
    return text if isinstance(text, str) and text else None


def _number(answer: Any) -> int | None:
    return answer if isinstance(answer, int) and answer >= 0 else None


def _by_nvml(host: Host) -> list[GpuFacts]:
    nvml = _open()
    if nvml is None:
        return []
    found = [_read_gpu(nvml, gpu, host) for gpu in nvml.list_exposed(host)]
    nvml.ask(_as_it_is, "nvmlShutdown")
    return sorted(found, key=lambda gpu: parse_pci_address(gpu.address or "") or ())


def _read_gpu(nvml: _Nvml, handle: Any, host: Host) -> GpuFacts:
    address = nvml.ask(_address, "nvmlDeviceGetPciInfo", handle)
    pages_wait = nvml.ask(bool, "nvmlDeviceGetRetiredPagesPendingStatus", handle)
    rows_wait = nvml.ask(lambda rows: bool(rows[2]), "nvmlDeviceGetRemappedRows", handle)
    waits = [state for state in (pages_wait, rows_wait) if state is not None]
    return GpuFacts(
        index=0,
        address=address,
        uuid=nvml.ask(_text, "nvmlDeviceGetUUID", handle),
        name=nvml.ask(_text, "nvmlDeviceGetName", handle),
        memory_bytes=nvml.ask(lambda info: _number(info.total), "nvmlDeviceGetMemoryInfo", handle),
        numa_node=_read_node(nvml, handle, host, address),
        links=_read_links(nvml, handle),
        has_ecc=nvml.ask(lambda modes: bool(modes[0]), "nvmlDeviceGetEccMode", handle),
        remapping_failed=nvml.ask(lambda rows: bool(rows[3]), "nvmlDeviceGetRemappedRows", handle),
        needs_reset=any(waits) if waits else None,
        throttle=_read_throttle(nvml, handle),
    )


def _address(info: Any) -> str | None:
    """Return the address in a PCI info structure as the kernel writes it; NVML's domain has eight digits."""
    parsed = parse_pci_address(_text(info.busId) or "")
    is_real = parsed is not None and 0 <= parsed[0] < 1 << 20 and parsed[1] < 1 << 8
    return render_pci_address(parsed) if parsed is not None and is_real else None


def _read_node(nvml: _Nvml, handle: Any, host: Host, address: str | None) -> int | None:
    """Return the nearest NUMA node: the kernel's value for the device, or else NVML's if it is one node."""
    node = read_numa_node(host, address) if address else None
    if node is not None:
        return node
    return nvml.ask(_only_node, "nvmlDeviceGetMemoryAffinity", handle, NODE_WORDS, 0)


def _only_node(words: Any) -> int | None:
    nodes = [64 * place + bit for place, word in enumerate(words) for bit in range(64) if word >> bit & 1]
    return nodes[0] if len(nodes) == 1 else None


def _read_links(nvml: _Nvml, handle: Any) -> tuple[NvLink, ...] | None:
    """Return the active links by their other end; None if NVML reports no links for this GPU."""
    ends: dict[tuple[str | None, str | None], int] = {}
    for link in range(LINK_LIMIT):
        state = nvml.ask(_number, "nvmlDeviceGetNvLinkState", handle, link)
        if state is None:
            if link == 0:
                return None
            break
        if state:
            kind = nvml.ask(KINDS.get, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
            end = kind, nvml.ask(_address, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
            ends[end] = ends.get(end, 0) + 1
    field = getattr(nvml.module, "NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON", 90)
    gbps = nvml.ask(_link_rate, "nvmlDeviceGetFieldValues", handle, [field]) if ends else None
    return tuple(NvLink(to, address, number, gbps) for (to, address), number in ends.items())


def _link_rate(values: Any) -> float | None:
    """Return the rate of one link in Gb/s; NVML reports MB/s."""
    (value,) = values
    return None if value.nvmlReturn != 0 else int(value.value.uiVal) * 8 / 1000 or None


def _read_throttle(nvml: _Nvml, handle: Any) -> tuple[str, ...] | None:
    mask = nvml.ask(_number, "nvmlDeviceGetCurrentClocksEventReasons", handle)
    if mask is None:  # before driver 535
        mask = nvml.ask(_number, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    return None if mask is None else tuple(name for bit, name in enumerate(THROTTLE) if mask >> bit & 1)


@frozen
class GpuMemoryUse:
    """The use of one GPU: its NVML index, used and total bytes of memory, and PIDs of compute processes."""

    index: int
    used_bytes: int
    total_bytes: int
    pids: tuple[int, ...] = ()


def read_gpu_use() -> tuple[GpuMemoryUse, ...]:
    """Return the use of each GPU that NVML lists and that answers; empty without NVML or a driver.

    The PIDs of processes of other containers mean nothing here, or are not listed at all. The used memory
    includes theirs in any case.
    """
    nvml = _open()
    if nvml is None:
        return ()
    found = []
    for index, gpu in nvml.list_all():
        memory = nvml.ask(lambda info: (int(info.used), int(info.total)), "nvmlDeviceGetMemoryInfo", gpu)
        pids = nvml.ask(
            lambda listed: tuple(int(one.pid) for one in listed), "nvmlDeviceGetComputeRunningProcesses", gpu
        )
        if memory is not None and pids is not None:
            found.append(GpuMemoryUse(index, *memory, pids))
    nvml.ask(_as_it_is, "nvmlShutdown")
    return tuple(found)


def wait_for_errors(host: Host) -> Iterator[str]:
    """Yield ``ADDRESS XID`` for each error of an exposed GPU, e.g. ``0000:3b:00 79``.

    No privilege is needed, unlike for the kernel's log. Runs in a fork, and blocks: NVML may take seconds to
    wake GPUs up. It ends where there is no NVML, if no GPU has events, and if NVML fails.
    """
    nvml = _open()
    events = None if nvml is None else nvml.ask(_as_it_is, "nvmlEventSetCreate")
    if nvml is None or events is None:
        return
    kinds = {getattr(nvml.module, name, 0): number for name, number in {XID: 0, **NUMBERS}.items()}
    kinds.pop(0, None)  # not known to this version
    if sum(_register(nvml, gpu, sum(kinds), events) for gpu in nvml.list_exposed(host)):
        yield from _wait(nvml, events, kinds)


def _register(nvml: _Nvml, gpu: Any, kinds: int, events: Any) -> bool:
    supported = (nvml.ask(_number, "nvmlDeviceGetSupportedEventTypes", gpu) or 0) & kinds
    done = "nvmlDeviceRegisterEvents", gpu, supported, events
    return bool(supported and nvml.ask(lambda _: True, *done))


def _wait(nvml: _Nvml, events: Any, kinds: dict[int, int]) -> Iterator[str]:
    wait = getattr(nvml.module, "nvmlEventSetWait_v2", None) or nvml.module.nvmlEventSetWait
    while True:
        try:
            event = wait(events, WAIT_MS)
        except nvml.module.NVMLError_Timeout:
            continue
        except nvml.module.NVMLError:
            return
        address = nvml.ask(_address, "nvmlDeviceGetPciInfo", event.device)
        if address is None:
            return
        if event.eventType in kinds:
            yield f"{address.rpartition('.')[0]} {kinds[event.eventType] or event.eventData}"
