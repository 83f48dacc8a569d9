"""What a snapshot says of the parts of a machine, as the values that reading a machine gives.

A file can say anything: what is of another type than it should be counts as not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from launcher.core.model import Core, Gpu
from launcher.machine.cpus import parse_cpu_list
from launcher.machine.network import Interface
from launcher.machine.numa import parse_pci_address, render_pci_address

T = TypeVar("T")
DIGITS_LIMIT = 19
"""Of a number: bytes of memory have fewer."""


def mapping(value: object) -> Mapping[str, object]:
    """Return a JSON object; an empty one for any other value."""
    return value if isinstance(value, Mapping) else {}


def read_interface(fields: Mapping[str, object]) -> Interface:
    """Return one recorded interface; a field of another type than it should have is None."""
    addresses = fields.get("addresses")
    return Interface(
        name=str(fields["name"]),
        addresses=tuple(map(_read_address, addresses)) if isinstance(addresses, list) else (),
        is_up=_field(fields, "is_up", bool),
        has_carrier=_field(fields, "has_carrier", bool),
        speed_mbps=_field(fields, "speed_mbps", int),
        is_loopback=_field(fields, "is_loopback", bool) or False,
        kind=_field(fields, "kind", str),
        master=_field(fields, "master", str),
    )


def _field(fields: Mapping[str, object], name: str, kind: type[T]) -> T | None:
    value = fields.get(name)
    return value if isinstance(value, kind) else None


def _read_address(text: object) -> tuple[str, int | None]:
    address, _, length = str(text).partition("/")
    return address, int(length) if length.isascii() and length.isdecimal() and len(length) <= 3 else None


def read_cores(nodes: Mapping[str, object]) -> tuple[Core, ...]:
    """Return the recorded cores in the order of NUMA nodes."""
    cores = []
    for name, text in nodes.items():
        node = int(name) if name.isascii() and name.isdecimal() and len(name) < DIGITS_LIMIT else None
        lists = text.split() if isinstance(text, str) else ()
        cores += [Core(tuple(sorted(cpus)), node) for cpus in map(parse_cpu_list, lists) if cpus]
    return tuple(sorted(cores, key=lambda core: (-1 if core.node is None else core.node, core.cpus)))


def read_gpus(gpus: object) -> tuple[Gpu, ...]:
    """Return the recorded GPUs; none where only their number was recorded."""
    found = []
    for gpu in gpus if isinstance(gpus, list) else ():
        address = parse_pci_address(str(mapping(gpu).get("pci_bus_id")))
        node, uuid = mapping(gpu).get("numa_node"), mapping(gpu).get("uuid")
        found.append(
            Gpu(
                address=render_pci_address(address) if address else "",
                node=node if isinstance(node, int) and node >= 0 else None,
                uuid=uuid if isinstance(uuid, str) else None,
            )
        )
    return tuple(found)
