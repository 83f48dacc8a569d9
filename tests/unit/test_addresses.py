"""Addresses from the kernel are those that psutil and ip(8) know."""

from __future__ import annotations

import ipaddress
import socket

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.machine.addresses import parse_if_inet6, read_netmasks
from launcher.machine.network import prefix_length
from tests.unit.platforms_model import deterministic

FAMILIES = (2, 10)


def test_they_are_the_ones_that_psutil_knows() -> None:
    """All interfaces of this machine, with or without an address; IPv6 masks by their length."""
    expected = {
        name: sorted(
            (item.address.partition("%")[0], prefix_length(item.netmask))
            for item in items
            if item.family in FAMILIES
        )
        for name, items in psutil.net_if_addrs().items()
    }
    found = {
        name: sorted((address, prefix_length(mask)) for address, mask in pairs)
        for name, pairs in read_netmasks().items()
    }
    assert expected == {name: found[name] for name in expected}
    assert ("127.0.0.1", 8) in found["lo"]


def test_ipv6_of_the_kernel() -> None:
    """Address, index, prefix, scope, flags, name; what is not of this form is left out."""
    text = (
        "fe80000000000000020d3afffe712c9f 02 40 20 80     eth0\n"
        "00000000000000000000000000000001 01 80 10 80       lo\n"
        "garbage\n"
    )
    assert parse_if_inet6(text) == [
        ("eth0", "fe80::20d:3aff:fe71:2c9f", "ffff:ffff:ffff:ffff::"),
        ("lo", "::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
    ]


@deterministic(200)
@given(st.integers(0, (1 << 128) - 1), st.integers(0, 128))
def test_ipv6_is_written_as_everybody_writes_it(number: int, length: int) -> None:
    """RFC 5952, as the resolver has it; the mask keeps its length."""
    ((name, address, mask),) = parse_if_inet6(f"{number:032x} 02 {length:02x} 00 80 eth0")
    assert (name, address) == ("eth0", socket.inet_ntop(socket.AF_INET6, number.to_bytes(16, "big")))
    assert prefix_length(mask) == length


@pytest.mark.parametrize("number", [0, 1, 1 << 112, 0x20010DB8 << 96, 0x1 << 64 | 1])
def test_rows_of_zeros(number: int) -> None:
    """The first of the longest rows is left out, and never a single zero."""
    ((_, address, _),) = parse_if_inet6(f"{number:032x} 02 40 00 80 eth0")
    assert address == str(ipaddress.IPv6Address(number))
