"""Cores, NUMA nodes and GPUs are read from /sys and /proc as machines have them, never wrongly."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.core.model import Core, Gpu
from launcher.core.ranks import parse_cpu_list
from launcher.machine.host import Host
from launcher.machine.numa import parse_pci_address, read_cores, read_gpus, read_layout, render_pci_address
from launcher.planning.recorded import replay
from launcher.planning.snapshot import render_snapshot, take_snapshot
from tests.unit.machines import DGX, ND_V4, ND_V5, Machine, recorded_cpus, write_gpus, write_nodes
from tests.unit.platforms_model import deterministic


def cores(folder: Path, cpus: str) -> list[tuple[int | None, tuple[int, ...]]]:
    """Return (node, CPUs) of the cores that a machine has for these CPUs."""
    found = read_cores(Host(str(folder)), parse_cpu_list(cpus))
    return [(core.node, core.cpus) for core in found]


def test_hardware_threads_are_one_core_and_nodes_are_in_order(tmp_path: Path) -> None:
    """Siblings are CPUs far apart (0 and 4), nodes need not begin with CPU 0."""
    write_nodes(tmp_path, {0: "2-3,6-7", 1: "0-1,4-5"}, siblings=["0,4", "1,5", "2,6", "3,7"])
    assert cores(tmp_path, "0-7") == [(0, (2, 6)), (0, (3, 7)), (1, (0, 4)), (1, (1, 5))]


def test_without_hyperthreading_no_cpu_is_asked_for_its_siblings(tmp_path: Path) -> None:
    """One file says it for all: 96 fewer to read."""
    write_nodes(tmp_path, {0: "0-1"}, siblings=["0,1"], smt=False)
    assert cores(tmp_path, "0-1") == [(0, (0,)), (0, (1,))]


def test_only_cpus_of_ours_are_in_cores(tmp_path: Path) -> None:
    """A sibling outside of the cpuset is somebody else's."""
    write_nodes(tmp_path, {0: "0-3", 1: "4-7"}, siblings=["0-1", "2-3", "4-5", "6-7"])
    assert cores(tmp_path, "1-4") == [(0, (1,)), (0, (2, 3)), (1, (4,))]


def test_nodes_of_memory_alone_offline_cpus_and_holes(tmp_path: Path) -> None:
    """A CPU that no node lists is offline; a node without CPUs holds memory."""
    write_nodes(tmp_path, {0: "0,2", 1: "", 3: "8-9"})
    (tmp_path / "sys/devices/system/node/has_cpu").write_text("0,3\n")
    assert cores(tmp_path, "0-9") == [(0, (0,)), (0, (2,)), (3, (8,)), (3, (9,))]


def test_a_machine_without_numa_has_cores_of_no_node(tmp_path: Path) -> None:
    """No /sys/devices/system/node, or no /sys at all: every CPU is there, its core at least itself."""
    assert cores(tmp_path, "0-1") == [(None, (0,)), (None, (1,))]
    assert cores(tmp_path, "") == []


