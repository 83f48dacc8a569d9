"""Who asks a launcher what its job does, and how each is answered.

A question is one line of JSON, ``{"ask": "status"}``; what comes back are lines of JSON, one for each node,
and ``{"over": true}``. Whoever connects is our user or root, which the kernel tells; still nobody is believed
to be quick, small or well-formed: all have a time, a size and a number.
"""

from __future__ import annotations

import json
import os
import socket
import time

from launcher.channel.lines import pack
from launcher.channel.listener import read_peer
from launcher.control.node import identify, list_running, read_node
from launcher.control.stacks import pack_stacks
from launcher.stacks.inquiry import Inquiry

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Callable, Mapping
    from typing import Protocol

    from launcher.agent.agent import Agent

    Message = dict[str, object]
    Take = Callable[[Message], None]

    class Channel(Protocol):
        """To the other nodes of the job."""

        @property
        def due(self) -> float | None:
            """When `fire` has something to do."""

        def ask(self, what: str, more: Mapping[str, object], take: Take) -> int:
            """Ask all nodes; return the number of the question."""

        def drop(self, question: int) -> None:
            """Nobody waits for the answers any more."""

        def fire(self, now: float) -> None:
            """It is time."""


QUESTIONS = ("who", "node", "status", "stacks")
CLIENTS_MAX = 16
QUESTION_LIMIT_BYTES = 4096
ASK_S = 5.0
"""How long somebody may take to ask."""
TAKE_S = 10.0
"""How long somebody may take nothing of what is there for him."""
UNSENT_LIMIT_BYTES = 1 << 23
FRESH_S = 0.2
"""Facts so new are given once more: whoever asks all the time does not cost more than five looks a second."""
STEP_S = 0.02
"""Between two looks whether a process has given its stacks."""
WAITING_MAX = 16


class Client:
    """Somebody who asks."""

    def __init__(self, connected: socket.socket, uid: int) -> None:
        self.socket, self.uid = connected, uid
        self.asked = b""
        self.unsent = b""
        self.until: float = time.monotonic() + ASK_S
        self.question: int | None = None
        self.is_answered = self.wants = self.has_asked = False


