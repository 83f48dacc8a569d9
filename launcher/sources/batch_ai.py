"""Variables of the retired Azure Batch AI service, which Azure ML still sets.

AZ_BATCHAI_TASK_INDEX is the rank of the process, not of the node. AZ_BATCHAI_GPU_COUNT is per node in some
scripts and per job in others, so we do not read it. AZ_BATCHAI_GPU_COUNT_FOUND is documented.

Source: Azure/BatchAI "using-batchai-environment-variables.md"; azureml-core history/_tracking.py.
"""

from __future__ import annotations

from launcher.core.environ import Malformed, Reader, is_loopback, parse_host_port
from launcher.core.model import Fact, Trust

MASTERS = ("AZ_BATCHAI_MPI_MASTER_NODE", "AZ_BATCHAI_JOB_MASTER_NODE_IP")
WORKERS = "AZ_BATCHAI_WORKER_HOSTS"
TASK_INDEX = "AZ_BATCHAI_TASK_INDEX"
TASK_TYPE = "AZ_BATCHAI_TASK_TYPE"
GPUS = "AZ_BATCHAI_GPU_COUNT_FOUND"


def read(reader: Reader) -> None:
    """Claim the master's address from either name, the rank among the workers, and the GPUs."""
    for name in MASTERS:
        text = reader.text(name)
        if text is not None and is_loopback(text):
            reader.note(f"{reader.origin(name)} is this node's own name for itself: not used")
        else:
            reader.claim_host(Fact.MASTER_ADDR, name)
    _read_workers(reader)
    reader.claim_int(Fact.PROCESSES_PER_NODE, GPUS, 0, Trust.DERIVED)


def _read_workers(reader: Reader) -> None:
    text = reader.text(WORKERS)
    if text is None:
        return  # an index without a world size: single-node jobs have it too
    try:
        hosts = [parse_host_port(item)[0] for item in text.split(",")]
    except Malformed as error:
        reader.malformed(WORKERS, str(error))
        return
    if reader.text(TASK_TYPE) not in (None, "worker"):
        return  # the index counts tasks of this type, and only workers have ranks
    index = reader.claim_int(Fact.RANK, TASK_INDEX)
    reader.claim(Fact.WORLD_SIZE, len(hosts), WORKERS)
    reader.claim(Fact.MASTER_ADDR, hosts[0], WORKERS, Trust.DERIVED)
    if len(set(hosts)) == len(hosts):
        reader.claim(Fact.LOCAL_SIZE, 1, WORKERS, Trust.DERIVED)
        reader.claim(Fact.LOCAL_RANK, 0, WORKERS, Trust.DERIVED)
        reader.claim_hosts(tuple(hosts), WORKERS, Trust.DERIVED)
        if index is not None:
            reader.claim(Fact.NODE_RANK, index, TASK_INDEX, Trust.DERIVED)
