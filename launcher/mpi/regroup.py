"""The head between two attempts: waits for all nodes, and until it is time to start mpirun again.

A session that is open ends what the last attempt has left on its node. One that was lost is opened again: the
node joins again, perhaps with a new launcher. If ranks of the lost session still run there,
they have their grace first.
"""

from __future__ import annotations

import time

from launcher.job.between import TOLD
from launcher.machine.ports import find_free_port
from launcher.mpi.node import NAMED_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.mpi.head import Head
    from launcher.mpi.node import Node


class Regroup:
    """Brings the nodes together for another attempt.

    Attributes:
        attempt: Number of the attempt that the nodes were told last, 0 for the first.
        port: Port at which rank 0 listens in that attempt.
    """

    def __init__(self, head: Head) -> None:
        self.attempt, self.port = 0, head.job.master_port
        self._head = head

    def wait(self, wait_s: float) -> str:
        """Wait until the next attempt can start; return why it does not, empty if it does.

        Args:
            wait_s: Seconds until it may start at the earliest.

        Raises:
            LauncherError: A node that has come back cannot take part.
        """
        head, agent = self._head, self._head.agent
        restarter, sessions = agent.restarter, head.sessions
        self.attempt += 1
        if head.job.moves_port:  # what is left of the last attempt elsewhere cannot connect to the next one
            self.port = find_free_port(self.port) or self.port
        sessions.renew()
        start_at = time.monotonic() + wait_s
        give_up_at = start_at + agent.watch.grace_s + agent.watch.restarts.rejoin_timeout_s
        while not restarter.is_told:
            head.turn_until(
                lambda: restarter.is_told or not sessions.missing(), give_up_at - time.monotonic()
            )
            if sessions.missing() and not restarter.is_told:
                return self._end_without(sessions.missing())
            if time.monotonic() >= start_at and not restarter.is_told:
                return ""
            head.turn_until(
                lambda: restarter.is_told or bool(sessions.missing()), start_at - time.monotonic()
            )
        return TOLD

    def _end_without(self, nodes: Sequence[Node]) -> str:
        """End the job because nodes have not come back; return that in words."""
        timeout_s = self._head.agent.watch.restarts.rejoin_timeout_s
        names = ", ".join(node.name_in_full for node in nodes[:NAMED_MAX])
        more = f" and {len(nodes) - NAMED_MAX} more" if len(nodes) > NAMED_MAX else ""
        what = f"{names}{more} did not come back within {timeout_s:g} s (--rejoin-timeout)"
        self._head.end_without(nodes[0], what)
        return f"{what}: {nodes[0].reason}" if nodes[0].reason else what
