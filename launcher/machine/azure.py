"""Finds the size of the Azure VM that we run in, which tells a container what the VM has.

Azure ML's common runtime sets a variable with the size, and Azure's images set NCCL_TOPO_FAMILY to the size's
family. Otherwise only the instance metadata service knows the size. `read_vm` never asks it; callers use
`ask_vm` for that: outside of Azure the service does not answer, and in Kubernetes it is often blocked.

What every VM of a size has is in ``azure_sizes.txt``, which says what its rows mean. A size that is not in it
is not an error: its kind is None, and we conclude nothing from it.

Source: Microsoft Learn, "Azure Instance Metadata Service".
"""

from __future__ import annotations

import time

from launcher.core.blocks import Block, read_blocks
from launcher.core.environ import parse_json, shorten
from launcher.core.errors import attempt
from launcher.core.frozen import frozen, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.machine.host import Host

CONTEXT = "AZUREML_CR_COMPUTE_CONTEXT"  # {"cluster_name": ..., "vm_size": "Standard_ND96isr_H100_v5", ...}
FAMILY = "NCCL_TOPO_FAMILY"  # ndv5
BATCH_NODE = "AZ_BATCH_NODE_ID"
BATCH_DEDICATED = "AZ_BATCH_NODE_IS_DEDICATED"  # "false" for a spot or low-priority node
CHEAP = ("lowpriority", "spot")
"""Names for preemptible machines, in lower case and without separators."""
ASSET_TAG_FILE = "/sys/class/dmi/id/chassis_asset_tag"
ASSET_TAG = "7783-7084-3265-9085-8269-3286-77"
"""Content of that file on every Azure VM and nowhere else (cloud-init detects Azure by it too)."""
IMDS = "http://169.254.169.254"
SIZE_PATH = "/metadata/instance/compute/vmSize?api-version=2021-01-01&format=text"
IMDS_TIMEOUT_S = 1.0
SIZE_LIMIT = 64
ANSWER_LIMIT_BYTES = 1 << 13
"""More characters than any size's name has."""


NO_VERBS = ("no", "verbs")


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


_kinds: list[VmKind] = []


def read_kinds() -> list[VmKind]:
    """Return the rows of the table in its order; it is read once."""
    rows: dict[str, Block] = {}
    for row in () if _kinds else read_blocks("machine/azure_sizes.txt"):
        like = rows.get(row.fields.get("like", ""))
        if like is not None:
            row = Block(row.name, {**like.fields, **row.fields}, like.items)
        rows[row.name] = row
        _kinds.append(_read(row))
    return _kinds


def _read(row: Block) -> VmKind:
    ports, family = row.words("ports"), (*row.words("family"), "")
    count, rate = map(int, ports) if ports and ports != NO_VERBS else (0, None)
    return VmKind(
        tuple(row.name.split()),
        row.fields.get("gpu"),
        tuple(map(int, row.words("gpus"))) or (0,),
        count,
        rate,
        ports != NO_VERBS,
        family[0],
        "+graph" in family,
        tuple((name, value) for name, _, value in (one.partition("=") for one in row.words("settings"))),
        tuple(_read_switch(*item.split(" | ")) for item in row.items),
        "imex" in row.words("is"),
    )


def _read_switch(node: str, gpus: str, ports: str, speed: str) -> Switch:
    first, second = (tuple(int(domain, 16) for domain in words.split()) for words in (gpus, ports))
    return Switch(int(node), first, second, speed)


def find_kind(size: str) -> VmKind | None:
    """Return the kind of a size; None for a size that is not in the table.

    Args:
        size: Name of the size in any case, with or without ``Standard_``. A size with constrained cores
            (``Standard_HB120-16rs_v3``) is like the full size in all else.
    """
    bare = bare_size(size)
    return next((kind for kind in read_kinds() if any(_fits(bare, name) for name in kind.sizes)), None)


def bare_size(size: str) -> str:
    """Return a size in lower case without ``standard_`` and without a constrained number of cores."""
    name = size.strip().lower().removeprefix("standard_")
    head, dash, tail = name.partition("-")
    return head + tail.lstrip("0123456789") if dash and head[-1:].isdecimal() else name


def _fits(name: str, pattern: str) -> bool:
    head, star, tail = pattern.partition("*")
    return name == pattern or bool(star and name.startswith(head) and name.endswith(tail))


@frozen
class Vm:
    """The VM that we run in, as far as it is known.

    Attributes:
        size: Size as the source spells it, e.g. ``Standard_ND96isr_H100_v5``; empty if only the family is
            known.
        kind: Its entry in the table; None for an unknown size or family.
        origin: Variable or service that named the size or family.
    """

    size: str
    kind: VmKind | None
    origin: str

    @property
    def name(self) -> str:
        """The size, or else the family; empty for an unknown family."""
        return self.size or (self.kind.family if self.kind else "")

    @property
    def gpu_count(self) -> int | None:
        """Number of GPUs of a VM of this size; None if the name does not tell."""
        counts = self.kind.gpu_counts if self.kind and self.size else ()
        if self.kind is None or len(counts) == 1:
            return counts[0] if counts else None
        found = [count for size, count in zip(self.kind.sizes, counts) if size == bare_size(self.size)]  # noqa: B905 - a name with * has more counts
        return found[0] if found else None


