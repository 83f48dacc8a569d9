"""What a node says first, and what of it is kept: known names, small values."""

from __future__ import annotations

from collections.abc import Mapping

from launcher.channel.frames import Garbled, number, text
from launcher.cluster.consistency import CLOCK_S
from launcher.core.redact import quote

TEXT_LENGTH = 200
ITEMS_MAX = 64
NODES_MAX = 1 << 20
TEXTS = (
    *("host", "launcher", "python", "driver", "torch", "nccl", "mpi", "gpu_kind", "fabric", "engine"),
    "command",
)
NUMBERS = ("gpu_count", "node_count", "local_size", "world_size", "wall_ns")
SESSION_LENGTH = 32
TEXTS_KEPT = 1 << 14
"""Texts of hellos that are remembered: hosts and addresses of a thousand nodes, and what they share."""


def read_identity(message: Mapping[str, object]) -> tuple[int, str]:
    """Return which node a hello is of, and what its launcher calls itself: all that is cheap to read.

    Raises:
        Garbled: It names no node of a job.
    """
    rank = number(message, "rank")
    session = text(message, "session")
    if message.get("is") != "hello" or not 0 <= rank < NODES_MAX:
        raise Garbled("no hello")
    if len(session) > SESSION_LENGTH or not session.isalnum():
        raise Garbled("no session")
    return rank, session


def read_hello(message: Mapping[str, object], seen: dict[str, str]) -> dict[str, object]:
    """Return what is kept of a hello.

    Args:
        message: As it came.
        seen: Texts of other nodes, and what is kept of each: most are the same on all nodes.

    Raises:
        Garbled: It names no node of a job.
    """
    rank, session = read_identity(message)

    def keep(value: str) -> str:
        if value not in seen:
            if len(seen) >= TEXTS_KEPT:
                seen.clear()  # nodes that differ so much are no nodes of one job
            seen[value] = quote(value, TEXT_LENGTH)  # a hundred patterns: most of what a hello costs
        return seen[value]

    kept: dict[str, object] = {"rank": rank, "session": session}
    for name in TEXTS:
        value = message.get(name)
        kept[name] = keep(value) if isinstance(value, str) else None
    for name in NUMBERS:
        value = message.get(name)
        is_number = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63
        kept[name] = value if is_number else None
    addresses = message.get("addresses")
    kept["addresses"] = tuple(
        keep(item) for item in (addresses if isinstance(addresses, list) else ())[:8] if isinstance(item, str)
    )
    settings = message.get("settings")
    pairs = list(settings.items())[:ITEMS_MAX] if isinstance(settings, Mapping) else []
    kept["settings"] = {keep(name): keep(value) for name, value in pairs if isinstance(value, str)}
    return kept


def compare_clocks(hello: Mapping[str, object], heard_wall_ns: int) -> float | None:
    """Return how many seconds a node's wall clock is ahead of ours, less the way of its hello.

    A hello is some milliseconds old when it is heard; within `CLOCK_S` that does not matter.
    """
    theirs = hello.get("wall_ns")
    if not isinstance(theirs, int):
        return None
    ahead = (theirs - heard_wall_ns) / 1e9
    return 0.0 if abs(ahead) < CLOCK_S / 4 else ahead
