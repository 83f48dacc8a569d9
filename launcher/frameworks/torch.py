"""PyTorch's contract: the variables that DDP, DeepSpeed, Lightning, Accelerate and others read.

Source: pytorch.org "torchrun (Elastic Launch)", Environment Variables; MASTER_ADDRESS is Lightning's
name on Azure ML; NODE_RANK is read by Composer and Lightning and never set by torchrun.
"""

from __future__ import annotations

from launcher.core.blocks import read_blocks
from launcher.core.environ import find_job_id
from launcher.core.model import Machine, Place, Policy, Setting, Topology
from launcher.core.mpi import STARTED_BY_MPI

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.frameworks.case import Case

DEFAULT_ROLE = "default"
ATTEMPT = "LAUNCHER_ATTEMPT"
"""Number of the attempt; not set in the first."""
RUN_ID, RESTART_COUNT = "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"
MAX_RESTARTS, AGENT_STORE = "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE"
ELASTIC = (RUN_ID, RESTART_COUNT, MAX_RESTARTS, AGENT_STORE)
"""Variables that torchrun gives its workers about itself, and we give ours."""
FACTS = {block.name: block.fields for block in read_blocks("frameworks/facts.txt")}
"""Variables that state a fact, and the fact, of PyTorch and others."""
UNBUFFERED = "PYTHONUNBUFFERED"


def plan_common(case: Case) -> list[Setting]:
    """Return the settings that are the same for all processes of this node."""
    return [
        *case.state(FACTS["torch"]),
        Setting("ROLE_NAME", case.role, case.origin("role")),
        *case.state({"ROLE_WORLD_SIZE": "world_size"}),
    ]


def plan_elastic(case: Case) -> list[Setting]:
    """Return the variables that mark a torchrun worker for scripts and libraries.

    If we are a torchrun worker, or a process of this launcher, the existing values stay, and give the
    attempt.
    """
    options, environ = case.options, case.environ
    if not case.forks and all(environ.get(name) for name in ELASTIC):
        count = environ[RESTART_COUNT]
        return [Setting(ATTEMPT, count, f"{RESTART_COUNT}={count!r}")] if count.strip("0") else []
    given, platforms = options.get("rdzv_id"), find_job_id(environ)
    name, origin = (given.text, given.origin) if given else (platforms or "none", "the platform's job")
    restarts = options.get("restarts")
    return [
        Setting(RUN_ID, name, origin if given or platforms else "the job has no name"),
        Setting(RESTART_COUNT, "0", "the first attempt"),
        Setting(MAX_RESTARTS, restarts.text if restarts else "0", restarts.origin if restarts else "default"),
        Setting(AGENT_STORE, "False", "rank 0 serves the store"),
    ]


def plan_unknown(topology: Topology) -> list[str]:
    """Return the names that must not keep an inherited value, because the true one is unknown."""
    unknown = [] if topology.node_rank is not None else ["NODE_RANK", "GROUP_RANK"]
    unknown += [] if topology.local_size is not None else ["LOCAL_WORLD_SIZE"]
    return unknown + ([] if topology.node_count is not None else ["GROUP_WORLD_SIZE"])


def plan_unbuffered(count: int, environ: Mapping[str, str]) -> list[Setting]:
    """Return the variable that makes Python flush each line, even into our pipe.

    Python buffers up to 8 KiB for a pipe, and loses it when it is killed, although the last lines before the
    end matter most. If the user has set the variable, even to nothing, it stays.

    Args:
        count: Number of processes whose lines are merged.
        environ: The environment that they inherit.

    Source:
        docs.python.org, "Command line and environment", PYTHONUNBUFFERED.
    """
    why = "several processes write through the launcher's pipes"
    return [Setting(UNBUFFERED, "1", why)] if count > 1 and UNBUFFERED not in environ else []


def plan_threads(
    topology: Topology, machine: Machine, forks: bool, environ: Mapping[str, str]
) -> list[Setting]:
    """Return OMP_NUM_THREADS if several processes share a node, unless the user set it.

    torchrun sets 1, which starves data loading and CPU operators on a 96-core node. Without any setting each
    process would start a thread per core. Each process can really use the cores divided by the processes. A
    process that was bound as one of several uses its own cores. Processes that we start share the CPUs that
    we were bound to, unless mpirun bound us: it binds whatever it starts.
    """
    size = topology.local_size
    cpus = machine.cpu_count
    if not cpus or size is None or size < 2:
        return []
    bound = machine.bound_cpu_count
    if bound is not None and bound < cpus:
        if not forks:
            return [Setting("OMP_NUM_THREADS", str(max(1, bound)), f"{bound} CPUs bound", Policy.IF_UNSET)]
        if not any(name in environ for name in STARTED_BY_MPI):
            cpus = bound
    why = f"{cpus} CPUs for {size} processes"
    return [Setting("OMP_NUM_THREADS", str(max(1, cpus // size)), why, Policy.IF_UNSET)]


def plan_bound_threads(case: Case, place: Place) -> list[Setting]:
    """Return OMP_NUM_THREADS of a process that is bound to its own CPUs: one thread per physical core.

    The hardware threads of a core share its arithmetic units; PyTorch counts cores, too.
    """
    threads = case.binding.threads(place.local_rank, case.machine.cpu_count)
    if threads is None or case.each < 2:
        return []
    count = len(case.binding.shares[place.local_rank])
    why = f"bound to {count} core{'s' if count > 1 else ''}"
    return [Setting("OMP_NUM_THREADS", str(threads), why, Policy.IF_UNSET)]
