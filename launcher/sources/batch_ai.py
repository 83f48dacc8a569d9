"""Variables of the retired Azure Batch AI service, which Azure ML still sets.

AZ_BATCHAI_TASK_INDEX is the rank of the process, not of the node. AZ_BATCHAI_GPU_COUNT is per node in some
scripts and per job in others, so we do not read it. AZ_BATCHAI_GPU_COUNT_FOUND is documented.

Source: Azure/BatchAI "using-batchai-environment-variables.md"; azureml-core history/_tracking.py.
"""

from __future__ import annotations

from launcher.core.environ import Reader, is_loopback, parse_host_port
from launcher.core.model import Fact, Trust
from launcher.sources.table import MARKERS

*MASTERS, WORKERS, GPUS = MARKERS["batch_ai"]
TASK_INDEX = "AZ_BATCHAI_TASK_INDEX"
TASK_TYPE = "AZ_BATCHAI_TASK_TYPE"


def read(reader: Reader) -> None:
    """Claim the master's address from either name, the rank among the workers, and the GPUs."""
    for name in MASTERS:
        if is_loopback(reader.text(name) or ""):
            reader.note(f"{reader.origin(name)} is this node's own name for itself: not used")
        else:
            reader.claim_host(Fact.MASTER_ADDR, name)
    reader.claim_int(Fact.PROCESSES_PER_NODE, GPUS, trust=Trust.DERIVED)
    hosts = reader.parsed(WORKERS, lambda text: [parse_host_port(item)[0] for item in text.split(",")])
    if not hosts or reader.text(TASK_TYPE) not in (None, "worker"):
        return  # single-node jobs have an index, too; it counts tasks of a type, and only workers have ranks
    index = reader.integer(TASK_INDEX)
    if index is not None and index >= len(hosts):
        reader.malformed(TASK_INDEX, f"a number below {len(hosts)}, the hosts in {WORKERS}")
        return
    from launcher.sources.tensorflow import claim_task

    claim_task(reader, hosts, index, WORKERS, TASK_INDEX)
    reader.claim_hosts(tuple(dict.fromkeys(hosts)), WORKERS, Trust.DERIVED)
