"""Plain TCP: the fabric if nothing better is here, or if the user asks for it.

NCCL uses any active RDMA port over Ethernet as RoCE. If that port is the fast path of a hypervisor's
interface, no other node answers there, and the job hangs or fails. So RDMA is switched off if it certainly
leads nowhere, or if the user asks for TCP.

UCX would use such a port too. Its list of devices is enough to keep it from all others. UCX_TLS would have to
name the transports inside a node as well, and UCX complains about transports that it was built without.

Source: NCCL "Environment Variables" (NCCL_IB_DISABLE, NCCL_NET), UCX "Frequently Asked Questions"
(UCX_NET_DEVICES, UCX_TLS), libfabric fabric(7) (FI_PROVIDER).
"""

from __future__ import annotations

from launcher.fabrics.facts import Facts, ethernet_ports, is_accelerated_networking
from launcher.fabrics.finding import Found, Wish
from launcher.fabrics.topology_file import plan_family

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


def find(facts: Facts) -> Found:
    """Return that TCP is here, as it always is."""
    through = f" through {facts.interface}" if facts.interface else ""
    return Found(True, f"TCP{through}")


def plan(facts: Facts, found: Found, wish: Wish) -> Iterator[tuple[str, str, str]]:
    """Yield what keeps libraries from RDMA that is useless or unwanted, and Azure's settings for the VM."""
    why = why_no_rdma(facts)
    if wish.forced == "tcp":
        why = wish.forced_origin
        yield "NCCL_NET", "Socket", why
        yield "FI_PROVIDER", "tcp", why
    if why:
        yield "NCCL_IB_DISABLE", "1", why
        if facts.interface:
            yield "UCX_NET_DEVICES", facts.interface, why
    yield from plan_family(facts)


def why_no_rdma(facts: Facts) -> str:
    """Return why NCCL certainly cannot use any RDMA port of this node; empty if that is not certain."""
    kind = facts.vm.kind if facts.vm else None
    if facts.vm is not None and kind is not None and not kind.has_verbs:
        return f"{facts.vm.name} has RDMA without SR-IOV"
    ethernet = ethernet_ports(facts)
    if not ethernet or any(port.link_layer != "Ethernet" for port in facts.ports):
        return ""  # a port that is not ready yet may be ready when NCCL starts
    names = ", ".join(port.device for port in ethernet)
    if facts.is_azure:
        return f"{names}: accelerated networking, and no InfiniBand"
    if all(is_accelerated_networking(facts, port) for port in ethernet):
        return f"{names}: the fast path of an ordinary interface"
    return ""