@deterministic(100)
@given(texts=st.lists(st.text(max_size=12), min_size=6, max_size=6))
def test_whatever_stands_in_these_files_each_cpu_is_in_one_core(
    texts: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Siblings that contradict each other, nodes that overlap, no list at all."""
    folder = tmp_path_factory.mktemp("machine")
    clean = [text.encode("utf-8", "replace").decode() for text in texts]
    write_nodes(folder, {0: clean[0], 1: clean[1]})
    for cpu in range(4):
        path = folder / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(clean[2 + cpu])
    found = [cpu for core in read_cores(Host(str(folder)), frozenset(range(4))) for cpu in core.cpus]
    assert len(found) == len(set(found))
    assert set(found) <= set(range(4))


def gpus(folder: Path, name_gpus: bool = True) -> list[tuple[str, int | None]]:
    return [(gpu.address, gpu.node) for gpu in read_gpus(Host(str(folder)), name_gpus)]


@pytest.mark.parametrize("name_gpus", [True, False])
def test_gpus_are_in_the_order_of_their_addresses(tmp_path: Path, name_gpus: bool) -> None:
    """CUDA counts so; minor numbers are in another order, and 10000 comes after fffe."""
    write_gpus(tmp_path, [("10000:01:00.0", 1), ("0001:00:00.0", 0), ("fffe:00:00.0", 1)])
    assert gpus(tmp_path, name_gpus) == [("0001:00:00.0", 0), ("fffe:00:00.0", 1), ("10000:01:00.0", 1)]


def test_a_container_with_some_of_the_gpus_has_these(tmp_path: Path) -> None:
    """/proc may list all of the machine; minor numbers tell whose device files are there."""
    write_gpus(tmp_path, [(f"000{i}:00:00.0", i // 2) for i in range(4)], minors=[3, 2, 1, 0], exposed=[0, 2])
    assert gpus(tmp_path) == gpus(tmp_path, False) == [("0001:00:00.0", 0), ("0003:00:00.0", 1)]


def test_without_the_drivers_folder_in_proc_sysfs_lists_the_gpus(tmp_path: Path) -> None:
    """If there are as many as device files; else it cannot be told which are ours."""
    write_gpus(tmp_path, [("0001:00:00.0", 0), ("0002:00:00.0", 1)], proc=False)
    assert gpus(tmp_path) == [("0001:00:00.0", 0), ("0002:00:00.0", 1)]
    (tmp_path / "dev/nvidia1").unlink()
    assert gpus(tmp_path) == []


@pytest.mark.parametrize("text", ["-1\n", "", "x", None])
def test_an_unknown_numa_node_is_unknown(tmp_path: Path, text: str | None) -> None:
    """Many virtual machines say -1; some containers hide the file."""
    write_gpus(tmp_path, [("0001:00:00.0", 0)])
    path = tmp_path / "sys/bus/pci/devices/0001:00:00.0/numa_node"
    path.unlink() if text is None else path.write_text(text)
    assert gpus(tmp_path) == [("0001:00:00.0", None)]


def test_gpus_without_anything_about_them_are_unknown(tmp_path: Path) -> None:
    """Device files alone; a driver that lists none of them; no device file."""
    write_gpus(tmp_path, [("0001:00:00.0", 0)])
    (tmp_path / "proc/driver/nvidia/gpus/0001:00:00.0/information").write_text("nonsense\n")
    (tmp_path / "dev/nvidia7").touch()
    assert gpus(tmp_path) == []
    assert gpus(tmp_path / "nowhere") == []


def test_uuids_are_read_if_asked_for_and_known(tmp_path: Path) -> None:
    """The driver may let a reader wait, and writes question marks before a GPU's first use."""
    # The driver may let a reader of these files wait.
    write_gpus(tmp_path, [("0001:00:00.0", 0)])
    assert read_gpus(Host(str(tmp_path)), False) == (Gpu("0001:00:00.0", 0),)
    assert read_gpus(Host(str(tmp_path)), True) == (Gpu("0001:00:00.0", 0, "GPU-0000"),)
    # Before a GPU's first use the driver writes question marks.
    write_gpus(tmp_path, [("0001:00:00.0", 0)], uuids=["GPU-????????-????-????-????-????????????"])
    assert read_gpus(Host(str(tmp_path)))[0].uuid is None


def test_pci_addresses_of_nvml_and_of_the_kernel_are_the_same() -> None:
    """Eight digits of domain, four, or five."""
    address = parse_pci_address("00000001:0A:00.0")
    assert address is not None
    assert render_pci_address(address) == "0001:0a:00.0"
    assert parse_pci_address("10000:01:00.0") == (0x10000, 1, 0, 0)
    assert [parse_pci_address(text) for text in ("", "bind", "None", "0:0", "0:0:0")] == [None] * 5


@pytest.mark.parametrize("build", [DGX, ND_V5, ND_V4], ids=["dgx", "nd-v5", "nd-v4"])
def test_a_snapshot_holds_the_layout(tmp_path: Path, build: type[DGX | ND_V5 | ND_V4]) -> None:
    """What the files of a machine say, its snapshot says: CPUs, cores, nodes and GPUs."""
    host = build(tmp_path, mask="4-7,90")
    recorded = replay(json.loads(render_snapshot(take_snapshot(host, {}))))
    assert read_layout(recorded) == read_layout(host)
    assert recorded.affinity() == host.affinity()
    assert len(read_layout(host).gpus) == 8


def test_a_snapshot_without_nodes_or_with_nonsense_has_no_layout() -> None:
    """Fields of another type are not there."""
    files = {"/dev/nvidia0": 7, **recorded_cpus("1-2", {0: "x"}), "/sys/bus/pci/drivers/nvidia/0:1:0.0": 7}
    layout = read_layout(replay({"files": files, "gpus": 7, "affinity": 3.5}))
    assert layout.cores == (Core((1,)), Core((2,)))
    assert layout.gpus == (Gpu("0000:01:00.0"),)
    assert (layout.own, layout.cpuset) == ((), (1, 2))
    assert read_layout(replay({"environ": {}, "files": [], "gpus": 8})).cores == ()


class Counted(Machine):
    """A machine that counts what is read of it."""

    reads = 0

    def read_text(self, path: str) -> str | None:
        self.reads += 1
        return super().read_text(path)


@pytest.mark.parametrize(("smt", "limit"), [(False, 30), (True, 80)])
def test_few_files_are_read_of_a_large_machine(tmp_path: Path, smt: bool, limit: int) -> None:
    """96 CPUs and 8 GPUs: one file per core where cores have siblings, else a handful."""
    siblings: Sequence[str] = [f"{cpu},{cpu + 48}" for cpu in range(48)] if smt else ()
    write_nodes(tmp_path, {0: "0-23,48-71", 1: "24-47,72-95"}, siblings=siblings, smt=smt)
    write_gpus(tmp_path, [(f"000{i}:00:00.0", i // 4) for i in range(8)])
    host = Counted(tmp_path, "0-95")
    assert len(read_layout(host, name_gpus=False).cores) == (48 if smt else 96)
    assert host.reads <= limit
