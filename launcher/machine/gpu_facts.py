"""Properties of each GPU: frozen values, their form in a snapshot, and the lookup of a GPU by its CUDA name.

None means unknown, and an empty tuple means that there is none. `launcher.machine.nvml` reads the properties.
The launch path does not need this module: it needs only the number of GPUs.
"""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.machine.numa import parse_pci_address, render_pci_address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Set
    from typing import Any

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
        address=_address(fields.get("pci_bus_id")),
        links=_parse_links(links) if isinstance(links, list) else None,
        throttle=tuple(map(str, throttle[:COUNT_LIMIT])) if isinstance(throttle, list) else None,
        **{name: _typed(fields, name, kind) for name, kind in PLAIN.items()},
    )


def _typed(fields: Mapping[str, object], name: str, kind: type) -> Any:
    value = fields.get(name)
    is_negative = isinstance(value, int) and value < 0
    return value if type(value) is kind and not is_negative else None


def _address(value: object) -> str | None:
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
            found.append(NvLink(to if to in ENDS else None, _address(fields.get("pci_bus_id")), count, rate))
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
