"""Azure VM sizes: what one has, what Azure documents for it, and how a container can know its own.

The size stands in a variable (Azure ML's common runtime), its family in another (what Azure's images
call NCCL_TOPO_FAMILY), else only the instance metadata service knows it. That one is asked where a
caller wants it, never by `read_vm`: outside of Azure nobody answers, and in Kubernetes it is often
blocked.

A size that is not in the table is no error: its kind is None, and nothing follows from it.

Source: Azure/azurehpc-health-checks conf/*.conf (devices, counts, rates), Microsoft Learn "HPC VM
sizes" and the pages of the NC, ND, HB, HC and HX series, Azure/azhpc-images (what its images write to
/etc/nccl.conf, and where their topology files are and what they say of PCI), Azure's NCCL benchmark settings
(graceblackwell.conf), "Azure Instance Metadata Service".
"""

from __future__ import annotations

from launcher.environ import shorten
from launcher.frozen import frozen
from launcher.host import Host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

CONTEXT = "AZUREML_CR_COMPUTE_CONTEXT"  # {"cluster_name": ..., "vm_size": "Standard_ND96isr_H100_v5", ...}
FAMILY = "NCCL_TOPO_FAMILY"  # ndv5
BATCH_NODE = "AZ_BATCH_NODE_ID"
ASSET_TAG_FILE = "/sys/class/dmi/id/chassis_asset_tag"
ASSET_TAG = "7783-7084-3265-9085-8269-3286-77"
"""What every Azure VM has there, and nothing else (cloud-init tells Azure by it too)."""
IMDS = "http://169.254.169.254"
SIZE_PATH = "/metadata/instance/compute/vmSize?api-version=2021-01-01&format=text"
IMDS_TIMEOUT_S = 1.0
SIZE_LIMIT = 64
"""Longer than any name of a size."""


@frozen
class Switch:
    """A PCI switch of the machine below a VM: what hangs below it, by PCI domains (all are bus 0, device 0).

    Attributes:
        node: Its NUMA node.
        gpus: Domains of the GPUs.
        ports: Domains of the InfiniBand devices.
        speed: Of its links, in NCCL's words.
    """

    node: int
    gpus: tuple[int, ...]
    ports: tuple[int, ...]
    speed: str


