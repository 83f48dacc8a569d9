"""Which interface the libraries meet through: all fabrics need it, for the first contact at least.

Source: NCCL "Environment Variables" (NCCL_SOCKET_IFNAME: a list of prefixes, exact after ``=``; by
default ib* comes first, then whatever is no docker*, lo or virbr*), PyTorch "torch.distributed" (Common
environment variables: GLOO_SOCKET_IFNAME, names without prefixes or ``^``), TensorPipe (TP_SOCKET_IFNAME).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from launcher.fabrics.facts import Facts

SYNTAX = frozenset(",^=")
"""Characters that the kernel takes in a name, and that mean something else in these variables."""
ONE_NAME = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def plan_sockets(facts: Facts, fabric: str) -> Iterator[tuple[str, str, str]]:
    """Yield the variables that name the interface; none where it cannot be told.

    GPUDirect-TCPX compares NCCL's variables with a list of its own, and refuses others: there NCCL is
    told nothing.
    """
    if facts.interface is None or not SYNTAX.isdisjoint(facts.interface):
        return
    if fabric != "gcp":
        yield "NCCL_SOCKET_IFNAME", f"={facts.interface}", facts.why_interface
    for name in ONE_NAME:
        yield name, facts.interface, facts.why_interface
