"""What both ends of the channel need to know of the job."""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.core.model import NODE

BEAT_S = 2.0
"""How often a node says that it is there."""
COORDINATOR_BEAT_S = 4.0
"""How often node 0 does, to each."""
SAY_EVERY_S = 15.0


@frozen
class Shape:
    """One job, as its channel sees it.

    Attributes:
        node_rank: Which node this is.
        node_count: How many there are.
        world_size: Processes in the job, None if that is not known.
        address: Where node 0 is, as this node was told: a name or an address.
        ports: Where its coordinator may be listening, the first that is free.
        hosts: The nodes by rank, if they are listed.
        timeout_s: How long the roll call may take.
        lost_after_s: Silence after which a node, or node 0, counts as lost.
        grace_s: Between SIGTERM and SIGKILL.
        keep_going: Whether the others go on after a failure or a lost node.
        master_port: Where the processes of the job will meet.
        member: What has a launcher: `NODE`, or each `RANK` by itself: names here mean that by node then.
        speaks: This launcher says what concerns all: not each of the ranks of a machine does.
    """

    node_rank: int
    node_count: int
    world_size: int | None
    address: str
    ports: tuple[int, ...]
    hosts: tuple[str, ...] = ()
    timeout_s: float = 900.0
    lost_after_s: float = 10.0
    grace_s: float = 30.0
    keep_going: bool = False
    master_port: int = 0
    member: str = NODE
    speaks: bool = True
