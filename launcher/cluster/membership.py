"""Membership: the nodes of a job as node 0 knows them, with their facts and connections."""

from __future__ import annotations

from collections import deque

from launcher.channel.lines import encode
from launcher.cluster.messages import Ask, Beat, Bye, Ended, Hung, Look, News, NodeNotice, Passed, Reply, Seen
from launcher.core.budget import Bucket
from launcher.core.messages import pack
from launcher.core.model import NODE
from launcher.core.redact import quote
from launcher.identity.seats import find_rank

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.channel.connection import Connection

    Message = dict[str, object]


ONCE = (Ask, Hung, Look, News, NodeNotice, Passed, Seen)
"""Messages that no node is told again when it connects again."""
UNHEARD_MAX = 64
ADDRESSES_MAX = 8
"""Maximum number of a node's addresses in a message."""
VERSION_LENGTH = 40


BEYOND_MAX = 20
"""Maximum number of nodes with an index that the job does not have; they are named when it is refused."""
PARTING_MAX = 256
"""Maximum number of open connections to launchers that were told to leave; they may still read why."""
MESSAGES_MAX, MESSAGES_PER_S = 512, 1.0
"""Messages of one kind that a node may send at once, one for each rank of a large node, and a second."""
UNLIMITED = (Ask, Beat, Bye, Ended, Reply)
"""Kinds of messages of which nothing is kept or printed twice."""


