"""Checks of NVIDIA's driver, NCCL and MPI, against what the job's packages were built for."""

from __future__ import annotations

import re

from launcher.checks.case import MACHINE, CheckedNode
from launcher.checks.finding import Findings, fail, ok, warn
from launcher.core.blocks import read_rows
from launcher.core.errors import Unavailable
from launcher.machine.gpus import read_driver_version
from launcher.machine.libraries import find_library
from launcher.machine.mpi import KIN, MPICH, OPEN_MPI
from launcher.machine.packages import NCCLS, RUNTIMES_ALL

TORCH = "torch"
DRIVER = "NVIDIA driver"
NEEDED = {tuple(map(int, cuda.split("."))): oldest for cuda, oldest in read_rows("checks/drivers.txt")}
"""The driver that comes with each toolkit, the oldest that supports all of it. Newest first."""
LEAST = {13: "580", 12: "525.60.13", 11: "450.80.02"}
"""The oldest driver that can run programs of every toolkit of a major version."""
_SUFFIX = re.compile(r"\+cu([0-9]{2,4})\b")
NCCL = "libnccl.so.2"
ABI = {"Intel MPI": MPICH}
"""Families that have the same library as another."""


def check_driver(case: CheckedNode) -> Findings:
    """Compare NVIDIA's driver with the CUDA that the installed torch was built for.

    If the driver is too old, torch reports that CUDA is not available, and trains on the CPU. A driver that
    is older than the toolkit, but of its major version, runs code that was compiled for the GPU; code that is
    compiled at run time (PTX) fails. Compare the driver with the one that torch's CUDA needs.

    Source:
        NVIDIA CUDA Toolkit 13.2 Release Notes, "CUDA Driver", tables 2 (`LEAST`) and 3 (`NEEDED`, the
        first release of each version: "GA"); NVIDIA "CUDA Compatibility" (minor version compatibility;
        forward compatibility packages are in a directory named compat).
    """
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
    what = f"{DRIVER} for torch {torch} (CUDA {cuda[0]}.{cuda[1]})"
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


def check_nccl(case: CheckedNode) -> Findings:
    """Check which ``libnccl.so.2`` torch loads, and which other copies programs beside it may load.

    Two versions in one job hang, or fail with a message that explains nothing ("unhandled system error");
    plugins and settings for one may not fit the other. Report the copy that torch loads, and warn of copies
    of another version.

    Source:
        ld.so(8); PyTorch .ci/manywheel/build_cuda.sh (wheels search NVIDIA's packages first, by an RPATH
        that takes precedence over LD_LIBRARY_PATH).
    """
    copies = _find_copies(case) if case.exposed_count else []
    if not copies:
        return
    names = [f"{version or 'unknown version'} ({path})" for path, version in copies]
    first, own = copies[0]
    others = [
        name for name, (_, version) in zip(names, copies, strict=True) if own and version not in (own, "")
    ]
    if others:
        fix = f"remove the other copy, or make all load one: LD_PRELOAD={first}"
        yield warn(NCCL, "copies of one version", f"{names[0]}; also {', '.join(others)}", fix)
    else:
        yield ok(NCCL, names[0])


def _find_copies(case: CheckedNode) -> list[tuple[str, str]]:
    """Return (path, version) of each copy, beginning with the one that torch loads.

    An unknown version is empty.
    """
    found = find_library(case.host, case.environ, NCCL)
    first = case.environ.get("LD_PRELOAD", "").replace(":", " ").split()
    preloaded = [item for item in found if item.path in first]
    wheel = next((package for package in case.packages or () if package.name in NCCLS), None)
    path = f"{wheel.folder}/nvidia/nccl/lib/{NCCL}" if wheel else ""
    ours = [(path, wheel.version)] if wheel and not any(item.file == path for item in preloaded) else []
    rest = [item for item in found if item not in preloaded and item.file != path]
    before, after = ([(copy.path, copy.version) for copy in copies] for copies in (preloaded, rest))
    return [*before, *ours, *after]


def check_mpi(case: CheckedNode) -> Findings:
    """Check MPI: the first mpirun on PATH, others after it, and packages that were built for another family.

    Under the mpirun of another family, each rank becomes a separate job of one process. Report the mpirun,
    and what does not match it.

    Source:
        MPICH ABI Compatibility Initiative; Open MPI "Version number scheme" (see
        `launcher.machine.packages`).
    """
    try:
        mpi = case.host.find_mpi(case.environ)
    except Unavailable as error:
        (fault,) = error.problems
        yield warn("mpirun", "one that the launcher knows", fault.what, fault.fix)
        return
    if mpi is None:
        return
    yield ok("mpirun", f"{mpi.family} {mpi.version}, {mpi.path}")
    paths = case.host.mpi_starters(case.environ)
    if len(paths) > 1:
        fix = "if your program was built with another one, put its directory first on PATH"
        yield warn("mpiruns on PATH", "one", ", ".join(paths), fix)
    family = ABI.get(mpi.family, KIN.get(mpi.family, mpi.family))
    for package in case.packages or ():
        if package.mpi in (OPEN_MPI, MPICH) and package.mpi != family:
            build = f"pip install --force-reinstall --no-binary :all: --no-deps {package.name}"
            fix = f"the mpirun of {package.mpi} first on PATH, or {build}"
            expected = f"built for {family}, as mpirun is"
            yield fail(f"{package.name} {package.version}", expected, f"built for {package.mpi}", fix)
