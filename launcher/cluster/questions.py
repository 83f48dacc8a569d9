"""Questions to all nodes over the channel: from any node to node 0, from there to all, and the answers back.

Nothing is sent without a question. Node 0 asks only as many nodes at a time as it has room for their answers,
passes each answer on as soon as the client takes it, and keeps none. So neither the number of nodes nor the
length of their answers can exhaust node 0's memory or block the channel.
"""

from __future__ import annotations

import time

from launcher.cluster.client import CoordinatorClient
from launcher.cluster.coordinator import Coordinator
from launcher.cluster.messages import Ask, Passed, Reply
from launcher.core.frozen import frozen, replace
from launcher.core.redact import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from launcher.agent.observers import QuestionServer
    from launcher.cluster.members import Members
    from launcher.cluster.settings import Shape

    Message = dict[str, object]
    Subscribers = dict[type, Callable[[int, Any], None]]
    Take = Callable[[Message], None]

ROUNDS_MAX, ROUNDS_OF_ONE = 8, 2
"""Maximum number of open questions of a kind, in the job and of one node; more are refused."""
STEP_S = 0.05
"""Seconds between two checks whether the client takes the answers."""
TOO_LONG = "its answer is too long"
MORE_S = 10.0
"""Extra seconds for the answers of all nodes, because some nodes are asked after the others."""


@frozen
class Pace:
    """How a question is asked.

    Attributes:
        at_a_time: Maximum number of nodes that have not answered yet, or whose answers wait.
        wait_s: Seconds that a node may take.
    """

    at_a_time: int
    wait_s: float


EXEC = "exec"
"""The question whose answer is the output of a program, which comes with its own time."""
PACES = {"status": Pace(128, 5.0), "stacks": Pace(16, 25.0), EXEC: Pace(64, 10.0)}
"""A status has 200 bytes per rank; stacks have 10 to 50 kB per node, and py-spy may take 10 s for them."""
NO_TOKEN: Message = {"error": "no-token"}
"""Answer to `EXEC` over a channel whose key others can derive."""


def find_pace(ask: Ask) -> Pace:
    """Return how a question is asked."""
    pace = PACES[ask.what]
    return replace(pace, wait_s=pace.wait_s + ask.limit_s)


def concerns(nodes: object, rank: int) -> bool:
    """Whether a node is among those that are asked; none are named for all."""
    return not nodes or (isinstance(nodes, tuple) and rank in nodes)


class Round:
    """One question to all nodes, on node 0."""

    def __init__(self, asker: int, ask: Ask, todo: list[int]) -> None:
        self.asker, self.ask, self.todo = asker, ask, todo
        self.asked: dict[int, float] = {}
        self.queue: list[Passed] = []

    @property
    def pace(self) -> Pace:
        """How the question is asked."""
        return find_pace(self.ask)


class Rounds:
    """The questions on node 0: asks all nodes, and passes on their answers.

    Attributes:
        due: When to call `fire`.
    """

    def __init__(
        self, members: Members, send: Callable[[int, object], bool], subscribers: Subscribers
    ) -> None:
        """Subscribe to questions and answers.

        Args:
            members: The nodes.
            send: Sends a node a message; returns whether it is connected. May raise `ValueError`: too long.
            subscribers: What to do with the messages of nodes, by type.
        """
        self.due: float | None = None
        self._members, self._send, self._node_count = members, send, members.shape.node_count
        self._rounds: dict[int, Round] = {}
        self._last = 0
        subscribers |= {Ask: self._on_ask, Reply: self._on_answer}

    def _on_ask(self, asker: int, ask: Ask) -> None:
        """Take a question of a node to all nodes."""
        if ask.what not in PACES:
            return
        same = [one.asker for one in self._rounds.values() if one.ask.what == ask.what]
        if same.count(asker) >= ROUNDS_OF_ONE or len(same) >= ROUNDS_MAX:
            self._tell(asker, Passed(ask.number, note="too many questions at the same time", over=True))
            return
        self._last += 1
        todo = [rank for rank in range(self._node_count) if concerns(ask.nodes, rank)]
        self._rounds[self._last] = Round(asker, ask, todo)
        self.due = time.monotonic()

    def _on_answer(self, rank: int, reply: Reply) -> None:
        """Take the answer of a node; ignore one that was not asked for or is late."""
        one = self._rounds.get(reply.number)
        if one is not None and one.asked.pop(rank, None) is not None:
            one.queue.append(Passed(one.ask.number, rank, reply.answer))
            self.due = time.monotonic()

    def fire(self, now: float) -> None:
        """Ask the next nodes, pass on the answers, give up silent nodes."""
        for number, one in list(self._rounds.items()):
            for rank, until in list(one.asked.items()):
                if now >= until or self._members.is_gone(rank):
                    del one.asked[rank]
                    why = self._members.why_silent(rank) or f"no answer within {one.pace.wait_s:g} s"
                    one.queue.append(Passed(one.ask.number, rank, why=why))
            self._pass_on(one)
            self._ask_more(number, one, now)
            self._pass_on(one)
            if not self._members.is_there(one.asker):
                del self._rounds[number]
            elif not (one.todo or one.asked or one.queue):
                self._tell(one.asker, Passed(one.ask.number, over=True))
                del self._rounds[number]
        self.due = now + STEP_S if self._rounds else None

    def _pass_on(self, one: Round) -> None:
        while one.queue and not self._members.is_behind(one.asker):
            if not self._tell(one.asker, one.queue.pop(0)):
                break

    def _ask_more(self, number: int, one: Round, now: float) -> None:
        while one.todo and len(one.asked) + len(one.queue) < one.pace.at_a_time:
            rank = one.todo.pop(0)
            why = self._members.why_silent(rank)
            if why:
                one.queue.append(Passed(one.ask.number, rank, why=why))
                continue
            one.asked[rank] = now + one.pace.wait_s  # first: node 0 answers before `tell` is back
            self._send(rank, replace(one.ask, number=number))

    def _tell(self, rank: int, passed: Passed) -> bool:
        try:
            return self._send(rank, passed)
        except ValueError:  # the answer and its envelope are longer than a frame
            return self._send(rank, replace(passed, answer=None, why=TOO_LONG))


