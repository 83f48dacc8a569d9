"""Azure's VM sizes with GPUs or an RDMA network: what every VM of a size has.

The table is ``azure_sizes.txt``, which says what its rows mean. A size that is not in it is not an error: its
kind is None, and we conclude nothing from it.
"""

from __future__ import annotations

from launcher.core.blocks import Block, read_blocks
from launcher.core.frozen import frozen

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
