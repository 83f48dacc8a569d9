"""Compares NVIDIA's driver with the CUDA that the installed torch was built for.

If the driver is too old, torch reports that CUDA is not available, and trains on the CPU. A driver that is
older than the toolkit, but of its major version, runs code that was compiled for the GPU; code that is
compiled at run time (PTX) fails.

Source: NVIDIA CUDA Toolkit 13.2 Release Notes, "CUDA Driver", tables 2 (`LEAST`) and 3 (`NEEDED`, the first
release of each version: "GA"); NVIDIA "CUDA Compatibility" (minor version compatibility; forward
compatibility packages are in a directory named compat).
"""

from __future__ import annotations

import re

from launcher.checks.case import MACHINE, CheckedNode
from launcher.checks.finding import Findings, fail, ok, warn
from launcher.core.blocks import read_rows
from launcher.machine.gpus import read_driver_version
from launcher.machine.libraries import find_library
from launcher.machine.packages import RUNTIMES_ALL

TORCH = "torch"
WHAT = "NVIDIA driver"
NEEDED = {tuple(map(int, cuda.split("."))): oldest for cuda, oldest in read_rows("checks/drivers.txt")}
"""The driver that comes with each toolkit, the oldest that supports all of it. Newest first."""
LEAST = {13: "580", 12: "525.60.13", 11: "450.80.02"}
"""The oldest driver that can run programs of every toolkit of a major version."""
_SUFFIX = re.compile(r"\+cu([0-9]{2,4})\b")


def look(case: CheckedNode) -> Findings:
    """Compare the driver with the one that torch's CUDA needs."""
    name, torch = case.version_of(TORCH)
    if not case.exposed_count or not name:
        return
    if torch.endswith("+cpu"):
        fix = "install a torch with CUDA: https://pytorch.org/get-started/locally"
        yield fail(f"torch {torch}", "a torch built for CUDA", "one without", fix)
        return
    cuda, driver = find_cuda(case, torch), _find_driver(case)
    if cuda is None or driver is None:
        return
    what = f"{WHAT} for torch {torch} (CUDA {cuda[0]}.{cuda[1]})"
    full = next((NEEDED[known] for known in NEEDED if known <= cuda and known[0] == cuda[0]), None)
    least = LEAST.get(cuda[0], full)
    older = f"a torch for CUDA {_newest_for(driver)} or older" if _newest_for(driver) else "an older torch"
    newer = f"a newer driver{'' if case.runtime == MACHINE else ' on the machine, not in the image'}"
    fix = f"{newer}, or {older}"
    if least is not None and _numbers(driver) < _numbers(least):
        yield fail(what, f"{least} or newer", driver, fix)
    elif full is not None and _numbers(driver) < _numbers(full):
        expected = f"{full} or newer for all of it; kernels that are compiled at run time from PTX may fail"
        yield warn(what, expected, driver, fix)
    else:
        yield ok(what, driver)


def find_cuda(case: CheckedNode, torch: str) -> tuple[int, int] | None:
    """Return the CUDA version that torch was built for, e.g. (12, 6) for ``2.6.0+cu126``; None if unknown."""
    suffix = _SUFFIX.search(torch)
    if suffix:
        return int(suffix[1][:-1]), int(suffix[1][-1])
    text = case.environ.get("CUDA_VERSION", "") if ".nv" in torch else case.version_of(*RUNTIMES_ALL)[1]
    parts = text.split(".")
    is_version = len(parts) > 1 and all(part.isascii() and part.isdecimal() for part in parts[:2])
    return (int(parts[0][:4]), int(parts[1][:4])) if is_version else None


def _find_driver(case: CheckedNode) -> str | None:
    """Return the version of the driver in use: the forward compatibility package's or the kernel's."""
    used = next(iter(find_library(case.host, case.environ, "libcuda.so.1")), None)
    if used is not None and "/compat/" in used.path and _numbers(used.version):
        return used.version
    return read_driver_version(case.host)


def _newest_for(driver: str) -> str:
    """Return the newest CUDA whose programs a driver can run; empty if the driver is older than all known."""
    majors = [major for major, least in LEAST.items() if _numbers(driver) >= _numbers(least)]
    if majors:
        return f"{majors[0]}.x"
    return next(
        (f"{a}.{b}" for (a, b), least in NEEDED.items() if a < 11 and _numbers(driver) >= _numbers(least)), ""
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isascii() and part.isdecimal())
