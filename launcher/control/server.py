"""Status server: a socket in the run's private directory, at which permitted users ask about the job.

This module is loaded after the processes have started, and is small: a listening socket in the loop costs
nothing. `launcher.control.responder`, which answers, is loaded with the first question.
"""

from __future__ import annotations

import _socket
import os

from launcher.control import NAME
from launcher.core.files import remove_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from launcher.agent.coordination import Coordination
    from launcher.agent.runtime import Runtime
    from launcher.control.responder import Responder
    from launcher.observers.stragglers import Numbers

    Message = dict[str, object]

WAITING_MAX = 128
"""Maximum number of connections that are not yet accepted; the kernel lets further clients wait."""


class StatusServer:
    """Socket at which questions about a job arrive.

    Attributes:
        path: Path of the socket; None without one.
    """

    def __init__(
        self,
        runtime: Runtime,
        coordination: Coordination,
        read: Callable[[Numbers], Message],
    ) -> None:
        """Prepare the server; `open` makes the socket.

        Args:
            runtime: Values and tools of the launcher.
            coordination: The rest of the job.
            read: Returns the status of this node, given the last number of each rank (``--slow-below``).
        """
        self.path: str | None = None
        self._runtime, self._coordination, self._read = runtime, coordination, read
        self._listener: _socket.socket | None = None
        self._responder: Responder | None = None

    def open(self) -> None:
        """Listen for our user and root, and serve metrics if requested; the job also runs without."""
        for path in self._runtime.folder.socket_paths(NAME):
            try:
                listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_NONBLOCK)
            except OSError:  # no sockets at all, e.g. by a seccomp profile
                break
            try:
                os.fchmod(listener.fileno(), 0o600)  # the kernel gives these permissions to the name
                listener.bind(path)
                listener.listen(WAITING_MAX)
            except OSError:  # a file system without sockets
                listener.close()
                continue
            self.path, self._listener = path, listener
            self._runtime.loop.add(listener.fileno(), self._on_call)
            break
        self._serve_metrics()

    def _serve_metrics(self) -> None:
        """Start the metrics process, which asks at this socket, if metrics are requested."""
        if not self._runtime.watch.metrics_port:
            return
        if self.path is None:
            self._runtime.say(
                "no metrics: they need a directory for the status socket, and there is none", "no-metrics"
            )
            return
        from launcher.control.metrics import start_exporter

        start_exporter(self._runtime, self.path)

    def _on_call(self) -> None:
        """Hand the socket to the responder at the first connection."""
        if self._listener is not None:
            self._runtime.loop.remove(self._listener.fileno())
            self.responder().listen(self._listener.detach())
            self._listener = None

    def responder(self) -> Responder:
        """Return the responder, which is made when first needed."""
        if self._responder is None:
            from launcher.control.responder import Responder

            self._responder = Responder(self._runtime, self._coordination, self._read)
        return self._responder

    def answer(self, what: str, more: Mapping[str, object], take: Callable[[Message], None]) -> None:
        """Give this node's answer to ``take``, now or later."""
        self.responder().answer(what, more, take)

    @property
    def due(self) -> float | None:
        """When `fire` has something to do (monotonic seconds)."""
        return None if self._responder is None else self._responder.due

    def fire(self, now: float) -> None:
        """Continue the open questions."""
        if self._responder is not None:
            self._responder.fire(now)

    def helpers(self) -> tuple[int, ...]:
        """Return the pids of our helper processes, which do not belong to the job."""
        return () if self._responder is None else self._responder.helpers()

    def close(self) -> None:
        """Stop answering, and remove the socket."""
        if self._responder is not None:
            self._responder.close()
        if self._listener is not None:
            self._runtime.loop.remove(self._listener.fileno())
            self._listener.close()
            self._listener = None
        if self.path is not None:
            try:  # noqa: SIM105 - contextlib would be one more module
                remove_file(self.path)
            except OSError:
                pass  # its directory is gone already
