"""RoCE: RDMA over Ethernet, on ports that are ACTIVE and not the fast path of a hypervisor's interface.

NCCL uses such ports by itself; the list only keeps it from others. We leave the identifier
(NCCL_IB_GID_INDEX) to NCCL, which since 2.21 finds the one for RoCE v2 on each port: a single number for all
ports and all nodes is rarely right.

Source: NCCL "Environment Variables" (NCCL_IB_HCA, NCCL_IB_GID_INDEX, NCCL_IB_ROCE_VERSION_NUM, NCCL_NET),
UCX "Frequently Asked Questions" (UCX_NET_DEVICES).
"""

from __future__ import annotations

from launcher.fabrics.facts import Facts, ethernet_ports, is_accelerated_networking, roce_ports
from launcher.fabrics.finding import ELSEWHERE, Found, Wish, count
from launcher.fabrics.rdma_ports import choose_for_gpus, plan_ports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


def find(facts: Facts) -> Found:
    """Return the ports to use, or what is missing."""
    ports = roce_ports(facts)
    usable = facts.reachable(ports)
    if usable:
        chosen = choose_for_gpus(facts, usable)
        why = count(chosen.ports, "RoCE")
        return Found(True, why, chosen.ports, True, notes=chosen.notes, doubt=chosen.doubt)
    if ports:
        why = f"{count(ports, 'RoCE')}, but their /dev/infiniband/uverbs* are not exposed to us"
        return Found(False, why, has_hardware=True, fix="docker run --device /dev/infiniband")
    active = ethernet_ports(facts)
    if facts.is_azure and active:
        names = ", ".join(port.device for port in active)
        return Found(
            False, f"{names} is Azure's accelerated networking: no RDMA between VMs", has_hardware=True
        )
    if any(is_accelerated_networking(facts, port) for port in active):
        return Found(
            False, "the adapter is the fast path of an ordinary interface", has_hardware=True, fix=ELSEWHERE
        )
    return Found(False, "no RDMA port over Ethernet is ACTIVE", fix=ELSEWHERE)


def plan(facts: Facts, found: Found, wish: Wish) -> Iterator[tuple[str, str, str]]:
    """Yield the exact list of ports."""
    yield from plan_ports(found, wish, "roce", is_ours=facts.net_plugin() is None)
