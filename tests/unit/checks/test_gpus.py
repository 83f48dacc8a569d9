"""GPUs: in the machine, exposed, visible, and shared."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.checks.case import read_case
from launcher.checks.finding import OK, PROBLEM, WARNING
from launcher.machine.azure import ASSET_TAG, ASSET_TAG_FILE, CONTEXT, Vm, find_kind
from launcher.planning.recorded import replay
from tests.unit.checks.cases import DOCKER, Machine, case, levels, looker, only
from tests.unit.machines import recorded_gpus, write, write_gpus

look = looker("gpus")


@pytest.mark.parametrize(
    ("environ", "fix"),
    [
        ({}, "docker run --gpus all"),
        (
            {"KUBERNETES_SERVICE_HOST": "10.0.0.1"},
            "resources: {limits: {nvidia.com/gpu: N}} for the container",
        ),
    ],
)
def test_a_container_without_the_gpus_of_its_machine(
    tmp_path: Path, environ: dict[str, str], fix: str
) -> None:
    """The driver has them, the container was started without."""
    write_gpus(tmp_path, [("0001:00:00.0", 0), ("0002:00:00.0", 0)], exposed=())
    found = only(look(case(Machine(tmp_path, DOCKER), environ)))
    assert (found.level, found.fix) == (PROBLEM, fix)
    assert found.expected == "some of the 2 that the machine has"


def test_machines_without_some_gpus(tmp_path: Path) -> None:
    """None on a machine for CPUs, some as somebody wanted it, one that a VM has lost."""
    # On a machine for CPUs there is nothing to look at.
    assert look(case(Machine(tmp_path), {"CUDA_VISIBLE_DEVICES": "0"})) == []
    # A container with 1 of 2 is as somebody wanted it.
    write_gpus(tmp_path, [("0001:00:00.0", 0), ("0002:00:00.0", 0)], exposed=(1,))
    found = only(look(case(Machine(tmp_path))))
    assert (found.level, found.found) == (OK, "1 of the machine's 2 exposed to us")
    # A size of VM has a number of GPUs; one that is missing in the machine no option brings back.
    write(tmp_path, {f"sys/bus/pci/drivers/nvidia/000{n}:00:00.0/uevent": "" for n in range(7)})
    environ = {CONTEXT: '{"vm_size": "Standard_ND96isr_H100_v5"}'}
    found = only(look(case(Machine(tmp_path, gpus=7), environ)))
    assert found.level == PROBLEM and found.fix.startswith("use another VM")
    assert found.expected == "8, as every Standard_ND96isr_H100_v5 has"


def test_a_vm_says_nothing_of_a_pod_or_of_amd(tmp_path: Path) -> None:
    """A pod may get some of the GPUs, and AMD's have other device files; a /sys may not show them."""
    pod = {CONTEXT: '{"vm_size": "Standard_ND96isr_H100_v5"}', "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert only(look(case(Machine(tmp_path / "pod", gpus=1), pod))).level == OK
    amd = {CONTEXT: '{"vm_size": "Standard_ND96isr_MI300X_v5"}'}
    assert look(case(Machine(tmp_path / "amd"), amd)) == []


@pytest.mark.parametrize(
    ("text", "level", "found"),
    [
        ("0,1", OK, "2 of 4"),
        ("0,1,2,3", OK, "4 of 4"),
        ("", WARNING, "it hides all GPUs"),
        ("-1", WARNING, "it hides all GPUs"),
        ("0,1,4,2", PROBLEM, "'4' is no GPU here: CUDA sees 2 and ignores the rest"),
        ("0,x", PROBLEM, "'x' is no GPU here: CUDA sees 1 and ignores the rest"),
        ("0,0", PROBLEM, "0 more than once: CUDA then finds no device"),
        ("GPU-aa,MIG-bb", OK, "2 of 4"),
    ],
)
def test_cuda_visible_devices(tmp_path: Path, text: str, level: str, found: str) -> None:
    """CUDA stops at the first entry that is none, and says nothing."""
    seen = look(case(Machine(tmp_path, gpus=4), {"CUDA_VISIBLE_DEVICES": text}))[1]
    assert (seen.level, seen.found) == (level, found)


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("GPU-aaaa,GPU-bbbb", OK),
        ("GPU-a", OK),  # as much of it as is nobody else's
        ("GPU-cccc", PROBLEM),
        ("GPU-", PROBLEM),
    ],
)
def test_uuids_are_compared_with_those_that_are_here(tmp_path: Path, text: str, level: str) -> None:
    """A UUID of another machine is no GPU, and nothing says so before the job does."""
    gpus = [("0001:00:00.0", 0, "GPU-aaaa"), ("0002:00:00.0", 0, "GPU-bbbb")]
    host = replay({"environ": {}, "files": recorded_gpus(gpus)})
    assert look(case(host, {"CUDA_VISIBLE_DEVICES": text}))[1].level == level


@pytest.mark.parametrize(("processes", "expected"), [(1, [OK]), (2, [OK, OK]), (4, [OK]), (8, [OK, WARNING])])
def test_processes(tmp_path: Path, processes: int, expected: list[str]) -> None:
    """More processes than GPUs share them, by accident or not."""
    found = look(case(Machine(tmp_path, gpus=4), process_count=processes))
    assert levels(found) == expected
    assert processes != 8 or found[1].fix == "--nproc-per-node 4"


def test_the_vm_is_asked_for_where_that_is_sure_to_be_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By launcher check on a VM of Azure; never elsewhere, nor on the way to a start."""
    size = "Standard_ND96isr_H100_v5"
    monkeypatch.setattr("launcher.checks.case.ask_vm", lambda _: Vm(size, find_kind(size), "told"))
    azure = Machine(tmp_path / "azure", {ASSET_TAG_FILE.lstrip("/"): ASSET_TAG + "\n"}, gpus=8)
    elsewhere = Machine(tmp_path / "elsewhere", gpus=8)
    asked = [read_case(azure, {}, None, (), asks=True), read_case(azure, {}, None, ())]
    asked += [read_case(elsewhere, {}, None, (), asks=True)]
    assert [seen.vm.name if seen.vm else "" for seen in asked] == [size, "", ""]


@pytest.mark.parametrize(("count", "level"), [(8, OK), (7, PROBLEM), (0, PROBLEM)])
def test_gpus_of_amd_are_counted_against_the_vm(tmp_path: Path, count: int, level: str) -> None:
    """By what their driver has; nothing else is known of them."""
    write(tmp_path, {f"sys/bus/pci/drivers/amdgpu/000{place}:00:00.0": "" for place in range(count)})
    write(tmp_path, {"sys/bus/pci/drivers/amdgpu/bind": ""})
    size = "Standard_ND96isr_MI300X_v5"
    found = only(look(case(Machine(tmp_path), vm=Vm(size, find_kind(size), "test"))))
    assert (found.level, found.found[:1]) == (level, str(count))


def test_gpus_of_amd_without_a_vm(tmp_path: Path) -> None:
    """There is nothing to compare them with."""
    write(tmp_path, {"sys/bus/pci/drivers/amdgpu/0000:03:00.0": ""})
    assert only(look(case(Machine(tmp_path)))).found == "1 of AMD"
