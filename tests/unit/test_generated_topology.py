"""A topology file for NCCL where Azure's VM shows no PCI tree: only where the node is as documented."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from launcher.core.model import Policy
from launcher.fabrics.facts import TOPOLOGYD
from launcher.fabrics.topology_file import WORD
from launcher.options.reading import read_options
from launcher.planning.plan import plan_job
from launcher.planning.recorded import replay
from launcher.planning.snapshot import render_snapshot, take_snapshot
from launcher.process.memory_files import name_files
from tests.golden.fabrics import read_fabric
from tests.unit.machines import write, write_gpus
from tests.unit.test_fabrics import Machine, choose, devices, machine, values, vm

V5 = ("0001", "0002", "0003", "0008", "0009", "000a", "000b", "000c")
V4 = {"0001": 1, "0002": 1, "0003": 0, "0004": 0, "000b": 3, "000c": 3, "000d": 2, "000e": 2}
H200, A100 = "Standard_ND96isr_H200_v5", "Standard_ND96asr_v4"


def write_v5_gpus(folder: Path, count: int = 8, node: int | None = None) -> None:
    pairs = [(f"{domain}:00:00.0", place // 4 if node is None else node) for place, domain in enumerate(V5)]
    write_gpus(folder, pairs[:count])


def v4(folder: Path) -> Machine:
    """An ND A100 v4, by its documented addresses: 4 NUMA nodes, of each two GPUs and two ports."""
    write_gpus(folder, [(f"{domain}:00:00.0", node) for domain, node in V4.items()])
    nodes = (1, 1, 0, 0, 3, 3, 2, 2)
    named = {
        f"mlx5_{place}": {
            "at": f"VMBUS:00/a/pci{0x101 + place:04x}:00/{0x101 + place:04x}:00:00.0",
            "driver": "mlx5_core",
            "numa_node": str(node),
            "uverbs": f"uverbs{place}",
            "ports": {"1": {"link_layer": "InfiniBand", "state": "4: ACTIVE", "rate": "200 Gb/sec (4X HDR)"}},
        }
        for place, node in enumerate(nodes)
    }
    return machine(folder, devices(named))


def groups(text: str) -> list[tuple[str, set[str]]]:
    """Return the NUMA node of each switch, and the devices below it."""
    return [
        (cpu.attrib["numaid"], {device.attrib["busid"] for device in switch})
        for cpu in ET.fromstring(text)
        for switch in cpu
    ]


def test_an_nd_h200_v5_has_a_switch_for_each_gpu_and_port(tmp_path: Path) -> None:
    """As Azure's own file has them; no device has the address of a switch, classes are as NCCL reads them."""
    write_v5_gpus(tmp_path)
    fabric = choose(machine(tmp_path, "nd96isr_h200_v5"), vm(H200))
    assert values(fabric)["NCCL_TOPO_FILE"] == WORD
    ((word, text),) = fabric.network.files
    assert word == WORD
    assert groups(text) == [
        (str(place // 4), {f"{domain}:00:00.0", f"{0x101 + place:04x}:00:00.0"})
        for place, domain in enumerate(V5)
    ]
    switches = ET.fromstring(text).findall("cpu/pci")
    assert [switch.attrib["busid"] for switch in switches] == [f"ffff:ff:{n:02x}.0" for n in range(1, 9)]
    assert {switch.attrib["class"] for switch in switches} == {"0x060400"}
    assert {device.attrib["class"] for switch in switches for device in switch} == {"0x030200", "0x020700"}
    assert " />" not in text


def test_an_nd_a100_v4_has_pairs(tmp_path: Path) -> None:
    """Two GPUs and two ports below each switch; the first GPU is on node 1."""
    ((_, text),) = choose(v4(tmp_path), vm(A100)).network.files
    found = groups(text)
    assert [node for node, _ in found] == ["0", "1", "2", "3"]
    assert found[0][1] == {f"{domain}:00:00.0" for domain in ("0003", "0004", "0103", "0104")}
    assert found[1][1] == {f"{domain}:00:00.0" for domain in ("0001", "0002", "0101", "0102")}
    assert found[2][1] == {f"{domain}:00:00.0" for domain in ("000d", "000e", "0107", "0108")}
    assert found[3][1] == {f"{domain}:00:00.0" for domain in ("000b", "000c", "0105", "0106")}


def test_the_whole_machine_is_in_it(tmp_path: Path) -> None:
    """Two of the GPUs in a container, a dead port: NCCL leaves out what is not here."""
    write_v5_gpus(tmp_path, 2)
    fabric = read_fabric("nd96isr_h200_v5")
    fabric["devices"]["mlx5_ib1"]["ports"]["1"]["state"] = "1: DOWN"
    ((_, text),) = choose(machine(tmp_path, fabric), vm(H200)).network.files
    shown = {address for _, devices in groups(text) for address in devices}
    assert len(shown) == 16 and {"0003:00:00.0", "0102:00:00.0"} <= shown


NOTHING: dict[str, str] = {}


@pytest.mark.parametrize(
    ("size", "files", "node"),
    [
        ("Standard_ND40rs_v2", NOTHING, None),
        ("Standard_ND128isr_NDR_GB200_v6", NOTHING, None),
        ("Standard_ND96isr_MI300X_v5", NOTHING, None),
        (H200, {"opt/microsoft/ndv5-topo.xml": '<pci busid="1234:00:00.0"/>'}, None),
        (H200, {f"{TOPOLOGYD[1:]}/virtualTopology.xml": "<system/>"}, None),
        (H200, {"etc/nccl.conf": "NCCL_TOPO_FILE=/mine.xml\n"}, None),
    ],
    ids=["ndv2", "gb200", "mi300x", "own-file", "topologyd", "conf"],
)
def test_where_none_is_wanted_there_is_none(
    size: str, files: Mapping[str, str], node: int | None, tmp_path: Path
) -> None:
    """No documented switches, a file that is there already, or somebody else's word."""
    write_v5_gpus(tmp_path, node=node)
    fabric = choose(machine(tmp_path, "nd96isr_h200_v5", files), vm(size))
    assert "NCCL_TOPO_FILE" not in values(fabric)
    assert fabric.network.files == ()
    assert not any("topology file" in note for note in fabric.notes)


def test_a_node_that_is_not_as_documented_gets_none_and_a_note(tmp_path: Path) -> None:
    """A wrong file would be worse than none: the note names the device."""
    write_v5_gpus(tmp_path, node=1)
    fabric = choose(machine(tmp_path, "nd96isr_h200_v5"), vm(H200))
    assert "NCCL_TOPO_FILE" not in values(fabric)
    (note,) = [note for note in fabric.notes if "topology file" in note]
    assert note.startswith(
        f"no topology file generated: unexpected for {H200}: 0001:00:00.0 on NUMA node 1, "
    )


def test_an_address_that_is_not_documented_gets_none(tmp_path: Path) -> None:
    """Azure may change where the devices of a size are."""
    write_gpus(tmp_path, [("0021:00:00.0", 0)])
    fabric = choose(machine(tmp_path, "nd96isr_h200_v5"), vm(H200))
    assert fabric.network.files == ()
    assert "0021:00:00.0" in fabric.notes[-1]


def test_a_tree_that_the_node_shows_itself_counts(tmp_path: Path) -> None:
    """With bridges above its ports /sys says more than a size can."""
    write_v5_gpus(tmp_path)
    fabric: dict[str, Any] = read_fabric("nd96isr_h200_v5")
    ib0 = fabric["devices"]["mlx5_ib0"]
    ib0["at"] = "pci0101:00/0101:00:01.0/" + ib0["at"].rpartition("/")[2]
    assert choose(machine(tmp_path, fabric), vm(H200)).network.files == ()


def test_a_snapshot_replays_it(tmp_path: Path) -> None:
    """GPUs, ports and what is not there are all recorded."""
    write_v5_gpus(tmp_path)
    host = machine(tmp_path, "nd96isr_h200_v5")
    replayed = replay(json.loads(render_snapshot(take_snapshot(host, vm(H200)))))
    assert choose(replayed, vm(H200)).network.files == choose(host, vm(H200)).network.files != ()


def test_processes_read_it_by_a_path_that_leaves_nothing_behind(tmp_path: Path) -> None:
    """Through a descriptor of this process; the user's own variable stays."""
    write_v5_gpus(tmp_path)
    write(tmp_path, {"proc/self/cgroup": "0::/\n"})
    environ = {**vm(H200), "LAUNCHER_NNODES": "2", "LAUNCHER_NODE_RANK": "0"}
    environ |= {"LAUNCHER_MASTER_ADDR": "10.0.0.4", "LAUNCHER_NPROC_PER_NODE": "2", "LAUNCHER_BIND": "none"}
    host = machine(tmp_path, "nd96isr_h200_v5")
    job = plan_job(environ, host, read_options({"engine": "process"}, environ), ("true",))
    assert job.network is not None
    ((_, text),) = job.network.files
    (setting,) = [item for item in job.settings if item.name == "NCCL_TOPO_FILE"]
    assert (setting.value, setting.policy) == (WORD, Policy.IF_UNSET)
    first, second, own = name_files(
        job, [{"NCCL_TOPO_FILE": WORD}, {"NCCL_TOPO_FILE": WORD}, {"NCCL_TOPO_FILE": "/own"}], becomes=False
    )
    assert first == second
    assert Path(first["NCCL_TOPO_FILE"]).read_text() == text
    assert own == {"NCCL_TOPO_FILE": "/own"}
