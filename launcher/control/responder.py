"""Answers the clients that ask a launcher about its job.

A question is one line of JSON, ``{"ask": "status"}``. The answer is one line of JSON per node, and then
``{"over": true}``. Clients run as our user or root, according to the kernel. They are still not trusted to be
fast, small or well-formed: their time, size and number are limited.
"""

from __future__ import annotations

import json
import os
import socket
import time

from launcher.agent.collector import ask_progress, list_running
from launcher.channel import lines
from launcher.channel.connection import Connection, Listener, read_peer
from launcher.channel.frames import TOKEN_VARIABLE
from launcher.cluster.questions import EXEC, concerns
from launcher.control import QUESTION_LIMIT_BYTES
from launcher.control.node import OUTPUT_LIMIT_BYTES, identify, pack_run, pack_stacks
from launcher.core.wire import Garbled, message, parse
from launcher.hang.ask import Inquiry
from launcher.process.program import end_family
from launcher.process.watchdog import MARK, mark_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from launcher.agent.coordination import Coordination
    from launcher.agent.runtime import Runtime
    from launcher.core.wire import Line, NodeRank, Raw, Seconds
    from launcher.observers.stragglers import Numbers

    Message = dict[str, object]
    Take = Callable[[Message], None]


OVER: Message = {"over": True}
"""The last line of an answer."""
QUESTIONS = ("who", "node", "status", "stacks", EXEC)
CLIENTS_MAX = 16
ASK_S = 5.0
"""Seconds in which a client must ask."""
TAKE_S = 10.0
"""Seconds for which a client may leave its answer unread."""
UNSENT_LIMIT_BYTES = 1 << 26
FRESH_S, FRESH_SHARE = 0.2, 4
"""Age in seconds up to which facts are sent again, or this many times what it took to read them if that is
more: constant questions cost at most five readings a second, and a fifth of the time."""
STEP_S = 0.02
"""Seconds between two checks whether a process has given its stacks."""
WAITING_MAX = 16
PROGRAMS_MAX = 8
"""Maximum number of programs at the same time."""
PROGRAM_LIMIT_S, MARGIN_S = 3600.0, 5.0
"""Seconds that a program may take, and its helper more than that."""


@message
class Question:
    """A client's question.

    Attributes:
        ask: One of `QUESTIONS`.
        threads: Whether to give the stacks of all threads.
        native: Whether to give C functions in them.
        argv: Command line of a program to run.
        limit_s: Seconds that it may take.
        nodes: The nodes that are asked; empty for all.
    """

    ask: Line
    threads: bool = False
    native: bool = False
    argv: tuple[Raw, ...] = ()
    limit_s: Seconds = 0.0
    nodes: tuple[NodeRank, ...] = ()


