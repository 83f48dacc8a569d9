"""A cluster of simulated nodes on this machine: what rehearsals run on, and the tests' fixture.

::

    with Cluster(2) as cluster:
        first, second = cluster.nodes
        subprocess.run(cluster.argv(first, ["hostname"]), check=True)          # prints node0
        line = ["mpirun", "--mca", "plm_rsh_agent", cluster.agent, "--host", "node0,node1", "id"]
        subprocess.run(cluster.argv(first, line), check=True)                  # on both nodes

A node has its own network (eth0, 10.77.0.10 + index, joined by a bridge), hostname, mounts, process
ids, /dev/shm, /run, TMPDIR and /etc/hosts; other files are the machine's own. Four nodes start in
0.1 s. Everything ends with the ``with`` block, and with our process, even when that gets SIGKILL: see
`launcher.rehearse.namespaces`. Clusters can run side by side.

Where the kernel refuses namespaces (it mostly gives them to every user, less so in containers), or
with ``loopback=True``, a node is an address, 127.0.77.10 + index, and nothing more: one hostname, one
process table, no crash, and what is left running outlives a SIGKILL of its owner.
"""

from __future__ import annotations

import contextlib
import os

from launcher.core.errors import Problem, UsageError
from launcher.rehearse import namespaces
from launcher.rehearse.loopback import Loopback
from launcher.rehearse.namespaces import Namespaces
from launcher.rehearse.nodes import Backend, Node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

__all__ = ["Cluster", "Node"]


class Cluster:
    """N simulated nodes, up inside of a ``with`` block.

    Attributes:
        nodes: The nodes, in order.
        isolated: Whether nodes are namespaces rather than loopback addresses.
        fallback_reason: Why they are not, and what would change it; empty where loopback was asked for.
    """

    def __init__(self, node_count: int, *, loopback: bool = False) -> None:
        """Describe a cluster; nothing is started yet.

        Raises:
            UsageError: Not 1 to 200 nodes.
        """
        if not 1 <= node_count <= namespaces.NODE_COUNT_LIMIT:
            raise UsageError(_bad_count(node_count))
        self.fallback_reason = "" if loopback else namespaces.find_fallback_reason()
        self.isolated = not loopback and not self.fallback_reason
        kind = Namespaces if self.isolated else Loopback
        self._backend: Backend = kind(node_count)
        self.nodes: tuple[Node, ...] = self._backend.nodes

    @property
    def agent(self) -> str:
        """Path, valid on every node, of an executable that stands in for ssh.

        ``agent HOST COMMAND...`` runs the words through a shell on the node with that name or
        address, in an environment of PATH, HOME and TMPDIR, much as a stock sshd does, whatever
        the environment of the caller. Use it as
        ``--mca plm_rsh_agent`` (Open MPI 4), ``--prtemca plm_ssh_agent`` (5), ``-launcher-exec``
        (MPICH), ``-bootstrap-exec`` (Intel MPI).
        """
        return self._backend.agent

    def argv(self, node: Node, argv: Sequence[str], *, cwd: str | None = None) -> list[str]:
        """Return the full command line that runs ``argv`` on a node.

        Start it however you like: environment, pipes and exit status pass through (a signal's too);
        only TMPDIR is the node's own.
        To send a signal, use `kill`: the process you start may be nsenter, which only waits.

        Args:
            node: One of `nodes`.
            argv: The command, found through the PATH of the environment it is started with.
            cwd: Where it runs; by default the current folder.
        """
        return self._backend.argv(node, argv, cwd or os.getcwd())

    def kill(self, pid: int, signum: int) -> None:
        """Send a signal to the command behind a process started from `argv`, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._backend.process_on_node(pid), signum)

    def crash(self, node: Node) -> None:
        """End a node at once with all that runs on it, as a power cut would; it does not return."""
        self._backend.crash(node)

    def disconnect(self, node: Node) -> None:
        """Pull a node's network cable at the switch: packets vanish without a word."""
        self._backend.set_link(node, up=False)

    def reconnect(self, node: Node) -> None:
        """Plug a node's network cable in again."""
        self._backend.set_link(node, up=True)

    def close(self) -> None:
        """End all nodes and everything on them; when it returns, nothing is left."""
        self._backend.close()

    def __enter__(self) -> Cluster:
        try:
            self._backend.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _bad_count(node_count: int) -> Problem:
    return Problem(
        "node-count",
        f"{node_count} nodes: expected 1..{namespaces.NODE_COUNT_LIMIT}",
        "rehearsal",
        "ask for a number of nodes in that range",
    )