class Responder:
    """Answers questions about one job.

    Attributes:
        due: When `fire` has something to do.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent, self._channel = agent, agent.coordination.questions
        self._clients: dict[int, Client] = {}
        self._inquiry: Inquiry | None = None
        self._wants_threads = False
        self._waiting: list[Take] = []
        self._facts: tuple[float, Message] | None = None
        self._next_step = 0.0

    # --- who comes

    def welcome(self, listener: _socket.socket) -> bool:
        """Somebody has connected; False if we have no descriptor left for him."""
        try:
            fd, _ = listener._accept()  # type: ignore[attr-defined]
        except (BlockingIOError, InterruptedError):  # he has gone again
            return True
        except OSError:
            return False
        connected = socket.socket(fileno=fd)
        connected.setblocking(False)
        _, uid = read_peer(connected)
        if uid not in (0, os.geteuid()) or len(self._clients) >= CLIENTS_MAX:
            connected.close()
            return True
        self._clients[fd] = client = Client(connected, uid)
        self._agent.loop.add(fd, lambda: self._on_ready(client))
        return True

    def _on_ready(self, client: Client) -> None:
        if client.unsent:
            self._flush(client)
        if client.socket.fileno() < 0:
            return
        try:
            data = client.socket.recv(QUESTION_LIMIT_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        client.asked = (client.asked + data)[: QUESTION_LIMIT_BYTES + 1]
        is_whole = b"\n" in client.asked
        if not data or (len(client.asked) > QUESTION_LIMIT_BYTES and not is_whole):
            self._end(client)
        elif client.has_asked:
            client.asked = b""  # nothing is to be said after the question
        elif is_whole:
            client.has_asked = True
            self._hear(client, client.asked.partition(b"\n")[0])

    def _hear(self, client: Client, line: bytes) -> None:
        try:
            question = json.loads(line)
        except (ValueError, RecursionError):
            question = None
        what = question.get("ask") if isinstance(question, dict) else None
        if what not in QUESTIONS:
            self._give(client, {"error": f"expected one of {', '.join(QUESTIONS)}"})
            self._give(client, {"over": True})
            return
        self.ask(what, {"threads": question.get("threads") is True}, client)

    def ask(self, what: str, more: Mapping[str, object], client: Client) -> None:
        """Answer a question, by what the nodes of the job say."""
        if what == "who":
            self._give(client, identify(self._agent))
            self._give(client, {"over": True})
        elif what == "node" or self._channel is None:
            rank = self._agent.place.node_rank or 0

            def take(answer: Message) -> None:
                self._give(client, {"node": rank, "answer": answer})
                self._give(client, {"over": True})

            self.answer("status" if what == "node" else what, more, take)
        else:
            client.question = self._channel.ask(what, more, lambda message: self._give(client, message))

    # --- what this node says

    def answer(self, what: str, more: Mapping[str, object], take: Take) -> None:
        """Say what there is to say of this node, now or later."""
        now = time.monotonic()
        if what == "status":
            if self._facts is None or now > self._facts[0] + FRESH_S:
                self._facts = now, read_node(self._agent)
            take(self._facts[1])
        elif len(self._waiting) >= WAITING_MAX:
            take({"error": "too many ask at the same time"})
        else:
            self._waiting.append(take)
            self._wants_threads = self._wants_threads or more.get("threads") is True
            if self._inquiry is None:
                self._inquiry = Inquiry(list_running(self._agent), self._agent.folder.path)

    def _go_on(self, now: float) -> None:
        if self._inquiry is None:
            return
        self._inquiry.go_on(now)
        if self._inquiry.complete:
            answers, self._inquiry = self._inquiry.answers, None
            waiting, self._waiting = self._waiting, []
            packed = pack_stacks(self._agent, answers, threads=self._wants_threads)
            self._wants_threads = False
            for take in waiting:
                take(packed)

    def helpers(self) -> tuple[int, ...]:
        """Return the pids of children of ours that help here: they are none of the job."""
        return () if self._inquiry is None else self._inquiry.helpers()

    # --- what goes out

    def _give(self, client: Client, message: Message) -> None:
        if client.socket.fileno() < 0 or client.is_answered:
            return
        if not client.unsent:
            client.until = time.monotonic() + TAKE_S
        client.unsent += pack(message)
        client.is_answered = "over" in message
        if len(client.unsent) > UNSENT_LIMIT_BYTES:
            self._end(client)
        else:
            self._flush(client)

    def _flush(self, client: Client) -> None:
        try:
            sent = client.socket.send(client.unsent)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self._end(client)
            return
        if sent:
            client.unsent = client.unsent[sent:]
            client.until = time.monotonic() + TAKE_S
        if not client.unsent and client.is_answered:
            self._end(client)
        elif bool(client.unsent) != client.wants:
            client.wants = bool(client.unsent)
            self._agent.loop.want_writable(client.socket.fileno(), wanted=client.wants)

    def _end(self, client: Client) -> None:
        fd = client.socket.fileno()
        if fd < 0:
            return
        if client.question is not None and self._channel is not None:
            self._channel.drop(client.question)
        del self._clients[fd]
        self._agent.loop.remove(fd)
        client.socket.close()

    # --- time

    @property
    def due(self) -> float | None:
        """When somebody has had his time, or an answer may have come."""
        times = [client.until for client in self._clients.values() if _has_a_time(client)]
        if self._inquiry is not None:
            times.append(self._next_step)
        return min(times, default=None)

    def fire(self, now: float) -> None:
        """Go on with what was asked, and hang up on who is too slow."""
        if now >= self._next_step:
            self._next_step = now + STEP_S
            self._go_on(now)
        for client in list(self._clients.values()):
            if _has_a_time(client) and now >= client.until:
                self._end(client)

    def close(self) -> None:
        """Answer no more."""
        if self._inquiry is not None:
            self._inquiry.close()
            self._inquiry = None
        for client in list(self._clients.values()):
            self._end(client)


def _has_a_time(client: Client) -> bool:
    """Whether it is up to somebody to do something; who waits for an answer has all the time."""
    return not client.has_asked or bool(client.unsent)
