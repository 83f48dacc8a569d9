"""Members: node 0's view of the job's launchers, with their facts, connections and message limits.

What a node does in the job is known to the controller (`launcher.job.state.Node`); both use the same index.
"""

from __future__ import annotations

from collections import deque

from launcher.channel.lines import encode
from launcher.cluster.messages import Ask, Beat, NodeNotice, Passed, Reply
from launcher.core.budget import Bucket
from launcher.core.model import NODE
from launcher.core.redact import quote
from launcher.core.wire import pack
from launcher.hang.model import Hung, Look, Seen
from launcher.job.commands import News
from launcher.job.events import Exited, Left
from launcher.job.state import Link

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from launcher.channel.connection import Connection
    from launcher.cluster.settings import Shape
    from launcher.job.state import State
    from launcher.job.state_machine import StateMachine

    Message = dict[str, object]

ONCE = (Ask, Hung, Look, News, NodeNotice, Passed, Seen)
"""Messages that no node is told again when it connects again."""
UNHEARD_MAX = 64
HOSTS_MAX = 8
"""Maximum number of spare nodes to name in a status."""
ADDRESSES_MAX = 8
"""Maximum number of a node's addresses in a message."""
VERSION_LENGTH = 40
LEAVING_MAX = 256
"""Maximum number of open connections to launchers that were told to leave; they may still read why."""
MESSAGES_MAX, MESSAGES_PER_S = 512, 1.0
"""Messages of one kind that a node may send at once, one for each rank of a large node, and a second."""
UNLIMITED = (Ask, Beat, Exited, Left, Reply)
"""Kinds of messages of which nothing is kept or printed twice."""


