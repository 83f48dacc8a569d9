"""Interfaces: what they are, which has an address, and which one leads to the other nodes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.machine.addresses import Addresses
from launcher.machine.host import Host
from launcher.machine.network import (
    Interface,
    cluster_interface,
    find_interface,
    network_of,
    read_interfaces,
    read_routes,
)
from launcher.planning.recorded import replay
from launcher.planning.snapshot import render_snapshot, take_snapshot
from launcher.rehearse.cluster import Cluster, find_fallback_reason
from tests.unit.machines import write
from tests.unit.platforms_model import deterministic

ETH0 = Interface(
    "eth0", (("10.0.0.4", 24), ("fe80::20d:3aff:fe00:1", 64)), True, True, 50_000, kind="ethernet"
)
LO = Interface("lo", (("127.0.0.1", 8), ("::1", 128)), True, True, is_loopback=True, kind="loopback")
DOCKER = Interface("docker0", (("172.17.0.1", 16),), True, False, kind="bridge")
IB0 = Interface("ib0", (("172.16.1.4", 16),), True, True, 400_000, kind="infiniband")
BR0 = Interface("br0", (("10.1.0.4", 16),), True, True, kind="bridge")
ALL = (BR0, DOCKER, ETH0, IB0, LO)


class Machine(Host):
    """A machine in a folder, with the addresses and routes that it is said to have."""

    def __init__(
        self,
        root: Path,
        networks: Mapping[str, tuple[tuple[str, int | None], ...]],
        routes: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(str(root))
        self._networks = dict(networks)
        self._routes = routes or {}
        self.asked: list[str] = []

    def networks(self) -> Addresses:
        return self._networks

    def ask_source(self, target: str) -> str | None:
        self.asked.append(target)
        return self._routes.get(target)


def sysfs(name: str, link: str = "", uevent: str = "", **files: str) -> dict[str, str]:
    """Return the files of an interface in /sys/class/net."""
    texts = {**files, "uevent": uevent or f"INTERFACE={name}"}
    return {f"sys/devices/{link or f'pci0/net/{name}'}/{file}": f"{text}\n" for file, text in texts.items()}


def write_interface(root: Path, name: str, link: str = "", master: str = "", **files: str) -> None:
    """Write an interface as the kernel lays it out."""
    place = link or f"pci0/net/{name}"
    write(root, sysfs(name, place, **files))
    (root / "sys/class/net").mkdir(parents=True, exist_ok=True)
    (root / "sys/class/net" / name).symlink_to(f"../../devices/{place}")
    if master:
        (root / "sys/devices" / place / "master").symlink_to(f"../{master}")


def test_interfaces_of_an_azure_machine(tmp_path: Path) -> None:
    """eth0 has the address, the fast path below it none; IP over InfiniBand; Docker's bridge and a pair."""
    write_interface(tmp_path, "eth0", flags="0x1003", type="1", carrier="1", speed="50000")
    write_interface(tmp_path, "enP5s1", master="eth0", flags="0x1803", type="1", carrier="1", speed="100000")
    write_interface(tmp_path, "ib0", flags="0x1003", type="32", carrier="1", speed="400000")
    write_interface(tmp_path, "ib10", flags="0x1002", type="32")
    virtual = "virtual/net/"
    write_interface(
        tmp_path,
        "docker0",
        link=f"{virtual}docker0",
        uevent="DEVTYPE=bridge\nINTERFACE=docker0",
        flags="0x1003",
        type="1",
        carrier="0",
        speed="-1",
    )
    write_interface(
        tmp_path,
        "veth1",
        link=f"{virtual}veth1",
        master="docker0",
        flags="0x1003",
        type="1",
        carrier="1",
        speed="10000",
    )
    write_interface(
        tmp_path, "eth0.7", link=f"{virtual}eth0.7", uevent="DEVTYPE=vlan", flags="0x1003", type="1"
    )
    write_interface(
        tmp_path, "bond0", link=f"{virtual}bond0", uevent="DEVTYPE=bond", flags="0x1003", type="1"
    )
    write_interface(tmp_path, "tun0", link=f"{virtual}tun0", flags="0x10d1", type="65534", speed="4294967295")
    write_interface(tmp_path, "sit0", flags="0x80", type="776")
    write_interface(tmp_path, "lo", link=f"{virtual}lo", flags="0x9", type="772", carrier="1")
    names = ("lo", "ib10", "ib0", "eth0", "enP5s1", "docker0", "veth1", "eth0.7", "bond0", "tun0", "sit0")
    networks: Addresses = dict.fromkeys(names, ())
    networks["eth0"] = (("10.0.0.4", 24), ("fe80::20d:3aff:fe00:1", 64))
    networks["lo"] = (("127.0.0.1", 8),)
    expected = (
        Interface("bond0", (), True, None, None, kind="bond"),
        Interface("docker0", (), True, False, None, kind="bridge"),
        Interface("enP5s1", (), True, True, 100_000, kind="ethernet", master="eth0"),
        ETH0,
        Interface("eth0.7", (), True, None, None, kind="vlan"),
        Interface("ib0", (), True, True, 400_000, kind="infiniband"),
        Interface("ib10", (), False, None, None, kind="infiniband"),
        Interface("lo", (("127.0.0.1", 8),), True, True, None, is_loopback=True, kind="loopback"),
        Interface("sit0", (), False, None, None, kind="other"),
        Interface("tun0", (), True, None, None, kind="virtual"),
        Interface("veth1", (), True, True, 10_000, kind="virtual", master="docker0"),
    )
    assert expected == read_interfaces(Machine(tmp_path, networks))


