"""Expects a bandwidth from the hardware of the nodes, and judges the measured one by it.

An all-reduce crosses the border of each node once in each direction, whatever the number of its processes
(see `launcher.bandwidth.job`). So its bus bandwidth between nodes is at most the sum of one node's ports, and
the slowest node limits all nodes.
"""

from __future__ import annotations

from launcher.bandwidth.pairs import render_gbps
from launcher.core.environ import shorten
from launcher.core.frozen import frozen
from launcher.core.redact import redact
from launcher.machine.infiniband import Port, is_usable, read_ports
from launcher.machine.network import Interface, read_interfaces
from launcher.machine.nvml import find_nvlink_gbps, read_gpu_facts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from launcher.bandwidth.nodes import MeasuredNode
    from launcher.machine.host import Host

INFINIBAND, RDMA, NVLINK = "InfiniBand", "RDMA", "NVLink"
GOOD = {INFINIBAND: 0.75, RDMA: 0.75, NVLINK: 0.65}
"""From this fraction of the rate on, the result is good: protocols, PCI and the CPU take the rest. A ring of
GPUs reaches three quarters of the rate of their NVLinks at best."""
OTHER_FABRIC = 0.25
"""Below this fraction no port is merely slow: the traffic takes another way."""
SWITCHES = ("NCCL_IB_DISABLE", "NCCL_NET", "NCCL_P2P_DISABLE")
"""Variables that keep NCCL from hardware."""
NO_DEVICES = "/dev/infiniband is not in the container: docker run --device /dev/infiniband --cap-add IPC_LOCK"
NCCL_SAYS = "look at: NCCL_DEBUG=INFO, lines with NET/, GDRDMA, via P2P or via SHM"
WHICH = "look at: --pairs, which names the node or link"


@frozen
class Expectation:
    """The bus bandwidth that the job should come near to.

    Attributes:
        gbps: 0 if unknown.
        of: Its origin: ``8 InfiniBand ports``; without a number, why there is none.
        kind: `INFINIBAND`, `RDMA`, `NVLINK`; empty without a number.
    """

    gbps: float
    of: str
    kind: str = ""


def read_ways(host: Host, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the hardware through which a node can talk, as fields of a `MeasuredNode`."""
    ports = read_ports(host)
    used, kind = choose_ports(ports, read_interfaces(host))
    hints = [
        f"{name}={shorten(redact(environ[name]))} is set"
        for name in SWITCHES
        if environ.get(name, "0") not in ("", "0")
    ]
    return {
        "port_gbps": sorted((port.rate_gbps for port in used if port.rate_gbps), reverse=True),
        "port_kind": kind,
        "nvlink_gbps": find_nvlink_gbps(read_gpu_facts(host)),
        "hints": [*hints, *([NO_DEVICES] if any(port.has_uverbs is False for port in ports) else [])],
    }


def choose_ports(ports: Sequence[Port], interfaces: Sequence[Interface]) -> tuple[list[Port], str]:
    """Return the ports that NCCL would use, and their kind: InfiniBand, or else RoCE and EFA.

    The fast path of Azure's accelerated networking is an RDMA device too. It is recognized by its interface,
    which is a member of an ordinary one.
    """
    usable = [port for port in ports if is_usable(port)]
    if usable:
        return usable, INFINIBAND
    bonds = {interface.name for interface in interfaces if interface.kind == "bond"}
    fast_paths = {one.name for one in interfaces if one.master and one.master not in bonds}
    others = [
        port
        for port in ports
        if port.state == "ACTIVE"
        and port.has_uverbs
        and (port.driver == "efa" or (port.link_layer == "Ethernet" and port.interface not in fast_paths))
    ]
    return others, RDMA


def plan_expectation(nodes: Sequence[MeasuredNode], backend: str) -> Expectation:
    """Return the bus bandwidth that all processes together should come near to.

    Args:
        nodes: All nodes of the job.
        backend: ``nccl``, or ``gloo``, which can use only TCP.
    """
    if backend != "nccl":
        return Expectation(0, f"{backend} uses neither InfiniBand nor NVLink")
    if len(nodes) == 1:
        gbps = nodes[0].nvlink_gbps
        return Expectation(gbps, "a GPU's NVLinks", NVLINK) if gbps else Expectation(0, "one node, no NVLink")
    # Each process drives a port of its own.
    slowest = min(nodes, key=lambda node: sum(node.port_gbps[: len(node.ranks)]))
    used = slowest.port_gbps[: len(slowest.ranks)]
    if not used:
        return Expectation(0, f"{slowest.name} has no port of InfiniBand, RoCE or EFA")
    of = f"{len(used)} of {len(slowest.port_gbps)} {slowest.port_kind} ports of {slowest.name}"
    return Expectation(sum(used), of, slowest.port_kind)


def judge(bus_gbps: float, expectation: Expectation, nodes: Sequence[MeasuredNode] = ()) -> list[str]:
    """Return the verdict on the best bus bandwidth that was measured, and what to look at."""
    got, kind = render_gbps(bus_gbps), expectation.kind
    if bus_gbps == 0:
        return ["verdict: one process, so there is nothing to measure; start two or more"]
    if not kind:
        return [f"verdict: {got} Gb/s: nothing to compare with ({expectation.of})"]
    verdict = f"verdict: {got} of {render_gbps(expectation.gbps)} Gb/s ({expectation.of})"
    if bus_gbps >= GOOD[kind] * expectation.gbps:
        return [f"{verdict}: as it should be"]
    hints = [f"look at: {node.name}: {hint}" for node in nodes for hint in node.hints]
    if bus_gbps < OTHER_FABRIC * expectation.gbps:
        return [f"{verdict}: this is not {kind}", *hints, NCCL_SAYS]
    return [f"{verdict}: slower than it should be", *hints, NCCL_SAYS, WHICH]