class Member:
    """A launcher of the job.

    Attributes:
        index: Its index among all nodes.
        facts: The facts with which it joined.
        connection: Its connection; None while disconnected, and for node 0 itself.
        joined_ns: When it has sent its first message, by its monotonic clock, and when that was heard.
        unheard: What was sent to it since it was last heard, encoded; without what it learns when it
            connects again in any case.
    """

    __slots__ = ("address", "connection", "facts", "index", "joined_ns", "unheard")

    def __init__(
        self, index: int, facts: Message, address: str, connection: Connection | None = None,
        joined_ns: tuple[int, int] = (0, 0),
    ) -> None:  # fmt: skip
        self.index, self.facts, self.address = index, facts, address
        self.connection, self.joined_ns = connection, joined_ns
        self.unheard: deque[bytes] = deque(maxlen=UNHEARD_MAX)

    @property
    def session(self) -> str:
        """Random name that distinguishes it from another launcher with this index."""
        return str(self.facts["session"])

    @property
    def host(self) -> str:
        """Its hostname, or its address if unknown."""
        return str(self.facts["host"] or self.address)

    @property
    def version(self) -> str:
        """Version of its launcher, printable."""
        return quote(str(self.facts.get("launcher") or "of an unknown version"), VERSION_LENGTH)

    @property
    def described(self) -> str:
        """Its host and addresses."""
        addresses = self.facts["addresses"]
        is_known = isinstance(addresses, tuple) and addresses
        shown = ", ".join(addresses[:ADDRESSES_MAX]) if is_known else self.address  # type: ignore[index]
        return f"{self.facts['host']} ({shown})"

    def reconnect(self, connection: Connection, address: str) -> None:
        """Replace its connection, which is dead or silent, by a new one, once what has arrived is read."""
        before, self.connection = self.connection, None
        if before is not None:
            before.read()
            before.close()
        self.connection, self.address = connection, address

    def tell(self, message: object, encoded: bytes) -> None:
        """Send it a message that is encoded."""
        if isinstance(message, ONCE):
            self.unheard.append(encoded)
        if self.connection is not None:
            self.connection.send_encoded(encoded)

    def hang_up(self) -> None:
        """Close its connection, if it has one."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None


class Members:
    """All launchers of a job that were let in.

    Attributes:
        shape: The job.
        by_index: The launchers, node 0 included.
    """

    def __init__(self, shape: Shape, own: Member, job: StateMachine[State]) -> None:
        self.shape, self._job = shape, job
        self.by_index: dict[int, Member] = {own.index: own}
        self._by_session: dict[str, Member] = {own.session: own}
        self._buckets: dict[tuple[int, type], Bucket] = {}
        self._leaving: deque[Connection] = deque()

    @property
    def state(self) -> State:
        """The same job, as the controller knows it."""
        return self._job.state

    def put(self, member: Member) -> None:
        """Add a launcher; it replaces an earlier one with its index."""
        self.drop(member.index)
        self.by_index[member.index] = self._by_session[member.session] = member

    def drop(self, index: int) -> None:
        """Forget a launcher, and close its connection."""
        member = self.by_index.pop(index, None)
        if member is not None:
            member.hang_up()
            self._by_session.pop(member.session, None)

    def find(self, session: str) -> Member | None:
        """Return the launcher with a session; None if there is none."""
        return self._by_session.get(session)

    @property
    def are_connected(self) -> bool:
        """Whether any of them has a connection."""
        return any(member.connection is not None for member in self.by_index.values())

    def find_addresses(self, order: Iterable[int]) -> list[str]:
        """Return the address of each node, node 0 first, from its launcher with the lowest rank.

        Args:
            order: The index of the launcher that has each rank.
        """
        found: dict[int, str] = {}
        for rank, index in enumerate(order):
            member = self.by_index[index]
            node = member.facts["node"]
            found.setdefault(node if isinstance(node, int) else rank, member.address)
        return [found[node] for node in sorted(found)]

    def may_send(self, index: int, kind: type) -> bool:
        """Count a message; return whether it is to be heard: what a node sends is kept or printed.

        A new launcher in the place of a node has what the one before has left of its budget.
        """
        if kind in UNLIMITED:
            return True
        if (index, kind) not in self._buckets:
            self._buckets[index, kind] = Bucket(MESSAGES_MAX, MESSAGES_PER_S)
        return self._buckets[index, kind].take()

    def send_off(self, connection: Connection, last: object) -> None:
        """Send a launcher its last message. It closes the connection when it has read that, or we do."""
        connection.redirect(lambda message: None, lambda why: self._leaving.remove(connection))
        self._leaving.append(connection)
        connection.send(pack(last))
        if len(self._leaving) > LEAVING_MAX:
            self._leaving.popleft().close()

    def send_all(self, message: object) -> None:
        """Send a message to all but node 0 itself."""
        encoded = encode(pack(message))
        for member in self.by_index.values():
            member.tell(message, encoded)

    def send(self, index: int, message: object) -> bool:
        """Send a message to one launcher; return False if it is not connected.

        Raises:
            ValueError: It is longer than a frame may be.
        """
        member = self.by_index.get(index)
        if member is None or member.connection is None:
            return False
        member.tell(message, encode(pack(message)))
        return True

    # --- by rank and by name

    def rank_of(self, index: int) -> int:
        """Return the rank of a node, or its index if it holds none."""
        node = self.state.nodes[index] if index < len(self.state.nodes) else None
        return index if node is None or node.rank is None else node.rank

    def find_by_number(self, number: int) -> Member | None:
        """Return a launcher by its number; see `number_of`."""
        if number < 0:
            return self.by_index.get(-1 - number)
        index = self.state.holders[number] if number < self.shape.node_count else None
        return None if index is None else self.by_index.get(index)

    def number_of(self, index: int) -> int:
        """Return a node's number in messages: its rank, or -1 - its index for a spare.

        A spare node may have been replaced, and then another has the rank that is its index.
        """
        node = self.state.nodes[index]
        return -1 - index if node is None or node.rank is None else node.rank

    def name(self, index: int) -> str:
        """Return the name of a node in messages, by its index."""
        member, kind = self.by_index.get(index), self.shape.member
        return f"{kind} {self.rank_of(index)}" + ("" if member is None else f" ({member.host})")

    def place(self, index: int) -> str:
        """Return the place of a node's processes in messages, by its index."""
        member = self.by_index.get(index)
        return self.name(index) if self.shape.member == NODE or member is None else member.host

    def machine(self, index: int) -> str:
        """Return the platform's name of a node, by its index; empty if unknown."""
        member = self.by_index.get(index)
        return "" if member is None else str(member.facts["machine"] or "")

    def missing(self) -> list[int]:
        """Return the ranks that no node holds."""
        return [rank for rank, index in enumerate(self.state.holders) if index is None]

    def list_facts(self) -> dict[str, Message]:
        """Return the facts of the nodes that hold a rank, by their names and in the order of the ranks."""
        held = [index for index in self.state.holders if index is not None]
        return {self.name(index): self.by_index[index].facts for index in held}

    def list_open(self) -> tuple[list[int], list[int]]:
        """Return the indices of the nodes whose processes run: those that are heard, and the others."""
        heard: list[int] = []
        silent: list[int] = []
        for index in self.state.holders:
            node = None if index is None else self.state.nodes[index]
            if index is not None and node is not None and node.ended is None and not node.is_lost:
                (heard if node.link is Link.OPEN else silent).append(index)
        return heard, silent

    def is_there(self, number: int) -> bool:
        """Whether a node can receive messages now."""
        return self.why_silent(number) == ""

    def is_behind(self, number: int) -> bool:
        """Whether a node has not yet taken everything that was sent to it."""
        member = self.find_by_number(number)
        return member is not None and member.connection is not None and member.connection.has_unsent

    def why_silent(self, number: int) -> str:
        """Return why a node cannot be asked now; empty if it can."""
        member = self.find_by_number(number)
        if member is None:
            return "it has not joined yet" if self.state.attempt is None else "it is lost"
        node = self.state.nodes[member.index]
        if number == 0 or node is None or member.connection is not None:
            return ""
        if node.is_lost:
            return "it is lost"
        return "its launcher has ended" if node.has_left else f"it is not connected ({node.why})"

    def is_gone(self, number: int) -> bool:
        """Whether a node that was asked cannot answer any more; one that is not connected may call again."""
        member = self.find_by_number(number)
        if member is None or member.connection is not None:
            return member is None
        node = self.state.nodes[member.index]
        return node is not None and (node.is_lost or node.has_left)

    def count(self) -> dict[str, object]:
        """Return the numbers of all, present, lost and spare nodes, and the hosts of the spare ones."""
        ranks, nodes = range(self.shape.node_count), self.state.nodes
        spares = [index for index, node in enumerate(nodes) if node is not None and node.rank is None]
        return {
            "count": self.shape.node_count,
            "heard": sum(self.is_there(rank) for rank in ranks),
            "lost": sum(node is not None and node.is_lost for node in nodes),
            "spares": len(spares),
            "spare_hosts": [self.by_index[index].host for index in spares[:HOSTS_MAX]],
        }

    def close(self) -> None:
        """Close all connections."""
        for connection in self._leaving:
            connection.close()
        for member in self.by_index.values():
            member.hang_up()
