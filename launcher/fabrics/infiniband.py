"""InfiniBand: ports with that link layer that a subnet manager has made ACTIVE.

Names prove nothing: ``mlx5_an0`` is Azure's accelerated networking, and ``hfi1_0`` is Omni-Path although its
link layer is InfiniBand. As a prefix ``mlx5_1`` also means mlx5_10, so our list is exact (``=``).

Source: NCCL "Environment Variables" (NCCL_IB_HCA, NCCL_IB_DISABLE, NCCL_NET, NCCL_TOPO_FILE,
NCCL_GRAPH_FILE), UCX "Frequently Asked Questions" (UCX_NET_DEVICES), Azure/azhpc-images (/etc/nccl.conf of
each family of VMs).
"""

from __future__ import annotations

from launcher.fabrics.facts import Facts, infiniband_ports
from launcher.fabrics.finding import ELSEWHERE, Found, Wish, count
from launcher.fabrics.rdma_ports import choose_for_gpus, plan_ports
from launcher.fabrics.topology_file import plan_family
from launcher.machine.infiniband import is_omni_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

EXPOSE = "docker run --device /dev/infiniband --cap-add IPC_LOCK --ulimit memlock=-1"


def find(facts: Facts) -> Found:
    """Return the ports to use, or what is missing."""
    stated = [port for port in facts.ports if port.link_layer == "InfiniBand" and not is_omni_path(port)]
    active = infiniband_ports(facts)
    usable = facts.reachable(active)
    if usable:
        chosen = choose_for_gpus(facts, usable)
        notes = (*chosen.notes, *_notes(facts, len(usable)))
        why = count(chosen.ports, "InfiniBand")
        return Found(True, why, chosen.ports, True, notes=notes, doubt=chosen.doubt)
    if active:
        why = f"{count(active, 'InfiniBand')}, but their /dev/infiniband/uverbs* are not exposed to us"
        return Found(False, why, has_hardware=True, fix=f"give the container its devices: {EXPOSE}")
    if stated:
        states = ", ".join(
            f"{port.device}:{port.number} {port.state or 'in no known state'}" for port in stated
        )
        fix = "check the subnet manager and the cables of this node, or leave the node out"
        return Found(False, f"no port is ACTIVE ({states})", has_hardware=True, fix=fix)
    if any(map(is_omni_path, facts.ports)):
        why = "it is Omni-Path, for which NCCL needs a plugin (OFI, PSM2)"
        return Found(False, why, has_hardware=True, fix=ELSEWHERE)
    kind = facts.vm.kind if facts.vm else None
    if kind is not None and not kind.has_verbs:
        name = facts.vm.name if facts.vm else ""
        why = f"{name} has RDMA without SR-IOV: NCCL cannot use it"
        return Found(False, why, has_hardware=True, fix=ELSEWHERE)
    if facts.ports:
        return Found(False, "the RDMA devices of this node are not InfiniBand", fix=_ask_for_vm(facts))
    return Found(False, "this node shows no RDMA device (/sys/class/infiniband)", fix=_ask_for_vm(facts))


def _ask_for_vm(facts: Facts) -> str:
    if facts.is_azure:
        return "a VM size with an r in its name has InfiniBand (Standard_ND96isr_H100_v5)"
    return "nodes with InfiniBand, or a container that sees /sys/class/infiniband and /dev/infiniband"


def _notes(facts: Facts, usable_count: int) -> Iterator[str]:
    """Yield what is less than it should be: dead ports, hidden ports, too few ports for the VM's size."""
    dead = [
        f"{port.device}:{port.number} {port.state or 'in no known state'}"
        for port in facts.ports
        if port.link_layer == "InfiniBand" and port.state != "ACTIVE" and not is_omni_path(port)
    ]
    if dead:
        yield f"InfiniBand ports that are not used: {', '.join(dead)}"
    hidden = set(infiniband_ports(facts)) - set(facts.reachable(infiniband_ports(facts)))
    if hidden:
        names = ", ".join(sorted(f"{port.device}:{port.number}" for port in hidden))
        yield f"InfiniBand ports without a device file in this container: {names}"
    kind = facts.vm.kind if facts.vm else None
    if kind is not None and kind.port_count > usable_count:
        name = facts.vm.name if facts.vm else ""
        yield f"{name} has {kind.port_count} InfiniBand ports, {usable_count} can be used here"


def plan(facts: Facts, found: Found, wish: Wish) -> Iterator[tuple[str, str, str]]:
    """Yield the exact list of ports, and Azure's settings for the VM."""
    yield from plan_ports(found, wish, "ib", is_ours=facts.net_plugin() is None)
    yield from plan_family(facts, found.ports)
