"""InfiniBand and RoCE: ports of verbs, which NCCL uses by itself.

InfiniBand: ports with that link layer that a subnet manager has made ACTIVE. Names prove nothing:
``mlx5_an0`` is Azure's accelerated networking, and ``hfi1_0`` is Omni-Path although its link layer is
InfiniBand. As a prefix ``mlx5_1`` also means mlx5_10, so our list is exact (``=``).

RoCE: RDMA over Ethernet, on ports that are ACTIVE and not the fast path of a hypervisor's interface. We leave
the identifier (NCCL_IB_GID_INDEX) to NCCL, which since 2.21 finds the one for RoCE v2 on each port: a single
number for all ports and all nodes is rarely right.

Source: NCCL "Environment Variables" (NCCL_IB_HCA, NCCL_IB_DISABLE, NCCL_IB_GID_INDEX,
NCCL_IB_ROCE_VERSION_NUM, NCCL_NET, NCCL_TOPO_FILE, NCCL_GRAPH_FILE), UCX "Frequently Asked Questions"
(UCX_NET_DEVICES), Azure/azhpc-images (/etc/nccl.conf of each family of VMs).
"""

from __future__ import annotations

from launcher.fabrics.facts import (
    ELSEWHERE,
    Facts,
    Found,
    Wish,
    count,
    ethernet_ports,
    infiniband_ports,
    is_accelerated_networking,
    name_ports,
    roce_ports,
    unusable,
)
from launcher.fabrics.rdma_ports import choose_for_gpus
from launcher.fabrics.topology_file import plan_family
from launcher.machine.infiniband import is_omni_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from launcher.machine.infiniband import Port

DEVICES = "docker run --device /dev/infiniband"
EXPOSE = f"{DEVICES} --cap-add IPC_LOCK --ulimit memlock=-1"


def find_infiniband(facts: Facts) -> Found:
    """Return the ports to use, or what is missing."""
    stated = [port for port in facts.ports if port.link_layer == "InfiniBand" and not is_omni_path(port)]
    fix = f"give the container its devices: {EXPOSE}"
    found = _find_usable(facts, infiniband_ports(facts), "InfiniBand", fix)
    if found is not None:
        return found
    if stated:
        fix = "check the subnet manager and the cables of this node, or leave the node out"
        return unusable(f"no port is ACTIVE ({_name_states(stated)})", fix)
    if any(map(is_omni_path, facts.ports)):
        return unusable("it is Omni-Path, for which NCCL needs a plugin (OFI, PSM2)", ELSEWHERE)
    if facts.kind is not None and not facts.kind.has_verbs:
        return unusable(f"{facts.vm_name} has RDMA without SR-IOV: NCCL cannot use it", ELSEWHERE)
    fix = "nodes with InfiniBand, or a container that sees /sys/class/infiniband and /dev/infiniband"
    if facts.is_azure:
        fix = "a VM size with an r in its name has InfiniBand (Standard_ND96isr_H100_v5)"
    why = "this node shows no RDMA device (/sys/class/infiniband)"
    return Found(False, "the RDMA devices of this node are not InfiniBand" if facts.ports else why, fix=fix)


def find_roce(facts: Facts) -> Found:
    """Return the ports to use, or what is missing."""
    found = _find_usable(facts, roce_ports(facts), "RoCE", DEVICES)
    if found is not None:
        return found
    active = ethernet_ports(facts)
    if facts.is_azure and active:
        names = ", ".join(port.device for port in active)
        return unusable(f"{names} is Azure's accelerated networking: no RDMA between VMs")
    if any(is_accelerated_networking(facts, port) for port in active):
        return unusable("the adapter is the fast path of an ordinary interface", ELSEWHERE)
    return Found(False, "no RDMA port over Ethernet is ACTIVE", fix=ELSEWHERE)


def _find_usable(facts: Facts, active: tuple[Port, ...], title: str, fix: str) -> Found | None:
    """Return the ports for GPUs among a kind's active ones, or that none is exposed; None without any."""
    usable = facts.reachable(active)
    if not usable:
        why = f"{count(active, title)}, but their /dev/infiniband/uverbs* are not exposed to us"
        return unusable(why, fix) if active else None
    chosen = choose_for_gpus(facts, usable)
    notes = (*chosen.notes, *(_note_less(facts, len(usable)) if title == "InfiniBand" else ()))
    return Found(True, count(chosen.ports, title), chosen.ports, True, notes=notes, doubt=chosen.doubt)


def _name_states(ports: Sequence[Port]) -> str:
    return ", ".join(f"{port.device}:{port.number} {port.state or 'in no known state'}" for port in ports)


def _note_less(facts: Facts, usable_count: int) -> Iterator[str]:
    """Yield what is less than it should be: dead ports, hidden ports, too few ports for the VM's size."""
    dead = [
        port
        for port in facts.ports
        if port.link_layer == "InfiniBand" and port.state != "ACTIVE" and not is_omni_path(port)
    ]
    if dead:
        yield f"InfiniBand ports that are not used: {_name_states(dead)}"
    hidden = set(infiniband_ports(facts)) - set(facts.reachable(infiniband_ports(facts)))
    if hidden:
        names = ", ".join(sorted(f"{port.device}:{port.number}" for port in hidden))
        yield f"InfiniBand ports without a device file in this container: {names}"
    if facts.kind is not None and facts.kind.port_count > usable_count:
        yield f"{facts.vm_name} has {facts.kind.port_count} InfiniBand ports, {usable_count} can be used here"


def plan_infiniband(facts: Facts, found: Found, wish: Wish) -> Iterator[tuple[str, str, str]]:
    """Yield the exact list of ports, and Azure's settings for the VM."""
    yield from _plan_ports(facts, found, wish, "ib")
    yield from plan_family(facts, found.ports)


def plan_roce(facts: Facts, found: Found, wish: Wish) -> Iterator[tuple[str, str, str]]:
    """Yield the exact list of ports."""
    yield from _plan_ports(facts, found, wish, "roce")


def _plan_ports(facts: Facts, found: Found, wish: Wish, name: str) -> Iterator[tuple[str, str, str]]:
    """Yield the exact list of a fabric's ports, and what keeps NCCL to them if the fabric is forced."""
    if not found.doubt:
        yield "NCCL_IB_HCA", f"={name_ports(found.ports)}", found.why
        yield "UCX_NET_DEVICES", name_ports(found.ports), found.why
    if wish.forced == name and facts.net_plugin() is None:  # a plugin's network has another name
        yield "NCCL_NET", "IB", f"{wish.forced_origin}: prevents a silent fallback to sockets"
