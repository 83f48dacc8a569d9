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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

SIOCGIFCONF = 0x8912
SIOCGIFNETMASK = 0x891B
IFREQ_BYTES = 40
"""Size of struct ifreq with 64-bit pointers: the name in the first 16 bytes, the address from byte 20 on."""
BUFFER_LIMIT_BYTES = 1 << 20
IF_INET6 = "/proc/net/if_inet6"

UNKNOWN_MASK, UNKNOWN_MASK6 = "255.255.255.0", "ffff:ffff:ffff:ffff::"

Netmasks = dict[str, tuple[tuple[str, "str | None"], ...]]


def read_netmasks() -> Netmasks:
    """Return the addresses of every interface, IPv4 before IPv6, each with its netmask.

    Includes interfaces without an address. Empty if the kernel refuses.
    """
    try:
        names = [name for _, name in if_nameindex()]
        found = [*_read_ipv4(), *parse_if_inet6(_read_if_inet6())]
    except OSError:
        return {}
    return {
        name: tuple((address, netmask) for of, address, netmask in found if of == name)
        for name in sorted(names)
    }


def parse_netmasks(recorded: object) -> Netmasks:
    """Return the addresses of a snapshot, e.g. ``{"eth0": ["10.0.0.4/24"]}``; without a prefix no netmask.

    A name that the kernel would not accept is left out.
    """
    import ipaddress

    found: Netmasks = {}
    for name, items in recorded.items() if isinstance(recorded, dict) else ():
        if isinstance(items, list) and name and name.isprintable() and " " not in name:
            pairs: list[tuple[str, str | None]] = []
            for address, slash, length in (str(item).partition("/") for item in items):
                try:
                    netmask = str(ipaddress.ip_interface(f"{address}/{length}").netmask) if slash else None
                except ValueError:
                    netmask = None
                pairs.append((address, netmask))
            found[name] = tuple(pairs)
    return found


def is_near(address: str, own: str, netmask: str | None) -> bool:
    """Whether an address is in the network of one of ours; False for a name, and for loopback.

    A network whose mask is unknown is taken to be small: /24, or /64.
    """
    import ipaddress

    try:
        wanted, ours = ipaddress.ip_address(address), ipaddress.ip_address(own)
        mask = ipaddress.ip_address(netmask or (UNKNOWN_MASK if ours.version == 4 else UNKNOWN_MASK6))
    except ValueError:
        return False
    is_same = (int(wanted) ^ int(ours)) & int(mask) == 0
    return wanted.version == ours.version and not ours.is_loopback and is_same


def _read_ipv4() -> Iterator[tuple[str, str, str | None]]:
    """Yield (interface, address, netmask); an alias (eth0:1) counts as an address of its interface."""
    probe = socket(AF_INET, SOCK_DGRAM)
    try:
        for request in _list_requests(probe):
            mask = _ask_netmask(probe, request)
            yield _name(request), _dotted(request), None if mask is None else _dotted(mask)
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


def _ask_netmask(probe: socket, request: bytes) -> bytes | None:
    try:
        return fcntl.ioctl(probe.fileno(), SIOCGIFNETMASK, request)
    except OSError:
        return None  # the address is gone


def _name(request: bytes) -> str:
    return os.fsdecode(request[:16].partition(b"\0")[0]).partition(":")[0]


def _dotted(request: bytes) -> str:
    return ".".join(map(str, request[20:24]))


def _read_if_inet6() -> str:
    try:
        with open(IF_INET6, "rb") as file:
            return os.fsdecode(file.read())
    except OSError:
        return ""  # no IPv6 in this kernel


def parse_if_inet6(text: str) -> list[tuple[str, str, str]]:
    """Return (interface, address, netmask) of each line of /proc/net/if_inet6."""
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) == 6 and len(words[0]) == 32:
            mask = (1 << 128) - (1 << 128 - int(words[2], 16))
            address = inet_ntop(AF_INET6, bytes.fromhex(words[0]))
            found.append((words[5], address, inet_ntop(AF_INET6, mask.to_bytes(16, "big"))))
    return found