def test_without_a_sysfs_of_its_own_the_addresses_still_tell(tmp_path: Path) -> None:
    """/sys may be masked, or another network namespace's: what it does not know is None."""
    host = Machine(tmp_path, {"eth0": (("10.0.0.4", None),), "lo": (("127.0.0.1", 8),)})
    lo = Interface("lo", (("127.0.0.1", 8),), is_loopback=True)
    assert read_interfaces(host) == (Interface("eth0", (("10.0.0.4", None),)), lo)


@deterministic(100)
@given(st.lists(st.text(max_size=30), min_size=5, max_size=5), st.text(max_size=20), st.integers(0, 128))
def test_any_text_in_sysfs_is_survived(texts: list[str], address: str, length: int) -> None:
    """Nothing raises, whatever the files and the kernel's answers hold."""
    names = ("flags", "type", "carrier", "speed", "uevent")
    files = {f"/sys/class/net/eth0/{name}": text for name, text in zip(names, texts, strict=True)}

    class Odd(Host):
        def networks(self) -> Addresses:
            return {"eth0": ((address, length),)}

    (interface,) = read_interfaces(Odd(files, answers={}))
    find_interface([interface], address)
    network_of(interface, address)


@pytest.mark.parametrize(
    "address, expected",
    [
        *(("10.0.0.4", "eth0"), ("::ffff:10.0.0.4", "eth0")),
        ("FE80:0:0:0:20d:3aff:fe00:1%eth0", "eth0"),
        *(("127.0.0.1", "lo"), ("10.0.0.5", None), ("node0", None), ("", None)),
    ],
)
def test_who_has_an_address(address: str, expected: str | None) -> None:
    """However it is written."""
    found = find_interface(ALL, address)
    assert expected == (found and found.name)


@pytest.mark.parametrize(
    "interface, address, expected",
    [
        (ETH0, "10.0.0.4", "10.0.0.0/24"),
        (ETH0, "10.0.0.77", "10.0.0.0/24"),
        (ETH0, "10.0.1.4", None),
        (ETH0, "fe80::1", "fe80::/64"),
        (ETH0, "node0", None),
        (IB0, "172.16.1.4", "172.16.0.0/16"),
        (Interface("eth0", (("10.0.0.4", None),)), "10.0.0.4", None),
        (Interface("eth0", (("10.0.0.4", 99),)), "10.0.0.4", None),
        (Interface("eth0", (("10.0.0.4", 8), ("10.0.0.9", 24))), "10.0.0.4", "10.0.0.0/24"),
    ],
)
def test_the_network_of_an_address(interface: Interface, address: str, expected: str | None) -> None:
    """In the notation that mpirun takes, the narrowest there is."""
    assert expected == network_of(interface, address)


