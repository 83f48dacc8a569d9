"""What a fabric says of a node, and what the user says of fabrics."""

from __future__ import annotations

from launcher.core.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.machine.infiniband import Port

ELSEWHERE = "start the job on nodes that have it, or leave the flag out"
"""What can be done about hardware that is not there."""


@frozen
class Found:
    """Whether a fabric can be used here.

    Attributes:
        is_here: Whether it can.
        why: What shows it, or what is missing.
        ports: Those to use.
        has_hardware: Whether there is hardware of it, of use or not.
        fix: What would make it usable; empty if nothing of ours or the user's could.
        notes: What is unusual about it.
    """

    is_here: bool
    why: str
    ports: tuple[Port, ...] = ()
    has_hardware: bool = False
    fix: str = ""
    notes: tuple[str, ...] = ()


@frozen
class Wish:
    """The fabric that the user forces, and the one that must be found; empty for none."""

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
    """Return e.g. ``mlx5_0:1,mlx5_1:1``: NCCL's and UCX's way to name ports."""
    return ",".join(f"{port.device}:{port.number}" for port in ports)
