"""Azure's settings for a family of VMs; its images have them in /etc/nccl.conf, which no container sees.

NCCL ignores a missing topology file, with a line at the level INFO, and a file of another machine makes its
graph wrong. So a file is named only if it exists, and if it contains every GPU and every port that this node
shows. If there is none at all, one may be generated: see `launcher.fabrics.generated`.

Source: Azure/azhpc-images, /etc/nccl.conf by VM family; NCCL "Environment Variables" (NCCL_TOPO_FILE,
NCCL_GRAPH_FILE, NCCL_IB_PCI_RELAXED_ORDERING, NCCL_IGNORE_CPU_AFFINITY, NCCL_MNNVL_ENABLE, NCCL_NVLS_ENABLE)
and src/init.cc (its message about a missing channel).
"""

from __future__ import annotations

from launcher.fabrics.facts import IMEX_CHANNELS, Facts, TopologyFile
from launcher.fabrics.generated import WORD, find_switches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from launcher.machine.infiniband import Port


def plan_family(facts: Facts, ports: Sequence[Port] = ()) -> Iterator[tuple[str, str, str]]:
    """Yield the settings of the VM's family, including a topology file if one fits."""
    kind = facts.vm.kind if facts.vm else None
    if kind is None or facts.vm is None:
        return
    for name, value in kind.settings:
        yield name, value, f"Azure's setting for {facts.vm.name}"
    if kind.has_imex:
        yield _plan_nvlink(facts.has_imex, facts.vm.name)
    topology = find_topology(facts, ports)
    switches, _ = find_switches(facts, ports)
    if switches:
        why = (
            f"{facts.vm.name}; "
            f"generated from Azure's documentation for the {len(shown(facts, ports))} devices here"
        )
        yield "NCCL_TOPO_FILE", WORD, why
    if topology is None:
        return
    yield (
        "NCCL_TOPO_FILE",
        topology.path,
        f"{facts.vm.name}; all {len(shown(facts, ports))} devices are in it",
    )
    graph = next((item for item in facts.topologies if item.path.endswith("graph.xml")), None)
    if kind.graph and graph is not None:
        yield "NCCL_GRAPH_FILE", graph.path, f"{facts.vm.name}, beside its topology file"


def _plan_nvlink(has_imex: bool, name: str) -> tuple[str, str, str]:
    """Return whether NVLink should lead to other nodes, which requires a channel in /dev.

    Without this setting, NCCL ends the job if the GPUs support it but the channel is missing, and its message
    asks for 0. Other versions silently fall back to InfiniBand.
    """
    if has_imex:
        return "NCCL_MNNVL_ENABLE", "1", f"Azure's setting for {name}, with a channel in {IMEX_CHANNELS}"
    return "NCCL_MNNVL_ENABLE", "0", f"{name}, but {IMEX_CHANNELS} is empty: give the container its devices"


def find_topology(facts: Facts, ports: Sequence[Port] = ()) -> TopologyFile | None:
    """Return the first file with every device of this node; None if there is none, or no device is known."""
    wanted = shown(facts, ports)
    files = [item for item in facts.topologies if item.path.endswith("topo.xml")]
    return next((item for item in files if wanted and wanted <= item.addresses), None)


def shown(facts: Facts, ports: Sequence[Port] = ()) -> set[str]:
    """Return the PCI addresses of the GPUs and ports of this node, in lower case."""
    return {
        address.lower()
        for address in (
            *(gpu.address for gpu in facts.gpus),
            *(port.pci_path[-1] for port in ports if port.pci_path),
        )
    }
