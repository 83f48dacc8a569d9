"""JAX: the variables that ``jax.distributed.initialize()`` reads if it has no arguments.

It takes two of its arguments from variables of its own: the coordinator's address and the local devices. The
number of processes and the rank come from the first of these that is present:

    Open MPI     OMPI_MCA_orte_hnp_uri is set (versions up to 4): OMPI_COMM_WORLD_SIZE, _RANK, _LOCAL_RANK
    Slurm        SLURM_JOB_ID, SLURM_STEP_NODELIST, SLURM_NTASKS, SLURM_PROCID, SLURM_LOCALID are all set
    Cloud TPU
    Kubernetes   KUBERNETES_SERVICE_HOST is set and its client is installed: the API, about a Job

If none is present it stops: "Number of processes must be defined." So a JAX job gets Open MPI's names. Only a
job that is clearly JAX gets them, because others read OMPI_* too. Scripts (MaxText is one) read
JAX_NUM_PROCESSES and JAX_PROCESS_ID, and pass them on as arguments.

Such a detector also gives each process only the GPU of its local rank. That is wrong if a process has several
GPUs, or sees only its own; JAX_LOCAL_DEVICE_IDS takes precedence.

Source: jax/_src/distributed.py, jax/_src/clusters/ (0.10); github.com/jax-ml/jax/pull/12415 would have it
read the other two.
"""

from __future__ import annotations

from launcher.core.environ import bracket
from launcher.core.model import Place, Policy, Setting
from launcher.frameworks import starters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.frameworks.case import Case
    from launcher.frameworks.script import Script

NAME = "jax"
COORDINATOR = "COORDINATOR_ADDRESS"
"""Variable that only Kubeflow's JAXJob sets."""
MPIRUN_4 = "OMPI_MCA_orte_hnp_uri"
"""JAX checks that it is set, and reads its value only without JAX_COORDINATOR_ADDRESS.

In jobs of Open MPI 4 it is set already, and stays. Other MPIs, and a program that mpirun did not start,
ignore it.
"""


def plan_common(case: Case) -> list[Setting]:
    """Return the address at which process 0 listens, and the number of processes.

    The port is MASTER_PORT, which nothing else in a JAX job uses, unless torchrun's agent listens there.
    """
    job = case.topology
    if job.world_size is None or not job.master_addr:
        return []
    port, reason = case.free_port
    why = "; ".join(filter(None, (case.origin("master_addr"), reason)))
    return [
        Setting("JAX_COORDINATOR_ADDRESS", f"{bracket(job.master_addr)}:{port}", why, Policy.IF_UNSET),
        Setting("JAX_NUM_PROCESSES", str(job.world_size), case.origin("world_size")),
    ]


def plan_process(case: Case, place: Place) -> list[Setting]:
    """Return the rank of one process, and its GPUs."""
    settings = [Setting("JAX_PROCESS_ID", str(place.rank), case.origin("rank"))]
    devices = share_devices(case, place)
    if devices:
        ids, why = ",".join(map(str, devices)), f"of the {case.machine.gpu_count} visible GPUs"
        settings.append(Setting("JAX_LOCAL_DEVICE_IDS", ids, why, Policy.IF_UNSET))
    if is_named(case):
        why = "JAX takes its rank from Open MPI's variables where it finds this one"
        settings.append(Setting(MPIRUN_4, "launcher", why, Policy.IF_UNSET))
        settings += starters.plan_missing(starters.OF_MPI, case, place, "JAX reads it")
    return settings


def is_distributed(script: Script) -> bool:
    """Whether the text of a script shows that it belongs to a JAX job with several processes."""
    if not script.imports(NAME):
        return False
    text = script.text
    return "jax.distributed" in text or "distributed.initialize" in text or script.imports("jax.distributed")


def is_named(case: Case) -> bool:
    """Whether this is a JAX job, by the user, its script, or Kubeflow."""
    return case.options.text("framework") == NAME or COORDINATOR in case.environ


def share_devices(case: Case, place: Place) -> range:
    """Return the GPUs of one process as indices into CUDA_VISIBLE_DEVICES; empty to set nothing.

    GPUs are divided evenly: with one process per GPU, each gets that of its local rank; a single process on
    its node gets all. A process that another program started and that sees fewer GPUs than there are
    processes sees only its own.
    """
    given = case.options.get("gpus_per_process")
    if given is not None and isinstance(given.value, int):
        return range(given.value)  # CUDA_VISIBLE_DEVICES contains only these
    visible, processes = case.machine.gpu_count or 0, case.topology.local_size
    if visible < 2 or (processes is not None and visible < processes and not case.forks):
        return range(visible)
    if processes is None:
        return range(0)
    each = max(1, visible // processes)
    first = place.local_rank * each % visible
    return range(first, first + each)
