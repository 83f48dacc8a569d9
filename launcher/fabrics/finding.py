"""What a fabric finds on a node, and which fabric the user wants."""

from __future__ import annotations

from launcher.core.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.machine.infiniband import Port

ELSEWHERE = "start the job on nodes that have it, or leave the flag out"
"""The fix for hardware that is not there."""


@frozen
class Found:
    """Whether a fabric can be used here.

    Attributes:
        is_here: Whether it can be used.
        why: Evidence for it, or what is missing.
        ports: Ports to use.
        has_hardware: Whether its hardware is here, usable or not.
        fix: What would make it usable; empty if neither we nor the user can do that.
        notes: Unusual facts about it.
        doubt: Why no list of its ports is set; empty if one is.
    """

    is_here: bool
    why: str
    ports: tuple[Port, ...] = ()
    has_hardware: bool = False
    fix: str = ""
    notes: tuple[str, ...] = ()
    doubt: str = ""


@frozen
class Wish:
    """The fabric that the user forces, and the one that the user requires; empty for none."""

    forced: str = ""
    forced_origin: str = ""
    required: str = ""
    required_origin: str = ""


def count(ports: tuple[Port, ...], kind: str) -> str:
    """Return e.g. ``8 active InfiniBand ports of 400 Gb/s``."""
    rates = sorted({port.rate_gbps for port in ports if port.rate_gbps is not None})
    of = f" of {' and '.join(f'{rate:g}' for rate in rates)} Gb/s" if rates else ""
    return f"{len(ports)} active {kind} port{'s' if len(ports) != 1 else ''}{of}"


def name_ports(ports: tuple[Port, ...]) -> str:
    """Return e.g. ``mlx5_0:1,mlx5_1:1``, as NCCL and UCX name ports."""
    return ",".join(f"{port.device}:{port.number}" for port in ports)
