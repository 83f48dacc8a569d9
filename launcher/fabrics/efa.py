"""AWS's Elastic Fabric Adapter: NCCL reaches it only through the plugin aws-ofi-nccl and libfabric.

The plugin itself sets what the instance type needs (topology file, buffer sizes, protocols), but NCCL must
find it: without the plugin NCCL uses sockets, and says so only at the level INFO.

Source: AWS "Get started with EFA and NCCL" (FI_PROVIDER=efa), aws/aws-ofi-nccl README and release
notes, NCCL "Environment Variables" (NCCL_NET_PLUGIN: libnccl-net-NAME.so).
"""

from __future__ import annotations

from launcher.fabrics.facts import Facts, efa_ports
from launcher.fabrics.finding import ELSEWHERE, Found, Wish, count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

NAMED = ("ofi", "aws-ofi")
"""Names of the plugin after libnccl-net-, in its different versions."""


def find(facts: Facts) -> Found:
    """Return whether adapters and plugin are here, or which of the two is missing."""
    ports = efa_ports(facts)
    usable = facts.reachable(ports)
    if not ports:
        return Found(False, "this node shows no EFA device", fix=ELSEWHERE)
    if not usable:
        why = f"{count(ports, 'EFA')}, but their /dev/infiniband/uverbs* are not exposed to us"
        return Found(False, why, has_hardware=True, fix="docker run --device /dev/infiniband")
    plugin = facts.net_plugin() or _named(facts)[1]
    if plugin:
        return Found(True, f"{count(usable, 'EFA')}, plugin {plugin}", usable, has_hardware=True)
    if facts.told("NCCL_NET_PLUGIN"):
        name = facts.told("NCCL_NET_PLUGIN")
        return Found(False, f"NCCL_NET_PLUGIN={name} is set", has_hardware=True, fix="unset NCCL_NET_PLUGIN")
    if facts.strays:
        folder = facts.strays[0].rpartition("/")[0]
        why = f"aws-ofi-nccl is in {folder}, which the loader does not search: NCCL would take sockets"
        fix = f"LD_LIBRARY_PATH={folder}:$LD_LIBRARY_PATH"
        return Found(False, why, has_hardware=True, fix=fix)
    why = f"{count(usable, 'EFA')}, but aws-ofi-nccl is not installed: NCCL would take sockets"
    fix = "an image with aws-ofi-nccl (AWS Deep Learning Containers, or the EFA installer)"
    return Found(False, why, has_hardware=True, fix=fix)


def _named(facts: Facts) -> tuple[str, str]:
    """Return name and path of a plugin that NCCL loads only if it is named; empty if there is none."""
    if facts.told("NCCL_NET_PLUGIN"):
        return "", ""
    by_name = {path.rpartition("/")[2]: path for path in facts.plugins}
    found = [
        (name, by_name[f"libnccl-net-{name}.so"]) for name in NAMED if f"libnccl-net-{name}.so" in by_name
    ]
    return found[0] if found else ("", "")


def plan(facts: Facts, found: Found, wish: Wish) -> Iterator[tuple[str, str, str]]:
    """Yield the provider, and the plugin's name unless NCCL tries that name by itself."""
    yield "FI_PROVIDER", "efa", found.why
    name, path = _named(facts)
    if name and facts.net_plugin() is None:
        yield "NCCL_NET_PLUGIN", name, f"{path}: NCCL tries libnccl-net.so only"
