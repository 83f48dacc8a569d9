"""Why a node has not got through to node 0, in words for people."""

from __future__ import annotations

from launcher.cluster.reach import knock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.cluster.settings import Shape

NOT_YET = "nothing listens there: its container may still be starting, or its launcher has ended"
SILENT = "no answer"
"""To the call itself: not even a refusal has come."""
MUTE = "it takes the call and says nothing: it is stopped or very busy, or another program listens there"
WITHOUT = "node 0 may have begun without the others, with --no-peers or a launcher that knows no roll call"


class Obstacle:
    """What keeps us from node 0, and since when.

    Attributes:
        reason: Why the last attempt has failed, or what node 0 waits for.
    """

    def __init__(self, shape: Shape) -> None:
        self.reason = "no answer yet"
        self._shape = shape
        self._silent_since: float | None = None

    def note(self, port: int, why: str, since: float) -> None:
        """Remember why an attempt has failed.

        Args:
            port: Where.
            why: One of the texts above, or another one.
            since: When it was begun (monotonic seconds).
        """
        if why == NOT_YET and port != self._shape.ports[0]:
            return  # that nothing listens at a further port is no news
        if why != SILENT:
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = since
        self.reason = f"{self._shape.address} port {port}: {why}"

    def explain(self, now: float) -> str:
        """Return why we are not connected, after a look at another port of node 0's host."""
        port = self._shape.master_port
        if self._silent_since is not None:
            answers = knock(self._shape.address, port) is not None
            silence = f"{self.reason} to calls for {now - self._silent_since:.0f} s"
            return f"{silence}{explain_silence(port if answers else None)}"
        if NOT_YET in self.reason and knock(self._shape.address, port):
            return f"{self.reason}; but somebody listens at MASTER_PORT {port}: {WITHOUT}"
        return self.reason


def explain_silence(answers_at: int | None) -> str:
    """Return what it means that no call is answered; ``answers_at``: a port where the same host answers."""
    if answers_at is None:
        return ": its host is down, or a firewall or a security group drops what is sent there"
    return (
        f", while its host answers at port {answers_at}: a firewall or a security group drops what is sent "
        "to the control port (--control-port N names another one)"
    )
