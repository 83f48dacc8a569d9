"""What the end of a process means for the others: pure.

One that fails ends the others, the last rank of the job ends the companions. A rank that has only lost
another one is no reason yet: the rank that it lost is about to end, has the true cause, and would be killed
before it has said it. So it gets `SETTLE_S` to end by itself.
"""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.core.members import Enum

SETTLE_S = 2.0
"""For a rank that others have lost: between its exception and its end stand ``finally`` and atexit."""

MARKS = (b"emote", b"peer", b"orovod", b"loo", b"recvValue", b"sendBytes", b"onnect", b"roken")
"""One of these stands in all that a process says that has lost another: without, its words need no closer
look, and what looks need not be loaded before the others are told to end."""


class Action(Enum):
    """What is to be done."""

    NOTHING = "nothing"
    STOP = "stop"
    SETTLE = "settle"
    STOP_COMPANIONS = "stop-companions"
    KEEP_COMPANIONS = "keep-companions"
    WAIT_FOR_COMPANIONS = "wait-for-companions"


@frozen
class Exit:
    """The end of a process, as far as it matters here.

    Attributes:
        failed: Its status is not 0.
        companion: It has no rank.
        follows: What it has written last only tells of a failure elsewhere.
    """

    failed: bool
    companion: bool = False
    follows: bool = False


@frozen
class State:
    """The processes of this node, after that end.

    Attributes:
        ranks: How many ranks run.
        companions: How many companions run.
        finishing: Some of them end by themselves once the ranks have.
        has_ranks: There are ranks at all.
        stopping: They are being stopped.
        settling: The rank that others have lost is waited for.
        elsewhere: Ranks of other nodes may still need the companions.
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
        """Whether all ranks have ended; what becomes of their companions does not count then."""
        return self.has_ranks and not self.ranks


def may_follow(stderr: bytes) -> bool:
    """Return whether the last words of a process may tell of a failure elsewhere."""
    return any(mark in stderr for mark in MARKS)


def counts(end: Exit, state: State) -> bool:
    """Return whether the end of a process is a failure of the job."""
    return end.failed and not (end.companion and state.ranks_have_ended)


def decide(end: Exit, state: State) -> Action:
    """Return what the end of a process means for the others."""
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


def may_restart(*, failed: bool, told: bool, reasoned: bool, attempt: int, restarts: int) -> bool:
    """Return whether another attempt can succeed, and is wanted.

    Args:
        failed: A process has failed.
        told: The launcher was told to end, or its machine is taken back.
        reasoned: The launcher itself has ended the job, for a reason that another attempt has, too.
        attempt: 0 for the first.
        restarts: How many there may be after it.
    """
    return failed and not told and not reasoned and attempt < restarts
