"""Network variables of the user: names, addresses and devices that this node does not have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from launcher.checks.finding import OK, PROBLEM, WARNING
from launcher.machine.addresses import Addresses
from launcher.machine.infiniband import Port
from launcher.machine.network import Interface
from tests.unit.checks.cases import Machine, case, levels, looker
from tests.unit.wiring import WiredFiles

look = looker("network")

LO = Interface("lo", (("127.0.0.1", 8), ("::1", 128)), True, True, is_loopback=True, kind="loopback")
ETH0 = Interface("eth0", (("10.0.0.4", 24), ("fe80::4", 64)), True, True, kind="ethernet")
ETH1 = Interface("eth1", (), False, None, kind="ethernet")
DOCKER = Interface("docker0", (("172.17.0.1", 16),), True, True, kind="bridge")
ONLY6 = Interface("eth0", (("fd00::4", 64), ("fe80::4", 64)), True, True, kind="ethernet")
NCCL, GLOO, TP, HCA, FAMILY = (
    *("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_SOCKET_FAMILY"),
)
PORTS = tuple(Port(f"mlx5_{n}", 1, "InfiniBand", "ACTIVE", 400.0) for n in (0, 10))


class Linked(Machine):
    """A machine with interfaces."""

    found: tuple[Interface, ...] = (LO, ETH0, ETH1, DOCKER)

    def __init__(self, root: Path, files: Mapping[str, str] | None = None) -> None:
        super().__init__(root, files)
        self.files = WiredFiles(str(root), lambda: self.found)

    def networks(self) -> Addresses:
        return {one.name: one.addresses for one in self.found}

    def home(self) -> str:
        return "/root"


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        (
            NCCL,
            "eth9",
            "no interface of this node is called eth9...: docker0 (172.17.0.1), eth0 (10.0.0.4), eth1, lo",
        ),
        (NCCL, "=eth", "no interface of this node is called eth: "),
        (NCCL, "lo", "lo leads to this node alone"),
        (NCCL, "=docker0", "docker0 leads to containers of this node alone"),
        (NCCL, "eth1", "eth1 has no address"),
        (NCCL, "eth0\r", "it ends with a carriage return"),
        (NCCL, " eth0", "it has blanks"),
        (NCCL, "10.0.0.4", "10.0.0.4 is an address; its interface is eth0"),
        (NCCL, "10.0.0.9", "10.0.0.9 is an address, and not of this node"),
        (NCCL, "^lo,eth,docker", "it leaves no interface"),
        (GLOO, "^docker0", "gloo knows whole names alone, without ^ and ="),
        (GLOO, "=eth0", "gloo knows whole names alone, without ^ and ="),
        (GLOO, "eth", "no interface of this node is called eth: "),
        (GLOO, "eth0,eth9", "no interface of this node is called eth9: "),
        (GLOO, "lo", "lo leads to this node alone"),
        (TP, "eth9", "no interface of this node is called eth9: "),
        (HCA, "mlx5_1x,mlx4", "no RDMA device of this node is called mlx5_1x..., mlx4...: mlx5_0, mlx5_10"),
        (HCA, "=mlx5_1", "no RDMA device of this node is called mlx5_1: mlx5_0, mlx5_10"),
        (HCA, "=mlx5_0:2", "no RDMA device of this node is called mlx5_0:2: mlx5_0, mlx5_10"),
        (HCA, "mlx5_0\r", "it ends with a carriage return"),
        (FAMILY, "AF_INET6", "eth0 (10.0.0.4) has no IPv6 address"),
    ],
)
def test_what_cannot_be(name: str, value: str, found: str, tmp_path: Path) -> None:
    """Each names the variable, what is wrong with its value, and what this node has."""
    (finding,) = look(case(Linked(tmp_path), {name: value}, spans_nodes=True, ports=PORTS))
    assert (finding.level, finding.what) == (PROBLEM, f"{name}={value!r}")
    assert finding.found.startswith(found)
    assert finding.fix.startswith((f"{name}=", f"unset {name}"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((NCCL, "eth"), (NCCL, "=eth0"), (NCCL, "^docker0"), (NCCL, "^=docker0,lo"), (NCCL, "ib,eth")),
        *((GLOO, "eth0"), (GLOO, ""), (TP, "eth0"), (FAMILY, "AF_INET"), (FAMILY, "AF_UNIX")),
        *((HCA, "mlx5"), (HCA, "=mlx5_0:1"), (HCA, "^mlx4"), (HCA, "")),
    ],
)
def test_what_is_right(name: str, value: str, tmp_path: Path) -> None:
    """Prefixes, whole names, and what is left out by name; a family that NCCL does not know it ignores."""
    found = look(case(Linked(tmp_path), {name: value}, spans_nodes=True, ports=PORTS))
    assert levels(found) == ([OK] if value else [])


def test_one_node_or_family_may_have_less(tmp_path: Path) -> None:
    """One node may use the loopback; a device that is missing among others; a node with IPv6 alone."""
    # Nobody else has to reach it.
    assert levels(look(case(Linked(tmp_path), {NCCL: "lo", GLOO: "lo"}))) == [OK]
    # NCCL takes the others.
    found = look(case(Linked(tmp_path), {HCA: "=mlx5_0,mlx5_3"}, spans_nodes=True, ports=PORTS))
    assert levels(found) == [WARNING] and "mlx5_3" in found[0].found
    # NCCL_SOCKET_FAMILY leaves it no interface at all.
    host = Linked(tmp_path)
    host.found = (LO, ONLY6)
    found = look(case(host, {FAMILY: "AF_INET"}, spans_nodes=True))
    assert [(item.level, item.found) for item in found] == [(PROBLEM, "eth0 (fd00::4) has no IPv4 address")]


def test_a_file_of_nccls(tmp_path: Path) -> None:
    """What /etc/nccl.conf sets counts like a variable."""
    host = Linked(tmp_path, {"etc/nccl.conf": "NCCL_SOCKET_IFNAME=eth9\n"})
    assert levels(look(case(host, spans_nodes=True))) == [PROBLEM]