def read_vm(environ: Mapping[str, str]) -> Vm | None:
    """Return the VM that the environment names; None if it names none. Asks no service."""
    size = _as_size(read_context(environ, "vm_size"))
    if size:
        return Vm(size, find_kind(size), f"{CONTEXT}: vm_size {shorten(size)!r}")
    family = environ.get(FAMILY, "")
    if family:
        wanted = family.strip().lower()
        kinds = [kind for kind in read_kinds() if kind.family == wanted]
        return Vm("", _in_common(kinds) if kinds else None, f"{FAMILY}={shorten(family)!r}")
    return None


def _in_common(kinds: list[VmKind]) -> VmKind:
    """Return what all sizes of a family have in common; GPU and ports only if all sizes agree on them."""
    first = kinds[0]
    if len({(kind.port_count, kind.rate_gbps, kind.gpu) for kind in kinds}) == 1:
        return first
    return replace(first, sizes=(), gpu=None, gpu_counts=(), port_count=0, rate_gbps=None, has_verbs=True)


def read_context(environ: Mapping[str, str], name: str) -> object:
    """Return a field of the JSON of Azure ML's common runtime; None if it is null or missing."""
    text = environ.get(CONTEXT, "")
    context = attempt(parse_json, text) if name in text else None
    return context.get(name) if isinstance(context, dict) else None


def _as_size(value: object) -> str:
    """Return a value that may be a size's name without spaces around it; empty for any other value."""
    text = value.strip() if isinstance(value, str) else ""
    plain = text.isascii() and text.replace("_", "a").replace("-", "a").isalnum()
    return text if plain and len(text) <= SIZE_LIMIT else ""


def is_azure(host: Host, environ: Mapping[str, str]) -> bool:
    """Whether this is certainly an Azure VM: by its firmware, by Batch, or by a size in the table.

    AZUREML_* variables alone prove nothing: Azure ML also runs jobs in Kubernetes clusters elsewhere.
    """
    if environ.get(BATCH_NODE):
        return True
    vm = read_vm(environ)
    if vm is not None and vm.size and vm.kind is not None:
        return True
    return (host.read_text(ASSET_TAG_FILE) or "").strip() == ASSET_TAG


_asked: dict[str, str] = {}
"""Answers of the service to this process, by base URL; a job's VM does not change."""


def ask_size(base_url: str = IMDS, timeout_s: float = IMDS_TIMEOUT_S) -> str:
    """Ask Azure's metadata service for the size of this VM; return an empty string without an answer.

    The connection is direct, because a proxy would report its own VM's size. ``timeout_s`` limits
    connecting and the whole answer. Without a route to the address the call fails at once.
    """
    if base_url not in _asked:
        _asked[base_url] = _ask(base_url, timeout_s)
    return _asked[base_url]


def _ask(base_url: str, timeout_s: float) -> str:
    import socket

    name = base_url.removeprefix("http://")
    host, _, port = name.partition(":")
    until, data, part = time.monotonic() + timeout_s, b"", b"-"
    try:
        with socket.create_connection((host, int(port or 80)), timeout_s) as connection:
            connection.sendall(f"GET {SIZE_PATH} HTTP/1.0\r\nHost: {name}\r\nMetadata: true\r\n\r\n".encode())
            while part and len(data) < ANSWER_LIMIT_BYTES:
                connection.settimeout(max(until - time.monotonic(), 0.001))
                part = connection.recv(ANSWER_LIMIT_BYTES)
                data += part
    except (OSError, ValueError):
        return ""
    head, _, body = data.partition(b"\r\n\r\n")
    return _as_size(body.decode("ascii", "replace")) if head.split()[1:2] == [b"200"] else ""


def ask_vm(host: Host) -> Vm | None:
    """Return the VM that the metadata service reports; None if it does not answer within a second."""
    is_known = host.is_recorded()
    size = host.recorded("vm_size") if is_known else ask_size()
    origin = "recorded" if is_known else "the instance metadata service"
    return Vm(size, find_kind(size), origin) if isinstance(size, str) and size else None


def find_preemptible(environ: Mapping[str, str]) -> str:
    """Return what marks this machine as preemptible; empty if nothing does.

    Azure Batch and Azure ML set such variables. SageMaker's managed spot training, SkyPilot, Slurm and
    Kubernetes do not: there the user must pass the flag.
    """
    dedicated = environ.get(BATCH_DEDICATED, "")
    if dedicated.strip().lower() == "false":
        return f"{BATCH_DEDICATED}={shorten(dedicated)!r}"
    priority = read_context(environ, "vm_priority")
    kind = str(priority).lower().replace("_", "").replace("-", "").replace(" ", "")
    is_cheap = isinstance(priority, str) and kind in CHEAP
    return f"{CONTEXT}: vm_priority {shorten(str(priority))!r}" if is_cheap else ""