@pytest.mark.parametrize(
    "own, peers, routes, expected",
    [
        ("10.0.0.4", [], {}, "eth0"),
        ("172.16.1.4", ["10.0.0.5"], {"10.0.0.5": "10.0.0.4"}, "ib0"),
        ("10.1.0.4", [], {}, "br0"),
        (None, ["10.0.0.5"], {"10.0.0.5": "10.0.0.4"}, "eth0"),
        (None, ["gone", "10.0.0.5"], {"10.0.0.5": "10.0.0.4"}, "eth0"),
        ("node0", ["node1"], {"node0": "10.0.0.4", "node1": "172.16.1.4"}, "eth0"),
        ("node0", ["node1"], {"node0": "127.0.1.1", "node1": "10.0.0.4"}, "eth0"),
        ("10.9.9.9", ["10.0.0.5"], {"10.0.0.5": "10.0.0.4"}, "eth0"),
        ("172.17.0.1", [], {}, None),
        ("127.0.0.1", ["127.0.0.1"], {"127.0.0.1": "127.0.0.1"}, None),
        (None, ["172.17.0.2"], {"172.17.0.2": "172.17.0.1"}, None),
        (None, [], {}, None),
    ],
)
def test_the_interface_of_the_cluster(
    own: str | None, peers: list[str], routes: dict[str, str], expected: str | None, tmp_path: Path
) -> None:
    """The host list's first, then the kernel's route; never a bridge of containers, never the loopback."""
    found = cluster_interface(Machine(tmp_path, {}, routes), ALL, own, peers)
    assert expected == (found and found.name)


def test_no_route_is_asked_for_where_the_host_list_tells(tmp_path: Path) -> None:
    """A name costs a look-up, which may take seconds."""
    host = Machine(tmp_path, {})
    cluster_interface(host, ALL, "10.0.0.4", ["node1"])
    assert host.asked == []


ROUTES = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
ib0\t000010AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
*\t0000A8C0\t00000000\t0200\t0\t0\t0\t0000FFFF\t0\t0\t0
"""
ROUTES_6 = """\
fd000000000000000000000000000000 40 {0} 00 {0} 00000100 00000001 00000000 00000001 eth0
{0} 00 {0} 00 {0} 00000400 00000001 00000000 00000003 eth0
fe800000000000000000000000000000 40 {0} 00 {0} 00000100 00000001 00000000 00000001 eth0
00000000000000000000000000000001 80 {0} 00 {0} 00000000 00000002 00000000 80200001 lo
"""


def test_routes_are_those_of_the_main_table(tmp_path: Path) -> None:
    """Not those that refuse, nor what holds on one link or on this machine alone."""
    write(tmp_path, {"proc/net/route": ROUTES, "proc/net/ipv6_route": ROUTES_6.format("0" * 32)})
    assert read_routes(Host(str(tmp_path))) == {
        "eth0": ("default", "10.0.0.0/24", "fd00::/64"),
        "ib0": ("172.16.0.0/16",),
    }


@deterministic(100)
@given(text=st.text(alphabet=" 0123456789ABCDEFfx\t\n-eth", max_size=200) | st.binary(max_size=200).map(repr))
def test_no_text_is_too_strange_for_a_route(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Lines cut off, numbers too large, masks with holes."""
    root = tmp_path_factory.mktemp("machine")
    write(root, {"proc/net/route": text, "proc/net/ipv6_route": text})
    read_routes(Host(str(root)))


@pytest.mark.parametrize("addresses", [1, [], {"": ["10.0.0.4/24"]}, {"a b": []}, {"eth0": "10.0.0.4"}])
def test_what_is_no_interface_in_a_snapshot_is_left_out(addresses: object) -> None:
    """Without a name that the kernel would accept it is none."""
    assert read_interfaces(replay({"environ": {}, "addresses": addresses})) == ()


