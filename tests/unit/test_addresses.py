"""Addresses from the kernel are those that psutil and ip(8) know."""

from __future__ import annotations

import ipaddress
import socket
import struct

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.machine.addresses import is_near, parse_addresses, parse_answer, read_addresses
from tests.unit.platforms_model import deterministic

FAMILIES = (2, 10)


def test_they_are_the_ones_that_psutil_knows() -> None:
    """All interfaces of this machine, with or without an address; IPv6 masks by their length."""
    expected = {
        name: sorted(
            (item.address.partition("%")[0], _count(item.netmask or ""))
            for item in items
            if item.family in FAMILIES
        )
        for name, items in psutil.net_if_addrs().items()
    }
    found = {name: sorted(pairs) for name, pairs in read_addresses().items()}
    assert expected == {name: found[name] for name in expected}
    assert ("127.0.0.1", 8) in found["lo"]


def _count(netmask: str) -> int:
    """Return the prefix length of a netmask."""
    return int(ipaddress.ip_address(netmask)).bit_count()


def test_addresses_of_a_snapshot() -> None:
    """A length counts only if it is one; a name that no interface can have is left out."""
    eth0 = ["10.0.0.4/24", "10.0.0.5", "10.0.0.6/33", "fe80::1/64", "x/y"]
    found = (("10.0.0.4", 24), ("10.0.0.5", None), ("10.0.0.6", None), ("fe80::1", 64), ("x", None))
    assert parse_addresses({"eth0": eth0, "a b": ["10.0.0.7/8"]}) == {"eth0": found}


@pytest.mark.parametrize(
    ("address", "own", "length", "expected"),
    [
        ("10.0.0.9", "10.0.0.4", 24, True),
        ("10.0.1.9", "10.0.0.4", 24, False),
        ("10.0.1.9", "10.0.0.4", 16, True),
        ("10.0.1.9", "10.0.0.4", None, False),
        ("10.9.9.9", "10.0.0.4", 0, True),
        ("10.0.0.4", "10.0.0.5", 32, False),
        ("fd00::9", "fd00::4", None, True),
        ("fd00:0:0:1::9", "fd00::4", None, False),
        ("::a00:9", "10.0.0.4", 0, False),
        ("127.0.0.2", "127.0.0.1", 8, False),
        ("node1", "10.0.0.4", 24, False),
    ],
)
def test_near_is_in_the_same_network(address: str, own: str, length: int | None, expected: bool) -> None:
    assert is_near(address, own, length) is expected


def answer(family: int, length: int, index: int, **values: bytes) -> bytes:
    """Return a message of the kernel: the header, the address, and its attributes."""
    names = {"address": 1, "own": 2, "label": 3}
    data = struct.pack("=BBBBI", family, length, 0, 0, index)
    for name, value in values.items():
        data += struct.pack("=HH", 4 + len(value), names[name]) + value + bytes(-len(value) % 4)
    return struct.pack("=IHHII", 16 + len(data), 20, 2, 0, 0) + data


END = struct.pack("=IHHIII", 20, 3, 2, 0, 0, 0)


def test_answers_of_the_kernel() -> None:
    """Our own address where the other end of a tunnel has one, too; an alias is only a label."""
    tunnel = answer(2, 32, 7, address=b"\x0a\x00\x00\x02", own=b"\x0a\x00\x00\x01", label=b"tun0:1\0")
    six = answer(10, 64, 2, address=bytes.fromhex("fe80000000000000020d3afffe712c9f"), label=b"")
    found = [(2, 7, "10.0.0.1", 32), (10, 2, "fe80::20d:3aff:fe71:2c9f", 64)]
    assert parse_answer(tunnel + six) == (found, False)
    assert parse_answer(tunnel + six + END) == (found, True)
    with pytest.raises(OSError, match="does not list"):
        parse_answer(struct.pack("=IHHIIi", 20, 2, 0, 0, 0, -1))


@deterministic(200)
@given(st.integers(0, (1 << 128) - 1), st.integers(0, 128))
def test_ipv6_is_written_as_everybody_writes_it(number: int, length: int) -> None:
    """RFC 5952, as the resolver has it; the prefix keeps its length."""
    packed = number.to_bytes(16, "big")
    ((_, _, address, found),) = parse_answer(answer(10, length, 2, address=packed))[0]
    assert (address, found) == (socket.inet_ntop(socket.AF_INET6, packed), length)
