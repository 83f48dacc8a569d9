"""The socket of a launcher, in its run's private folder: a user that may enter asks what the job does.

Loaded after the processes were started, and small: a listening socket in the loop costs nothing. What answers
is loaded with the first question (`launcher.control.responder`).
"""

from __future__ import annotations

import _socket
import os

from launcher.control import NAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from launcher.agent.agent import Agent
    from launcher.control.responder import Responder

    Message = dict[str, object]

WAITING_MAX = 128
"""Connections that were not yet looked at: the kernel keeps more waiting."""


class StatusServer:
    """Where questions about a job come in.

    Attributes:
        path: Of the socket; None where there is none.
    """

    def __init__(self, agent: Agent) -> None:
        """Remember what is asked."""
        self.path: str | None = None
        self._agent = agent
        self._listener: _socket.socket | None = None
        self._responder: Responder | None = None

    def open(self) -> None:
        """Listen, where only our user and root can connect; a job runs without, too."""
        for path in self._agent.folder.socket_paths(NAME):
            try:
                listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_NONBLOCK)
            except OSError:  # none at all: a seccomp profile
                break
            try:
                listener.bind(path)
                os.chmod(path, 0o600)
                listener.listen(WAITING_MAX)
            except OSError:  # a file system that has no sockets
                listener.close()
                continue
            self.path, self._listener = path, listener
            self._agent.loop.add(listener.fileno(), self._on_call)
            break
        self._serve_metrics()

    def _serve_metrics(self) -> None:
        """Start what serves metrics and asks here, if that was asked for."""
        if not self._agent.watch.metrics_port:
            return
        if self.path is None:
            self._agent.say("no metrics: there is no folder for the socket from which they come")
            return
        from launcher.control.metrics import start_exporter

        start_exporter(self._agent, self.path)

    def _on_call(self) -> None:
        """The first question: what answers listens from now on."""
        if self._listener is not None:
            self._agent.loop.remove(self._listener.fileno())
            self.responder().listen(self._listener.detach())
            self._listener = None

    def responder(self) -> Responder:
        """Return what answers, made when it is first needed."""
        if self._responder is None:
            from launcher.control.responder import Responder

            self._responder = Responder(self._agent)
        return self._responder

    def answer(self, what: str, more: Mapping[str, object], take: Callable[[Message], None]) -> None:
        """Say, now or later, what there is to say of this node."""
        self.responder().answer(what, more, take)

    @property
    def due(self) -> float | None:
        """When `fire` has something to do (monotonic seconds)."""
        questions = (
            None if self._agent.coordination.questions is None else self._agent.coordination.questions.due
        )
        times = (questions, None if self._responder is None else self._responder.due)
        return min((one for one in times if one is not None), default=None)

    def fire(self, now: float) -> None:
        """Go on with what was asked."""
        if self._responder is not None:
            self._responder.fire(now)
        if self._agent.coordination.questions is not None:
            self._agent.coordination.questions.fire(now)

    def helpers(self) -> tuple[int, ...]:
        """Return the pids of children of ours that help here: they are none of the job."""
        return () if self._responder is None else self._responder.helpers()

    def close(self) -> None:
        """Answer no more."""
        if self._responder is not None:
            self._responder.close()
        if self._listener is not None:
            self._agent.loop.remove(self._listener.fileno())
            self._listener.close()
            self._listener = None
        if self.path is not None:
            try:  # noqa: SIM105 - contextlib would be one more module
                os.unlink(self.path)
            except OSError:
                pass  # its folder is gone already
