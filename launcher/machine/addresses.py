"""Reads the addresses of this network namespace from the kernel.

psutil can read them too, but costs 20 ms, which would be most of the launcher's cost for a process of a job
with several nodes.

Source: rtnetlink(7), RTM_GETADDR; netlink(7); Linux include/uapi/linux/if_addr.h (where the other
end of a link has an address, too, IFA_LOCAL is ours).
"""

from __future__ import annotations

import struct
from _socket import AF_NETLINK, SOCK_RAW, if_nameindex, inet_ntop, socket

from launcher.core.errors import attempt
from launcher.core.ranks import is_number

RTM_GETADDR, REQUEST, DUMP, ERROR, DONE = 22, 0x1, 0x300, 2, 3
IFA_ADDRESS, IFA_LOCAL = 1, 2
_HEADER, _ADDRESS, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BBBBI"), struct.Struct("=HH")
PACKET_BYTES = 1 << 16
"""More than the kernel puts into one answer (32 KiB)."""

Addresses = dict[str, tuple[tuple[str, "int | None"], ...]]
"""Of each interface: its addresses without zones, each with the prefix length of its network if known."""


def read_addresses() -> Addresses:
    """Return the addresses of every interface, IPv4 before IPv6.

    Includes interfaces without an address. Empty if the kernel refuses.
    """
    try:
        names = if_nameindex()
        found = sorted(_ask_kernel(), key=lambda one: one[0])
    except OSError:
        return {}
    return {
        name: tuple((address, length) for _, of, address, length in found if of == index)
        for index, name in sorted(names, key=lambda pair: pair[1])
    }


def _ask_kernel() -> list[tuple[int, int, str, int]]:
    """Return (family, number of the interface, address, prefix length) of each address."""
    probe = socket(AF_NETLINK, SOCK_RAW, 0)
    try:
        size = _HEADER.size + _ADDRESS.size
        probe.send(_HEADER.pack(size, RTM_GETADDR, REQUEST | DUMP, 0, 0) + _ADDRESS.pack(0, 0, 0, 0, 0))
        found, is_done = list[tuple[int, int, str, int]](), False
        while not is_done:
            more, is_done = parse_answer(probe.recv(PACKET_BYTES))
            found += more
        return found
    finally:
        probe.close()


def parse_answer(data: bytes) -> tuple[list[tuple[int, int, str, int]], bool]:
    """Return the addresses in one answer of the kernel, as `_ask_kernel`, and whether it is the last one.

    Raises:
        OSError: The kernel refuses.
    """
    found: list[tuple[int, int, str, int]] = []
    while data:
        size, kind, *_ = _HEADER.unpack_from(data)
        if kind == ERROR:
            raise OSError("the kernel does not list addresses")
        if kind == DONE:
            return found, True
        family, length, _, _, index = _ADDRESS.unpack_from(data, _HEADER.size)
        rest, values = data[_HEADER.size + _ADDRESS.size : size], dict[int, bytes]()
        while rest:
            part, name = _ATTRIBUTE.unpack_from(rest)
            values[name] = rest[_ATTRIBUTE.size : part]
            rest = rest[part + 3 & ~3 :]
        own = values.get(IFA_LOCAL) or values.get(IFA_ADDRESS)
        if own:
            found.append((family, index, inet_ntop(family, own), length))
        data = data[size + 3 & ~3 :]
    return found, False


def parse_addresses(recorded: object) -> Addresses:
    """Return the addresses of a snapshot, e.g. ``{"eth0": ["10.0.0.4/24"]}``.

    A name that the kernel would not accept is left out.
    """
    found: Addresses = {}
    for name, items in recorded.items() if isinstance(recorded, dict) else ():
        if isinstance(items, list) and name and name.isprintable() and " " not in name:
            pairs = [str(item).partition("/") for item in items]
            found[name] = tuple((address, _parse_length(address, text)) for address, _, text in pairs)
    return found


def _parse_length(address: str, text: str) -> int | None:
    fits = is_number(text, 3) and int(text) <= (128 if ":" in address else 32)
    return int(text) if fits else None


def is_near(address: str, own: str, length: int | None) -> bool:
    """Whether an address is in the network of one of ours; False for a name, and for loopback.

    A network whose prefix length is unknown is taken to be small: /24, or /64.
    """
    import ipaddress

    wanted, ours = (attempt(ipaddress.ip_address, text) for text in (address, own))
    if wanted is None or ours is None:
        return False
    length = (24 if ours.version == 4 else 64) if length is None else length
    is_same = (int(wanted) ^ int(ours)) >> ours.max_prefixlen - length == 0
    return wanted.version == ours.version and not ours.is_loopback and is_same
