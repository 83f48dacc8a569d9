"""The processes that each platform starts on each node, with exactly its environment.

If the platform uses mpirun or torchrun, these processes are the real programs.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass

from launcher.core.blocks import read_blocks
from launcher.core.errors import make_error
from launcher.rehearse.mpirun import command_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.machine.mpi import Mpi
    from launcher.rehearse.cluster import SimulatedNode

MASTER_PORT = "6105"
ALSO = "also"
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

    nodes: tuple[SimulatedNode, ...]
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
class PlatformStart:
    """One process that a platform starts: its node, its command line and its whole environment."""

    node: SimulatedNode
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


def find_platform(like: str, processes: int, scope: str | None) -> tuple[Platform, str]:
    """Return a platform and the scope of its rehearsal.

    Raises:
        UsageError: It cannot start processes in that way.
    """
    platform = PLATFORMS[like]
    if like == "azureml-tensorflow" and processes > 1:
        raise make_error("rehearsal-processes", count=processes, like=like)
    if scope is not None and scope not in platform.scopes:
        raise make_error("rehearsal-scope", scope=scope, scopes=" or ".join(platform.scopes), like=like)
    return platform, scope or platform.scopes[0]


def plan_starts(like: str, job: RehearsedJob) -> list[PlatformStart]:
    """Return the processes that a platform starts for a job, in rank order."""
    if PLATFORMS[like].uses == "torchrun":
        return [
            PlatformStart(node, (*_torchrun(job, node), *job.command), job.environ({REHEARSED: "0"}))
            for node in job.nodes
        ]
    if job.mpirun is not None:
        environ = job.environ({REHEARSED: "0", **variables(like, job.nodes, job.nodes[0])})
        line = command_line(job.mpirun, job.agent, job.nodes, job.per_node, environ)
        return [PlatformStart(job.nodes[0], (*line, *job.command), environ)]
    starts = []
    for node in job.nodes:
        for local_rank in range(job.per_node):
            own = variables(like, job.nodes, node, local_rank, job.per_node)
            starts.append(PlatformStart(node, job.command, job.environ({REHEARSED: str(node.index), **own})))
    return starts


def _torchrun(job: RehearsedJob, node: SimulatedNode) -> list[str]:
    line = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(job.nodes))]
    line += ["--nproc-per-node", str(job.processes), "--node-rank", str(node.index)]
    return [*line, "--master-addr", job.nodes[0].address, "--master-port", MASTER_PORT, "--no-python"]


def variables(
    platform: str,
    nodes: Sequence[SimulatedNode],
    node: SimulatedNode,
    local_rank: int = 0,
    local_size: int = 1,
) -> dict[str, str]:
    """Return what a platform, a block of the file, sets for one of ``local_size`` processes of a node."""
    fields = _fields(nodes, node, local_rank, local_size)
    unset = tuple(f"{{{name}}}" for name, field in fields.items() if field == "")
    return {
        name: value.format_map(fields)
        for name, value in _read(platform).items()
        if not any(field in value for field in unset)
    }


@functools.cache
def _read(platform: str) -> dict[str, str]:
    block = next(block for block in read_blocks("rehearse/variables.txt") if block.name == platform)
    also = [_read(name) for name in block.words(ALSO)]
    own = {name: value for name, value in block.fields.items() if name != ALSO}
    return {name: value for part in (*also, own) for name, value in part.items()}


def _fields(
    nodes: Sequence[SimulatedNode], node: SimulatedNode, local_rank: int, local_size: int
) -> dict[str, object]:
    """Return the fields of the file; ``loopback_master`` and ``several_master`` are empty for other jobs."""
    count, first, master = len(nodes), node.index * local_size, nodes[0]
    addresses = [other.address for other in nodes]
    is_named = count > 1 and master.hostname == "node0"
    return {
        "count": count,
        "node": node,
        "number": node.index + 1,
        "is_first": "false" if node.index else "true",
        "master": master,
        "master_or_localhost": master.address if count > 1 else "localhost",
        "several_master": master.address if count > 1 else "",
        "loopback_master": master.address if master.hostname == master.address else "",
        "addresses": ",".join(addresses),
        "addresses_semicolon": ";".join(addresses),
        "addresses_cores": " ".join(f"{address} 1" for address in addresses),
        "workers": ",".join(f'"{address}:2222"' for address in addresses),
        "rank": first + local_rank,
        "local_rank": local_rank,
        "local_size": local_size,
        "world_size": count * local_size,
        "node_ranks": ",".join(str(first + index) for index in range(local_size)),
        "each_local_size": f"{local_size}(x{count})" if count > 1 else local_size,
        "nodelist": f"node[0-{count - 1}]" if is_named else ",".join(other.hostname for other in nodes),
    }
