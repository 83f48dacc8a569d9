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
from collections.abc import Callable, Mapping

from launcher.mpi.wire import pack, read_peer
from launcher.run.supervise import Supervisor
from launcher.stacks.inquiry import Inquiry
from launcher.status.node import identify, list_running, read_node
from launcher.status.stacks import pack_stacks

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from typing import Protocol

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
CALLERS_MAX = 16
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


class Caller:
    """Somebody who asks."""

    def __init__(self, connected: socket.socket, uid: int) -> None:
        self.socket, self.uid = connected, uid
        self.asked = b""
        self.unsent = b""
        self.until: float = time.monotonic() + ASK_S
        self.question: int | None = None
        self.is_answered = self.wants = self.has_asked = False


class Desk:
    """Answers questions about one job.

    Attributes:
        due: When `fire` has something to do.
    """

    def __init__(self, job: Supervisor) -> None:
        self._job, self._channel = job, job.questions
        self._callers: dict[int, Caller] = {}
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
        if uid not in (0, os.geteuid()) or len(self._callers) >= CALLERS_MAX:
            connected.close()
            return True
        self._callers[fd] = caller = Caller(connected, uid)
        self._job.loop.add(fd, lambda: self._on_ready(caller))
        return True

    def _on_ready(self, caller: Caller) -> None:
        if caller.unsent:
            self._flush(caller)
        if caller.socket.fileno() < 0:
            return
        try:
            data = caller.socket.recv(QUESTION_LIMIT_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        caller.asked = (caller.asked + data)[: QUESTION_LIMIT_BYTES + 1]
        is_whole = b"\n" in caller.asked
        if not data or (len(caller.asked) > QUESTION_LIMIT_BYTES and not is_whole):
            self._end(caller)
        elif caller.has_asked:
            caller.asked = b""  # nothing is to be said after the question
        elif is_whole:
            caller.has_asked = True
            self._hear(caller, caller.asked.partition(b"\n")[0])

    def _hear(self, caller: Caller, line: bytes) -> None:
        try:
            question = json.loads(line)
        except (ValueError, RecursionError):
            question = None
        what = question.get("ask") if isinstance(question, dict) else None
        if what not in QUESTIONS:
            self._give(caller, {"error": f"expected one of {', '.join(QUESTIONS)}"})
            self._give(caller, {"over": True})
            return
        self.ask(what, {"threads": question.get("threads") is True}, caller)

    def ask(self, what: str, more: Mapping[str, object], caller: Caller) -> None:
        """Answer a question, by what the nodes of the job say."""
        if what == "who":
            self._give(caller, identify(self._job))
            self._give(caller, {"over": True})
        elif what == "node" or self._channel is None:
            rank = self._job.node.node_rank or 0

            def take(answer: Message) -> None:
                self._give(caller, {"node": rank, "answer": answer})
                self._give(caller, {"over": True})

            self.answer("status" if what == "node" else what, more, take)
        else:
            caller.question = self._channel.ask(what, more, lambda message: self._give(caller, message))

    # --- what this node says

    def answer(self, what: str, more: Mapping[str, object], take: Take) -> None:
        """Say what there is to say of this node, now or later."""
        now = time.monotonic()
        if what == "status":
            if self._facts is None or now > self._facts[0] + FRESH_S:
                self._facts = now, read_node(self._job)
            take(self._facts[1])
        elif len(self._waiting) >= WAITING_MAX:
            take({"error": "too many ask at the same time"})
        else:
            self._waiting.append(take)
            self._wants_threads = self._wants_threads or more.get("threads") is True
            if self._inquiry is None:
                self._inquiry = Inquiry(list_running(self._job), self._job.folder.path)

    def _go_on(self, now: float) -> None:
        if self._inquiry is None:
            return
        self._inquiry.go_on(now)
        if self._inquiry.complete:
            answers, self._inquiry = self._inquiry.answers, None
            waiting, self._waiting = self._waiting, []
            packed = pack_stacks(self._job, answers, threads=self._wants_threads)
            self._wants_threads = False
            for take in waiting:
                take(packed)

    def helpers(self) -> tuple[int, ...]:
        """Return the pids of children of ours that help here: they are none of the job."""
        return () if self._inquiry is None else self._inquiry.helpers()

    # --- what goes out

    def _give(self, caller: Caller, message: Message) -> None:
        if caller.socket.fileno() < 0 or caller.is_answered:
            return
        if not caller.unsent:
            caller.until = time.monotonic() + TAKE_S
        caller.unsent += pack(message)
        caller.is_answered = "over" in message
        if len(caller.unsent) > UNSENT_LIMIT_BYTES:
            self._end(caller)
        else:
            self._flush(caller)

    def _flush(self, caller: Caller) -> None:
        try:
            sent = caller.socket.send(caller.unsent)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self._end(caller)
            return
        if sent:
            caller.unsent = caller.unsent[sent:]
            caller.until = time.monotonic() + TAKE_S
        if not caller.unsent and caller.is_answered:
            self._end(caller)
        elif bool(caller.unsent) != caller.wants:
            caller.wants = bool(caller.unsent)
            self._job.loop.want_writable(caller.socket.fileno(), wanted=caller.wants)

    def _end(self, caller: Caller) -> None:
        fd = caller.socket.fileno()
        if fd < 0:
            return
        if caller.question is not None and self._channel is not None:
            self._channel.drop(caller.question)
        del self._callers[fd]
        self._job.loop.remove(fd)
        caller.socket.close()

    # --- time

    @property
    def due(self) -> float | None:
        """When somebody has had his time, or an answer may have come."""
        times = [caller.until for caller in self._callers.values() if _has_a_time(caller)]
        if self._inquiry is not None:
            times.append(self._next_step)
        return min(times, default=None)

    def fire(self, now: float) -> None:
        """Go on with what was asked, and hang up on who is too slow."""
        if now >= self._next_step:
            self._next_step = now + STEP_S
            self._go_on(now)
        for caller in list(self._callers.values()):
            if _has_a_time(caller) and now >= caller.until:
                self._end(caller)

    def close(self) -> None:
        """Answer no more."""
        if self._inquiry is not None:
            self._inquiry.close()
            self._inquiry = None
        for caller in list(self._callers.values()):
            self._end(caller)


def _has_a_time(caller: Caller) -> bool:
    """Whether it is up to somebody to do something; who waits for an answer has all the time."""
    return not caller.has_asked or bool(caller.unsent)
