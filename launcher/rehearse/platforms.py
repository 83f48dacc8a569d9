"""The processes that each platform starts on each node, with exactly the environment that it gives.

If the platform uses mpirun or torchrun, these processes are the real programs.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass

from launcher.core.errors import NotReady, Problem, UsageError
from launcher.rehearse.mpirun import command_line
from launcher.rehearse.variables import variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.machine.mpi import Mpi
    from launcher.rehearse.nodes import Node

MASTER_PORT = "6105"
REHEARSED = "LAUNCHER_REHEARSED"
"""Variable that tells a launcher that all nodes write to one screen: node 0 prints what concerns all."""


@dataclass(frozen=True)
class RehearsedJob:
    """The job of a rehearsal.

    Attributes:
        nodes: The nodes of the cluster.
        agent: Path of the executable that replaces ssh between them.
        processes: Number of processes that end up on each node.
        scope: ``"process"`` if the platform starts all of them, ``"node"`` if it starts the command once per
            node and the launcher does the rest.
        command: The command that the platform runs.
        base: The environment before the platform adds to it.
        extra: The user's variables, which win over the platform's.
        mpirun: The mpirun, for platforms that use one.
    """

    nodes: tuple[Node, ...]
    agent: str
    processes: int
    scope: str
    command: tuple[str, ...]
    base: Mapping[str, str]
    extra: Mapping[str, str]
    mpirun: Mpi | None = None

    @property
    def per_node(self) -> int:
        """Number of processes that the platform starts on each node."""
        return self.processes if self.scope == "process" else 1

    def environ(self, platform: Mapping[str, str]) -> dict[str, str]:
        """Return the full environment of a process, given the variables that the platform adds.

        At node scope LAUNCHER_NPROC_PER_NODE replaces the GPUs that a real node would have. LAUNCHER_BIND
        turns binding off: all nodes are this machine, and each would bind its processes to the same CPUs.
        """
        if self.scope != "node":
            return {**self.base, **platform, **self.extra}
        fan_out = {"LAUNCHER_NPROC_PER_NODE": str(self.processes)}
        return {"LAUNCHER_BIND": "none", **self.base, **fan_out, **platform, **self.extra}


@dataclass(frozen=True)
class Start:
    """One process that a platform starts: its node, its command line and its whole environment."""

    node: Node
    argv: tuple[str, ...]
    environ: Mapping[str, str]


@dataclass(frozen=True)
class Platform:
    """A row of `PLATFORMS`.

    Attributes:
        scopes: Possible scopes, the default first.
        uses: The program that starts the command on all nodes, if the platform needs one: ``"mpirun"``,
            ``"torchrun"``.
        names: Beginning of the nodes' names, and the domain of their full names.
    """

    scopes: tuple[str, ...]
    uses: str = ""
    names: tuple[str, str] = ("node", "")


PLATFORMS: dict[str, Platform] = {
    "azureml-pytorch": Platform(("node", "process")),
    "azureml-mpi": Platform(("process", "node"), uses="mpirun"),
    "azureml-tensorflow": Platform(("process",)),
    "azure-batch": Platform(("node",)),
    "openmpi": Platform(("process", "node"), uses="mpirun"),
    "slurm": Platform(("process", "node")),
    "kubernetes": Platform(("node",), names=("train-", "train.default.svc.cluster.local")),
    "torchrun": Platform(("process",), uses="torchrun"),
    "plain": Platform(("node",)),
}
"""What can be imitated. What each sets is in ``variables.txt``; torchrun itself sets all that it does."""


def plan_starts(like: str, job: RehearsedJob) -> list[Start]:
    """Return the processes that a platform starts for a job, in rank order.

    Raises:
        NotReady: The platform is torchrun, and torch is not installed beside the launcher.
    """
    if PLATFORMS[like].uses == "torchrun":
        if importlib.util.find_spec("torch") is None:
            raise NotReady(_no_torch())
        return [_torchrun(job, node) for node in job.nodes]
    if job.mpirun is not None:
        environ = job.environ(variables(like, job.nodes, job.nodes[0]))
        line = command_line(job.mpirun, job.agent, job.nodes, job.per_node, environ)
        return [Start(job.nodes[0], (*line, *job.command), environ)]
    return [
        Start(
            node,
            job.command,
            job.environ({
                REHEARSED: str(node.index), **variables(like, job.nodes, node, local, job.per_node)
            }),
        )
        for node in job.nodes
        for local in range(job.per_node)
    ]  # fmt: skip


def find_platform(like: str, processes: int, scope: str | None) -> tuple[Platform, str]:
    """Return a platform and the scope of its rehearsal.

    Raises:
        UsageError: There is no such platform, or it cannot start processes in that way.
    """
    platform = PLATFORMS.get(like)
    if platform is None:
        known = ", ".join(sorted(PLATFORMS))
        raise UsageError(_usage(f"--like {like}: expected one of {known}", "name a platform"))
    problems = []
    if processes < 1:
        problems.append(_usage(f"--processes {processes}: expected 1 or more", "pass 1 or more"))
    if like == "azureml-tensorflow" and processes > 1:
        problems.append(_usage(f"--processes {processes}: {like} has one per node", "pass 1"))
    if scope is not None and scope not in platform.scopes:
        expected = " or ".join(platform.scopes)
        problems.append(_usage(f"--scope {scope}: expected {expected} with {like}", "leave it out"))
    if problems:
        raise UsageError(*problems)
    return platform, scope or platform.scopes[0]


def _torchrun(job: RehearsedJob, node: Node) -> Start:
    flags = {
        "--nnodes": str(len(job.nodes)),
        "--nproc-per-node": str(job.processes),
        "--node-rank": str(node.index),
        "--master-addr": job.nodes[0].address,
        "--master-port": MASTER_PORT,
    }
    line = [sys.executable, "-m", "torch.distributed.run"]
    line += [word for flag in flags.items() for word in flag]
    return Start(node, (*line, "--no-python", *job.command), job.environ({}))


def _usage(what: str, fix: str) -> Problem:
    return Problem("rehearsal", what, "command line", fix)


def _no_torch() -> Problem:
    what = f"torch is not installed for {sys.executable}"
    return Problem("no-torch", what, "rehearsal", "pip install torch")
