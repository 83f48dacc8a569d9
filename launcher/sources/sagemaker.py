"""A SageMaker training job: one container per node.

SM_HOSTS is sorted as text (``algo-10`` before ``algo-2``); the nodes are put in the order of their
numbers, which every node computes alike.

Source: aws/sagemaker-training-toolkit src/sagemaker_training/params.py and environment.py.
"""

from __future__ import annotations

import re

from launcher.environ import Malformed, Reader, parse_hosts
from launcher.model import Fact, Scope, Trust

HOSTS = "SM_HOSTS"
CURRENT_HOST = "SM_CURRENT_HOST"
GPUS = "SM_NUM_GPUS"
_NUMBER = re.compile(r"\d+", re.ASCII)


def read(reader: Reader) -> None:
    """Node list, own place in it, GPUs."""
    reader.starts = Scope.NODE
    hosts = _read_hosts(reader)
    if hosts:
        reader.claim_hosts(hosts, HOSTS)
        reader.claim(Fact.MASTER_ADDR, hosts[0], HOSTS, Trust.DERIVED)
    current = reader.text(CURRENT_HOST)
    if current in hosts:
        reader.claim(Fact.NODE_RANK, hosts.index(current), f"{CURRENT_HOST} in {HOSTS}")
    elif current is not None and hosts:
        reader.malformed(CURRENT_HOST, f"one of {HOSTS}")
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
