"""Failure policy: decides what the exit of a process means for the others. Pure.

A process that fails stops the others, and the end of the job's last rank stops the companions. A rank that
only lost another rank does not stop the others at once: the lost rank knows the true cause, is about to exit,
and would be killed before it reports that cause. So it gets `SETTLE_S` to exit by itself.
"""

from __future__ import annotations

from launcher.core.frozen import Enum, frozen

SETTLE_S = 2.0
"""Seconds for a rank that others have lost: after its exception it still runs ``finally`` and atexit code."""

MARKS = (b"emote", b"peer", b"orovod", b"loo", b"recvValue", b"sendBytes", b"onnect", b"roken")
"""The error output of a process that lost another one contains one of these. Without one it is not searched
further, and the code for that search need not be loaded before the others are told to stop."""


class Action(Enum):
    """What to do."""

    NOTHING = "nothing"
    STOP = "stop"
    SETTLE = "settle"
    STOP_COMPANIONS = "stop-companions"
    KEEP_COMPANIONS = "keep-companions"
    WAIT_FOR_COMPANIONS = "wait-for-companions"


@frozen
class Exit:
    """The exit of a process, as far as the policy needs it.

    Attributes:
        failed: Whether its status is not 0.
        companion: Whether it has no rank.
        follows: Whether its last error output reports only a failure elsewhere.
    """

    failed: bool
    companion: bool = False
    follows: bool = False


@frozen
class NodeProcesses:
    """The processes of this node after that exit.

    Attributes:
        ranks: Number of running ranks.
        companions: Number of running companions.
        finishing: Whether any companion exits by itself after the ranks.
        has_ranks: Whether the node has ranks at all.
        stopping: Whether the processes are being stopped.
        settling: Whether we wait for a rank that others have lost.
        elsewhere: Whether ranks of other nodes may still need the companions.
    """

    ranks: int
    companions: int = 0
    finishing: bool = False
    has_ranks: bool = True
    stopping: bool = False
    settling: bool = False
    elsewhere: bool = False

    @property
    def ranks_have_ended(self) -> bool:
        """Whether all ranks have ended; how their companions end does not matter then."""
        return self.has_ranks and not self.ranks


def may_follow(stderr: bytes) -> bool:
    """Whether the error output of a process may report a failure elsewhere."""
    return any(mark in stderr for mark in MARKS)


def counts(end: Exit, state: NodeProcesses) -> bool:
    """Whether the exit of a process is a failure of the job."""
    return end.failed and not (end.companion and state.ranks_have_ended)


def decide(end: Exit, state: NodeProcesses) -> Action:
    """Return what to do with the other processes after an exit."""
    if state.stopping:
        return Action.NOTHING
    if counts(end, state) and state.ranks + state.companions:
        if not end.follows or state.ranks_have_ended:
            return Action.STOP
        return Action.NOTHING if state.settling else Action.SETTLE
    if state.ranks_have_ended and state.companions:
        if not state.finishing:
            return Action.KEEP_COMPANIONS if state.elsewhere else Action.STOP_COMPANIONS
        return Action.NOTHING if end.companion else Action.WAIT_FOR_COMPANIONS
    return Action.NOTHING
