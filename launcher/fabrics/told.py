"""Finds a variable of the user that keeps NCCL from a fabric. Pure.

Source: NCCL "Environment Variables" (NCCL_NET: case does not matter; NCCL_IB_DISABLE; NCCL_IB_HCA: ``^``
excludes, ``=`` means whole names, otherwise entries are prefixes; a port follows a colon).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from launcher.machine.infiniband import Port

    Told = Callable[[str], str | None]
    """Function from the name of a variable to the user's value."""

VERBS = ("ib", "roce")
NETS = {
    "ib": ("ib", "ucx"),
    "roce": ("ib", "gib", "ucx"),
    "efa": ("aws", "ofi"),
    "gcp": ("gpudirect", "fastrak"),
    "tcp": ("socket",),
}
"""Prefixes, in lower case, of the names of networks that use a fabric. Plugins add names to NCCL's own
(IBext_v8, gIB for RoCE on Google's A3 Ultra, AWS Libfabric)."""


def find_exclusion(told: Told, fabric: str, ports: Sequence[Port]) -> str:
    """Return the variable that keeps NCCL from a fabric, in words; empty if none does.

    Args:
        told: Function that returns the user's value of a variable.
        fabric: One of `launcher.fabrics.NAMES`.
        ports: Ports of this fabric.
    """
    net = told("NCCL_NET")
    if net and not net.lower().startswith(NETS[fabric]):
        return f"NCCL_NET={net} is set"
    if fabric not in VERBS:
        return ""
    disabled = told("NCCL_IB_DISABLE") or "0"
    if disabled != "0":
        return f"NCCL_IB_DISABLE={disabled} is set"
    listed = told("NCCL_IB_HCA")
    if listed and ports and not choose_ports(listed, ports):
        return f"NCCL_IB_HCA={listed} excludes all of {', '.join(port.device for port in ports)}"
    return ""


def choose_ports(listed: str, ports: Sequence[Port]) -> tuple[Port, ...]:
    """Return the ports that NCCL_IB_HCA allows."""
    excludes = listed.startswith("^")
    listed = listed.removeprefix("^")
    exact = listed.startswith("=")
    entries = [item.partition(":")[::2] for item in listed.removeprefix("=").split(",") if item]

    def is_listed(port: Port) -> bool:
        return any(
            (port.device == name if exact else port.device.startswith(name))
            and number in ("", str(port.number))
            for name, number in entries
        )

    return tuple(port for port in ports if not entries or is_listed(port) != excludes)
