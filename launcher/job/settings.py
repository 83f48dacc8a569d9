"""The times of a job's life, for all its launchers."""

from __future__ import annotations

BEAT_S = 2.0
"""Seconds between heartbeats of each node, and of node 0 to each node."""
QUIET_S = 3.0
"""A node that was not heard for longer has missed a heartbeat: now it is silent."""
HEAL_S = 2.0
"""Seconds until a link that was down carries a call again: its carrier, its neighbors, and the next call."""
LEASE_SLACK_S = 1.0
"""A launcher that runs has stopped its processes before their lease ends."""
KILLED_S = 2.0
"""After the launcher of a node has died, or its lease has ended, its watchdog has killed the processes within
this time."""
LEAVE_S = 5.0
"""Seconds for nodes to hear that the job does not start, or how it ended, and to leave."""
LATE_COMERS_S = 10.0
"""The same if nodes are missing: those that come late hear why, and do not wait in vain."""
HURRY_S = 0.15
"""The same if a launcher has received a signal before the start: the sender of the signal waits."""
UNREAD_S = 5.0
"""Seconds in which a launcher that stood still reads what was sent meanwhile, and is called again."""
SETTLE_S = 0.3
"""Seconds after the first report for reports of earlier events, while a node may still have some to send."""
SLACK_S = 5.0
"""Seconds beside the grace and the loss of a node, after which it is decided how an attempt has ended, for a
launcher that stops its processes itself."""
STARTER_S = 30.0
"""The same if mpirun has started the ranks: it has ended after them within this time."""
SPARES_S = 10.0
"""Seconds that an unhealthy node waits for spare nodes that have not joined yet."""
ALSO_MAX = 4
"""Number of other failures that a verdict names."""
SAY_EVERY_S = 15.0
"""Seconds between two lines about what a launcher waits for."""


def find_given_up_s(lost_after_s: float) -> float:
    """Return the seconds after the last message until a node, or node 0, counts as lost.

    A link may be down for ``lost_after_s``: the silence begins with the first heartbeat that is missing, and
    what ends it takes a moment.
    """
    return lost_after_s + QUIET_S + HEAL_S


def find_lease_s(lost_after_s: float, grace_s: float) -> float:
    """Return the seconds from a node's last contact with node 0 until its processes must have ended.

    The launcher gives node 0 up, and stops the processes. If it stands still, its watchdog kills them.
    """
    return find_given_up_s(lost_after_s) + grace_s + LEASE_SLACK_S
