"""What leads a job from node 0, whatever starts its processes: nodes are waited for, and let go."""

from __future__ import annotations

import shutil
import time

from launcher.agent.coordination import Coordination
from launcher.mpi.refusals import not_ready
from launcher.process.loop import Later

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.errors import LauncherError
    from launcher.mpi.sessions import Sessions

LOST = 75
"""Status of a job that has lost a node: the same command can succeed when started again."""
CLOSE_S = 8.0


class Lead(Coordination):
    """The sessions on all nodes, beside the one command that starts processes there.

    Attributes:
        sessions: The nodes; made by `attach`.
        status: What sessions are told at the end.
    """

    shares_terminal = False
    sessions: Sessions

    def __init__(self, private: str, timeout_s: float) -> None:
        """Remember what is to be done.

        Args:
            private: A folder with keys, to be removed.
            timeout_s: How long nodes may take to answer.
        """
        self.status = LOST
        self._private, self._timeout_s = private, timeout_s

    def gather(self) -> None:
        """Return once every node has answered, or when we are told to end.

        Raises:
            NotReady: Some did not until the deadline.
        """
        agent = self.agent
        agent.group.start_watchdog(None, agent.clean_up)  # sessions end the job, after the grace
        limit = Later(time.monotonic() + self._timeout_s, lambda: None)
        agent.loop.timers[:] = [self.sessions, limit]
        while self.sessions.missing() and agent.forwarder.told is None:
            agent.loop.turn()
            agent.group.reap()
            if self.sessions.refused is not None:
                self.status = self.sessions.refused.exit_status
                raise self.sessions.refused
            if limit.due is None and self.sessions.missing():
                raise not_ready(self.sessions.missing(), self._timeout_s)
        if agent.forwarder.told is not None:
            self.status = 128 + agent.forwarder.told

    def begin(self) -> None:
        """The command is about to be started."""
        self.sessions.has_begun = True
        self.agent.loop.timers.append(self.sessions)

    def on_refused(self, error: LauncherError) -> None:
        """The command cannot be started."""
        self.status = error.exit_status

    def helpers(self) -> tuple[int, ...]:
        """Sessions clean up by themselves."""
        return self.sessions.pids()

    def clean_up(self) -> None:
        """Keys stand in the private folder."""
        shutil.rmtree(self._private, ignore_errors=True)

    def close(self) -> None:
        """Let the nodes go."""
        self.sessions.close(self.status, CLOSE_S)
