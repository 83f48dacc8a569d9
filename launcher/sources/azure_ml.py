"""Azure ML's own variables: the number of nodes, and on the common runtime the node rank and all hosts.

On attached Kubernetes, Volcano's variables are set as well (see `volcano`).

The rank of a process comes from elsewhere (mpirun, or the PyTorch variables); these variables describe the
nodes. In AZUREML_CR_DISTRIBUTED_CONFIG ``rank`` is the *name* of the variable that holds the node rank.

Source: Azure ML "Distributed GPU training guide"; a Kubernetes pod published in 2022.
"""

from __future__ import annotations

from launcher.core.environ import Malformed, Reader, each_once
from launcher.core.model import Fact, Scope, Trust

NODE_RANK = "AZUREML_CR_NODE_RANK"
DISTRIBUTED_CONFIG = "AZUREML_CR_DISTRIBUTED_CONFIG"
COMPUTE_CONTEXT = "AZUREML_CR_COMPUTE_CONTEXT"
RANK_NAMES = ("_INDEX", "RANK")
"""Suffixes of variables that can hold a rank. The value of any other variable must not appear in a
message."""
WORKER_COUNT = "AMLARC_NUM_WORKER"


def read(reader: Reader) -> None:
    """Claim the nodes of an Azure ML job, on its own compute or on attached Kubernetes."""
    reader.even = True
    reader.claim_int(Fact.NODE_COUNT, "AZUREML_NODE_COUNT", 1)
    reader.claim_int(Fact.NODE_RANK, NODE_RANK)
    if reader.has(DISTRIBUTED_CONFIG):
        _read_distributed_config(reader)
    if reader.has(NODE_RANK) or reader.has(DISTRIBUTED_CONFIG):
        reader.starts = Scope.NODE
    if reader.text("AMLARC_NUM_PS") in (None, "0"):
        reader.claim_int(Fact.NODE_COUNT, WORKER_COUNT, 1)
    reader.claim_host(Fact.MASTER_ADDR, "MASTER_IP", Trust.DERIVED)
    _read_compute_context(reader)


def _read_distributed_config(reader: Reader) -> None:
    config = _read_json(reader, DISTRIBUTED_CONFIG)
    hosts = config.get("host_list")
    if isinstance(hosts, list) and all(isinstance(host, str) for host in hosts):
        try:
            _claim_hosts(reader, each_once(hosts), DISTRIBUTED_CONFIG)
        except Malformed as error:
            reader.malformed(DISTRIBUTED_CONFIG, f"host_list to hold {error}")
    name = config.get("rank")
    if isinstance(name, str) and name.endswith(RANK_NAMES):
        reader.claim_int(Fact.NODE_RANK, name)


def _claim_hosts(reader: Reader, hosts: tuple[str, ...], origin: str) -> None:
    reader.claim_hosts(hosts, origin)
    if hosts:
        reader.claim(Fact.MASTER_ADDR, hosts[0], origin)


def _read_compute_context(reader: Reader) -> None:
    gpus = _read_json(reader, COMPUTE_CONTEXT).get("gpu_count")
    if isinstance(gpus, int) and gpus > 0:
        reader.claim(Fact.PROCESSES_PER_NODE, gpus, f"gpu_count in {COMPUTE_CONTEXT}", Trust.DERIVED)


def _read_json(reader: Reader, name: str) -> dict[str, object]:
    import json

    text = reader.text(name)
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        reader.malformed(name, "a JSON object")
        return {}
    return value
