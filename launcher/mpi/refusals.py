"""Errors of a head that cannot start a job with its nodes."""

from __future__ import annotations

from launcher.core.errors import NotReady, Problem
from launcher.core.redact import quote
from launcher.core.version import __version__
from launcher.job.refusals import SAME_IMAGE
from launcher.mpi.node import Node, describe_nodes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def not_ready(nodes: Sequence[Node], waited_s: float) -> NotReady:
    """Return the error that names the nodes without an answer in time."""
    return NotReady(
        Problem(
            "nodes-missing",
            f"{len(nodes)} node{'s' if len(nodes) > 1 else ''} did not answer within {waited_s:g} s: "
            f"{describe_nodes(nodes)}",
            "the nodes of this job",
            "start the same command on them with the same token, correct the host list, or wait longer: "
            "--roll-call-timeout S",
        )
    )


def other_version(node: Node, version: str) -> Problem:
    what = f"{node.host} has launcher {quote(version, 40)}, this node {__version__}"
    return Problem("other-version", what, "session", SAME_IMAGE)


def same_node(one: str, other: str, name: str) -> Problem:
    return Problem(
        "same-node",
        f"{one} and {other} are the same node, {quote(name, 64)}",
        "the hosts of the job",
        "name each node once; or check what the name resolves to on the head (getent hosts)",
    )


def no_program(name: str, error: OSError) -> Problem:
    return Problem(
        "no-processes",
        f"{name}: {error.strerror}",
        "this node",
        "raise the limits of processes and open files (ulimit -u, ulimit -n)",
    )
