"""TF_CONFIG: one task of a TensorFlow job (Azure ML's TensorFlow distribution, Kubeflow's TFJob).

A task is one process with all GPUs of its node, so the launcher never multiplies it. The rank is
TensorFlow's own order: chief, then workers; parameter servers and evaluators have none.

Source: tensorflow/python/distribute/{multi_worker_util.py,cluster_resolver/tfconfig_cluster_resolver.py}.
"""

from __future__ import annotations

from launcher.environ import Malformed, Reader, parse_host_port
from launcher.model import Fact, Scope, Trust

TF_CONFIG = "TF_CONFIG"
RANKED = ("chief", "worker")
KNOWN = (*RANKED, "ps", "evaluator")


class Refused(Exception):
    """Why TensorFlow, or anybody, cannot make a cluster of it."""


def read(reader: Reader) -> None:
    """The task's place in its cluster, or what is wrong with it."""
    try:
        cluster, role, index = _parse(reader.text(TF_CONFIG) or "")
        tasks = [address for name in RANKED for address in cluster.get(name, [])]
        hosts = [parse_host_port(address)[0] for address in tasks]
    except Malformed as error:
        _refuse(reader, f"every task to be {error}")
        return
    except Refused as error:
        _refuse(reader, str(error))
        return
    if role not in RANKED:
        fix = f"start the {role}'s server itself, without launcher run"
        reader.problem("no-rank", f"{reader.origin(TF_CONFIG)}: a {role} is no process of the training", fix)
        return
    reader.starts = Scope.PROCESS
    rank = index if role == "chief" else index + len(cluster.get("chief", []))
    _claim(reader, hosts, rank)


def _refuse(reader: Reader, expected: str) -> None:
    reader.problem(
        "malformed-variable",
        f"{reader.origin(TF_CONFIG)}: expected {expected}",
        f"correct {TF_CONFIG}, or unset it if this is no TensorFlow job",
    )


def _claim(reader: Reader, hosts: list[str], rank: int) -> None:
    own = [place for place, host in enumerate(hosts) if host == hosts[rank]]
    nodes = tuple(dict.fromkeys(hosts))
    reader.claim(Fact.RANK, rank, TF_CONFIG)
    reader.claim(Fact.WORLD_SIZE, len(hosts), TF_CONFIG)
    reader.claim(Fact.LOCAL_RANK, own.index(rank), TF_CONFIG)
    reader.claim(Fact.LOCAL_SIZE, len(own), TF_CONFIG)
    reader.claim(Fact.NODE_RANK, nodes.index(hosts[rank]), TF_CONFIG, Trust.DERIVED)
    reader.claim(Fact.NODE_COUNT, len(nodes), TF_CONFIG, Trust.DERIVED)
    reader.claim(Fact.MASTER_ADDR, hosts[0], TF_CONFIG, Trust.DERIVED)


def _parse(text: str) -> tuple[dict[str, list[str]], str, int]:
    """Return (cluster, role, index), valid by the rules of TensorFlow 2."""
    import json

    try:
        config = json.loads(text)
        cluster, task = config["cluster"], config["task"]
        role, index = str(task["type"]), int(task["index"])
        addresses = {str(name): list(items) for name, items in cluster.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        raise Refused('a JSON object {"cluster": {role: [host:port]}, "task": {"type", "index"}}') from None
    sparse = [name for name, items in cluster.items() if not isinstance(items, list)]
    strange = sorted({role, *addresses} - set(KNOWN))
    if strange:
        raise Refused(f"roles among {', '.join(KNOWN)}, not {strange[0]!r}")
    if sparse or not all(isinstance(item, str) for items in addresses.values() for item in items):
        raise Refused(f"a list of host:port for every role (not so: {', '.join(sparse) or 'an item'})")
    if len(addresses.get("chief", [])) > 1:
        raise Refused("one chief at most")
    if role != "evaluator" and not 0 <= index < len(addresses.get(role, [])):
        raise Refused(f"a task index of {role} in 0..{len(addresses.get(role, [])) - 1}")
    return addresses, role, index
