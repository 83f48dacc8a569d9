"""Finds which processes of this node are connected, by sockets and shared memory, from /proc.

Reads only what our own user may see, and changes nothing: no process is stopped or asked.

Source: proc(5) (/proc/net/tcp, /proc/PID/fd, /proc/PID/maps); Linux include/net/tcp_states.h.
"""

from __future__ import annotations

import os

from launcher.core.frozen import frozen
from launcher.machine.process import list_open, read_file, read_status
from launcher.process.descendants import find_descendants

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Ends = tuple[bytes, bytes]
    """Address and port of both ends of a connection, ours first, as the kernel writes them."""

TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
MAPPED_V4 = b"0000000000000000FFFF0000"
"""Beginning of an IPv4 address in the IPv6 table."""
CONNECTED = (b"01", b"04", b"05", b"08", b"09", b"0B")
"""ESTABLISHED, and the states of a connection that is being closed."""
TIME_WAIT = b"06"
"""Closed in order. The kernel keeps it for 60 s, even after its processes have ended."""
ORPHAN = b"0"
"""Inode of a connection that no process holds any more."""
TABLE_BYTES = 8 << 20
MAPS_BYTES = 16 << 20
PRIVILEGED = 1024
"""Ports below it belong to services: DNS, HTTP, NFS. No framework's processes meet there."""
LIBRARIES = (
    b"/libtorch_cpu.so /libtorch_python.so /libtensorflow_framework.so /libtensorflow_cc.so /mpi_lib "
    b"/xla_extension.so /libjax_common.so /libmpi.so /libmpich.so /libmpi_ /libnccl.so /librccl.so "
    b"/libgloo.so /libccl.so"
).split()
"""Beginnings of the names of libraries over which the processes of a job connect."""
DIRECT = ("/dev/infiniband/", "/dev/knem", "/dev/xpmem")
"""Devices over which processes communicate without a socket that the kernel could show."""


@frozen
class ConnectionTable:
    """The TCP connections in our network namespace.

    Attributes:
        held: Inode of each connection; `ORPHAN` if no process holds it.
        closed: Connections closed within the last minute.
    """

    held: Mapping[Ends, bytes]
    closed: frozenset[Ends]


def read_table() -> ConnectionTable | None:
    """Return the connections of this network namespace; None if the kernel does not show all of them."""
    held: dict[Ends, bytes] = {}
    closed: set[Ends] = set()
    found = False
    for path in TABLES:
        data = read_file(path, TABLE_BYTES)
        if not data:
            continue
        if len(data) >= TABLE_BYTES:
            return None
        found = True
        for line in data.split(b"\n")[1:]:
            words = line.split(None, 10)
            if len(words) < 10:
                continue
            ends = _short(words[1]), _short(words[2])
            if words[3] in CONNECTED:
                held[ends] = words[9]
            elif words[3] == TIME_WAIT:
                closed.add(ends)
    return ConnectionTable(held, frozenset(closed)) if found else None


def ports_of(ends: Ends) -> tuple[int, int]:
    """Return both ports of a connection."""
    return int(ends[0][-4:], 16), int(ends[1][-4:], 16)


def find_pairs(table: ConnectionTable) -> list[tuple[bytes, bytes]]:
    """Return the inodes of both ends of each connection within this network namespace, each pair twice."""
    held = table.held
    return [(inode, held[ends[1], ends[0]]) for ends, inode in held.items() if (ends[1], ends[0]) in held]


def find_outward(table: ConnectionTable) -> list[bytes]:
    """Return the inodes of connections to other nodes, except those at the ports of services."""
    held = table.held
    return [
        inode
        for ends, inode in held.items()
        if (ends[1], ends[0]) not in held and min(ports_of(ends)) >= PRIVILEGED
    ]


def find_sockets(pids: Iterable[int]) -> set[bytes]:
    """Return the inodes of the sockets of some processes, as far as we may see them."""
    return {link[8:-1].encode() for pid in pids for link in list_open(pid) if link.startswith("socket:")}


def count_libraries(pid: int) -> int:
    """Return the size of the shared library code that a process has mapped, in KiB; 0 if it shows none."""
    return int(read_status(pid, "VmLib").partition(" ")[0] or 0)


def has_framework(pid: int) -> bool:
    """Whether a process has loaded a library over which the processes of a job connect."""
    maps = read_file(f"/proc/{pid}/maps", MAPS_BYTES)
    return any(library in maps for library in LIBRARIES)


def is_hidden(pid: int) -> bool:
    """Whether a process may have connections that we cannot see: it has another user or another network."""
    try:
        os.listdir(f"/proc/{pid}/fd")
        return _network(pid) != _network(os.getpid())
    except FileNotFoundError:  # it has just ended
        return False
    except OSError:
        return True


def has_direct_device(pid: int) -> bool:
    """Whether a process has opened a device that communicates without sockets: InfiniBand, knem, xpmem."""
    return any(link.startswith(DIRECT) for link in list_open(pid))


def find_shared(pids: Iterable[int]) -> set[bytes]:
    """Return the files, as device and inode, that some processes can write to as shared memory.

    Device files outside /dev/shm are left out: all processes of one GPU map the same one.
    """
    found = set()
    for pid in pids:
        for line in read_file(f"/proc/{pid}/maps", MAPS_BYTES).split(b"\n"):
            words = line.split(None, 5)
            if len(words) > 5 and words[1][1:2] == b"w" and words[1][3:] == b"s":
                path = words[5]
                if not path.startswith(b"/dev/") or path.startswith(b"/dev/shm/"):
                    found.add(words[3] + b" " + words[4])
    return found


def with_descendants(pid: int) -> list[int]:
    """Return the PIDs of a process and of its descendants."""
    return [pid, *find_descendants([pid])]


def _short(end: bytes) -> bytes:
    """Return an end in the form of the IPv4 table, if it has an IPv4 address."""
    return end[len(MAPPED_V4) :] if end.startswith(MAPPED_V4) else end


def is_local(ends: Ends) -> bool:
    """Whether both ends of a connection have the same address."""
    return ends[0][:-4] == ends[1][:-4]


def _network(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")
