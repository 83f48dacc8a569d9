"""Roll call on node 0: waits for all nodes, compares them, and starts the job or refuses to."""

from __future__ import annotations

import time

from launcher.cluster import refusals
from launcher.cluster.consistency import compare, name_nodes, render_table
from launcher.cluster.messages import Refuse, Start, Waiting
from launcher.cluster.settings import SAY_EVERY_S
from launcher.core.errors import EXIT_NOT_READY, EXIT_UNTRUSTED
from launcher.core.redact import printable, quote, redact
from launcher.core.shorten import fit
from launcher.core.version import __version__
from launcher.job.settings import LEAVE_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from launcher.cluster.consistency import Disagreement
    from launcher.cluster.membership import Member, Membership
    from launcher.cluster.settings import Shape
    from launcher.core.errors import Problem
    from launcher.core.log import Say

    Reasons = Mapping[int, str]
    FindReasons = Callable[[list[int], Callable[[Reasons], None]], None]

HURRY_S = 0.15
"""The same if a node was told to stop: the sender of the signal waits."""
LATE_COMERS_S = 10.0
"""Seconds for nodes that come after the roll call has failed: they hear why, and do not wait in vain."""
NAMED_MAX = 20
"""Maximum number of nodes that are named in one message, and probed."""
WAITING_LENGTH = 800


class Seen:
    """Functions of other parts that the roll call needs.

    Attributes:
        agree: Returns the values that all nodes are told at the start.
        find_reasons: Probes the hosts of missing nodes, and later passes on what it found for each rank.
        turned_away: Returns why connections were turned away, by address.
        has_heard: Returns whether any client has connected.
    """

    def __init__(
        self,
        agree: Callable[[], dict[str, object]],
        find_reasons: FindReasons,
        turned_away: Callable[[], Mapping[str, str]],
        has_heard: Callable[[], bool],
    ) -> None:
        self.agree, self.find_reasons = agree, find_reasons
        self.turned_away, self.has_heard = turned_away, has_heard


