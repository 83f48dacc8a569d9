"""The first message on a connection: a launcher's identity and its facts, or that a launcher was killed."""

from __future__ import annotations

import hmac

from launcher.core.wire import Garbled, message, name_of, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.core.wire import Fact, Facts, NodeRank, Word


@message
class Identity:
    """Identity of a joining launcher: the part that is cheap to parse. See `Join`."""

    rank: NodeRank | None
    session: Word
    begun: bool = False


@message
class LauncherKilled:
    """From a watchdog: the launcher was killed, and nothing it started is still running.

    Attributes:
        secret: What the name of that launcher was made from: nothing else can know it.
    """

    secret: Word


@message
class Join:
    """The facts of a node, see `launcher.cluster.facts`; None if unknown.

    Attributes:
        rank: Rank of the node; None if node 0 finds it by the address.
        session: Random name that tells its launcher from a later one; see `name_session`.
        begun: Whether it has been told that the job has started.
        attempt: The attempt that it was told to start last; -1 for none.
        node: The node of a launcher that is one of several there; None if each node has one.
        mono_ns: Its monotonic clock.
        wall_ns: Its wall clock.
    """

    rank: NodeRank | None
    session: Word
    begun: bool = False
    attempt: int = -1
    node: NodeRank | None = None
    mono_ns: int = 0
    wall_ns: int | None = None
    host: Fact | None = None
    machine: Fact | None = None
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
    restarts: int | None = None
    spares: int | None = None
    restart_rules: Fact | None = None
    command: Fact | None = None
    settings: Facts = {}  # noqa: RUF012 - never changed


def name_session(secret: str) -> str:
    """Return the name of a launcher, made so that its watchdog can prove whose it is; ``secret``: random."""
    return hmac.digest(secret.encode(), b"session of a launcher", "sha256")[:16].hex()


def read_identity(packed: Mapping[str, object]) -> Identity:
    """Return the identity of the node that joins.

    Raises:
        Garbled: The message is not a `Join`.
    """
    if packed.get("is") != name_of(Join):
        raise Garbled("joins nothing")
    return parse(Identity, packed)
