"""A SageMaker training job: one container per node.

SM_HOSTS is sorted as text (``algo-10`` before ``algo-2``); the nodes are put in the order of their
numbers, which every node computes alike. The toolkit's mpirun hands SM_* of its own node to all ranks.

Source: aws/sagemaker-training-toolkit src/sagemaker_training/params.py and environment.py.
"""

from __future__ import annotations

import re

from launcher.environ import MPI_STARTERS, Malformed, Reader, parse_hosts
from launcher.model import Fact, Scope, Trust

HOSTS = "SM_HOSTS"
CURRENT_HOST = "SM_CURRENT_HOST"
RESOURCES = "SM_RESOURCE_CONFIG"  # the same once more, as JSON
GPUS = "SM_NUM_GPUS"
_NUMBER = re.compile(r"\d+", re.ASCII)


def read(reader: Reader) -> None:
    """Node list, own place in it, GPUs."""
    reader.starts = Scope.NODE
    hosts = _read_hosts(reader)
    if hosts:
        reader.claim_hosts(hosts, HOSTS)
        reader.claim(Fact.MASTER_ADDR, hosts[0], HOSTS, Trust.DERIVED)
    if any(reader.has(name) for name in MPI_STARTERS):
        return  # the other two are mpirun's own node's
    current = reader.text(CURRENT_HOST)
    if current in hosts:
        reader.claim(Fact.NODE_RANK, hosts.index(current), f"{CURRENT_HOST} in {HOSTS}")
    elif current is not None and hosts:
        reader.malformed(CURRENT_HOST, f"one of {HOSTS}")
    elif (current is not None or reader.has(RESOURCES)) and not reader.has(HOSTS):
        name = CURRENT_HOST if current is not None else RESOURCES
        reader.sign(name, f"hand {HOSTS} to the launcher too, or pass --nnodes N --node-rank R")
    reader.claim_int(Fact.PROCESSES_PER_NODE, GPUS, 0, Trust.DERIVED)


def _read_hosts(reader: Reader) -> tuple[str, ...]:
    import json

    text = reader.text(HOSTS)
    if text is None:
        return ()
    try:
        items = json.loads(text)
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise Malformed("a JSON list of host names")
        return tuple(sorted(parse_hosts(",".join(items)), key=_by_number))
    except (ValueError, RecursionError) as error:
        reader.malformed(HOSTS, str(error) if isinstance(error, Malformed) else "a JSON list of host names")
        return ()


def _by_number(host: str) -> tuple[str, tuple[int, ...], str]:
    return _NUMBER.sub("#", host), tuple(int(n) for n in _NUMBER.findall(host)), host
