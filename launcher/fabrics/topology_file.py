"""Azure's settings for a family of VMs, and NCCL's topology file. Pure.

Azure's images have the settings in /etc/nccl.conf, which no container sees. NCCL ignores a missing topology
file, with a line at the level INFO, and a file of another machine makes its graph wrong. So a file is named
only if it exists, and if it contains every GPU and every port that this node shows.

If there is none, one is generated of what Azure documents, if the VM's own tree does not show it. Under
Hyper-V each GPU and each port is the only device in a PCI domain of its own. /sys shows no switch, and NCCL
considers every GPU far from every port, so GPUDirect RDMA stays off. The size of the VM determines the
switches of the machine, and a device always has the same domain. If the node shows something else, there is
no file. The file contains only what /sys does not show: the machine's switches, and the devices below them,
as Azure's own files do. NCCL leaves out the devices that are not here, and fills in the rest.

Source: Azure/azhpc-images, /etc/nccl.conf and topology files by VM family; NCCL "Environment Variables"
(NCCL_TOPO_FILE, NCCL_GRAPH_FILE, NCCL_NET_GDR_LEVEL, NCCL_IB_PCI_RELAXED_ORDERING, NCCL_IGNORE_CPU_AFFINITY,
NCCL_MNNVL_ENABLE, NCCL_NVLS_ENABLE), src/init.cc (its message about a missing channel), src/graph/xml.cc
(format, version 1) and topo.cc.
"""

from __future__ import annotations

from launcher.fabrics.facts import IMEX_CHANNELS, Facts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from launcher.machine.azure import Switch
    from launcher.machine.infiniband import Port

WORD = "{nccl-topology}"
"""Placeholder in a plan for the file's path, which is known when the job starts."""
GPU, PORT, BRIDGE = "0x030200", "0x020700", "0x060400"
"""PCI classes."""
WIDTH = 16
OWN_DEPTH = 2
"""Path length of a device whose tree is not shown: the root, and the device itself."""


def plan_family(facts: Facts, ports: Sequence[Port] = ()) -> Iterator[tuple[str, str, str]]:
    """Yield the settings of the VM's family, including a topology file if one fits."""
    kind, name = facts.kind, facts.vm_name
    if kind is None:
        return
    for variable, value in kind.settings:
        yield variable, value, f"Azure's setting for {name}"
    if kind.has_imex:
        # Without it NCCL ends the job if the GPUs support NVLink between nodes but the channel is missing,
        # and its message asks for 0. Other versions silently fall back to InfiniBand.
        with_it = f"Azure's setting for {name}, with a channel in {IMEX_CHANNELS}"
        without = f"{name}, but {IMEX_CHANNELS} is empty: give the container its devices"
        yield "NCCL_MNNVL_ENABLE", str(int(facts.has_imex)), with_it if facts.has_imex else without
    shown = _list_shown(facts, ports)
    if find_unexpected(facts, ports) == "":
        why = f"{name}; generated from Azure's documentation for the {len(shown)} devices here"
        yield "NCCL_TOPO_FILE", WORD, why
    fitting = (path for path in _list_files(facts) if shown and shown.keys() <= facts.topologies[path])
    for path in [*fitting][:1]:
        yield "NCCL_TOPO_FILE", path, f"{name}; all {len(shown)} devices are in it"
        graphs = [path for path in facts.topologies if path.endswith("graph.xml")]
        if kind.graph and graphs:
            yield "NCCL_GRAPH_FILE", graphs[0], f"{name}, beside its topology file"


def _list_files(facts: Facts) -> list[str]:
    return [path for path in facts.topologies if path.endswith("topo.xml")]


def _list_shown(facts: Facts, ports: Sequence[Port]) -> dict[str, int | None]:
    """Return the PCI addresses of this node's GPUs and ports, in lower case, and the NUMA node of each."""
    nodes = {gpu.address: gpu.node for gpu in facts.gpus}
    nodes |= {port.pci_path[-1]: port.numa_node for port in ports if port.pci_path}
    return {address.lower(): node for address, node in sorted(nodes.items())}


def find_unexpected(facts: Facts, ports: Sequence[Port]) -> str | None:
    """Return why a generated file would be wrong, empty if it is right; None if none is wanted.

    None is wanted if there is a file already, or if the VM's own tree shows more than we know.
    """
    kind, is_shown = facts.kind, any(len(port.pci_path) > OWN_DEPTH for port in ports)
    has_file = facts.has_topologyd or bool(_list_files(facts))
    if kind is None or not kind.switches or not ports or not facts.gpus or has_file or is_shown:
        return None
    known = {_address(domain): s.node for s in kind.switches for domain in (*s.gpus, *s.ports)}
    shown = _list_shown(facts, ports).items()
    strange = [(one, node) for one, node in shown if one not in known or node not in (None, known[one])]
    wrong = ", ".join(f"{one} on NUMA node {'?' if node is None else node}" for one, node in strange)
    return f"no topology file generated: unexpected for {facts.vm_name}: {wrong}" if wrong else ""


def _address(domain: int) -> str:
    return f"{domain:04x}:00:00.0"


def render_topology(switches: Sequence[Switch]) -> str:
    """Return the text of the topology file."""
    lines = ['<system version="1">']
    for node in sorted({switch.node for switch in switches}):
        lines.append(f'  <cpu numaid="{node}">')
        for place, switch in enumerate(switches, 1):
            if switch.node == node:
                # no device has this address, so NCCL finds nothing about it in /sys
                lines.append(f"    {_pci(f'ffff:ff:{place:02x}.0', BRIDGE, switch.speed)}>")
                below = [*((gpu, GPU) for gpu in switch.gpus), *((port, PORT) for port in switch.ports)]
                lines += [f"      {_pci(_address(one), kind, switch.speed)}/>" for one, kind in below]
                lines.append("    </pci>")
        lines.append("  </cpu>")
    return "\n".join([*lines, "</system>", ""])


def _pci(address: str, kind: str, speed: str) -> str:
    return f'<pci busid="{address}" class="{kind}" link_speed="{speed}" link_width="{WIDTH}"'
