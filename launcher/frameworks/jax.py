"""JAX: what ``jax.distributed.initialize()`` finds out by itself where it is given no arguments.

Of its arguments it takes two from variables of its own, the coordinator's address and the local devices.
How many processes there are, and which one this is, it asks the first of these that is there:

    Open MPI     OMPI_MCA_orte_hnp_uri is set (versions up to 4): OMPI_COMM_WORLD_SIZE, _RANK, _LOCAL_RANK
    Slurm        SLURM_JOB_ID, SLURM_STEP_NODELIST, SLURM_NTASKS, SLURM_PROCID, SLURM_LOCALID are all set
    Cloud TPU
    Kubernetes   KUBERNETES_SERVICE_HOST is set and its client is installed: the API, about a Job

Where none is there it stops: "Number of processes must be defined." So a job of JAX gets Open MPI's
names. That is for a job that is one of JAX plainly, because others read OMPI_* too. JAX_NUM_PROCESSES and
JAX_PROCESS_ID are read by scripts (MaxText is one), which pass them on as arguments.

Such a detector also gives each process the GPU of its local rank alone. That is wrong where a process
has several, or sees only its own; JAX_LOCAL_DEVICE_IDS goes first.

Source: jax/_src/distributed.py, jax/_src/clusters/ (0.10); github.com/jax-ml/jax/pull/12415 would have it
read the other two.
"""

from __future__ import annotations

from launcher.core.model import Place, Policy, Setting
from launcher.frameworks import open_mpi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.frameworks.case import Case
    from launcher.frameworks.script import Script

NAME = "jax"
COORDINATOR = "COORDINATOR_ADDRESS"
"""Kubeflow's JAXJob sets it, and nothing else does."""
MPIRUN_4 = "OMPI_MCA_orte_hnp_uri"
"""JAX looks whether it is there, and what it says only without JAX_COORDINATOR_ADDRESS. In jobs of Open MPI 4
it is there, and stays; other MPIs, and a program that mpirun did not start, do not mind it."""


def plan_common(case: Case) -> list[Setting]:
    """Return where process 0 listens, and how many processes there are.

    The port is the master's, where nothing else of a job in JAX listens, unless torchrun's agent does.
    """
    job = case.topology
    if job.world_size is None or not job.master_addr:
        return []
    host = f"[{job.master_addr}]" if ":" in job.master_addr else job.master_addr
    port, reason = case.free_port
    why = "; ".join(filter(None, (case.origin("master_addr"), reason)))
    return [
        Setting("JAX_COORDINATOR_ADDRESS", f"{host}:{port}", why, Policy.IF_UNSET),
        Setting("JAX_NUM_PROCESSES", str(job.world_size), case.origin("world_size")),
    ]


def plan_process(case: Case, place: Place) -> list[Setting]:
    """Return which process this is, and which GPUs are its own."""
    settings = [Setting("JAX_PROCESS_ID", str(place.rank), case.origin("rank"))]
    devices = share_devices(case, place)
    if devices:
        ids, why = ",".join(map(str, devices)), f"of the {case.machine.gpu_count} visible GPUs"
        settings.append(Setting("JAX_LOCAL_DEVICE_IDS", ids, why, Policy.IF_UNSET))
    if is_named(case):
        why = "JAX takes its rank from Open MPI's variables where it finds this one"
        settings.append(Setting(MPIRUN_4, "launcher", why, Policy.IF_UNSET))
        settings += open_mpi.plan_names(case, place, "JAX reads it")
    return settings


def is_distributed(script: Script) -> bool:
    """Whether a script is of a job of several processes in JAX, by its text."""
    if not script.imports(NAME):
        return False
    text = script.text
    return "jax.distributed" in text or "distributed.initialize" in text or script.imports("jax.distributed")


def warn(case: Case) -> tuple[str, ...]:
    """Return what is worth a word where a script does not show that its processes will be one job."""
    text = case.script.text
    alone = case.options.framework != NAME or case.topology.world_size == 1
    if alone or not text or "distributed" in text:
        return ()
    return (
        f"{case.script.path} does not call jax.distributed.initialize(): unless something that it imports "
        "does, each process is a job of its own",
    )


def is_named(case: Case) -> bool:
    """Whether this is a job of JAX: the user says so, or its script, or Kubeflow."""
    return case.options.text("framework") == NAME or COORDINATOR in case.environ


def share_devices(case: Case, place: Place) -> range:
    """Return the GPUs of one process, by their places in CUDA_VISIBLE_DEVICES; empty to say nothing.

    GPUs are divided evenly: with one process per GPU, the one of the local rank; alone on its node, all.
    A process that others have started, and that sees fewer GPUs than there are processes, was shown its
    own.
    """
    given = case.options.get("gpus_per_process")
    if given is not None and isinstance(given.value, int):
        return range(given.value)  # CUDA_VISIBLE_DEVICES has no others
    visible, processes = case.machine.gpu_count or 0, case.topology.local_size
    if visible < 2 or (processes is not None and visible < processes and not case.forks):
        return range(visible)
    if processes is None:
        return range(0)
    each = max(1, visible // processes)
    first = place.local_rank * each % visible
    return range(first, first + each)
