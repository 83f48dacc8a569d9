"""Nodes as loopback addresses, if namespaces are not possible: one hostname, no isolation."""

from __future__ import annotations

import os
import shlex

from launcher.core.environ import REHEARSED
from launcher.core.errors import Problem, UsageError
from launcher.core.files import PRIVATE_FOLDER, create_file, make_folder, make_private_folder, remove_tree
from launcher.rehearse.node_agent import WITH_VALUE
from launcher.rehearse.node_init import ENVIRON
from launcher.rehearse.nodes import Node, on_node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

ADDRESS = REHEARSED + "{}"
FIRST = 10
FOLDER = "/tmp"  # noqa: S108 - the folder in it is made for our user alone

AGENT = """\
#!/bin/sh
# Stands in for ssh between simulated nodes that are loopback addresses.
while :; do case "$1" in
    -[{with_value}]) shift 2 ;;
    -*) shift ;;
    *) break ;;
esac; done
case "${{1##*@}}" in
{nodes}
    *) echo "agent: $1: not a node of this cluster" >&2; exit 255 ;;
esac
shift
cd {home} && exec env -i PATH={path} HOME={home} TMPDIR="$folder" /bin/sh -c "$*"
"""


class Loopback:
    """The backend of loopback addresses: commands are plain processes of this machine.

    See `launcher.rehearse.nodes.Backend`.
    """

    def __init__(self, node_count: int, stem: str, domain: str) -> None:
        self.nodes = tuple(_node(index, stem) for index in range(node_count))
        self._folder = ""
        self.agent = ""

    def start(self) -> None:
        """Write the agent; the addresses exist already, as all of 127.0.0.0/8 is loopback."""
        self._folder = make_private_folder((os.environ.get("TMPDIR") or FOLDER, FOLDER))
        self.agent = f"{self._folder}/agent"
        nodes = "\n".join(self._agent_row(node) for node in self.nodes)
        path, home = shlex.quote(ENVIRON["PATH"]), shlex.quote(os.path.expanduser("~"))
        create_file(AGENT.format(with_value=WITH_VALUE, nodes=nodes, path=path, home=home), self.agent, 0o700)

    def _agent_row(self, node: Node) -> str:
        os.close(make_folder(self._tmpdir(node), PRIVATE_FOLDER, new=True))
        return f"    {node.name}|{node.address}) folder={shlex.quote(self._tmpdir(node))} ;;"

    def _tmpdir(self, node: Node) -> str:
        return f"{self._folder}/{node.name}"

    def argv(self, node: Node, argv: Sequence[str], cwd: str) -> list[str]:
        """Return the command with the node's TMPDIR: every node is this machine."""
        return on_node(self._tmpdir(node), cwd, argv)

    def process_on_node(self, pid: int) -> int:
        """Return the process itself: no other process is in between."""
        return pid

    def crash(self, node: Node) -> None:
        """Refuse: nothing knows which processes belong to a node."""
        raise UsageError(_needs_namespaces(f"a crash of {node.name}"))

    def set_link(self, node: Node, *, up: bool) -> None:
        """Refuse: all nodes share one loopback interface."""
        raise UsageError(_needs_namespaces(f"a link of {node.name} that goes {'up' if up else 'down'}"))

    def close(self) -> None:
        """Remove the agent and the nodes' folders."""
        if self._folder:
            remove_tree(self._folder)


def _node(index: int, stem: str) -> Node:
    address = ADDRESS.format(FIRST + index)
    return Node(index, f"{stem}{index}", address, address)


def _needs_namespaces(what: str) -> Problem:
    return Problem(
        "loopback-cluster",
        f"{what} cannot be simulated on loopback addresses",
        "rehearsal",
        "run as root or where the kernel allows user namespaces",
    )
