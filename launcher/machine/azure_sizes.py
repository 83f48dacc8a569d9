"""Table of Azure's VM sizes with GPUs or an RDMA network: what every VM of a size has.

A size that is not in the table is not an error: its kind is None, and we conclude nothing from it.

Source: Azure/azurehpc-health-checks conf/*.conf (devices, counts, rates), Microsoft Learn "HPC VM sizes" and
the pages of the NC, ND, HB, HC and HX series, Azure/azhpc-images (contents of /etc/nccl.conf in its images,
paths of their topology files, and the PCI layout in these), Azure's NCCL benchmark settings
(graceblackwell.conf).
"""

from __future__ import annotations

from launcher.core.frozen import frozen


@frozen
class Switch:
    """A PCI switch of the physical machine below a VM, with the PCI domains of the devices below it.

    All these devices are bus 0, device 0 of their domain.

    Attributes:
        node: Its NUMA node.
        gpus: Domains of the GPUs.
        ports: Domains of the InfiniBand devices.
        speed: Speed of its links, in NCCL's notation.
    """

    node: int
    gpus: tuple[int, ...]
    ports: tuple[int, ...]
    speed: str


@frozen
class VmKind:
    """What the VMs of a size have.

    Attributes:
        sizes: Names in lower case without ``standard_``; one ``*`` matches any text.
        gpu: Model of the GPUs; None without GPUs.
        gpu_counts: Number of GPUs, one per name, or one for all names; for a name with ``*`` all that occur.
        port_count: Number of InfiniBand ports that programs can use by verbs.
        rate_gbps: Rate of each port in Gb/s; None without ports.
        has_verbs: False if there is an RDMA network that NCCL and UCX cannot use (Network Direct instead of
            SR-IOV).
        family: Name of Azure's settings and topology file for the size; empty without them.
        graph: Whether the family also has a graph file.
        settings: Settings that Azure documents for the family, except files: those that its images write to
            /etc/nccl.conf, and for GB200 and GB300 those of its benchmarks.
        switches: PCI switches that GPUs and ports share, if the VM's own PCI tree does not show them.
        has_imex: Whether NVLink connects to other VMs, through a channel that must be given to a container.
    """

    sizes: tuple[str, ...]
    gpu: str | None
    gpu_counts: tuple[int, ...] = (0,)
    port_count: int = 0
    rate_gbps: int | None = None
    has_verbs: bool = True
    family: str = ""
    graph: bool = False
    settings: tuple[tuple[str, str], ...] = ()
    switches: tuple[Switch, ...] = ()
    has_imex: bool = False


