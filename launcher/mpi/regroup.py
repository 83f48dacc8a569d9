"""The head between two attempts: waits for all nodes, and until it is time to start mpirun again.

A node that is here ends what the last attempt has left there. One that was lost joins again, perhaps with a
new launcher. If ranks of the lost one still run there, they have their grace first.
"""

from __future__ import annotations

import time

from launcher.machine.ports import find_free_port
from launcher.mpi.nodes import NAMED_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from launcher.core.model import Supervision
    from launcher.mpi.nodes import Node, Nodes


class Regroup:
    """Brings the nodes together for another attempt.

    Attributes:
        attempt: Number of the attempt that the nodes were told last, 0 for the first.
        port: Port at which rank 0 listens in that attempt.
    """

    def __init__(self, nodes: Nodes, watch: Supervision, port: int, *, moves_port: bool) -> None:
        self.attempt, self.port = 0, port
        self._nodes, self._moves_port = nodes, moves_port
        self._grace_s, self._timeout_s = watch.grace_s, watch.restarts.rejoin_timeout_s

    def wait(self, wait_s: float, is_told: Callable[[], bool]) -> list[Node]:
        """Wait until the next attempt can start, or until the job is told to end.

        Args:
            wait_s: Seconds until it may start at the earliest.
            is_told: Whether the job is told to end.

        Returns:
            The nodes that have not come back; none if it can start.

        Raises:
            LauncherError: A node that has come back cannot take part.
        """
        nodes = self._nodes
        self.attempt += 1
        if self._moves_port:  # what is left of the last attempt elsewhere cannot connect to the next one
            self.port = find_free_port(self.port) or self.port
        nodes.renew()
        start_at = time.monotonic() + wait_s
        give_up_at = start_at + self._grace_s + self._timeout_s
        while not is_told():
            nodes.wait(lambda: is_told() or not nodes.missing(), give_up_at - time.monotonic())
            if nodes.free_at > time.monotonic() and not is_told():
                give_up_at = nodes.free_at + 1.0
                continue
            if nodes.missing() and not is_told():
                return nodes.missing()
            if time.monotonic() >= start_at and not is_told():
                return []
            nodes.wait(lambda: is_told() or bool(nodes.missing()), start_at - time.monotonic())
        return []

    def describe(self, missing: Sequence[Node]) -> tuple[str, str]:
        """Return that nodes have not come back, without the reason and with that of the first."""
        names = ", ".join(node.name_in_full for node in missing[:NAMED_MAX])
        more = f" and {len(missing) - NAMED_MAX} more" if len(missing) > NAMED_MAX else ""
        what = f"{names}{more} did not come back within {self._timeout_s:g} s (--rejoin-timeout)"
        return what, f"{what}: {missing[0].reason}" if missing[0].reason else what
