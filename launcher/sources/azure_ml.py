"""Azure ML's own variables: the number of nodes, and on the common runtime the node rank and all hosts.

On attached Kubernetes, Volcano's variables are set as well (see `volcano`).

The rank of a process comes from elsewhere (mpirun, or the PyTorch variables); these variables describe the
nodes. In AZUREML_CR_DISTRIBUTED_CONFIG ``rank`` is the *name* of the variable that holds the node rank.

It still sets variables of the retired Azure Batch AI service (source ``batch_ai``). AZ_BATCHAI_TASK_INDEX is
the rank of the process, not of the node. AZ_BATCHAI_GPU_COUNT is per node in some scripts and per job in
others, so we do not read it. AZ_BATCHAI_GPU_COUNT_FOUND is documented.

Source: Azure ML "Distributed GPU training guide"; a Kubernetes pod published in 2022; Azure/BatchAI
"using-batchai-environment-variables.md"; azureml-core history/_tracking.py.
"""

from __future__ import annotations

from launcher.core.environ import Malformed, each_once, is_loopback, parse_host_port, parse_json
from launcher.core.model import Fact, Scope, Trust
from launcher.sources import MARKERS, torch_env
from launcher.sources.reader import Reader

NODE_COUNT, NODE_RANK, DISTRIBUTED_CONFIG, COMPUTE_CONTEXT, WORKER_COUNT, MASTER = MARKERS["azure_ml"]
*MASTERS, WORKERS, GPUS = MARKERS["batch_ai"]
TASK_INDEX, TASK_TYPE = "AZ_BATCHAI_TASK_INDEX", "AZ_BATCHAI_TASK_TYPE"
RANK_NAMES = ("_INDEX", "RANK")
"""Suffixes of variables that can hold a rank. The value of any other variable must not appear in a
message."""


def read(reader: Reader) -> None:
    """Claim the nodes of an Azure ML job, on its own compute or on attached Kubernetes."""
    reader.even = True
    reader.claim_numbers(((Fact.NODE_COUNT, NODE_COUNT), (Fact.NODE_RANK, NODE_RANK)))
    config = reader.parsed(DISTRIBUTED_CONFIG, _parse_object) or {}
    hosts, rank = config.get("host_list"), config.get("rank")
    if isinstance(hosts, list) and all(isinstance(host, str) for host in hosts):
        try:
            reader.claim_hosts(each_once(hosts), DISTRIBUTED_CONFIG, master=Trust.STATED)
        except Malformed as error:
            reader.malformed(DISTRIBUTED_CONFIG, f"host_list to hold {error}")
    if isinstance(rank, str) and rank.endswith(RANK_NAMES):
        reader.claim_int(Fact.NODE_RANK, rank)
    if reader.has(NODE_RANK, DISTRIBUTED_CONFIG):
        reader.starts = Scope.NODE
    if reader.text("AMLARC_NUM_PS") in (None, "0"):
        reader.claim_int(Fact.NODE_COUNT, WORKER_COUNT)
    reader.claim_host(Fact.MASTER_ADDR, MASTER, Trust.DERIVED)
    gpus = (reader.parsed(COMPUTE_CONTEXT, _parse_object) or {}).get("gpu_count")
    if isinstance(gpus, int) and gpus > 0:
        reader.claim(Fact.PROCESSES_PER_NODE, gpus, f"gpu_count in {COMPUTE_CONTEXT}", Trust.DERIVED)


def read_batch_ai(reader: Reader) -> None:
    """Claim the master's address from either name, the rank among the workers, and the GPUs."""
    _check_index(reader)
    for name in MASTERS:
        if not is_loopback(reader.text(name) or ""):  # else it is this node's own name for itself
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


def _check_index(reader: Reader) -> None:
    """Report a task index that is neither the rank of this process, nor that of the node that started it."""
    index = reader.integer(TASK_INDEX)
    named = [name for name in (torch_env.RANK, torch_env.NODE_RANK, NODE_RANK) if reader.has(name)]
    of_starter = reader.is_started() or reader.text(TASK_TYPE) not in (None, "worker")
    if index is None or named in ([], [torch_env.RANK]) or of_starter:
        return  # a starter passes on the index of its own node
    if index not in map(reader.integer, named):
        reader.contradict(TASK_INDEX, named[0], f"{reader.origin(named[0])}: expected the same number")


def _parse_object(text: str) -> dict[str, object]:
    try:
        value = parse_json(text)
        if isinstance(value, dict):
            return value
    except ValueError:
        pass
    raise Malformed("a JSON object")
