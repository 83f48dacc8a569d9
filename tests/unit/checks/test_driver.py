"""The driver against torch's CUDA. No such machine is here: the driver's file is as documented."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.checks.finding import OK, PROBLEM, WARNING
from launcher.checks.libraries import LEAST, NEEDED, find_cuda
from launcher.machine.gpus import DRIVER
from launcher.machine.packages import Package
from tests.unit.checks.cases import Machine, case, looker, only

look = looker("driver")

CLOSED = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Tue Jan  7 10:00:00 UTC 2025\nGCC version:  gcc 12\n"
)
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (dvs-builder)\n"


def host(root: Path, driver: str, torch: str, *more: Package, form: str = CLOSED, gpus: int = 1) -> Machine:
    """Return a machine with a driver and a torch."""
    packages = (Package("torch", torch, "/site"), *more)
    return Machine(
        root, {DRIVER.lstrip("/"): form.format(driver)} if driver else {}, gpus=gpus, packages=packages
    )


@pytest.mark.parametrize(
    ("driver", "torch", "level"),
    [
        *(("560.35.03", "2.6.0+cu126", OK), ("550.54.15", "2.6.0+cu126", WARNING)),
        *(("525.60.13", "2.6.0+cu126", WARNING), ("525.60.11", "2.6.0+cu126", PROBLEM)),
        *(("470.57.02", "2.6.0+cu126", PROBLEM), ("570.86.10", "2.9.0+cu130", PROBLEM)),
        *(("580.65.06", "2.9.0+cu130", OK), ("580.95.05", "1.13.1+cu117", OK)),
        *(("450.80.02", "2.0.0+cu118", WARNING), ("390.46", "1.4.0+cu92", PROBLEM)),
        *(("590.44.01", "9.0+cu131", OK), ("580.95.05", "9.0+cu132", WARNING)),
        *(("595.45.04", "9.0+cu139", OK), ("450.36.06", "1.7.0+cu110", PROBLEM)),
    ],
)
@pytest.mark.parametrize("form", [CLOSED, OPEN], ids=["closed", "open"])
def test_versions(tmp_path: Path, driver: str, torch: str, level: str, form: str) -> None:
    """Older than the major version needs: a problem. Older than the toolkit: a warning."""
    found = only(look(case(host(tmp_path, driver, torch, form=form))))
    assert (found.level, found.found) == (level, driver)


@pytest.mark.parametrize(
    ("torch", "runtime", "expected"),
    [
        *(("2.6.0+cu126", "", (12, 6)), ("2.0.0+cu118", "", (11, 8)), ("1.4.0+cu92", "", (9, 2))),
        *(("2.6.0", "12.4.127", (12, 4)), ("2.6.0", "", None)),
        ("2.3.0a0+40ec155e58.nv24.3", "", (12, 4)),
        ("2.6.0+rocm6.2", "", None),
    ],
)
def test_where_the_version_of_cuda_stands(
    tmp_path: Path, torch: str, runtime: str, expected: tuple[int, int] | None
) -> None:
    """In torch's own version, in the runtime that it requires, or, in NVIDIA's images, in a variable."""
    more = [Package("nvidia_cuda_runtime_cu12", runtime, "/site")] if runtime else []
    seen = case(host(tmp_path, "560.35.03", torch, *more), {"CUDA_VERSION": "12.4.0.041"})
    assert find_cuda(seen, torch) == expected


def test_what_is_looked_at_and_what_can_be_changed(tmp_path: Path) -> None:
    """torch of an image; a forward-compatibility package counts; without a driver nothing."""
    # The driver belongs to the machine: what can be changed in an image is torch.
    found = only(look(case(host(tmp_path, "470.57.02", "2.6.0+cu126"))))
    assert found.expected == "525.60.13 or newer" and found.fix.endswith("a torch for CUDA 11.x or older")
    # A torch for the CPU on a machine with GPUs trains on the CPU.
    assert only(look(case(host(tmp_path, "560.35.03", "2.6.0+cpu")))).level == PROBLEM
    # An image may bring the user's half of a newer driver; then that is the driver.
    machine = host(tmp_path, "535.54.03", "2.9.0+cu130")
    folder = tmp_path / "usr/local/cuda/compat"
    folder.mkdir(parents=True)
    (folder / "libcuda.so.580.65.06").write_text("")
    (folder / "libcuda.so.1").symlink_to("libcuda.so.580.65.06")
    assert only(look(case(machine))).level == PROBLEM
    found = only(look(case(machine, {"LD_LIBRARY_PATH": "/usr/local/cuda/compat"})))
    assert (found.level, found.found) == (OK, "580.65.06")
    # Without GPUs, without torch, without a driver that says its version.
    assert look(case(host(tmp_path / "a", "560.35.03", "2.6.0+cu126", gpus=0))) == []
    assert look(case(Machine(tmp_path / "b", gpus=1))) == []
    assert look(case(host(tmp_path / "c", "", "2.6.0+cu126"))) == []
    # Newest first, and a newer toolkit never needs an older driver.
    drivers = [tuple(map(int, text.split("."))) for text in NEEDED.values()]
    assert list(NEEDED) == sorted(NEEDED, reverse=True) and drivers == sorted(drivers, reverse=True)
    assert {major for major, _ in NEEDED} >= set(LEAST)
