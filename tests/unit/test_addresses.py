"""Addresses from the kernel are those that psutil and ip(8) know."""

from __future__ import annotations

import ipaddress
import socket

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.machine.addresses import is_near, parse_addresses, parse_if_inet6, read_addresses
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


def test_ipv6_of_the_kernel() -> None:
    """Address, index, prefix, scope, flags, name; what is not of this form is left out."""
    text = (
        "fe80000000000000020d3afffe712c9f 02 40 20 80     eth0\n"
        "00000000000000000000000000000001 01 80 10 80       lo\n"
        "garbage\n"
    )
    assert parse_if_inet6(text) == [
        ("eth0", "fe80::20d:3aff:fe71:2c9f", 64),
        ("lo", "::1", 128),
    ]


@deterministic(200)
@given(st.integers(0, (1 << 128) - 1), st.integers(0, 128))
def test_ipv6_is_written_as_everybody_writes_it(number: int, length: int) -> None:
    """RFC 5952, as the resolver has it; the prefix keeps its length."""
    ((name, address, found),) = parse_if_inet6(f"{number:032x} 02 {length:02x} 00 80 eth0")
    assert (name, address) == ("eth0", socket.inet_ntop(socket.AF_INET6, number.to_bytes(16, "big")))
    assert found == length


@pytest.mark.parametrize("number", [0, 1, 1 << 112, 0x20010DB8 << 96, 0x1 << 64 | 1])
def test_rows_of_zeros(number: int) -> None:
    """The first of the longest rows is left out, and never a single zero."""
    ((_, address, _),) = parse_if_inet6(f"{number:032x} 02 40 00 80 eth0")
    assert address == str(ipaddress.IPv6Address(number))
