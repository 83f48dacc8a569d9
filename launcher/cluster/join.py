"""What a node says first."""

from __future__ import annotations

from launcher.cluster.consistency import CLOCK_S
from launcher.core.messages import Garbled, message, name_of, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.core.messages import Fact, Facts, NodeRank, Word


@message
class Identity:
    """Which node joins, and what its launcher calls itself: all that is cheap to read."""

    rank: NodeRank
    session: Word


@message
class Join:
    """What a node says of itself, see `launcher.cluster.facts`; None for what it does not know.

    Attributes:
        rank: Of the node.
        session: What tells its launcher from a later one.
        mono_ns: Its monotonic clock.
        wall_ns: Its wall clock.
    """

    rank: NodeRank
    session: Word
    mono_ns: int = 0
    wall_ns: int | None = None
    host: Fact | None = None
    addresses: tuple[Fact, ...] = ()
    launcher: Fact | None = None
    python: Fact | None = None
    driver: Fact | None = None
    torch: Fact | None = None
    nccl: Fact | None = None
    mpi: Fact | None = None
    gpu_count: int | None = None
    gpu_kind: Fact | None = None
    fabric: Fact | None = None
    node_count: int | None = None
    local_size: int | None = None
    world_size: int | None = None
    engine: Fact | None = None
    command: Fact | None = None
    settings: Facts = {}  # noqa: RUF012 - never changed


def read_identity(packed: Mapping[str, object]) -> Identity:
    """Return which node joins.

    Raises:
        Garbled: It is none.
    """
    if packed.get("is") != name_of(Join):
        raise Garbled("joins nothing")
    return parse(Identity, packed)


def compare_clocks(join: Join, heard_wall_ns: int) -> float | None:
    """Return how many seconds a node's wall clock is ahead of ours, less the way of its message.

    The message is some milliseconds old when it is heard; within `CLOCK_S` that does not matter.
    """
    if join.wall_ns is None:
        return None
    ahead = (join.wall_ns - heard_wall_ns) / 1e9
    return 0.0 if abs(ahead) < CLOCK_S / 4 else ahead
