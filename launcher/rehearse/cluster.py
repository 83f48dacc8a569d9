"""A cluster of simulated nodes on this machine, for rehearsals and tests.

::

    with Cluster(2) as cluster:
        first, second = cluster.nodes
        subprocess.run(cluster.argv(first, ["hostname"]), check=True)          # prints node0
        line = ["mpirun", "--mca", "plm_rsh_agent", cluster.agent, "--host", "node0,node1", "id"]
        subprocess.run(cluster.argv(first, line), check=True)                  # on both nodes

A node has its own network (eth0, 10.77.0.10 + index, connected by a bridge), hostname, mounts, process IDs,
/dev/shm, TMPDIR and /etc/hosts. The nodes of a cluster share a /run of their own. Other files are those of
the machine. Four nodes start in 0.1 s. Everything ends with the ``with`` block, and with our process, even if
that gets SIGKILL: see `launcher.rehearse.namespaces`. Clusters can run side by side.

If the kernel refuses namespaces, or with ``loopback=True``, a node is only an address, 127.0.77.10 + index.
The nodes then share one hostname and one process table, and cannot crash. Processes that are left running
survive a SIGKILL of their owner. The kernel mostly allows namespaces to every user, less often in containers.
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
    """N simulated nodes, which run inside a ``with`` block.

    Attributes:
        nodes: The nodes, in order.
        isolated: Whether nodes are namespaces, and not loopback addresses.
        fallback_reason: Why they cannot be namespaces, and the fix; empty if they can, or with ``loopback``.
    """

    def __init__(
        self, node_count: int, *, loopback: bool = False, stem: str = "node", domain: str = ""
    ) -> None:
        """Create a cluster without starting it.

        Args:
            node_count: Number of nodes.
            loopback: Whether to use loopback addresses even if namespaces are possible.
            stem: Beginning of the nodes' names, before the index.
            domain: What follows the name in the full name of a node; empty for no full name.

        Raises:
            UsageError: The number of nodes is not in 1..200.
        """
        if not 1 <= node_count <= namespaces.NODE_COUNT_LIMIT:
            raise UsageError(_bad_count(node_count))
        self.fallback_reason = "" if loopback else namespaces.find_fallback_reason()
        self.isolated = not loopback and not self.fallback_reason
        kind = Namespaces if self.isolated else Loopback
        self._backend: Backend = kind(node_count, stem, domain)
        self.nodes: tuple[Node, ...] = self._backend.nodes

    @property
    def agent(self) -> str:
        """Path, valid on every node, of an executable that replaces ssh.

        ``agent HOST COMMAND...`` runs the words by a shell on the node with that name or address. Whatever
        the environment of the caller, they get only PATH, HOME and TMPDIR, much as from a stock sshd. Use it
        as ``--mca plm_rsh_agent`` (Open MPI 4), ``--prtemca plm_ssh_agent`` (5), ``-launcher-exec`` (MPICH)
        or ``-bootstrap-exec`` (Intel MPI).
        """
        return self._backend.agent

    def argv(self, node: Node, argv: Sequence[str], *, cwd: str | None = None) -> list[str]:
        """Return the full command line that runs ``argv`` on a node.

        Start it in any way: environment, pipes and exit status, also by a signal, pass through. Only TMPDIR
        is the node's own. Send signals by `kill`: the process that you start may be nsenter, which only
        waits.

        Args:
            node: One of `nodes`.
            argv: The command, which is searched on the PATH of its environment.
            cwd: Its working directory; the current one by default.
        """
        return self._backend.argv(node, argv, cwd or os.getcwd())

    def kill(self, pid: int, signum: int) -> None:
        """Send a signal to the command of a process that was started from `argv`, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._backend.process_on_node(pid), signum)

    def crash(self, node: Node) -> None:
        """End a node at once with all that runs on it, as a power cut would; it stays down."""
        self._backend.crash(node)

    def disconnect(self, node: Node) -> None:
        """Cut a node's network at the switch: packets are dropped without an error."""
        self._backend.set_link(node, up=False)

    def reconnect(self, node: Node) -> None:
        """Restore a node's network."""
        self._backend.set_link(node, up=True)

    def close(self) -> None:
        """End all nodes and everything on them; return when nothing is left."""
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
        "choose a number of nodes in that range",
    )
