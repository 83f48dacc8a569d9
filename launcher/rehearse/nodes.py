"""Interface of the backends of a simulated cluster, and its nodes as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Node:
    """One simulated node.

    Attributes:
        index: Its index, 0..N-1.
        name: Its name for labels, e.g. ``"node0"``; also its host name if nodes can have one.
        address: Its own IPv4 address.
        hostname: The host by which other nodes reach it: its name, or its address if nodes have no names.
    """

    index: int
    name: str
    address: str
    hostname: str


class Backend(Protocol):
    """A way to simulate several nodes on one machine; see `launcher.rehearse.cluster.Cluster`."""

    nodes: tuple[Node, ...]
    agent: str

    def start(self) -> None:
        """Start all nodes, or raise."""

    def argv(self, node: Node, argv: Sequence[str], cwd: str) -> list[str]:
        """Return the command line that runs ``argv`` on a node."""

    def process_on_node(self, pid: int) -> int:
        """Return the PID of the process that runs the command of a command line from `argv`."""

    def crash(self, node: Node) -> None:
        """End a node at once, as a power cut would."""

    def set_link(self, node: Node, *, up: bool) -> None:
        """Restore or cut a node's network."""

    def close(self) -> None:
        """End everything; a second call is allowed."""


def on_node(tmpdir: str, cwd: str, argv: Sequence[str]) -> list[str]:
    """Return a command line that first changes to a folder and sets the node's own TMPDIR.

    TMPDIR is needed, because nodes share /tmp with the machine and with each other. Open MPI creates a folder
    there that is named after host and user. Daemons of two nodes or two clusters would conflict over it.

    It uses `env` and not a shell, which would drop variables with names that it does not allow, such as
    ``com.nvidia.cuda.version``.
    """
    return ["env", f"--chdir={cwd}", f"TMPDIR={tmpdir}", *argv]
