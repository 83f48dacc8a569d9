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
    from launcher.mpi.crew import Crew

LOST = 75
"""Status of a job that has lost a node: the same command can succeed when started again."""
CLOSE_S = 8.0


class Lead(Coordination):
    """The sessions on all nodes, beside the one command that starts processes there.

    Attributes:
        crew: The nodes; made by `attach`.
        status: What sessions are told at the end.
    """

    shares_terminal = False
    crew: Crew

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
        agent.loop.timers[:] = [self.crew, limit]
        while self.crew.missing() and agent.forwarder.told is None:
            agent.loop.turn()
            agent.group.reap()
            if self.crew.refused is not None:
                self.status = self.crew.refused.exit_status
                raise self.crew.refused
            if limit.due is None and self.crew.missing():
                raise not_ready(self.crew.missing(), self._timeout_s)
        if agent.forwarder.told is not None:
            self.status = 128 + agent.forwarder.told

    def begin(self) -> None:
        """The command is about to be started."""
        self.crew.has_begun = True
        self.agent.loop.timers.append(self.crew)

    def on_refused(self, error: LauncherError) -> None:
        """The command cannot be started."""
        self.status = error.exit_status

    def helpers(self) -> tuple[int, ...]:
        """Sessions clean up by themselves."""
        return self.crew.pids()

    def clean_up(self) -> None:
        """Keys stand in the private folder."""
        shutil.rmtree(self._private, ignore_errors=True)

    def close(self) -> None:
        """Let the nodes go."""
        self.crew.close(self.status, CLOSE_S)
