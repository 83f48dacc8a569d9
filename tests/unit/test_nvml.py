"""Facts of GPUs: from NVML as it answers or refuses, from the driver's files without it, for CUDA's names.

NVML itself needs a driver, so its answers are played here; `tests/unit/test_gpu.py` asks a real one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.machine.hardware import Hardware, count_links
from launcher.machine.host import Host
from launcher.machine.nvml import (
    GpuFacts,
    NvLink,
    describe_gpu,
    find_gpu,
    find_nvlink_gbps,
    parse_gpu,
    read_amd_gpus,
    read_gpu_facts,
)
from launcher.planning.assignment import find_visible
from tests.unit.machines import write, write_gpus
from tests.unit.platforms_model import deterministic

UUIDS = ("GPU-aaaa1111-0000-0000-0000-000000000000", "GPU-bbbb2222-0000-0000-0000-000000000000")


def refuse(*_: object) -> Any:
    """Answer as NVML does where a GPU has no such thing."""
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


class Board:
    """Two GPUs, the second at the lower address; their NVLinks lead to each other and to a switch."""

    def __init__(self) -> None:
        self.answers: dict[str, Callable[..., Any]] = {
            "nvmlInit": lambda: None,
            "nvmlShutdown": lambda: None,
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetMinorNumber": lambda gpu: gpu,
            "nvmlDeviceGetPciInfo": lambda gpu: SimpleNamespace(busId=self.address(gpu)),
            "nvmlDeviceGetUUID": lambda gpu: UUIDS[gpu],
            "nvmlDeviceGetName": lambda gpu: b"NVIDIA H200",
            "nvmlDeviceGetMemoryInfo": lambda gpu: SimpleNamespace(total=141 << 30),
            "nvmlDeviceGetMemoryAffinity": lambda gpu, words, scope: [0] * (words - 1) + [1 << gpu],
            "nvmlDeviceGetNvLinkState": self.link_state,
            "nvmlDeviceGetNvLinkRemoteDeviceType": lambda gpu, link: 0 if link < 4 else 2,
            "nvmlDeviceGetNvLinkRemotePciInfo": lambda gpu, link: SimpleNamespace(
                busId=self.address(1 - gpu) if link < 4 else "FFFFFFFF:FF:FF.0"
            ),
            "nvmlDeviceGetFieldValues": lambda gpu, fields: [
                SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=26562))
            ],
            "nvmlDeviceGetEccMode": lambda gpu: [1, 1],
            "nvmlDeviceGetRemappedRows": lambda gpu: (1, 2, 0, gpu),
            "nvmlDeviceGetRetiredPagesPendingStatus": refuse,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda gpu: 0x40 | 0x1,
        }

    @staticmethod
    def address(gpu: int) -> str:
        return f"0000000{2 - gpu}:00:00.0"

    @staticmethod
    def link_state(_: int, link: int) -> int:
        if link >= 18:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return int(link != 17)  # the last one is down

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, answer in self.answers.items():
            monkeypatch.setattr(pynvml, name, answer)


def test_every_fact_that_nvml_states(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In the order of PCI addresses, as CUDA counts; what NVML does not support is None."""
    Board().install(monkeypatch)
    first, second = read_gpu_facts(Host(str(tmp_path)))
    expected = GpuFacts(
        index=0,
        address="0001:00:00.0",
        uuid=UUIDS[1],
        name="NVIDIA H200",
        memory_bytes=141 << 30,
        numa_node=15 * 64 + 1,
        links=(NvLink("gpu", "0002:00:00.0", 4, 212.496), NvLink("switch", None, 13, 212.496)),
        has_ecc=True,
        remapping_failed=True,
        needs_reset=False,
        throttle=("idle", "hot (hardware)"),
    )
    assert expected == first
    assert (second.index, second.address) == (1, "0002:00:00.0")
    assert count_links(first, second) == 4


SWITCHED = NvLink("switch", None, 18, 212.5)
DIRECT = NvLink("gpu", "0002:00:00.0", 4, 200.0)


@pytest.mark.parametrize(
    ("links", "gbps"),
    [
        ([(SWITCHED,)] * 8, 3825.0),
        ([(SWITCHED,)] * 7 + [(NvLink("switch", None, 17, 212.5),)], 3612.5),
        ([(DIRECT,)] * 2, 800.0),
        ([(DIRECT,)] * 4, None),
        ([(SWITCHED,)] * 7 + [()], None),
        ([None], None),
        ([(NvLink("switch", None, 18, None),)], None),
        ([(NvLink(None, None, 18, 212.5),)], None),
        ([], None),
    ],
    ids=["switches", "a-dead-link", "two", "pairs", "one-without", "unasked", "no-rate", "no-end", "no-gpu"],
)
def test_what_nvlinks_give_is_told_only_where_every_gpu_reaches_every_other(
    links: list[tuple[NvLink, ...] | None], gbps: float | None
) -> None:
    """Through switches, or of two GPUs; in pairs and meshes it depends on which of them a job takes."""
    gpus = [GpuFacts(index, links=each) for index, each in enumerate(links)]
    assert find_nvlink_gbps(gpus) == gbps


def test_the_kernels_numa_node_counts_before_nvmls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """NVML names the memory's; the kernel the device's."""
    Board().install(monkeypatch)
    write(tmp_path, {"sys/bus/pci/devices/0001:00:00.0/numa_node": "1\n"})
    assert read_gpu_facts(Host(str(tmp_path)))[0].numa_node == 1


