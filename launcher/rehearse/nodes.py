"""What every kind of simulated cluster offers, as values and one interface."""

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
        index: 0..N-1.
        name: ``"node0"``, for labels; also the host name where nodes can have one.
        address: Its own IPv4 address.
        hostname: What other nodes can call it: the name, or the address where nodes have no name.
    """

    index: int
    name: str
    address: str
    hostname: str


class Backend(Protocol):
    """A way to have several nodes on one machine; see `launcher.rehearse.cluster.Cluster`."""

    nodes: tuple[Node, ...]
    agent: str

    def start(self) -> None:
        """Bring all nodes up, or raise."""

    def argv(self, node: Node, argv: Sequence[str], cwd: str) -> list[str]:
        """Return the command line that runs ``argv`` on a node."""

    def process_on_node(self, pid: int) -> int:
        """Return the process that does the work of a command line from `argv`."""

    def crash(self, node: Node) -> None:
        """End a node at once, as a power cut would."""

    def set_link(self, node: Node, *, up: bool) -> None:
        """Plug a node's network cable in or pull it out."""

    def close(self) -> None:
        """End everything; may be called twice."""


def on_node(tmpdir: str, cwd: str, argv: Sequence[str]) -> list[str]:
    """Return a command line that goes to a folder and takes the node's own TMPDIR first.

    TMPDIR, because nodes share /tmp with the machine and with each other. Open MPI makes a folder in
    there, named after host and user, that daemons of two nodes or two clusters would fight over.

    `env` and not a shell, which would drop variables whose names it cannot hold, such as
    ``com.nvidia.cuda.version``.
    """
    return ["env", f"--chdir={cwd}", f"TMPDIR={tmpdir}", *argv]
