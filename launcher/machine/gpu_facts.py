"""Properties of each GPU: frozen values, their form in a snapshot, and the lookup of a GPU by its CUDA name.

None means unknown, and an empty tuple means that there is none. `launcher.machine.nvml` reads the properties.
The launch path does not need this module: it needs only the number of GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import TypeVar

from launcher.core.frozen import frozen
from launcher.machine.numa import parse_pci_address, render_pci_address

T = TypeVar("T", int, str, bool)

NVIDIA, AMD = "NVIDIA", "AMD"
ENDS = ("gpu", "switch", "cpu")
"""Kinds of devices at the other end of an NVLink."""
COUNT_LIMIT = 1 << 10
"""More links, instances or throttle reasons than any GPU has; a snapshot's items beyond it are ignored."""


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
class MigInstance:
    """A MIG instance, a part of a GPU that acts as a GPU: its UUID (``MIG-...``), profile name and memory."""

    uuid: str
    name: str | None = None
    memory_bytes: int | None = None


@frozen
class GpuFacts:
    """A GPU that is exposed to us.

    Attributes:
        index: Its index among the exposed GPUs, in the order of PCI addresses.
        vendor: `NVIDIA` or `AMD`; for AMD only address and NUMA node are known.
        address: PCI address as the kernel writes it.
        capability: CUDA compute capability, e.g. ``9.0``.
        numa_node: The nearest NUMA node.
        links: Active NVLinks, by their other end; None if NVML does not report them.
        mig: Its MIG instances; empty if it is not divided; None if NVML does not report it.
        fabric_cluster, fabric_clique: The multi-node NVLink domain that it belongs to.
        has_ecc: Whether ECC is on for its memory.
        retired_pages: Number of permanently retired memory pages (GPUs before Ampere).
        remapped_rows: Number of memory rows replaced by spare ones (Ampere and newer).
        remapping_failed: Whether spare rows ran out: the GPU should be replaced.
        needs_reset: Whether pages or rows wait for the GPU's next reset.
        throttle: Reasons why its clocks are reduced; empty if they are not.
    """

    index: int
    vendor: str = NVIDIA
    address: str | None = None
    uuid: str | None = None
    name: str | None = None
    capability: str | None = None
    memory_bytes: int | None = None
    numa_node: int | None = None
    links: tuple[NvLink, ...] | None = None
    mig: tuple[MigInstance, ...] | None = None
    fabric_cluster: str | None = None
    fabric_clique: int | None = None
    has_ecc: bool | None = None
    retired_pages: int | None = None
    remapped_rows: int | None = None
    remapping_failed: bool | None = None
    needs_reset: bool | None = None
    throttle: tuple[str, ...] | None = None


def describe_gpu(gpu: GpuFacts) -> dict[str, object]:
    """Return a GPU as a JSON object, as in snapshots and ``launcher topology``."""
    fields: dict[str, object] = {**vars(gpu)}
    address = fields.pop("address")
    fields["pci_bus_id"] = address
    fields["links"] = None if gpu.links is None else [_describe_link(link) for link in gpu.links]
    fields["mig"] = None if gpu.mig is None else [dict(vars(instance)) for instance in gpu.mig]
    fields["throttle"] = None if gpu.throttle is None else list(gpu.throttle)
    return fields


def _describe_link(link: NvLink) -> dict[str, object]:
    return {"to": link.to, "pci_bus_id": link.address, "count": link.count, "gbps": link.gbps}


def parse_gpu(index: int, fields: Mapping[str, object]) -> GpuFacts:
    """Return a GPU from a snapshot; a field of the wrong type is None."""
    return GpuFacts(
        index=index,
        vendor=AMD if fields.get("vendor") == AMD else NVIDIA,
        address=_address(fields.get("pci_bus_id")),
        uuid=_typed(fields, "uuid", str),
        name=_typed(fields, "name", str),
        capability=_typed(fields, "capability", str),
        memory_bytes=_typed(fields, "memory_bytes", int),
        numa_node=_typed(fields, "numa_node", int),
        links=_parse_links(fields.get("links")),
        mig=_parse_mig(fields.get("mig")),
        fabric_cluster=_typed(fields, "fabric_cluster", str),
        fabric_clique=_typed(fields, "fabric_clique", int),
        has_ecc=_typed(fields, "has_ecc", bool),
        retired_pages=_typed(fields, "retired_pages", int),
        remapped_rows=_typed(fields, "remapped_rows", int),
        remapping_failed=_typed(fields, "remapping_failed", bool),
        needs_reset=_typed(fields, "needs_reset", bool),
        throttle=_parse_texts(fields.get("throttle")),
    )


def _typed(fields: Mapping[str, object], name: str, kind: type[T]) -> T | None:
    value = fields.get(name)
    if kind is int and (isinstance(value, bool) or (isinstance(value, int) and value < 0)):
        return None
    return value if isinstance(value, kind) else None


def _address(value: object) -> str | None:
    parsed = parse_pci_address(value) if isinstance(value, str) else None
    return render_pci_address(parsed) if parsed and min(parsed) >= 0 else None


def _objects(value: object) -> list[Mapping[str, object]]:
    items = value[:COUNT_LIMIT] if isinstance(value, list) else []
    return [item for item in items if isinstance(item, Mapping)]


def _parse_links(value: object) -> tuple[NvLink, ...] | None:
    if not isinstance(value, list):
        return None
    found = []
    for fields in _objects(value):
        to, gbps = fields.get("to"), fields.get("gbps")
        count = _typed(fields, "count", int)
        if count and count <= COUNT_LIMIT:
            rate = float(gbps) if isinstance(gbps, int | float) and 0 < gbps < 1e6 else None
            end = str(to) if to in ENDS else None
            found.append(NvLink(end, _address(fields.get("pci_bus_id")), count, rate))
    return tuple(found)


def _parse_mig(value: object) -> tuple[MigInstance, ...] | None:
    if not isinstance(value, list):
        return None
    return tuple(
        MigInstance(
            str(fields.get("uuid", "")), _typed(fields, "name", str), _typed(fields, "memory_bytes", int)
        )
        for fields in _objects(value)
    )


def _parse_texts(value: object) -> tuple[str, ...] | None:
    return tuple(map(str, value[:COUNT_LIMIT])) if isinstance(value, list) else None


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
    """Return the GPU that an entry of CUDA_VISIBLE_DEVICES names, or that its MIG instance is part of.

    None if the entry matches no exposed GPU, or if a UUID prefix matches several.

    Args:
        gpus: The exposed GPUs, in CUDA's order.
        name: An index, a UUID or a prefix of one, or a MIG instance (``MIG-<uuid>``, formerly
            ``MIG-GPU-<uuid>/1/0``).
    """
    if name.isascii() and name.isdecimal():
        return gpus[int(name[:9])] if int(name[:9]) < len(gpus) else None
    if name.startswith("MIG-"):
        parts = [gpu for gpu in gpus for part in gpu.mig or () if part.uuid.startswith(name)]
        name = name.removeprefix("MIG-").partition("/")[0]
        if parts:
            return parts[0]
    if not name.startswith("GPU-"):
        return None
    meant = [gpu for gpu in gpus if (gpu.uuid or "").lower().startswith(name.lower())]
    return meant[0] if len(meant) == 1 else None
