"""A replica of a custom training job on Google's Vertex AI: one container per node.

CLUSTER_SPEC lists the replicas by pool: pool 0 has the primary, pool 1 the workers. Pools 2 (parameter
servers, or Reduction Server) and 3 (evaluators) have no ranks. The index counts within the pool. RANK and
WORLD_SIZE count replicas.

Source: cloud.google.com Vertex AI "Distributed training", "Reduce training time with Reduction Server".
"""

from __future__ import annotations

from launcher.core.environ import parse_host_port, parse_int, parse_json
from launcher.core.model import Fact, Scope, Trust
from launcher.sources.reader import Reader
from launcher.sources.signs import FLAGS
from launcher.sources.torch_env import RANK, VERTEX_AI, WORLD_SIZE, counts_nodes

# {"cluster": {"workerpool0": ["host:2222"]}, "task": {"type": "workerpool0", "index": 0}}
CLUSTER_SPEC = "CLUSTER_SPEC"
RANKED = (("workerpool0", "chief"), ("workerpool1", "worker"))
"""The pools with ranks, in rank order, each with its two names."""


def read(reader: Reader) -> None:
    """Claim the replicas of pools 0 and 1, and the place of this one among them."""
    try:
        spec = parse_json(reader.text(CLUSTER_SPEC) or "")
        if [len(pool) for pool in spec.values() if isinstance(pool, list)] == [len(spec)] == [1]:
            return  # the short form for a single replica: {"chief":["localhost:1234"]}
        named = spec["cluster"].items()
        cluster = {str(pool): [parse_host_port(one)[0] for one in addresses] for pool, addresses in named}
        role, index = str(spec["task"]["type"]), parse_int(str(spec["task"].get("index", 0)))
    except (ValueError, TypeError, KeyError, AttributeError):
        reader.sign(CLUSTER_SPEC, f"not in Vertex AI's format: {FLAGS}")
        return
    pools = [next((cluster[name] for name in names if name in cluster), []) for names in RANKED]
    own = next((place for place, names in enumerate(RANKED) if role in names), None)
    if own is None:
        why = f"a replica of {role!r} has no rank: start the launcher in pools 0 and 1"
        reader.sign(CLUSTER_SPEC, f"{why}, or {FLAGS}")
        return
    if index >= len(pools[own]):
        reader.malformed(CLUSTER_SPEC, f"task.index below {len(pools[own])}, the replicas of {role!r}")
        return
    reader.starts = Scope.NODE
    hosts = (*pools[0], *pools[1])
    node = own * len(pools[0]) + index
    reader.claim_hosts(hosts, CLUSTER_SPEC, master=Trust.DERIVED if len(hosts) > 1 else None)
    reader.claim(Fact.NODE_RANK, node, CLUSTER_SPEC)
    if counts_nodes(reader) == VERTEX_AI:
        reader.claim_int(Fact.NODE_RANK, RANK)
        if len(hosts) == sum(map(len, cluster.values())):
            reader.claim_int(Fact.NODE_COUNT, WORLD_SIZE)
        elif reader.integer(WORLD_SIZE, 1) not in (None, len(hosts)):
            reader.note(f"{reader.origin(WORLD_SIZE)} counts replicas without a rank, too: not used")