class Questions:
    """Questions on any node: asks for its clients, and answers for this node.

    Attributes:
        due: When to call `fire`.
        handlers: What to do with the messages of node 0, by type.
    """

    def __init__(
        self,
        channel: Coordinator | CoordinatorClient,
        shape: Callable[[], Shape],
        tell: Callable[[object], None],
        find_server: Callable[[], QuestionServer | None],
    ) -> None:
        """Begin without a question.

        Args:
            channel: The channel to the other nodes.
            shape: Returns the job, and this node's place in it.
            tell: Sends node 0 a message.
            find_server: Returns what answers questions about this node; None before it exists.
        """
        self._channel, self._shape = channel, shape
        self._tell, self._find_server = tell, find_server
        self._open: dict[int, tuple[Take, float]] = {}
        self._last = 0
        self._rounds: Rounds | None = None
        if isinstance(channel, Coordinator):
            self._rounds = Rounds(channel.members, channel.tell, channel.subscribers)
        self.handlers: dict[type, Callable[[Any], None]] = {Ask: self._on_ask, Passed: self._on_passed}

    def ask(self, what: str, more: Mapping[str, object], take: Take) -> int:
        """Ask all nodes, or some.

        Args:
            what: One of `PACES`.
            more: Further fields of `Ask`.
            take: Called with ``{"node": rank, "answer": ...}``, ``{"node": rank, "why": ...}``, ``{"note":
                ...}`` or `NO_TOKEN`, and at the end with ``{"over": True}``.

        Returns:
            The number of the question, for `drop`.
        """
        self._last += 1
        ask, channel, shape = Ask(self._last, what, **more), self._channel, self._shape()  # type: ignore[arg-type]
        if ask.nodes == (shape.node_rank,) and not shape.is_spare:  # by our own user, not over the channel
            self._ask_here(ask, take)
        elif self._refuses(what):
            take(NO_TOKEN)
            take({"over": True})
        elif isinstance(channel, CoordinatorClient) and not channel.is_connected:
            self._ask_here(ask, take, f"only this node: node 0 cannot be asked ({channel.reason})")
        else:
            pace = find_pace(ask)
            rounds = -(-shape.node_count // pace.at_a_time)
            self._open[self._last] = take, time.monotonic() + pace.wait_s * rounds + MORE_S
            self._tell(ask)
        return self._last

    def _refuses(self, what: str) -> bool:
        """Whether the channel is not trusted with a question: without a token others can derive its key."""
        return what == EXEC and not self._shape().has_token

    def _ask_here(self, ask: Ask, take: Take, note: str = "") -> None:
        def end() -> None:
            if note:
                take({"note": printable(note)})
            take({"over": True})

        def give(answer: Message) -> None:
            take({"node": self._shape().node_rank, "answer": answer})
            end()

        if concerns(ask.nodes, self._shape().node_rank):
            self._answer(ask, give)
        else:
            end()

    def drop(self, question: int) -> None:
        """Stop waiting for answers to a question; ignore those that arrive."""
        self._open.pop(question, None)

    def _on_ask(self, ask: Ask) -> None:
        """Answer a question of node 0."""
        if self._refuses(ask.what):
            self._give(ask.number, NO_TOKEN)
        elif ask.what in PACES:
            self._answer(ask, lambda answer: self._give(ask.number, answer))

    def _answer(self, ask: Ask, take: Take) -> None:
        """Answer a question about this node, now or later; no question comes before the server exists."""
        server = self._find_server()
        if server is not None:
            server.answer(ask.what, vars(ask), take)

    def _give(self, number: int, answer: Message) -> None:
        """Send node 0 the answer of this node."""
        try:
            self._tell(Reply(number, answer))
        except ValueError:  # longer than a frame: answer so that node 0 does not wait for its time limit
            self._tell(Reply(number, {"error": TOO_LONG}))

    def _on_passed(self, passed: Passed) -> None:
        """Take an answer that node 0 has passed on."""
        if passed.number not in self._open:
            return
        take, _ = self._open[passed.number]
        if passed.node is not None:
            said = {"why": passed.why} if passed.why else {"answer": passed.answer}
            take({"node": passed.node, **said})
        if passed.note:
            take({"note": passed.note})
        if passed.over:
            self._open.pop(passed.number, None)
            take({"over": True})

    @property
    def due(self) -> float | None:
        """When a node, or node 0 itself, has taken too long."""
        times = [until for _, until in self._open.values()]
        if self._rounds is not None and self._rounds.due is not None:
            times.append(self._rounds.due)
        return min(times, default=None)

    def fire(self, now: float) -> None:
        """Continue the questions on node 0, and give up our own that are late."""
        if self._rounds is not None and self._rounds.due is not None and now >= self._rounds.due:
            self._rounds.fire(now)
        for number, (take, until) in list(self._open.items()):
            if now >= until:
                del self._open[number]
                take({"note": "node 0 has not passed on all answers in time"})
                take({"over": True})
