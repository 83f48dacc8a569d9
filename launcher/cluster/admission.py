"""Admits launchers that connect to node 0 by their first message, or rejects them."""

from __future__ import annotations

import time

from launcher.cluster.clocks import compare_clocks
from launcher.cluster.join import Join, LauncherKilled, name_session, read_identity
from launcher.cluster.members import Member
from launcher.cluster.messages import Busy
from launcher.cluster.roll import find_disagreement, find_refusal, is_odd
from launcher.core.wire import Garbled, name_of, pack, parse
from launcher.job.events import Joined, Killed
from launcher.job.state import Link, Phase

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.channel.acceptor import TurnedAway
    from launcher.channel.connection import Connection
    from launcher.cluster.members import Members
    from launcher.core.log import Say
    from launcher.job.commands import Refusal

    Message = dict[str, object]

SUCCESSOR_S = 5.0
"""Seconds after the loss of a node in which a launcher that has called in its place calls again."""


class Admission:
    """Makes events of the controller from first messages, and keeps their connections for its answer."""

    def __init__(
        self,
        members: Members,
        feed: Callable[[Joined | Killed], None],
        turned_away: TurnedAway,
        say: Say,
        find: Callable[[str], int | None],
    ) -> None:
        """Wait for launchers.

        Args:
            members: The launchers that were let in.
            feed: Takes the event that a launcher has called, or was killed; by its end the controller has
                decided.
            turned_away: Takes the launchers that do not belong to the job.
            say: Prints a line in the log of the job.
            find: Returns the rank of the node with an address.
        """
        self._find = find
        self._members, self._feed, self._turned_away, self._say = members, feed, turned_away, say
        self._calls: dict[str, Member] = {}
        self._claims: dict[int, tuple[float, str, str]] = {}
        """Launchers that have called as a node of ours, by index: when to report it, the address, and why."""

    def take(self, connection: Connection, address: str, message: Message) -> None:
        """Let the controller decide about a client that has the key, by its first message.

        Raises:
            Garbled: The message is neither a valid `Join` nor a valid `LauncherKilled`.
        """
        heard_ns, members = time.monotonic_ns(), self._members
        if message.get("is") == name_of(LauncherKilled):
            killed = members.find(name_session(parse(LauncherKilled, message).secret))
            connection.close()
            if killed is not None and killed.index:
                self._feed(Killed(killed.index))
            return
        identity = read_identity(message)
        index = identity.rank
        if index is None:
            known_as = (*parse(Join, message).addresses, address)
            index = next((rank for rank in map(self._find, known_as) if rank is not None), None)
        if index is None:
            connection.send(pack(Busy("no node of this job has your address: name its rank, --node-rank N")))
            raise Garbled("is no node of this job")
        if identity.session == members.by_index[0].session:  # through a service in front of us
            connection.send(pack(Busy("this launcher itself")))
            connection.close()
            return
        if self._is_hopeless(index, identity.session):
            self._send_away(connection, address, index)
            return
        join = parse(Join, message)
        known = members.find(join.session)
        if join.session in self._calls or (known is not None and known.index != index):
            raise Garbled("joins twice")
        facts = {**vars(join), "clock_ahead_s": compare_clocks(join.wall_ns, time.time_ns())}
        caller = Member(index, facts, address, connection, (join.mono_ns, heard_ns))
        self._calls[join.session] = caller
        refusal = None if known is not None or join.begun else self._find_refusal(caller)
        host, described = caller.host, caller.described
        try:
            self._feed(Joined(index, join.session, join.begun, join.attempt, refusal, host, described))
        finally:
            if self._calls.pop(join.session, None) is not None:
                connection.close()

    def take_call(self, session: str) -> Member | None:
        """Return the call of a launcher about which the controller has decided; None if it does not call."""
        return self._calls.pop(session, None)

    def note_admitted(self, index: int) -> None:
        """Note that a launcher was let in: those that have called in its place were its successors."""
        self._claims.pop(index, None)

    def _is_hopeless(self, index: int, session: str) -> bool:
        """Whether the controller will send a launcher away: its facts, which may be long, are not read."""
        state = self._members.state
        if state.attempt is None or self._members.find(session) is not None:
            return False
        if not 0 < index < len(state.nodes):
            return True
        node = state.nodes[index]
        return node is not None and node.link is not Link.CLOSED and not node.is_lost

    def _find_refusal(self, member: Member) -> Refusal | None:
        """Return why a new launcher cannot join; None if it can, after printing how it differs.

        All are compared when the last one joins the roll call, and each one that comes later.
        """
        members, state, shape, index = self._members, self._members.state, self._members.shape, member.index
        is_gathering, is_spare = state.phase is Phase.GATHERING, index >= shape.node_count
        is_last = state.missing == 1 and not is_spare and state.holders[index] is None
        is_needed = not is_gathering or is_last or is_spare or is_odd(member, shape)
        if state.phase is Phase.OVER or not is_needed:
            return None
        present = members.list_facts()
        refusal, lines = find_refusal(member, members.name(0), present, shape)
        if not is_gathering and not is_spare:
            lines = [] if lines == find_disagreement(present, shape.member)[1] else lines
        if refusal is None and not (is_spare and is_gathering):
            for line in lines:
                self._say(line, "nodes-differ")
        return refusal

    # --- those that are sent away

    def send_away(self, session: str) -> None:
        """Reject a launcher whose place is taken, or that belongs to another job."""
        caller = self._calls.pop(session, None)
        if caller is not None and caller.connection is not None:
            self._send_away(caller.connection, caller.address, caller.index)

    def _send_away(self, connection: Connection, address: str, index: int) -> None:
        members, shape = self._members, self._members.shape
        kind, known = shape.member, members.by_index.get(index)
        if known is not None:
            why, others = f"claims to be a {kind} that has already joined", members.name(index)
        else:
            why, others = "connected after the job had begun", f"{kind}s 0 to {shape.node_count - 1}"
        if not members.state.job.restarts.most or known is None:
            self._turned_away.note(address, f"{why}: as {kind} {index}")
        else:
            until = time.monotonic() + shape.given_up_s + SUCCESSOR_S
            self._claims.setdefault(index, (until, address, why))
        connection.send(pack(Busy(f"a job that runs already, with {others}")))
        connection.close()

    def note_claims(self, now: float) -> None:
        """Report launchers that called as one of our nodes without being its successor."""
        for index, (until, address, why) in list(self._claims.items()):
            if now >= until:
                del self._claims[index]
                self._turned_away.note(address, f"{why}: as {self._members.shape.member} {index}")