@frozen
class VmKind:
    """What the VMs of a size have.

    Attributes:
        sizes: Names in lower case, without ``standard_``; one ``*`` stands for anything.
        gpu: Model; None without GPUs.
        gpu_counts: GPUs, one number per name, or one for all.
        port_count: InfiniBand ports that programs can use by verbs.
        rate_gbps: Of each.
        has_verbs: False where there is an RDMA network, but no way for NCCL or UCX to use it (Network
            Direct instead of SR-IOV).
        family: Name of Azure's settings for it, and of its topology file; empty without any.
        graph: Whether the family has a graph file besides.
        settings: What Azure documents for the family, files apart: what its images write to /etc/nccl.conf,
            for GB200 and GB300 what its benchmarks use.
        switches: Which GPUs and ports share a PCI switch, where the VM's own tree does not show it.
        has_imex: Whether NVLink leads to other VMs, through a channel that a container must be given.
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
"""Pairs of GPUs with pairs of ports; the first GPU is on node 1."""
_ND_V5 = tuple(
    Switch(place // 4, (gpu,), (0x101 + place,), "32.0 GT/s PCIe")
    for place, gpu in enumerate((0x1, 0x2, 0x3, 0x8, 0x9, 0xA, 0xB, 0xC))
)
"""Each GPU with a port of its own."""

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
"""By size. Not here: sizes without GPUs and without an RDMA network."""


@frozen
class Vm:
    """The VM that we run in, as far as somebody says.

    Attributes:
        size: As told, e.g. ``Standard_ND96isr_H100_v5``; empty if only the family is known.
        kind: None for a size, or a family, that is not in the table.
        origin: Who says so.
    """

    size: str
    kind: VmKind | None
    origin: str

    @property
    def name(self) -> str:
        """The size, or the family."""
        return self.size or (self.kind.family if self.kind else "")

    @property
    def gpu_count(self) -> int | None:
        """GPUs that a VM of this size has; None where the name does not tell."""
        counts = self.kind.gpu_counts if self.kind and self.size else ()
        if self.kind is None or len(counts) == 1:
            return counts[0] if counts else None
        found = [count for size, count in zip(self.kind.sizes, counts) if size == _bare(self.size)]  # noqa: B905 - a pattern has fewer
        return found[0] if found else None


def find_kind(size: str) -> VmKind | None:
    """Return what is known of a size; None for one that is not in the table.

    Args:
        size: In any case, with ``Standard_`` or without. Sizes with constrained cores
            (``Standard_HB120-16rs_v3``) have all else of the whole one.
    """
    bare = _bare(size)
    return next((kind for kind in KINDS if any(_fits(bare, name) for name in kind.sizes)), None)


def _bare(size: str) -> str:
    """Return a size in lower case without ``standard_`` and without the number of cores that are left."""
    name = size.strip().lower().removeprefix("standard_")
    head, dash, tail = name.partition("-")
    return head + tail.lstrip("0123456789") if dash and head[-1:].isdecimal() else name


def _fits(name: str, pattern: str) -> bool:
    head, star, tail = pattern.partition("*")
    return name == pattern or bool(star and name.startswith(head) and name.endswith(tail))


def read_vm(environ: Mapping[str, str]) -> Vm | None:
    """Return the VM that variables speak of; None if none does. Nobody is asked."""
    size = _read_context(environ.get(CONTEXT, ""))
    if size:
        return Vm(size, find_kind(size), f"{CONTEXT}: vm_size {shorten(size)!r}")
    family = environ.get(FAMILY, "")
    if family:
        wanted = family.strip().lower()
        kinds = [kind for kind in KINDS if kind.family == wanted]
        return Vm("", _in_common(kinds) if kinds else None, f"{FAMILY}={shorten(family)!r}")
    return None


def _in_common(kinds: list[VmKind]) -> VmKind:
    """Return what all members of a family have; ports only where the members agree."""
    first = kinds[0]
    if len({(kind.port_count, kind.rate_gbps, kind.gpu) for kind in kinds}) == 1:
        return first
    return VmKind(
        (),
        None,
        (),
        family=first.family,
        graph=first.graph,
        settings=first.settings,
        switches=first.switches,
        has_imex=first.has_imex,
    )


def _read_context(text: str) -> str:
    """Return ``vm_size`` of the common runtime's JSON; empty where it is null, missing or no name."""
    if "vm_size" not in text:
        return ""
    import json

    try:
        context = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    return _as_size(context.get("vm_size") if isinstance(context, dict) else None)


def _as_size(value: object) -> str:
    """Return the name of a size; empty for anything else."""
    text = value.strip() if isinstance(value, str) else ""
    plain = text.isascii() and text.replace("_", "a").replace("-", "a").isalnum()
    return text if plain and len(text) <= SIZE_LIMIT else ""


def is_azure(host: Host, environ: Mapping[str, str]) -> bool:
    """Whether this is certainly a VM of Azure: by its firmware, by Batch, or by a size of the table.

    AZUREML_* alone do not say so: Azure ML also runs jobs in Kubernetes elsewhere.
    """
    if environ.get(BATCH_NODE):
        return True
    vm = read_vm(environ)
    if vm is not None and vm.size and vm.kind is not None:
        return True
    return (host.read_text(ASSET_TAG_FILE) or "").strip() == ASSET_TAG


_asked: dict[str, str] = {}
"""What the service said in this process; a job's VM does not change."""


def ask_size(base_url: str = IMDS, timeout_s: float = IMDS_TIMEOUT_S) -> str:
    """Ask Azure's metadata service for the size of this VM; empty if nobody answers.

    The connection is direct: a proxy would tell us its own size. It takes at most about ``timeout_s``,
    and no time at all where there is no way to the address.
    """
    if base_url not in _asked:
        _asked[base_url] = _ask(base_url, timeout_s)
    return _asked[base_url]


def _ask(base_url: str, timeout_s: float) -> str:
    from http.client import HTTPConnection, HTTPException

    connection = HTTPConnection(base_url.removeprefix("http://"), timeout=timeout_s)
    try:
        connection.request("GET", SIZE_PATH, headers={"Metadata": "true"})
        response = connection.getresponse()
        body = response.read(SIZE_LIMIT + 1)
    except (OSError, HTTPException):
        return ""
    finally:
        connection.close()
    return _as_size(body.decode("ascii", "replace")) if response.status == 200 else ""


def ask_vm(base_url: str = IMDS) -> Vm | None:
    """Return the VM that the metadata service speaks of; None if it does not answer."""
    size = ask_size(base_url)
    return Vm(size, find_kind(size), "the instance metadata service") if size else None