def test_gpus_whose_device_file_we_were_not_given_are_not_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """NVML counts what the driver has, also in a container that was given some of them."""
    Board().install(monkeypatch)
    write(tmp_path, {"dev/nvidia0": "", "dev/nvidiactl": ""})
    assert [gpu.uuid for gpu in read_gpu_facts(Host(str(tmp_path)))] == [UUIDS[0]]


@pytest.mark.parametrize("name", sorted(set(Board().answers) - {"nvmlInit", "nvmlShutdown"}))
@pytest.mark.parametrize("answer", [refuse, lambda *_: None, lambda *_: b"\xff", lambda *_: -1, None])
def test_an_answer_that_is_missing_costs_that_fact_alone(
    name: str, answer: Callable[..., Any] | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Refused, empty, of another type, or a library too old to have the function: never a traceback."""
    board = Board()
    board.install(monkeypatch)
    if answer is None:
        monkeypatch.delattr(pynvml, name)
    else:
        monkeypatch.setattr(pynvml, name, answer)
    for gpu in read_gpu_facts(Host(str(tmp_path))):
        assert parse_gpu(gpu.index, describe_gpu(gpu)).index == gpu.index


def test_without_nvml_the_driver_names_the_gpus(tmp_path: Path) -> None:
    """This machine has no driver: NVML cannot be loaded."""
    write_gpus(tmp_path, [("0002:00:00.0", 1), ("0001:00:00.0", 0)])
    assert read_gpu_facts(Host(str(tmp_path))) == (
        GpuFacts(0, address="0001:00:00.0", uuid="GPU-0001", name="NVIDIA H200", numa_node=0),
        GpuFacts(1, address="0002:00:00.0", uuid="GPU-0000", name="NVIDIA H200", numa_node=1),
    )


def test_device_files_alone_tell_how_many(tmp_path: Path) -> None:
    """A container without the driver's folder in /proc."""
    write(tmp_path, {"dev/nvidia0": "", "dev/nvidia3": "", "dev/nvidiactl": ""})
    assert read_gpu_facts(Host(str(tmp_path))) == (GpuFacts(0), GpuFacts(1))
    assert read_gpu_facts(Host(str(tmp_path / "nowhere"))) == ()


def test_gpus_of_amd_are_counted_with_their_places(tmp_path: Path) -> None:
    """What is bound to their driver, in the order of addresses."""
    driver = tmp_path / "sys/bus/pci/drivers/amdgpu"
    driver.mkdir(parents=True)
    for address, node in (("0000:c1:00.0", "1"), ("0000:41:00.0", "0")):
        write(tmp_path, {f"sys/bus/pci/devices/{address}/numa_node": f"{node}\n"})
        (driver / address).symlink_to(f"../../devices/{address}")
    (driver / "module").symlink_to("../../../../module/amdgpu")
    (driver / "bind").touch()
    assert [
        (gpu.index, gpu.vendor, gpu.address, gpu.numa_node) for gpu in read_amd_gpus(Host(str(tmp_path)))
    ] == [(0, "AMD", "0000:41:00.0", 0), (1, "AMD", "0000:c1:00.0", 1)]


FACTS = GpuFacts(
    index=0,
    address="0001:00:00.0",
    uuid=UUIDS[0],
    links=(NvLink("switch", None, 18, 212.5), NvLink(None, "0000:00:01.0", 1)),
    throttle=("power cap",),
    needs_reset=True,
)


def test_a_gpu_is_the_same_after_a_snapshot() -> None:
    """Every field, known or not."""
    assert parse_gpu(0, describe_gpu(FACTS)) == FACTS
    assert parse_gpu(3, describe_gpu(GpuFacts(3))) == GpuFacts(3)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@deterministic(100)
@given(fields=st.fixed_dictionaries({}, optional=dict.fromkeys(describe_gpu(FACTS), JSON)))
def test_any_fields_of_a_snapshot_are_a_gpu(fields: dict[str, object]) -> None:
    """Of other types than they should have: as if they were not there."""
    gpu = parse_gpu(0, fields)
    assert parse_gpu(0, describe_gpu(gpu)) == gpu


@pytest.mark.parametrize(
    ("listed", "indices"),
    [
        (None, {0, 1}),
        ("", set()),
        ("1", {1}),
        ("1,0", {0, 1}),
        ("0,7,1", {0}),
        ("GPU-bbbb", {1}),
        ("GPU-", set()),  # of both
        ("GPU-bbbb2222-0000-0000-0000-000000000000,0", {1}),  # one kind of names, as on an H200
        (f"MIG-{UUIDS[1]}/1/0", {1}),
        ("MIG-unknown", set()),
        ("all", set()),
    ],
)
def test_what_cuda_visible_devices_leaves(listed: str | None, indices: set[int]) -> None:
    """Indices, UUIDs and their beginnings, MIG instances of the older form."""
    gpus = (FACTS, GpuFacts(1, address="0002:00:00.0", uuid=UUIDS[1]))
    environ = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    assert find_visible(environ, Hardware("node", gpus=gpus)) == indices


def test_names_that_mean_no_gpu() -> None:
    """Beyond the last one, negative, ambiguous, or in digits of another script."""
    gpus = (FACTS, GpuFacts(1, uuid=UUIDS[1]))
    names = ("2", "-1", "", "x", "GPU-", "\u0661", "9" * 5000)
    assert [find_gpu(gpus, name) for name in names] == [None] * len(names)
