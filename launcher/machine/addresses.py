"""Reads the addresses of this network namespace from the kernel.

psutil can read them too, but costs 20 ms, which would be most of the launcher's cost for a process of a job
with several nodes.

Source: netdevice(7): SIOCGIFCONF, SIOCGIFNETMASK and struct ifreq; Linux net/ipv6/addrconf.c
(/proc/net/if_inet6: address, index, prefix length, scope, flags and name); net/ipv4/devinet.c (a request with
an address selects that one of several).
"""

from __future__ import annotations

import array
import fcntl
import os
import struct
from _socket import AF_INET, AF_INET6, SOCK_DGRAM, if_nameindex, inet_ntop, socket

from launcher.core.ranks import is_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

SIOCGIFCONF = 0x8912
SIOCGIFNETMASK = 0x891B
IFREQ_BYTES = 40
"""Size of struct ifreq with 64-bit pointers: the name in the first 16 bytes, the address from byte 20 on."""
BUFFER_LIMIT_BYTES = 1 << 20
IF_INET6 = "/proc/net/if_inet6"

Addresses = dict[str, tuple[tuple[str, "int | None"], ...]]
"""Of each interface: its addresses without zones, each with the prefix length of its network if known."""


def read_addresses() -> Addresses:
    """Return the addresses of every interface, IPv4 before IPv6.

    Includes interfaces without an address. Empty if the kernel refuses.
    """
    try:
        names = [name for _, name in if_nameindex()]
        found = [*_read_ipv4(), *parse_if_inet6(_read_if_inet6())]
    except OSError:
        return {}
    return {
        name: tuple((address, length) for of, address, length in found if of == name)
        for name in sorted(names)
    }


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

    try:
        wanted, ours = ipaddress.ip_address(address), ipaddress.ip_address(own)
    except ValueError:
        return False
    length = (24 if ours.version == 4 else 64) if length is None else length
    is_same = (int(wanted) ^ int(ours)) >> ours.max_prefixlen - length == 0
    return wanted.version == ours.version and not ours.is_loopback and is_same


def _read_ipv4() -> Iterator[tuple[str, str, int | None]]:
    """Yield (interface, address, prefix length); an alias (eth0:1) counts as an address of its interface."""
    probe = socket(AF_INET, SOCK_DGRAM)
    try:
        for request in _list_requests(probe):
            name = os.fsdecode(request[:16].partition(b"\0")[0]).partition(":")[0]
            yield name, ".".join(map(str, _address(request))), _ask_length(probe, request)
    finally:
        probe.close()


def _list_requests(probe: socket) -> list[bytes]:
    """Return a struct ifreq for each address.

    The kernel returns only as many as fit, so after a full buffer we ask again with a larger one.
    """
    size = 64 * IFREQ_BYTES
    while True:
        buffer = array.array("B", bytes(size))
        request = struct.pack("iP", size, buffer.buffer_info()[0])
        length = struct.unpack("iP", fcntl.ioctl(probe.fileno(), SIOCGIFCONF, request))[0]
        if length < size or size > BUFFER_LIMIT_BYTES:
            data = buffer.tobytes()
            return [data[start : start + IFREQ_BYTES] for start in range(0, length, IFREQ_BYTES)]
        size *= 2


def _ask_length(probe: socket, request: bytes) -> int | None:
    """Return the prefix length of an address; None if its mask is none, or the address is gone."""
    try:
        mask = int.from_bytes(_address(fcntl.ioctl(probe.fileno(), SIOCGIFNETMASK, request)), "big")
    except OSError:
        return None
    length = mask.bit_count()
    return length if mask == (1 << 32) - (1 << 32 - length) else None


def _address(request: bytes) -> bytes:
    return request[20:24]


def _read_if_inet6() -> str:
    try:
        with open(IF_INET6, "rb") as file:
            return os.fsdecode(file.read())
    except OSError:
        return ""  # no IPv6 in this kernel


def parse_if_inet6(text: str) -> list[tuple[str, str, int]]:
    """Return (interface, address, prefix length) of each line of /proc/net/if_inet6."""
    lines = [words for words in map(str.split, text.splitlines()) if len(words) == 6 and len(words[0]) == 32]
    return [(words[5], inet_ntop(AF_INET6, bytes.fromhex(words[0])), int(words[2], 16)) for words in lines]