def test_a_snapshot_replays_the_interfaces(tmp_path: Path) -> None:
    """As JSON and back; one written by hand has addresses alone, and an unknown prefix."""
    # As JSON and back.
    write_interface(tmp_path, "eth0", flags="0x1003", type="1", carrier="1", speed="50000")
    write_interface(tmp_path, "enP5s1", master="eth0", flags="0x1803", type="1", carrier="1")
    here = Machine(tmp_path, {"eth0": (("10.0.0.4", 24), ("10.0.0.9", None)), "enP5s1": ()})
    there = replay(json.loads(render_snapshot(take_snapshot(here, {}))))
    assert read_interfaces(here) == read_interfaces(there)
    assert [interface.name for interface in read_interfaces(there)] == ["enP5s1", "eth0"]
    # One written by hand has addresses alone: no prefix, no kind.
    host = replay({"environ": {}, "addresses": {"lo": ["127.0.0.1"], "eth0": ["10.0.0.4"]}})
    lo = Interface("lo", (("127.0.0.1", None),), is_loopback=True)
    assert read_interfaces(host) == (Interface("eth0", (("10.0.0.4", None),)), lo)
    assert read_interfaces(replay({"environ": {}})) == ()
    # The address stays.
    recorded = {"eth0": ["10.0.0.4/x", 7, "10.0.0.5/99", "fd00::1/64"]}
    expected = Interface("eth0", (("10.0.0.4", None), ("7", None), ("10.0.0.5", None), ("fd00::1", 64)))
    assert read_interfaces(replay({"environ": {}, "addresses": recorded})) == (expected,)


TELL = """
import json, sys
from launcher.machine.addresses import Addresses
from launcher.machine.host import Host
from launcher.machine.network import cluster_interface, read_interfaces
host = Host()
interfaces = read_interfaces(host)
ways = [(sys.argv[1], []), (None, [sys.argv[2]]), (None, [sys.argv[3]]), ("localhost", [sys.argv[2]])]
found = [cluster_interface(host, interfaces, own, peers) for own, peers in ways]
print(json.dumps([[vars(interface) for interface in interfaces], [one and one.name for one in found]]))
"""
TELL_ROUTES = """
import json
from launcher.machine.addresses import Addresses
from launcher.machine.host import Host
from launcher.machine.network import read_routes
print(json.dumps(read_routes(Host())))
"""


@pytest.mark.root
def test_interfaces_of_a_node_are_as_ip_says() -> None:
    """On a simulated node: names, addresses with prefixes, up, carrier; and the way to the other node."""
    if find_fallback_reason():
        pytest.skip("needs root, or a kernel that gives user namespaces to us")
    with Cluster(2) as cluster:
        first, second = cluster.nodes
        argv = [sys.executable, "-c", TELL, first.address, second.address, second.name]
        told, found = json.loads(_output(cluster.argv(first, argv)))
        listed = json.loads(_output(cluster.argv(first, ["ip", "-j", "addr"])))
        routes = json.loads(_output(cluster.argv(first, [sys.executable, "-c", TELL_ROUTES])))
        ways = json.loads(_output(cluster.argv(first, ["ip", "-4", "-j", "route"])))
    expected = {
        item["ifname"]: (
            [[entry["local"], entry["prefixlen"]] for entry in item["addr_info"]],
            "UP" in item["flags"],
            "LOOPBACK" in item["flags"],
        )
        for item in listed
    }
    names = ("addresses", "is_up", "is_loopback")
    assert expected == {item["name"]: tuple(item[name] for name in names) for item in told}
    eth0 = next(item for item in told if item["name"] == "eth0")
    assert (eth0["kind"], eth0["has_carrier"], eth0["master"]) == ("virtual", True, None)
    assert found == ["eth0"] * 4
    assert [way["dst"] for way in ways if way["dev"] == "eth0"] == [
        one for one in routes["eth0"] if ":" not in one
    ]


def _output(argv: list[str]) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=30).stdout