class Rendezvous:
    """Waits for all nodes, compares them, and starts the job or refuses to.

    Attributes:
        start: The start signal, once sent.
        refusal: Why the job does not start, once sent.
        is_examined: Returns whether a node's health command has answered, if there is one.
        lost: How the nodes were lost that had joined, by rank.
        leave_by: when nodes that come are told of the refusal, monotonic seconds.
    """

    def __init__(
        self,
        shape: Shape,
        membership: Membership,
        seen: Seen,
        say: Say,
        tell_all: Callable[[object], None],
    ) -> None:
        now = time.monotonic()
        self.start: Start | None = None
        self.refusal: Refuse | None = None
        self.leave_by: float | None = None
        self.lost: dict[int, str] = {}
        self.is_examined: Callable[[int], bool] = lambda rank: True
        self._shape, self._membership, self._seen = shape, membership, seen
        self._kind = shape.member
        self._say, self._tell_all = say, tell_all
        self._began, self._say_at = now, now + SAY_EVERY_S
        self._is_miscounted = self._is_looking = False
        self._other_versions: dict[str, str] = {}
        """Versions that are not ours, by the name of their node."""

    @property
    def is_open(self) -> bool:
        """Whether the job has neither started nor been refused."""
        return self.start is None and self.refusal is None

    def note(self, member: Member) -> None:
        """Note that a node has joined."""
        count = self._shape.node_count
        self.lost.pop(member.rank, None)
        if member.rank >= count or member.facts["node_count"] != count:
            self._is_miscounted = True
        if member.version != __version__ and self.is_open:
            self._other_versions[member.name] = member.version

    def check(self) -> None:
        """Start the job if all nodes are here; refuse to if they cannot work together."""
        members, count = self._membership.members, self._shape.node_count
        if not self.is_open or (
            len(members) < count and not self._is_miscounted and not self._other_versions
        ):
            return  # runs for each node that joins, so it must not list all nodes before this
        if self._other_versions:
            self._refuse(EXIT_UNTRUSTED, refusals.other_versions(members[0].name, self._other_versions), [])
            return
        beyond = [member.name for rank, member in members.items() if rank >= count]
        found = self._compare()
        if any(item.is_problem for item in found):
            self._refuse(EXIT_UNTRUSTED, refusals.nodes_differ(self._kind, found), render_table(found))
        elif beyond:
            self._refuse(EXIT_UNTRUSTED, refusals.no_such_node(self._kind, name_nodes(beyond), count), [])
        elif not self._membership.missing() and all(map(self.is_examined, members)):
            self._begin(found)

    def _compare(self) -> list[Disagreement]:
        return self._compare_all(self._membership.members)

    def _compare_all(self, members: Mapping[int, Member]) -> list[Disagreement]:
        return compare({member.name: member.facts for _, member in sorted(members.items())})

    def compare_with(self, member: Member) -> Refuse | None:
        """Return why a node that comes back cannot work with the others; None if it can."""
        if member.version != __version__:
            first = self._membership.members[0].name
            problem = refusals.other_versions(first, {member.name: member.version})
            return _make_refusal(EXIT_UNTRUSTED, problem, [])
        found = self._compare_all({**self._membership.members, member.rank: member})
        if not any(item.is_problem for item in found):
            return None
        return _make_refusal(EXIT_UNTRUSTED, refusals.nodes_differ(self._kind, found), render_table(found))

    def warn_of(self, member: Member) -> None:
        """Print how a node that comes later differs from the others, as at the start."""
        lines = render_table(self._compare_all({**self._membership.members, member.rank: member}))
        if lines != render_table(self._compare()):
            for line in lines:
                self._say(line, "nodes-differ")

    def _begin(self, found: list[Disagreement]) -> None:
        for line in render_table(found):
            self._say(line, "nodes-differ")
        self.start = Start(self._seen.agree())
        seconds = time.monotonic() - self._began
        spares = f" and {len(self._membership.spares)} spare" if self._membership.spares else ""
        self._say(
            f"all {self._shape.node_count} {self._kind}s{spares} are here, after {seconds:.1f} s", "roll-call"
        )
        self._tell_all(self.start)

    def _refuse(self, status: int, problem: Problem, lines: list[str]) -> None:
        """Tell all nodes why the job must not start."""
        if self.refusal is not None:
            return
        self.refusal = _make_refusal(status, problem, lines)
        self.leave_by = time.monotonic() + (LATE_COMERS_S if self._membership.missing() else LEAVE_S)
        self._tell_all(self.refusal)

    def refuse_by_signal(self, name: str, by: Member) -> None:
        """Refuse the job, because a node was told to stop before the start."""
        if self.start is None:
            self._refuse(EXIT_NOT_READY, refusals.ended_by_signal(name, by.name), [])
            self.leave_by = time.monotonic() + HURRY_S

    def refuse_as(self, refusal: Refuse) -> None:
        """Pass on the refusal of another launcher that is node 0 too."""
        if self.is_open:
            self.refusal = refusal
            self.leave_by = time.monotonic() + LEAVE_S
            self._tell_all(refusal)

    def refuse_doubles(self, one: Member, other: Member) -> None:
        """Refuse the job, because two launchers claim to be the same node."""
        problem = refusals.two_nodes(self._kind, one.rank, one.described, other.described)
        self._refuse(EXIT_UNTRUSTED, problem, [])

    def fire(self, now: float) -> None:
        """Report which nodes are missing, or refuse the job because the roll call has taken too long."""
        if not self.is_open or self._is_looking:
            return
        if now >= self._began + self._shape.timeout_s:
            self._look(self._refuse_late)
        elif now >= self._say_at and self._membership.missing():
            self._say_at = now + SAY_EVERY_S
            self._look(self._say_missing)

    def _look(self, then: Callable[[Reasons], None]) -> None:
        """Probe the hosts of missing nodes, and then call ``then``."""

        def take(reasons: Reasons) -> None:
            self._is_looking = False
            if self.is_open and self._membership.missing():  # otherwise they have joined meanwhile
                then(reasons)

        self._is_looking = True
        self._seen.find_reasons(self._membership.missing()[:NAMED_MAX], take)

    def _refuse_late(self, reasons: Reasons) -> None:
        missing, timeout_s = len(self._membership.missing()), self._shape.timeout_s
        what = self._describe_missing(reasons)
        count, lost = self._shape.node_count, len(self.lost)
        problem = refusals.nodes_missing(self._kind, missing, count, timeout_s, what, lost)
        self._refuse(EXIT_NOT_READY, problem, render_table(self._compare()))

    def _say_missing(self, reasons: Reasons) -> None:
        missing = len(self._membership.missing())
        count = f"{self._shape.node_count} {self._kind}s"
        what = f"waiting for {missing} of {count}: {self._describe_missing(reasons)}"
        self._say(what, "waiting")
        self._tell_all(Waiting(quote(what, WAITING_LENGTH)))

    def _describe_missing(self, reasons: Reasons) -> str:
        """Return the missing nodes, with what is known about each."""
        missing = self._membership.missing()
        reasons = {**reasons, **{rank: f"it had joined, and {how}" for rank, how in self.lost.items()}}
        described = refusals.describe_missing(
            self._kind,
            missing,
            self._shape.hosts,
            reasons,
            self._seen.turned_away(),
            shown=NAMED_MAX,
            has_heard=self._seen.has_heard(),
        )
        return printable(described)


def _make_refusal(status: int, problem: Problem, lines: list[str]) -> Refuse:
    code, what, where, fix_it = (printable(redact(text)) for text in vars(problem).values())
    return fit(Refuse(status, tuple(lines), code, what, where, fix_it))
