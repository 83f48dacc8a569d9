"""Checks InfiniBand for ports that exist, but are down, slow, or not exposed to us.

A job without its ports runs over Ethernet, many times slower, and reports nothing.

Source: Linux Documentation/infiniband/user_verbs.rst (uverbs), sysfs-class-infiniband (state);
"docker run" reference (--device).
"""

from __future__ import annotations

from launcher.checks.case import CheckedNode
from launcher.checks.finding import PROBLEM, WARNING, Finding, ok, render_count
from launcher.checks.runtime import AZURE_ML, option
from launcher.fabrics.variables import find_exclusion
from launcher.machine.infiniband import Port, is_omni_path, is_usable

CAUSES = {
    "INIT": "no subnet manager has answered yet (opensm on the fabric); else use another VM",
    "ARMED": "wait for the subnet manager; else use another VM",
}
DEAD = "the port or its cable is dead (ibstat, dmesg): use another node"


def look(case: CheckedNode) -> list[Finding]:
    """Compare the ports with each other, with the VM's, with our device files and with NCCL's variables."""
    ports = [port for port in case.ports if port.link_layer == "InfiniBand" and not is_omni_path(port)]
    if not ports and not case.vm_port_count:
        return []
    found = [*_look_at_states(ports), *_look_at_count(case, ports), *_look_at_rates(ports)]
    found += [*_look_at_files(case, ports), *_look_at_variables(case, ports)]
    if any(finding.level == PROBLEM for finding in found):
        return found
    return [*found, ok("infiniband", "InfiniBand", f"{_describe(ports)} active and exposed to us")]


def _describe(ports: list[Port]) -> str:
    rates = sorted({port.rate_gbps for port in ports if port.rate_gbps is not None})
    return render_count(len(ports), "port") + (f" of {rates[-1]:g} Gb/s" if rates else "")


def _look_at_variables(case: CheckedNode, ports: list[Port]) -> list[Finding]:
    exclusion = find_exclusion(case.environ.get, "ib", [port for port in ports if is_usable(port)])
    if not exclusion:
        return []
    fix = f"unset {exclusion.partition('=')[0]}, or --fabric tcp if that is meant"
    return [Finding("infiniband", WARNING, "variables", "none that keeps NCCL from it", exclusion, fix)]


def _look_at_states(ports: list[Port]) -> list[Finding]:
    return [
        Finding(
            "infiniband",
            PROBLEM,
            f"port {port.number} of {port.device}",
            "ACTIVE",
            port.state or "no state that can be read",
            CAUSES.get(port.state or "", DEAD),
        )
        for port in ports
        if port.state != "ACTIVE"
    ]


def _look_at_count(case: CheckedNode, ports: list[Port]) -> list[Finding]:
    has = case.vm_port_count
    if case.vm is None or has is None or len(ports) >= has:
        return []
    found = f"{render_count(len(ports), 'port')} in /sys/class/infiniband"
    return [Finding("infiniband", PROBLEM, "InfiniBand", f"{has}, as every {case.vm.name} has", found, DEAD)]


def _look_at_rates(ports: list[Port]) -> list[Finding]:
    rated = [port for port in ports if port.state == "ACTIVE" and port.rate_gbps is not None]
    best = max((port.rate_gbps or 0 for port in rated), default=0)
    slow = [f"{port.device} {port.rate_gbps:g} Gb/s" for port in rated if (port.rate_gbps or 0) < best]
    if not slow:
        return []
    fix = "if they should be equal, a cable or switch port is bad (ibstat, iblinkinfo): use another node"
    expected = f"{best:g} Gb/s, as the others"
    return [Finding("infiniband", WARNING, "rates", expected, ", ".join(slow), fix)]


def _look_at_files(case: CheckedNode, ports: list[Port]) -> list[Finding]:
    hidden = list(dict.fromkeys(port.device for port in ports if port.has_uverbs is False))
    if not hidden:
        return []
    fix = option(
        case.runtime,
        "--device /dev/infiniband --ulimit memlock=-1 --cap-add IPC_LOCK",
        kubernetes="request a resource of the RDMA device plugin, e.g. limits: {rdma/hca: 1}, and IPC_LOCK",
        machine="modprobe ib_uverbs, and install rdma-core",
    )
    if case.runtime == AZURE_ML:
        fix = "use a compute with RDMA, not Kubernetes without its device plugin; " + fix
    found = f"{', '.join(hidden)} without one: NCCL and MPI would use TCP"
    return [Finding("infiniband", PROBLEM, "/dev/infiniband", "uverbsN for each device", found, fix)]
