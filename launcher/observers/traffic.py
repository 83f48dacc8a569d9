"""Bytes on this node's TCP connections and RDMA ports, as the kernel counts them.

Connections within the node count, too: gloo's ranks of one node use the loopback interface. Counters of
interfaces would include the traffic of other programs. Reading needs no privilege and changes nothing.

Source: sock_diag(7), Linux include/uapi/linux/inet_diag.h, include/uapi/linux/tcp.h (tcp_info);
Documentation/ABI/stable/sysfs-class-infiniband; drivers/infiniband/hw/efa/efa_verbs.c.
"""

from __future__ import annotations

import socket
import struct
import time

from launcher.machine.infiniband import DEVICES, read_ports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from launcher.machine.host import Host

SOCK_DIAG = 4
"""NETLINK_SOCK_DIAG, the protocol; SOCK_DIAG_BY_FAMILY, the message."""
BY_FAMILY = 20
REQUEST_DUMP = 0x301
ERROR, DONE = 2, 3
INFO = 2
"""INET_DIAG_INFO: the attribute with a tcp_info."""
CONNECTED = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11
"""ESTABLISHED, and the states of a connection that is being closed."""
HEADER = struct.Struct("=IHHII")
QUESTION = struct.Struct("=BBBBI48x")
ATTRIBUTE = struct.Struct("=HH")
INODE_AT, MESSAGE_BYTES = 68, 72
COUNTED_AT, COUNTED = 120, struct.Struct("=QQ")
"""tcpi_bytes_acked and tcpi_bytes_received."""
READ_BYTES = 1 << 16
WAIT_S, LOOK_S = 1.0, 1.0
"""Seconds for a part of the answer, and CPU time for all of it: the loop has signals to answer."""
COUNTERS = (
    ("counters/port_xmit_data", 4),
    ("counters/port_rcv_data", 4),
    ("hw_counters/tx_bytes", 1),
    ("hw_counters/rx_bytes", 1),
)
"""Counters of an RDMA port, and the bytes in a unit: InfiniBand counts words, EFA bytes."""


def read_connections() -> dict[bytes, int] | None:
    """Return the bytes sent and received so far on each TCP connection, by inode; None if it is not known."""
    found: dict[bytes, int] = {}
    until = time.thread_time() + LOOK_S
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, SOCK_DIAG) as kernel:
            kernel.settimeout(WAIT_S)
            for family in (socket.AF_INET, socket.AF_INET6):
                question = QUESTION.pack(family, socket.IPPROTO_TCP, 1 << INFO - 1, 0, CONNECTED)
                kernel.send(
                    HEADER.pack(HEADER.size + len(question), BY_FAMILY, REQUEST_DUMP, 1, 0) + question
                )
                for kind, body in _receive(kernel):
                    if kind == ERROR or time.thread_time() >= until:
                        return None
                    found.update(_parse(body))
    except (OSError, struct.error):  # a sandbox, or a kernel without it
        return None
    return found


def _receive(kernel: socket.socket) -> Iterator[tuple[int, bytes]]:
    """Yield the type and content of each message of an answer, up to its end."""
    while True:
        data, at = kernel.recv(READ_BYTES), 0
        while at + HEADER.size <= len(data):
            length, kind, *_ = HEADER.unpack_from(data, at)
            if kind == DONE:
                return
            yield kind, data[at + HEADER.size : at + length]
            at += max(length + 3 & ~3, HEADER.size)


def _parse(body: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield the inode and bytes of a connection; nothing if the kernel does not count its bytes."""
    (inode,) = struct.unpack_from("=I", body, INODE_AT)
    at = MESSAGE_BYTES
    while at + ATTRIBUTE.size <= len(body):
        length, kind = ATTRIBUTE.unpack_from(body, at)
        if kind == INFO and length >= ATTRIBUTE.size + COUNTED_AT + COUNTED.size:
            yield b"%d" % inode, sum(COUNTED.unpack_from(body, at + ATTRIBUTE.size + COUNTED_AT))
        at += max(length + 3 & ~3, ATTRIBUTE.size)


def list_counters(host: Host) -> tuple[tuple[str, int], ...]:
    """Return the path and unit of the byte counters of InfiniBand and EFA ports.

    Those of Ethernet ports (RoCE, accelerated networking) count what the whole node sends.
    """
    return tuple(
        (f"{DEVICES}/{port.device}/ports/{port.number}/{name}", unit)
        for port in read_ports(host)
        if port.link_layer != "Ethernet"
        for name, unit in COUNTERS
    )


def read_counters(host: Host, counters: tuple[tuple[str, int], ...]) -> int:
    """Return the sum of these counters in bytes, without those that do not exist."""
    texts = [((host.read_text(path) or "").strip(), unit) for path, unit in counters]
    return sum(int(text) * unit for text, unit in texts if text.isascii() and text.isdecimal())
