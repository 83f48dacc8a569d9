"""Lightning: variables for its ClusterEnvironment, and the numbers of nodes and devices of its Trainer.

It checks these in order, and takes rank, world size and master address from the first that matches:

    TorchElasticEnvironment   TORCHELASTIC_RUN_ID is set: torchrun's variables, true in every worker
    SLURMEnvironment          SLURM_NTASKS is set, unless SLURM_JOB_NAME is bash or interactive
    LSFEnvironment            LSB_JOBID, LSB_DJOB_RANKFILE and JSM_NAMESPACE_* are set
    MPIEnvironment            mpi4py can be imported, and MPI's world has several processes
    LightningEnvironment      always: rank = NODE_RANK x devices + LOCAL_RANK, world = num_nodes x devices

LOCAL_RANK keeps the last one from starting processes itself. Slurm's variables must be complete and true, or
absent: with SLURM_NTASKS alone Lightning stops, or asks for variables that are not set.

Source: lightning/pytorch/trainer/connectors/accelerator_connector.py, utilities/argparse.py (PL_TRAINER_*);
lightning/fabric/plugins/environments/ (2.6).
"""

from __future__ import annotations

from launcher.core.model import Policy, Setting
from launcher.frameworks import starters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.model import Place, Topology
    from launcher.frameworks.case import Case

NAME = "lightning"
NUM_NODES, DEVICES = "PL_TRAINER_NUM_NODES", "PL_TRAINER_DEVICES"
"""Defaults of the Trainer's arguments; without them 1 node and all visible devices."""
FABRIC_NODES, FABRIC_DEVICES = "LT_NUM_NODES", "LT_DEVICES"
"""The same for Fabric, which prefers them even to arguments in the script."""
SLURM = "SLURM_NTASKS"
PACKAGES = ("lightning", "pytorch_lightning", "lightning_fabric")
"""Packages that a Lightning script imports."""
TRAINER, FABRIC = "Trainer(", "Fabric("
STARTS = ("spawn", "fork", "notebook")
"""Parts of the names of strategies that start the processes themselves, however the script was started."""


def plan_common(case: Case) -> list[Setting]:
    """Return the numbers for a Trainer or a Fabric without any, which would otherwise train alone.

    They are set if the user names Lightning, or if the script creates one and harms none of its own:
    ``Trainer(devices=1)``, for a test on one rank, would wait for the other nodes.
    """
    named = case.options.text("framework") == NAME
    imports = not case.options.framework and any(map(case.script.imports, PACKAGES))
    if not named and (not imports or case.topology.world_size == 1):
        return []
    counts = (count_nodes(case.topology), case.topology.local_size)
    trainers, fabrics = (list_calls(case.script.text, name) for name in (TRAINER, FABRIC))
    waits = case.topology.spans_nodes and any("devices" in one and "num_nodes" not in one for one in trainers)
    names = (NUM_NODES, DEVICES) if named or (trainers and not waits) else ()
    if fabrics or (named and not trainers):
        names = (*names, FABRIC_NODES, FABRIC_DEVICES)
    return [
        Setting(name, str(count), "Lightning's default, where the script gives none", Policy.IF_UNSET)
        for name, count in zip(names, counts * 2, strict=False)
        if count is not None
    ]


def list_calls(text: str, name: str) -> list[str]:
    """Return the arguments of a class's calls, as written; not of those that start processes themselves."""
    calls = [part.partition("\n\n")[0].partition(")\n")[0] for part in text.split(name)[1:]]
    return [call for call in calls if not any(word in call for word in STARTS)]


def count_nodes(job: Topology) -> int | None:
    """Return the number of nodes if all have as many processes as this one; None if unknown or uneven."""
    if job.node_count is not None or not job.world_size or not job.local_size:
        return job.node_count
    return None if job.world_size % job.local_size else job.world_size // job.local_size


def plan_process(case: Case, place: Place) -> list[Setting]:
    """Return the variables for SLURMEnvironment, which Lightning uses if SLURM_NTASKS is set.

    `starters` rewrites the ones that are set and wrong. Without SLURM_NTASKS_PER_NODE Lightning refuses even
    a job that srun started.
    """
    if SLURM not in case.environ:
        return []
    why = f"Lightning asks for it where {SLURM} is set"
    return starters.plan_missing(starters.OF_SLURM, case, place, why)
