"""Bad nodes: which nodes failed, how often and why, and how to keep the next job off them. Pure."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict

from launcher.core.frozen import frozen
from launcher.core.redact import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from launcher.recovery.policy import FailedAttempt

GPU_FAULT = "gpu-xid"
OF_NODE = frozenset(
    (
        *("node-lost", "unhealthy", "node-out-of-memory", "storage-lost"),
        *(GPU_FAULT, "gpu-lost", "gpu-memory-error", "gpu-missing", "nccl-cuda-error", "nccl-system-error"),
    )
)
"""Causes that point at the node and not at the program."""
OF_JOB = frozenset(
    (
        *("told-to-stop", "interrupted", "preempted", "time-limit", "stalled"),
        *("nccl-timeout", "gloo-timeout", "horovod-stall", "horovod-peer-missing", "ranks-missing"),
    )
)
"""Causes of the whole job, or that some other rank is missing: any node may be the first to show them."""
FAILURES_MIN = 2
"""A node on which so many attempts failed is bad, whatever the causes."""
SHOWN_MAX = 64
"""Number of bad nodes on the last screen, the worst first."""
SLURM, BATCH, KUBERNETES = "slurm", "batch", "kubernetes"
NAMES = {SLURM: "SLURMD_NODENAME", BATCH: "AZ_BATCH_NODE_ID", KUBERNETES: "NODE_NAME"}
"""Variables with the platform's name of a node. Kubernetes sets the last one only if the pod asks for
``spec.nodeName`` under this name."""
POOL = "AZ_BATCH_POOL_ID"


@frozen
class BadNode:
    """A node that failed.

    Attributes:
        name: Its host name; its rank, too, if other nodes have this host name.
        machine: The platform and its name of the node (``slurm:node2``); empty if unknown.
        causes: The causes that point at it, and the number of each.
    """

    name: str
    machine: str
    causes: tuple[tuple[str, int], ...]

    @property
    def own_name(self) -> str:
        """The platform's name of it, or its host name."""
        return self.machine.partition(":")[2] or self.name

    @property
    def count(self) -> int:
        """How often something pointed at it."""
        return sum(number for _, number in self.causes)

    def __str__(self) -> str:
        """Return it for a list: ``node2 (2 x node-lost, 1 x gpu-xid)``."""
        return f"{self.name} ({', '.join(f'{number} x {cause}' for cause, number in self.causes)})"


def read_machine(environ: Mapping[str, str]) -> str:
    """Return the platform and its name of this node; empty if no variable has it.

    Source:
        sbatch(1), output environment variables; Azure Batch compute node environment variables; the
        downward API of Kubernetes.
    """
    for platform, name in NAMES.items():
        if environ.get(name):
            pool = f"{environ[POOL]}/" if platform == BATCH and environ.get(POOL) else ""
            return printable(f"{platform}:{pool}{environ[name]}")
    return ""


def find_bad(
    attempts: Sequence[FailedAttempt], *, is_alone: bool, shared: Container[str] = frozenset()
) -> list[BadNode]:
    """Return the nodes that the next job should avoid, the worst first.

    A failure without a known cause, such as a plain exit status, says nothing about a node. Neither does one
    that only shows a failure elsewhere.

    Args:
        attempts: The failed attempts.
        is_alone: Whether the job has one node: then repeated failures say nothing about it.
        shared: Host names that several nodes have.
    """
    suspect = [
        one for one in attempts if one.host and one.retryable is not False and not _is_of_others(one.cause)
    ]
    by_node: dict[tuple[str, int | None], list[FailedAttempt]] = {}
    for one in suspect:
        is_shared = one.host in shared and not one.machine
        by_node.setdefault((one.machine or one.host, one.node if is_shared else None), []).append(one)
    found = []
    for (_, rank), own in by_node.items():
        is_repeated = len(own) >= FAILURES_MIN and not is_alone
        if is_repeated or any(one.cause in OF_NODE for one in own):
            host = own[-1].host
            name = host if rank is None else f"node {rank} ({host})"
            causes = Counter(one.cause for one in own)
            found.append(BadNode(name, own[-1].machine, tuple(causes.items())))
    return sorted(found, key=lambda node: -node.count)


def _is_of_others(cause: str) -> bool:
    """Whether a cause says nothing about the node where it was seen."""
    from launcher.failure.symptoms import read_symptoms

    symptom = read_symptoms().get(cause)
    return not cause or cause in OF_JOB or (symptom is not None and symptom.consequence)


def render_bad(nodes: Sequence[BadNode]) -> Iterator[str]:
    """Yield the lines for the last screen: the nodes, and a command for each platform."""
    if not nodes:
        return
    more = f" and {len(nodes) - SHOWN_MAX} more" if len(nodes) > SHOWN_MAX else ""
    nodes = nodes[:SHOWN_MAX]
    yield f"bad nodes: {', '.join(map(str, nodes))}{more}"
    by: defaultdict[str, list[str]] = defaultdict(list)
    for platform, _, name in (node.machine.partition(":") for node in nodes):
        by[platform].append(name)
    if by[SLURM]:
        yield f"  to avoid them: sbatch --exclude={','.join(map(shlex.quote, by[SLURM]))}"
    for name in by[BATCH]:
        pool, _, node = name.rpartition("/")
        where = shlex.join(("--pool-id", pool or "POOL", "--node-id", node))
        yield f"  to avoid it: az batch node scheduling disable {where}"
    if by[KUBERNETES]:
        names = shlex.join(by[KUBERNETES])
        yield f"  to avoid them: kubectl taint nodes {names} cluster-launcher/bad=true:NoSchedule"
