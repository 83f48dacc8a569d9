"""Checks of InfiniBand, and the variables that choose a network."""

from __future__ import annotations

from launcher.checks.case import AZURE_ML, CheckedNode
from launcher.checks.finding import PROBLEM, Findings, fail, ok, render_count, warn
from launcher.core.environ import NETWORK_NAMES
from launcher.fabrics.facts import read_variables
from launcher.fabrics.variables import find_exclusion, find_faults
from launcher.machine.infiniband import Port, is_omni_path, is_usable

CAUSES = {
    "INIT": "no subnet manager has answered yet (opensm on the fabric); else use another VM",
    "ARMED": "wait for the subnet manager; else use another VM",
}
DEAD = "the port or its cable is dead (ibstat, dmesg): use another node"


def check_infiniband(case: CheckedNode) -> Findings:
    """Check InfiniBand for ports that exist, but are down, slow, or not exposed to us.

    A job without its ports runs over Ethernet, many times slower, and reports nothing. Compare the ports with
    each other, with the VM's, with our device files and with NCCL's variables.

    Source:
        Linux Documentation/infiniband/user_verbs.rst (uverbs), sysfs-class-infiniband (state); "docker
        run" reference (--device).
    """
    ports = [port for port in case.ports if port.link_layer == "InfiniBand" and not is_omni_path(port)]
    if not ports and not case.vm_port_count:
        return
    found = [*_judge_ports(case, ports), *_judge_files(case, ports)]
    exclusion = find_exclusion(case.environ.get, "ib", [port for port in ports if is_usable(port)])
    if exclusion:
        fix = f"unset {exclusion.partition('=')[0]}, or --fabric tcp if that is meant"
        found.append(warn("variables", "none that keeps NCCL from it", exclusion, fix))
    yield from found
    if not any(finding.level == PROBLEM for finding in found):
        rate = max((port.rate_gbps for port in ports if port.rate_gbps is not None), default=None)
        speed = "" if rate is None else f" of {rate:g} Gb/s"
        yield ok("InfiniBand", f"{render_count(len(ports), 'port')}{speed} active and exposed to us")


def _judge_ports(case: CheckedNode, ports: list[Port]) -> Findings:
    """Judge the states, the number and the rates of the ports."""
    for port in ports:
        if port.state != "ACTIVE":
            what, state = f"port {port.number} of {port.device}", port.state or ""
            yield fail(what, "ACTIVE", state or "no state that can be read", CAUSES.get(state, DEAD))
    has = case.vm_port_count
    if case.vm is not None and has is not None and len(ports) < has:
        found = f"{render_count(len(ports), 'port')} in /sys/class/infiniband"
        yield fail("InfiniBand", f"{has}, as every {case.vm.name} has", found, DEAD)
    rates = [
        (port, port.rate_gbps) for port in ports if port.state == "ACTIVE" and port.rate_gbps is not None
    ]
    best = max((rate for _, rate in rates), default=0)
    slow = [f"{port.device} {rate:g} Gb/s" for port, rate in rates if rate < best]
    if slow:
        fix = "if they should be equal, a cable or switch port is bad (ibstat, iblinkinfo): use another node"
        yield warn("rates", f"{best:g} Gb/s, as the others", ", ".join(slow), fix)


def _judge_files(case: CheckedNode, ports: list[Port]) -> Findings:
    hidden = list(dict.fromkeys(port.device for port in ports if port.has_uverbs is False))
    if hidden:
        fix = case.option(
            "--device /dev/infiniband --ulimit memlock=-1 --cap-add IPC_LOCK",
            kubernetes="request a resource of the RDMA device plugin, "
            "e.g. limits: {rdma/hca: 1}, and IPC_LOCK",
            machine="modprobe ib_uverbs, and install rdma-core",
        )
        if case.runtime == AZURE_ML:
            fix = f"use a compute with RDMA, not Kubernetes without its device plugin; {fix}"
        found = f"{', '.join(hidden)} without one: NCCL and MPI would use TCP"
        yield fail("/dev/infiniband", "uverbsN for each device", found, fix)


def check_network(case: CheckedNode) -> Findings:
    """Check that the user's network variables fit this node: NCCL, gloo and TensorPipe report little on them.

    Compare each variable, and what NCCL's files set, with the interfaces and devices.

    Source:
        see `launcher.fabrics.variables`.
    """
    facts = read_variables(case.host, case.environ, case.ports)
    names = [name for name in NETWORK_NAMES if facts.told(name)]
    faults = find_faults(facts, spans_nodes=case.spans_nodes)
    for fault in faults:
        report = warn if fault.is_partial else fail
        yield report(f"{fault.name}={fault.value!r}", "what this node has", fault.what, fault.fix)
    if names and not faults:
        yield ok(", ".join(names), "this node has what they name")
