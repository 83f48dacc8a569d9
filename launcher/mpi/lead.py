"""What leads a job from node 0, whatever starts its processes: nodes are waited for, and let go."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping

from launcher.errors import LauncherError
from launcher.model import Supervision
from launcher.mpi.crew import Crew
from launcher.mpi.refusals import not_ready
from launcher.process.loop import Later
from launcher.process.spawn import Child
from launcher.run.supervise import Node, Supervisor

LOST = 75
"""Status of a job that has lost a node: the same command can succeed when started again."""
CLOSE_S = 8.0


class Lead(Supervisor):
    """The parent of one command on node 0, and of the sessions on all nodes.

    Attributes:
        crew: The nodes; whoever inherits makes it.
        private: A folder with keys, to be removed.
        timeout_s: How long nodes may take to answer.
        has_run: All nodes have answered, and the command was started.
    """

    may_share_terminal = False
    crew: Crew

    def __init__(
        self,
        child: Child,
        path: str,
        watch: Supervision,
        place: Node,
        environ: Mapping[str, str],
        private: str,
        job: str,
        timeout_s: float,
    ) -> None:
        super().__init__([child], [path], watch, place, environ)
        self.private, self.timeout_s, self.run_id = private, timeout_s, job
        self.processes, self.running = [], {}
        self.has_run = False

    def run(self) -> int:
        """Wait for the nodes, then run the command to its end.

        Raises:
            NotReady: Nodes did not answer in time.
        """
        status = LOST
        try:
            self.start_guardian()
            self.gather()
            if self.relay.told is not None:
                status = 128 + self.relay.told
                return status
            self.has_run = True
            status = super().run()
            return status
        except LauncherError as error:
            status = error.exit_status
            raise
        finally:
            self.crew.close(status, CLOSE_S)
            if not self.has_run:
                if self.guardian is not None:
                    self.guardian.dismiss()
                self.output.close()
                self.folder.remove()

    def gather(self) -> None:
        """Return once every node has answered, or when we are told to end.

        Raises:
            NotReady: Some did not until the deadline.
        """
        limit = Later(time.monotonic() + self.timeout_s, lambda: None)
        self.loop.timers[:] = [self.crew, limit]
        while self.crew.missing() and self.relay.told is None:
            self.loop.turn()
            self.reap()
            if self.crew.refused is not None:
                raise self.crew.refused
            if limit.due is None and self.crew.missing():
                raise not_ready(self.crew.missing(), self.timeout_s)

    def remove_traces(self) -> None:
        """Keys stand in the private folder."""
        super().remove_traces()
        shutil.rmtree(self.private, ignore_errors=True)

    def spared(self) -> tuple[int, ...]:
        """Sessions clean up by themselves."""
        return (*super().spared(), *self.crew.pids())
