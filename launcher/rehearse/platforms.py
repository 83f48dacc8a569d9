"""The processes that each platform starts on each node, with exactly the environment that it gives.

There is one function per platform. It turns a `RehearsedJob` into the processes that the platform itself
would start. If the platform uses mpirun or torchrun, these processes are the real programs.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass

from launcher.core.errors import NotReady, Problem, UsageError
from launcher.rehearse import azure, slurm
from launcher.rehearse.mpirun import command_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from launcher.machine.mpi import Mpi
    from launcher.rehearse.nodes import Node

MASTER_PORT = str(azure.MASTER_PORT)
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
        starts: Returns the processes that the platform starts for a job.
        scopes: Possible scopes, the default first.
        uses: The program that starts the command on all nodes, if the platform needs one.
        names: Beginning of the nodes' names, and the domain of their full names.
    """

    starts: Callable[[RehearsedJob], list[Start]]
    scopes: tuple[str, ...]
    uses: str = ""
    names: tuple[str, str] = ("node", "")


def azureml_pytorch(job: RehearsedJob) -> list[Start]:
    """Return the processes of Azure ML's PyTorch distribution; its default is one per node."""
    return _each(job, lambda node, local: azure.pytorch(job.nodes, node, local, job.per_node))


def azureml_tensorflow(job: RehearsedJob) -> list[Start]:
    """Return the processes of Azure ML's TensorFlow distribution: TF_CONFIG, one worker per node."""
    return _each(job, lambda node, local: azure.tensorflow(job.nodes, node))


def azureml_mpi(job: RehearsedJob) -> list[Start]:
    """Return the mpirun of Azure ML's MPI distribution, on the first node, with Azure ML's variables."""
    return _by_mpirun(job, azure.machine_learning(job.nodes))


def azure_batch(job: RehearsedJob) -> list[Start]:
    """Return the processes of an Azure Batch multi-instance task with the same command on all nodes.

    Its coordination command and its application command are the same.
    """
    return _each(job, lambda node, local: azure.batch(job.nodes, node))


def openmpi(job: RehearsedJob) -> list[Start]:
    """Return the mpirun that a person types on the first node.

    With loopback addresses mpirun takes no node for its own, so that nothing tells where rank 0 runs. The
    person then sets MASTER_ADDR as well.
    """
    isolated = job.nodes[0].hostname != job.nodes[0].address
    return _by_mpirun(job, {} if isolated else {"MASTER_ADDR": job.nodes[0].address})


def slurm_step(job: RehearsedJob) -> list[Start]:
    """Return the tasks of an srun, which are simulated: see `launcher.rehearse.slurm`."""
    return _each(job, lambda node, local: slurm.task(job.nodes, node, local, job.per_node))


def indexed_job(job: RehearsedJob) -> list[Start]:
    """Return the containers of a Kubernetes Indexed Job with a headless Service.

    A pod knows its index, but not the number of pods, which the user types (``--nnodes``). The master follows
    from the pod's full name; with loopback addresses there is none.
    """
    master = job.nodes[0]
    typed = {"LAUNCHER_NNODES": str(len(job.nodes))}
    typed |= {} if master.hostname == master.name else {"LAUNCHER_MASTER_ADDR": master.address}
    service = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    return _each(
        job,
        lambda node, local: {
            **typed, **service, "HOSTNAME": node.name, "JOB_COMPLETION_INDEX": str(node.index)
        },
    )  # fmt: skip


def torchrun(job: RehearsedJob) -> list[Start]:
    """Return one real torchrun per node, with static rendezvous; it starts the command once per process.

    Raises:
        NotReady: torch is not installed beside the launcher.
    """
    if importlib.util.find_spec("torch") is None:
        raise NotReady(_no_torch())
    return [_torchrun(job, node) for node in job.nodes]


def plain(job: RehearsedJob) -> list[Start]:
    """Return the commands that a person types on each node, with the launcher's flags as LAUNCHER_*."""
    return _each(job, lambda node, local: _flags(job, node))


PLATFORMS: dict[str, Platform] = {
    "azureml-pytorch": Platform(azureml_pytorch, ("node", "process")),
    "azureml-mpi": Platform(azureml_mpi, ("process", "node"), uses="mpirun"),
    "azureml-tensorflow": Platform(azureml_tensorflow, ("process",)),
    "azure-batch": Platform(azure_batch, ("node",)),
    "openmpi": Platform(openmpi, ("process", "node"), uses="mpirun"),
    "slurm": Platform(slurm_step, ("process", "node")),
    "kubernetes": Platform(indexed_job, ("node",), names=("train-", "train.default.svc.cluster.local")),
    "torchrun": Platform(torchrun, ("process",), uses="torchrun"),
    "plain": Platform(plain, ("node",)),
}


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


def _each(job: RehearsedJob, variables: Callable[[Node, int], Mapping[str, str]]) -> list[Start]:
    """Return the processes that the platform itself starts, in rank order."""
    return [
        Start(node, job.command, job.environ({REHEARSED: str(node.index), **variables(node, local)}))
        for node in job.nodes
        for local in range(job.per_node)
    ]


def _by_mpirun(job: RehearsedJob, platform: Mapping[str, str]) -> list[Start]:
    if job.mpirun is None:
        raise ValueError("this platform needs an mpirun, see Platform.uses")
    environ = job.environ(platform)
    line = command_line(job.mpirun, job.agent, job.nodes, job.per_node, environ)
    return [Start(job.nodes[0], (*line, *job.command), environ)]


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


def _flags(job: RehearsedJob, node: Node) -> Mapping[str, str]:
    return {
        "LAUNCHER_NNODES": str(len(job.nodes)),
        "LAUNCHER_NODE_RANK": str(node.index),
        "LAUNCHER_MASTER_ADDR": job.nodes[0].address,
    }


def _usage(what: str, fix: str) -> Problem:
    return Problem("rehearsal", what, "command line", fix)


def _no_torch() -> Problem:
    what = f"torch is not installed for {sys.executable}"
    return Problem("no-torch", what, "rehearsal", "pip install torch")
