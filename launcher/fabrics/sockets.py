"""The interface through which the libraries connect: all fabrics need it, at least for the first contact.

Source: NCCL "Environment Variables" (NCCL_SOCKET_IFNAME: a list of prefixes, exact after ``=``; by default
ib* comes first, then any but docker*, lo and virbr*), PyTorch "torch.distributed" (Common environment
variables: GLOO_SOCKET_IFNAME, names without prefixes or ``^``), TensorPipe (TP_SOCKET_IFNAME).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from launcher.fabrics.facts import Facts

SYNTAX = frozenset(",^=")
"""Characters that the kernel accepts in an interface's name, but that have a meaning in these variables."""
ONE_NAME = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def plan_sockets(facts: Facts, fabric: str) -> Iterator[tuple[str, str, str]]:
    """Yield the variables that name the interface; none if it is unknown.

    GPUDirect-TCPX compares NCCL's variables with a list of its own and refuses others, so there we set none
    of NCCL's.
    """
    if facts.interface is None or not SYNTAX.isdisjoint(facts.interface):
        return
    if fabric != "gcp":
        yield "NCCL_SOCKET_IFNAME", f"={facts.interface}", facts.why_interface
    for name in ONE_NAME:
        yield name, facts.interface, facts.why_interface