class Member:
    """A node of the job.

    Attributes:
        facts: The facts with which it joined.
        connection: Its connection; None while disconnected, and for node 0 itself.
        heard: When its last message arrived, monotonic seconds.
        closed: When its connection ended; None while it has one.
        health: What its health command found, empty if nothing; None before its answer, or without one.
        has_heard_end: Whether it knows how the job ended.
        unheard: What was sent to it since it was last heard, encoded; without what it learns when it
            connects again in any case.
    """

    __slots__ = (
        "address",
        "closed",
        "connection",
        "facts",
        "has_heard_end",
        "health",
        "heard",
        "kind",
        "unheard",
        "why",
    )

    def __init__(
        self, kind: str, facts: Message, address: str, connection: Connection | None, now: float
    ) -> None:
        self.kind = kind
        self.facts, self.address, self.connection, self.heard = facts, address, connection, now
        self.closed: float | None = None
        self.why = ""
        self.health: str | None = None
        self.has_heard_end = False
        self.unheard: list[bytes] = []

    @property
    def rank(self) -> int:
        """Rank of the node."""
        rank = self.facts["rank"]
        assert isinstance(rank, int)  # noqa: S101 - of a `Join`
        return rank

    @property
    def host(self) -> str:
        """Its hostname, or its address if unknown."""
        return str(self.facts["host"] or self.address)

    @property
    def version(self) -> str:
        """Version of its launcher, printable."""
        return quote(str(self.facts.get("launcher") or "of an unknown version"), VERSION_LENGTH)

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"{self.kind} {self.rank} ({self.host})"

    @property
    def place(self) -> str:
        """The place of its processes in messages."""
        return self.name if self.kind == NODE else self.host

    @property
    def described(self) -> str:
        """Its host and addresses."""
        addresses = self.facts["addresses"]
        shown = (
            ", ".join(addresses[:ADDRESSES_MAX])
            if isinstance(addresses, tuple) and addresses
            else self.address
        )
        return f"{self.facts['host']} ({shown})"

    def reconnect(self, connection: Connection, address: str, now: float) -> None:
        """Replace its connection, which is dead or silent, by a new one, once what has arrived is read."""
        if self.connection is not None:
            self.connection.read()
        self.hang_up()
        self.connection, self.closed, self.heard, self.address = connection, None, now, address

    def tell(self, message: object, encoded: bytes) -> None:
        """Send it a message that is encoded."""
        if isinstance(message, ONCE):
            self.unheard = [*self.unheard[1 - UNHEARD_MAX :], encoded]
        if self.connection is not None:
            self.connection.send_encoded(encoded)

    def hang_up(self) -> None:
        """Close its connection, if it has one."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def outwait(self, slept_s: float) -> None:
        """Extend its time by the seconds that we were paused: its messages are still unread."""
        self.heard += slept_s
        if self.closed is not None:
            self.closed += slept_s


class Membership:
    """All nodes that have joined.

    Attributes:
        members: The nodes by rank, including node 0.
        node_count: Number of nodes in the job.
        spares: The nodes that wait to take the place of a lost one, by index.
        seats: The ranks of nodes that have taken the place of another one, by index.
    """

    def __init__(
        self, node_count: int, own: Member, spare_count: int = 0, *, tells_hosts: bool = False
    ) -> None:
        self.node_count, self._tells_hosts = node_count, tells_hosts
        self.members: dict[int, Member] = {0: own}
        self.spares: dict[int, Member] = {}
        self.seats: dict[int, int] = {}
        self._total = node_count + spare_count
        self._buckets: dict[tuple[int, type], Bucket] = {}
        self._parting: deque[Connection] = deque()

    def has_room(self, rank: int) -> bool:
        """Whether a node may be kept: one that the job has, or one of the first that it does not have."""
        return rank < self._total or rank in self.members or len(self.members) < self._total + BEYOND_MAX

    def may_send(self, member: Member, kind: type) -> bool:
        """Count a message; return whether it is to be heard: what a node sends is kept or printed.

        A new launcher in the place of a node has what the one before has left of its budget.
        """
        if kind in UNLIMITED:
            return True
        place = self.number_of(member), kind
        if place not in self._buckets:
            self._buckets[place] = Bucket(MESSAGES_MAX, MESSAGES_PER_S)
        return self._buckets[place].take()

    def rank_of(self, index: int) -> int | None:
        """Return the rank of a node by its index; None for a spare node."""
        return index if index >= self._total else find_rank(index, self.node_count, self.seats)

    @property
    def has_all_spares(self) -> bool:
        """Whether all spare nodes have joined, and their health commands have answered."""
        is_complete = len(self.spares) + len(self.members) >= self._total
        return is_complete and all(one.health is not None for one in self.spares.values())

    def is_known(self, member: Member) -> bool:
        """Whether this is a node of the job or a spare one, and its place was not given to another."""
        return self.members.get(member.rank) is member or self.is_spare(member)

    def is_spare(self, member: Member) -> bool:
        """Whether this node waits to take the place of a lost one."""
        return self.spares.get(member.rank) is member

    def everyone(self) -> list[Member]:
        """Return all nodes, with the spare ones."""
        return [*self.members.values(), *self.spares.values()]

    def seat_spare(self, rank: int, *, needs_health: bool = False) -> Member | None:
        """Give a rank to a spare node that is connected and healthy; return it, or None if there is none."""
        fit = (
            index
            for index, one in sorted(self.spares.items())
            if one.connection is not None and (one.health == "" or not (needs_health or one.health))
        )
        index = next(fit, None)
        if index is None:
            return None
        member = self.spares.pop(index)
        self.seats = {by: taken for by, taken in self.seats.items() if taken != rank}
        if index != rank:
            self.seats[index] = rank
        member.facts = {**member.facts, "rank": rank}
        self.members[rank] = member
        return member

    def part(self, connection: Connection, last: object) -> None:
        """Send a launcher its last message. It closes the connection when it has read that, or we do."""
        connection.redirect(lambda message: None, lambda why: self._parting.remove(connection))
        self._parting.append(connection)
        connection.send(pack(last))
        if len(self._parting) > PARTING_MAX:
            self._parting.popleft().close()

    def close(self) -> None:
        """Close all connections."""
        for connection in self._parting:
            connection.close()
        for member in self.everyone():
            member.hang_up()

    def describe_nodes(self) -> dict[str, object]:
        """Return the part of the start signal about nodes: which took the place of others, all addresses."""
        seats = {str(index): rank for index, rank in self.seats.items()}
        found: dict[str, object] = {"seats": seats} if seats else {}
        if self._tells_hosts:
            found["hosts"] = [self.members[rank].address for rank in range(self.node_count)]
        return found

    def number_of(self, member: Member) -> int:
        """Return the number by which messages find a node: its rank, or for a spare one -1 - its index.

        A spare node may have been replaced, and then another has the rank that is its index.
        """
        return -1 - member.rank if self.is_spare(member) else member.rank

    def _find(self, number: int) -> Member | None:
        """Return a node by its number; see `number_of`."""
        return self.members.get(number) if number >= 0 else self.spares.get(-1 - number)

    def missing(self) -> list[int]:
        """Return the ranks of the nodes that have not joined."""
        return [rank for rank in range(self.node_count) if rank not in self.members]

    def send_all(self, message: object) -> None:
        """Send a message to all nodes but node 0 itself."""
        encoded = encode(pack(message))
        for member in self.everyone():
            member.tell(message, encoded)

    def send(self, rank: int, message: object) -> bool:
        """Send a message to one node; return False if it is not connected.

        Raises:
            ValueError: It is longer than a frame may be.
        """
        member = self._find(rank)
        if member is None or member.connection is None:
            return False
        member.tell(message, encode(pack(message)))
        return True

    def is_behind(self, rank: int) -> bool:
        """Whether a node has not yet taken everything that was sent to it."""
        member = self._find(rank)
        return member is not None and member.connection is not None and member.connection.has_unsent

    def why_silent(self, rank: int) -> str:
        """Return why a node cannot be sent anything now; empty if it can."""
        member = self._find(rank)
        if member is None:
            return "it has not joined yet"
        if rank == 0 or member.connection is not None:
            return ""
        return "its launcher has ended" if member.has_heard_end else f"it is not connected ({member.why})"