class Asking(lines.Lines):
    """Framing by lines; a line that is no JSON object is an unknown question, and gets an error as answer."""

    def __init__(self) -> None:
        super().__init__(QUESTION_LIMIT_BYTES)

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield the questions that are complete now."""
        for line in self.cut(data):
            try:
                yield lines.parse(line)
            except Garbled:
                yield {}


class Client:
    """A connected client.

    Attributes:
        until: Deadline of its question (monotonic seconds).
        question: Number of the question that all nodes were asked for it; None without one.
        has_asked: Whether its question has arrived.
        is_answered: Whether it has its whole answer, or has left.
    """

    def __init__(self) -> None:
        self.until = time.monotonic() + ASK_S
        self.question: int | None = None
        self.is_answered = self.has_asked = False
        self.connection: Connection

    @property
    def gives_up_at(self) -> float | None:
        """When it is dropped (monotonic seconds); None while it waits for its answer."""
        if not self.has_asked:
            return self.until
        return self.connection.took_at + TAKE_S if self.connection.has_unsent else None


class Responder:
    """Answers questions about one job.

    Attributes:
        due: When `fire` has something to do (monotonic seconds).
    """

    def __init__(
        self,
        runtime: Runtime,
        coordination: Coordination,
        read: Callable[[Numbers], Message],
    ) -> None:
        """Begin without a client; see `launcher.control.server.StatusServer`."""
        self._runtime, self._coordination, self._read = runtime, coordination, read
        self._channel = coordination.find_questions()
        self._clients: list[Client] = []
        self._listener: Listener | None = None
        self._inquiry: Inquiry | None = None
        self._wants_threads = False
        self._waiting: list[Take] = []
        self._facts: tuple[float, Message] | None = None
        """When they are too old (monotonic seconds), and what was read of this node."""
        self._wanting: list[Take] = []
        """Requests that wait for facts that are being read."""
        self._next_step = 0.0
        self._programs = 0

    # --- clients and questions

    def listen(self, number: int) -> None:
        """Take over the listening socket."""
        self._listener = Listener(socket.socket(fileno=number), self._runtime.loop, self._take)

    def _take(self, connected: socket.socket, _: str) -> None:
        uid = read_peer(connected)[1]
        if uid not in (0, os.geteuid()) or len(self._clients) >= CLIENTS_MAX:
            connected.close()
            return
        client = Client()
        client.connection = Connection(
            connected,
            Asking(),
            self._runtime.loop,
            lambda packed: self._hear(client, packed),
            lambda why: self._drop(client),
            UNSENT_LIMIT_BYTES,
        )
        self._clients.append(client)

    def _hear(self, client: Client, packed: Message) -> None:
        if client.has_asked:
            return  # a client may ask only once
        client.has_asked = True
        try:
            question = parse(Question, packed)
        except Garbled:
            question = Question("")
        if question.ask in QUESTIONS:
            more = {name: value for name, value in vars(question).items() if name != "ask"}
            self.ask(question.ask, more, client)
        else:
            self._give(client, {"error": f"expected one of {', '.join(QUESTIONS)}"}, OVER)

    def ask(self, what: str, more: Mapping[str, object], client: Client) -> None:
        """Answer a question: from this node alone, or from all nodes of the job."""
        if what == "who":
            self._give(client, identify(self._runtime), OVER)
        elif what == "node" or self._channel is None:
            rank = self._runtime.place.node_rank or 0
            if not concerns(more.get("nodes"), rank):
                self._give(client, OVER)
                return
            self.answer(
                "status" if what == "node" else what,
                more,
                lambda answer: self._give(client, {"node": rank, "answer": answer}, OVER),
            )
        else:
            client.question = self._channel.ask(what, more, lambda said: self._give(client, said))

    # --- the answers of this node

    def answer(self, what: str, more: Mapping[str, object], take: Take) -> None:
        """Give this node's answer to ``take``, now or later."""
        if what == "status":
            if self._facts is not None and time.monotonic() <= self._facts[0]:
                take(self._facts[1])
                return
            self._wanting.append(take)
            if self._runtime.watch.slow_below is None:
                self._give_facts(())
            elif len(self._wanting) == 1:
                ask_progress(self._runtime, self._give_facts)
        elif what == EXEC:
            self._run(more, take)
        elif len(self._waiting) >= WAITING_MAX:
            take({"error": "too many requests at the same time"})
        else:
            self._waiting.append(take)
            self._wants_threads = self._wants_threads or more.get("threads") is True
            if self._inquiry is None:
                template, running = self._runtime.template, list_running(self._runtime)
                if template is not None and template.importing is not None:
                    running.append(template.importing)
                self._inquiry = Inquiry(running, self._runtime.folder.path)
            if more.get("native") is True:
                self._inquiry.want_native()

    def _give_facts(self, numbers: Numbers) -> None:
        wanting, self._wanting = self._wanting, []
        began = time.monotonic()
        facts = self._read(numbers)
        now = time.monotonic()
        self._facts = now + max(FRESH_S, FRESH_SHARE * (now - began)), facts
        for take in wanting:
            take(facts)

    def _run(self, more: Mapping[str, object], take: Take) -> None:
        """Run a program of a person, outside the job but not longer, and give its output."""
        runtime, argv, limit_s = self._runtime, more["argv"], more["limit_s"]
        assert isinstance(argv, tuple) and isinstance(limit_s, float)  # noqa: S101 - see `Question`
        limit_s = min(limit_s, PROGRAM_LIMIT_S)
        environ = {name: value for name, value in runtime.environ.items() if name != TOKEN_VARIABLE}
        environ[MARK] = mark_of(runtime.run_id, runtime.environ, self._coordination.find_mark())

        def read(lines: Sequence[str]) -> None:
            take(json.loads(lines[0]) if lines else {"error": "its helper has failed"})

        def end() -> None:
            self._programs -= 1

        if self._programs >= PROGRAMS_MAX:
            take({"error": "too many programs at the same time"})
            return
        try:
            runtime.group.helpers.ask(
                lambda: [pack_run(argv, limit_s, environ)], read, limit_s + MARGIN_S, name="launcher-exec",
                then=end_family, on_end=end, limit_bytes=OUTPUT_LIMIT_BYTES + 1,
            )  # fmt: skip
            self._programs += 1
        except OSError as error:
            take({"error": f"no process for it: {error.strerror}"})

    def _go_on(self, now: float) -> None:
        if self._inquiry is None:
            return
        self._inquiry.go_on(now)
        if self._inquiry.complete:
            answers, self._inquiry = self._inquiry.answers, None
            waiting, self._waiting = self._waiting, []
            packed = pack_stacks(self._runtime, answers, threads=self._wants_threads)
            self._wants_threads = False
            for take in waiting:
                take(packed)

    def helpers(self) -> tuple[int, ...]:
        """Return the pids of our helper processes, which do not belong to the job."""
        return () if self._inquiry is None else self._inquiry.helpers()

    # --- sending

    def _give(self, client: Client, *messages: Message) -> None:
        for said in messages:
            if client.is_answered:
                return
            client.is_answered = "over" in said
            client.connection.send(said)
            if client.is_answered:
                client.connection.finish()

    def _drop(self, client: Client) -> None:
        """Forget a client that has left or has its whole answer."""
        self._clients.remove(client)
        client.is_answered = True
        if client.question is not None and self._channel is not None:
            self._channel.drop(client.question)

    # --- time

    @property
    def due(self) -> float | None:
        """When a client's time is up, or an answer may have come (monotonic seconds)."""
        times = [client.gives_up_at for client in self._clients]
        times.append(None if self._inquiry is None else self._next_step)
        times.append(None if self._listener is None else self._listener.due)
        return min((due for due in times if due is not None), default=None)

    def fire(self, now: float) -> None:
        """Continue the open questions, and drop clients that are too slow."""
        if self._listener is not None:
            self._listener.fire(now)
        if now >= self._next_step:
            self._next_step = now + STEP_S
            self._go_on(now)
        for client in list(self._clients):
            if client.gives_up_at is not None and now >= client.gives_up_at:
                self._end(client)

    def _end(self, client: Client) -> None:
        client.connection.close()
        self._drop(client)

    def close(self) -> None:
        """Stop answering, and drop all clients."""
        if self._listener is not None:
            self._listener.close()
        if self._inquiry is not None:
            self._inquiry.close()
            self._inquiry = None
        for client in list(self._clients):
            self._end(client)
