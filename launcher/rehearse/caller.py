"""Removes the variables that identify a job, a node or a process from the environment of a rehearsal.

Every node gets all other variables: those are the caller's settings for the job (OMP_NUM_THREADS, HF_HOME).
"""

from __future__ import annotations

from launcher.engines import forward
from launcher.frameworks import starters
from launcher.sources.launched import MARKER
from launcher.sources.table import TABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

NAMES = frozenset(
    (
        *(marker for row in TABLE for marker in row.markers),
        *(forward.OF_A_NODE - {"LAUNCHER_ENGINE", "NVIDIA_VISIBLE_DEVICES"}),
        *starters.CONTRACT,
        *(MARKER, "LAUNCHER_HOOKED", "LAUNCHER_MASTER_ADDR", "LAUNCHER_NNODES", "LAUNCHER_NODE_RANK"),
        "LAUNCHER_REHEARSED",
        *("CROSS_RANK", "CROSS_SIZE", "LOCAL_SIZE", "MASTER_ADDR", "MASTER_IP", "MASTER_PORT"),
        *("CLUSTER_SPEC", "NODE_COUNT", "NODE_LIST", "NNODES", "NUM_NODES", "NPROC_PER_NODE", "SIZE"),
        *("COORDINATOR_ADDRESS", "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"),
        *("HOROVOD_HOSTNAME", "HOROVOD_RANK", "HOROVOD_SIZE"),
    )
)
"""Names of identifying variables, which are removed."""
PREFIXES = (
    *forward.OF_A_NODE_PREFIXES,
    *("AMLARC_", "AWS_BATCH_", "AZUREML_", "AZ_BATCH", "CCP_", "DLTS_", "DMLC_", "FC_", "JOBSET_", "K_MPI_"),
    *("GROUP_", "HOROVOD_CROSS_", "HOROVOD_GLOO_", "HOROVOD_LOCAL_", "MLP_", "ROLE_", "SKYPILOT_", "SM_"),
    *("VC_", "VK_"),
    *("BEAKER_LEADER_", "BEAKER_REPLICA_", "COBALT_", "DSTACK_MASTER_", "DSTACK_NODE", "LOADL_", "LWS_"),
    *("MPIRUN_", "MS_NODE_", "MS_SCHED_", "MS_WORKER_", "MV2_COMM_WORLD_", "NGC_ARRAY_", "NGC_MASTER_"),
    *("OAR_", "PADDLE_NNODES", "PADDLE_TRAINER", "PJM_", "TORCHX_RANK0_", "TPU_WORKER_"),
)
"""Prefixes of families of such variables."""
OF_THE_CALLER = frozenset(
    ("OLDPWD", "PWD", "SHLVL", "TMPDIR", "_", "LISTEN_FDS", "LISTEN_PID", "NOTIFY_SOCKET")
)
"""Variables about the calling process and its folder only, which are removed without a message."""
SHOWN = 12


def is_identity(name: str) -> bool:
    """Whether a variable identifies a job, a node or a process on any platform."""
    return name in NAMES or name.startswith(PREFIXES)


def keep_own(environ: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables that a rehearsal keeps, and the sorted names of the identifying ones."""
    taken = tuple(sorted(name for name in environ if is_identity(name)))
    gone = {*taken, *OF_THE_CALLER}
    return {name: value for name, value in environ.items() if name not in gone}, taken


def describe_taken(names: tuple[str, ...]) -> str:
    """Return a message that names the removed variables; empty if there are none."""
    if not names:
        return ""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    shown = ", ".join(name if name.isprintable() else repr(name) for name in names[:SHOWN])
    return (
        "removed from the environment, because the platform sets its own: "
        f"{shown}{more} (--env NAME keeps one)"
    )
