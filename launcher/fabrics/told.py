"""Which fabric the user's own variables keep NCCL from. Pure.

Source: NCCL "Environment Variables" (NCCL_NET: compared without regard to case; NCCL_IB_DISABLE; NCCL_IB_HCA:
``^`` excludes, ``=`` means whole names, else their beginnings; a port after a colon).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from launcher.machine.infiniband import Port

    Told = Callable[[str], str | None]
    """From the name of a variable to what the user set it to."""

VERBS = ("ib", "roce")
NETS = {
    "ib": ("ib", "ucx"),
    "roce": ("ib", "ucx"),
    "efa": ("aws", "ofi"),
    "gcp": ("gpudirect", "fastrak"),
    "tcp": ("socket",),
}
"""How the names of the networks begin, in small letters, that use a fabric; plugins add to NCCL's own
(IBext_v8, AWS Libfabric)."""


def find_exclusion(told: Told, fabric: str, ports: Sequence[Port]) -> str:
    """Return which variable keeps NCCL from a fabric, in words; empty if none does.

    Args:
        told: What the user set.
        fabric: One of `launcher.fabrics.NAMES`.
        ports: Those of this fabric.
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
        return f"NCCL_IB_HCA={listed} leaves none of {', '.join(port.device for port in ports)}"
    return ""


def choose_ports(listed: str, ports: Sequence[Port]) -> tuple[Port, ...]:
    """Return the ports that NCCL_IB_HCA leaves."""
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
