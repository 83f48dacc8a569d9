"""Environment variables that each platform sets: `launcher/rehearse/variables.txt`."""

from __future__ import annotations

import functools
import json

from launcher.core.blocks import Block, read_blocks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.rehearse.nodes import Node

TENSORFLOW_PORT = 2222
ALSO = "also"


def variables(
    platform: str, nodes: Sequence[Node], node: Node, local_rank: int = 0, local_size: int = 1
) -> dict[str, str]:
    """Return what a platform, a block of the file, sets for one of ``local_size`` processes of a node."""
    fields = _fields(nodes, node, local_rank, local_size)
    unset = tuple(f"{{{name}}}" for name, field in fields.items() if field == "")
    return {
        name: value.format_map(fields)
        for name, value in _read(platform).items()
        if not any(field in value for field in unset)
    }


@functools.cache
def _read(platform: str) -> dict[str, str]:
    blocks = {block.name: block for block in read_blocks("rehearse/variables.txt")}

    def collect(block: Block) -> dict[str, str]:
        others = [collect(blocks[name]) for name in block.words(ALSO)]
        own = {name: value for name, value in block.fields.items() if name != ALSO}
        return {name: value for part in (*others, own) for name, value in part.items()}

    return collect(blocks[platform])


def _fields(nodes: Sequence[Node], node: Node, local_rank: int, local_size: int) -> dict[str, object]:
    """Return the fields of the file; ``loopback_master`` and ``several_master`` are empty for other jobs."""
    count, first, master = len(nodes), node.index * local_size, nodes[0]
    addresses = [other.address for other in nodes]
    config = {
        "cluster": {"worker": [f"{address}:{TENSORFLOW_PORT}" for address in addresses]},
        "task": {"type": "worker", "index": node.index},
        "environment": "cloud",
    }
    is_named = count > 1 and master.hostname == "node0"
    return {
        "count": count,
        "node": node.index,
        "number": node.index + 1,
        "is_first": "false" if node.index else "true",
        "name": node.name,
        "hostname": node.hostname,
        "master": master.address,
        "master_hostname": master.hostname,
        "master_or_localhost": master.address if count > 1 else "localhost",
        "several_master": master.address if count > 1 else "",
        "loopback_master": master.address if master.hostname == master.address else "",
        "addresses": ",".join(addresses),
        "addresses_semicolon": ";".join(addresses),
        "addresses_cores": " ".join(f"{address} 1" for address in addresses),
        "rank": first + local_rank,
        "local_rank": local_rank,
        "local_size": local_size,
        "world_size": count * local_size,
        "node_ranks": ",".join(str(first + index) for index in range(local_size)),
        "each_local_size": f"{local_size}(x{count})" if count > 1 else local_size,
        "nodelist": f"node[0-{count - 1}]" if is_named else ",".join(other.hostname for other in nodes),
        "tf_config": json.dumps(config, separators=(",", ":")),
    }
