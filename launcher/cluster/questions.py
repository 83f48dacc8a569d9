"""Questions to all nodes, over the channel: from any node to node 0, from there to all, and the answers back.

Nothing is sent without a question. A question goes to so many nodes at a time as their answers find room on
node 0, which passes each on as soon as the client takes it, and keeps none. So however many nodes
there are, and however much each says, neither node 0's memory nor the channel itself is at stake.
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

    from launcher.cluster.node import ClusterNode

    Message = dict[str, object]
    Take = Callable[[Message], None]

ROUNDS_MAX, ROUNDS_OF_ONE = 8, 2
"""Questions that are open at a time, in the job and of one node; more are refused."""
STEP_S = 0.05
"""Between two looks whether the client takes what there is."""
TOO_LONG = "its answer is too long"
MORE_S = 10.0
"""What the answers of all may take longer than one: they come from some nodes after the others."""


@frozen
class Pace:
    """How a question is asked.

    Attributes:
        at_a_time: Nodes that are asked and have not answered, or whose answer waits.
        wait_s: How long a node may take.
    """

    at_a_time: int
    wait_s: float


PACES = {"status": Pace(128, 5.0), "stacks": Pace(16, 25.0)}
"""A rank is 200 bytes of a status; stacks are 10 to 50 kB for a node, and py-spy may take 10 s for them."""


class Round:
    """One question to all nodes, as node 0 sees it."""

    def __init__(self, asker: int, ask: Ask, todo: list[int]) -> None:
        self.asker, self.ask, self.todo = asker, ask, todo
        self.asked: dict[int, float] = {}
        self.queue: list[Passed] = []

    @property
    def pace(self) -> Pace:
        """How it is asked."""
        return PACES[self.ask.what]


class Rounds:
    """Node 0: asks all, and passes on what they say.

    Attributes:
        due: When `fire` has something to do.
    """

    def __init__(self, coordinator: Coordinator, node_count: int) -> None:
        self.due: float | None = None
        self._coordinator, self._node_count = coordinator, node_count
        self._rounds: dict[int, Round] = {}
        self._last = 0
        coordinator.subscribers[Ask] = self._on_ask
        coordinator.subscribers[Reply] = self._on_answer

    def _on_ask(self, asker: int, ask: Ask) -> None:
        """A node wants to know something of all nodes."""
        if ask.what not in PACES:
            return
        own = sum(one.asker == asker for one in self._rounds.values())
        if own >= ROUNDS_OF_ONE or len(self._rounds) >= ROUNDS_MAX:
            self._tell(asker, Passed(ask.number, note="too many ask at the same time", over=True))
            return
        self._last += 1
        self._rounds[self._last] = Round(asker, ask, list(range(self._node_count)))
        self.due = time.monotonic()

    def _on_answer(self, rank: int, reply: Reply) -> None:
        """A node has said what it knows; one that was not asked, or too late, is not heard."""
        one = self._rounds.get(reply.number)
        if one is not None and one.asked.pop(rank, None) is not None:
            one.queue.append(Passed(one.ask.number, rank, reply.answer))
            self.due = time.monotonic()

    def fire(self, now: float) -> None:
        """Ask the next nodes, pass on what has come, give up silent nodes."""
        for number, one in list(self._rounds.items()):
            for rank, until in list(one.asked.items()):
                if now >= until:
                    del one.asked[rank]
                    why = f"no answer within {one.pace.wait_s:g} s"
                    one.queue.append(Passed(one.ask.number, rank, why=why))
            self._pass_on(one)
            self._ask_more(number, one, now)
            self._pass_on(one)
            if not self._coordinator.is_there(one.asker):
                del self._rounds[number]
            elif not (one.todo or one.asked or one.queue):
                self._tell(one.asker, Passed(one.ask.number, over=True))
                del self._rounds[number]
        self.due = now + STEP_S if self._rounds else None

    def _pass_on(self, one: Round) -> None:
        while one.queue and not self._coordinator.is_behind(one.asker):
            if not self._tell(one.asker, one.queue.pop(0)):
                break

    def _ask_more(self, number: int, one: Round, now: float) -> None:
        while one.todo and len(one.asked) + len(one.queue) < one.pace.at_a_time:
            rank = one.todo.pop(0)
            why = self._coordinator.why_silent(rank)
            if why:
                one.queue.append(Passed(one.ask.number, rank, why=why))
                continue
            one.asked[rank] = now + one.pace.wait_s  # first: node 0 answers before `tell` is back
            self._coordinator.tell(rank, replace(one.ask, number=number))

    def _tell(self, rank: int, passed: Passed) -> bool:
        try:
            return self._coordinator.tell(rank, passed)
        except ValueError:  # with what is put around it, it is longer than a frame
            return self._coordinator.tell(rank, replace(passed, answer=None, why=TOO_LONG))


class Questions:
    """Any node: asks for its clients, and answers for this node.

    Attributes:
        due: When `fire` has something to do.
    """

    def __init__(self, node: ClusterNode) -> None:
        """Listen."""
        self._node = node
        self._open: dict[int, tuple[Take, float]] = {}
        self._last = 0
        channel = node.channel
        self._rounds = Rounds(channel, node.shape.node_count) if isinstance(channel, Coordinator) else None
        node.subscribers[Ask] = self._on_ask
        node.subscribers[Passed] = self._on_passed

    def ask(self, what: str, more: Mapping[str, object], take: Take) -> int:
        """Ask all nodes.

        Args:
            what: One of `PACES`.
            more: ``threads``: whether stacks are to be of all threads.
            take: Called with ``{"node": rank, "answer": ...}``, ``{"node": rank, "why": ...}``, and in the
                end with ``{"over": True}``.

        Returns:
            The number of the question, for `drop`.
        """
        self._last += 1
        channel = self._node.channel
        if isinstance(channel, CoordinatorClient) and not channel.is_connected:
            self._ask_here(what, more, take, f"only this node: node 0 cannot be asked ({channel.reason})")
            return self._last
        nodes = self._node.shape.node_count
        rounds = -(-nodes // PACES[what].at_a_time)
        self._open[self._last] = take, time.monotonic() + PACES[what].wait_s * rounds + MORE_S
        self._node.tell(Ask(self._last, what, more.get("threads") is True))
        return self._last

    def _ask_here(self, what: str, more: Mapping[str, object], take: Take, note: str) -> None:
        def give(answer: Message) -> None:
            take({"node": self._node.shape.node_rank, "answer": answer})
            take({"note": printable(note)})
            take({"over": True})

        self._node.answer(what, more, give)

    def drop(self, question: int) -> None:
        """The answers are not waited for any more; those that come are dropped."""
        self._open.pop(question, None)

    def _on_ask(self, ask: Ask) -> None:
        """Node 0 asks."""
        if ask.what in PACES:
            self._node.answer(
                ask.what, {"threads": ask.threads}, lambda answer: self._give(ask.number, answer)
            )

    def _give(self, number: int, answer: Message) -> None:
        """Tell node 0 what this node says."""
        try:
            self._node.tell(Reply(number, answer))
        except ValueError:  # longer than a frame may be: nothing is to wait for it until time is up
            self._node.tell(Reply(number, {"error": TOO_LONG}))

    def _on_passed(self, passed: Passed) -> None:
        """Node 0 passes on what a node has said."""
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
        """When a node has taken too long, or node 0 itself."""
        times = [until for _, until in self._open.values()]
        if self._rounds is not None and self._rounds.due is not None:
            times.append(self._rounds.due)
        return min(times, default=None)

    def fire(self, now: float) -> None:
        """Go on."""
        if self._rounds is not None and self._rounds.due is not None and now >= self._rounds.due:
            self._rounds.fire(now)
        for number, (take, until) in list(self._open.items()):
            if now >= until:
                del self._open[number]
                take({"note": "node 0 has not passed on all answers in time"})
                take({"over": True})