_AFFINITY = ("NCCL_IGNORE_CPU_AFFINITY", "1")
_ORDERING = ("NCCL_IB_PCI_RELAXED_ORDERING", "1")
_UCX_ORDERING = ("UCX_IB_PCI_RELAXED_ORDERING", "on")
_GRACE_BLACKWELL = (
    ("NCCL_IB_SL", "1"),
    ("NCCL_NET_GDR_LEVEL", "PHB"),
    ("NCCL_NET_GDR_C2C", "1"),
    ("NCCL_NVLS_ENABLE", "1"),
)
_ND_V4 = tuple(
    Switch(node, gpus, ports, "16 GT/s")
    for node, gpus, ports in (
        (0, (0x3, 0x4), (0x103, 0x104)),
        (1, (0x1, 0x2), (0x101, 0x102)),
        (2, (0xD, 0xE), (0x107, 0x108)),
        (3, (0xB, 0xC), (0x105, 0x106)),
    )
)
"""Each switch has two GPUs and two ports; the first GPU is on NUMA node 1."""
_ND_V5 = tuple(
    Switch(place // 4, (gpu,), (0x101 + place,), "32.0 GT/s PCIe")
    for place, gpu in enumerate((0x1, 0x2, 0x3, 0x8, 0x9, 0xA, 0xB, 0xC))
)
"""Each switch has one GPU and one port."""
KINDS = (
    VmKind(("nc6", "nc12", "nc24"), "K80", (1, 2, 4)),
    VmKind(("nc24r",), "K80", (4,), has_verbs=False),
    VmKind(("nc24rs_v2",), "P100", (4,), has_verbs=False),
    VmKind(("nd24rs",), "P40", (4,), has_verbs=False),
    VmKind(("nc6s_v3", "nc12s_v3", "nc24s_v3"), "V100 PCIe", (1, 2, 4)),
    VmKind(("nc24rs_v3",), "V100 PCIe", (4,), 1, 56),
    VmKind(("nd40rs_v2",), "V100 SXM2", (8,), 1, 100, family="ndv2", settings=(_AFFINITY,)),
    VmKind(("nc24ads_a100_v4", "nc48ads_a100_v4"), "A100 PCIe", (1, 2)),
    VmKind(("nc96ads_a100_v4",), "A100 PCIe", (4,), family="ncv4", graph=True, settings=(_AFFINITY,)),
    VmKind(
        ("nd96asr_v4", "nd96amsr_a100_v4", "nd96amsr_v4"),
        "A100 SXM4",
        (8,),
        8,
        200,
        family="ndv4",
        settings=(_ORDERING, _AFFINITY, _UCX_ORDERING),
        switches=_ND_V4,
    ),
    VmKind(("nc40ads_h100_v5", "nc80adis_h100_v5"), "H100 NVL", (1, 2)),
    VmKind(
        ("nd96is_h100_v5",),
        "H100 SXM5",
        (8,),
        family="ndv5",
        settings=(_ORDERING, _AFFINITY),
        switches=_ND_V5,
    ),
    VmKind(
        ("nd96isr_h100_v5",),
        "H100 SXM5",
        (8,),
        8,
        400,
        family="ndv5",
        settings=(_ORDERING, _AFFINITY),
        switches=_ND_V5,
    ),
    VmKind(
        ("nd96is_h200_v5",),
        "H200 SXM5",
        (8,),
        family="ndv5",
        settings=(_ORDERING, _AFFINITY),
        switches=_ND_V5,
    ),
    VmKind(
        ("nd96isr_h200_v5", "nd96isrf_h200_v5"),
        "H200 SXM5",
        (8,),
        8,
        400,
        family="ndv5",
        settings=(_ORDERING, _AFFINITY),
        switches=_ND_V5,
    ),
    VmKind(("nd96isr_mi300x_v5",), "MI300X", (8,), 8, 400),
    VmKind(
        ("nd128isr_ndr_gb200_v6",),
        "GB200",
        (4,),
        4,
        400,
        family="gb-family",
        settings=_GRACE_BLACKWELL,
        has_imex=True,
    ),
    VmKind(
        ("nd128isr_gb300_v6",),
        "GB300",
        (4,),
        4,
        800,
        family="gb-family",
        settings=_GRACE_BLACKWELL,
        has_imex=True,
    ),
    VmKind(("nc*_rtxpro6000bse_v6",), "RTX PRO 6000", (1, 2), family="ncv6"),
    VmKind(("hc44rs",), None, (0,), 1, 100),
    VmKind(("hb60rs",), None, (0,), 1, 100),
    VmKind(("hb120rs_v2", "hb120rs_v3"), None, (0,), 1, 200),
    VmKind(("hb176rs_v4", "hx176rs"), None, (0,), 1, 400),
    VmKind(("a8", "a9", "h16r", "h16mr"), None, has_verbs=False),
)
"""Sizes with GPUs or an RDMA network."""


def find_kind(size: str) -> VmKind | None:
    """Return the kind of a size; None for a size that is not in the table.

    Args:
        size: Name of the size in any case, with or without ``Standard_``. A size with constrained cores
            (``Standard_HB120-16rs_v3``) is like the full size in all else.
    """
    bare = bare_size(size)
    return next((kind for kind in KINDS if any(_fits(bare, name) for name in kind.sizes)), None)


def bare_size(size: str) -> str:
    """Return a size in lower case without ``standard_`` and without a constrained number of cores."""
    name = size.strip().lower().removeprefix("standard_")
    head, dash, tail = name.partition("-")
    return head + tail.lstrip("0123456789") if dash and head[-1:].isdecimal() else name


def _fits(name: str, pattern: str) -> bool:
    head, star, tail = pattern.partition("*")
    return name == pattern or bool(star and name.startswith(head) and name.endswith(tail))
