"""MPI: several on PATH, and packages that were built for another."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.checks.finding import OK, PROBLEM, WARNING
from launcher.machine.mpi import Mpi, list_starters
from launcher.machine.packages import Package, find_packages
from tests.unit.checks.cases import Machine, case, levels, looker, only

look = looker("mpi")

OMPI, HYDRA = Mpi("/usr/bin/mpirun", "Open MPI", "4.1.4"), Mpi("/opt/bin/mpiexec", "MPICH", "4.2.0")
INTEL = Mpi("/opt/intel/bin/mpirun", "Intel MPI", "2021.18")


@pytest.mark.parametrize(
    ("mpi", "built", "expected"),
    [
        (OMPI, "Open MPI", [OK]),
        (OMPI, "MPICH", [OK, PROBLEM]),
        (INTEL, "MPICH", [OK]),
        (INTEL, "Open MPI", [OK, PROBLEM]),
        (OMPI, "", [OK]),
    ],
)
def test_packages(tmp_path: Path, mpi: Mpi, built: str, expected: list[str]) -> None:
    """Intel MPI has the library of MPICH; Open MPI has its own."""
    packages = (Package("mpi4py", "3.1.6", "/site", built),)
    assert levels(look(case(Machine(tmp_path, mpi=mpi, packages=packages)))) == expected


def test_mpiruns_on_path_are_named(tmp_path: Path) -> None:
    """One with its version, several, none; the same file behind two names is one."""
    # Named with its version.
    found = only(look(case(Machine(tmp_path, mpi=OMPI, starters=(OMPI.path,)))))
    assert (found.level, found.found) == (OK, "Open MPI 4.1.4, /usr/bin/mpirun")
    # The first is used, and that may be the wrong one.
    several = look(case(Machine(tmp_path, mpi=OMPI, starters=(OMPI.path, HYDRA.path))))
    assert levels(several) == [OK, WARNING] and several[1].found == "/usr/bin/mpirun, /opt/bin/mpiexec"
    # Without an mpirun there is nothing to look at.
    assert look(case(Machine(tmp_path))) == []


def test_starters_on_path(tmp_path: Path) -> None:
    """One per folder; the same file behind two names is one."""
    for folder, name in (("a", "mpirun"), ("a", "mpiexec"), ("b", "mpiexec"), ("c", "other")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_text("#!/bin/sh\n")
        (tmp_path / folder / name).chmod(0o755)
    (tmp_path / "d").symlink_to("a")
    path = ":".join(str(tmp_path / name) for name in ("none", "a", "b", "c", "d"))
    found = [Path(item).relative_to(tmp_path) for item in list_starters({"PATH": path})]
    assert found == [Path("a/mpirun"), Path("b/mpiexec")]


@pytest.mark.parametrize(
    ("content", "family"),
    [
        (b"\x7fELF\0libm.so.6\0libmpi.so.40\0libc.so.6\0", "Open MPI"),
        (b"\x7fELF\0libmpi.so.12\0", "MPICH"),
        (b"\x7fELF\0libmpi.so.12\0libmpi.so.40\0", ""),
        (b"\x7fELF\0libc.so.6\0", ""),
        (b"", ""),
        *((bytes((1 << 20) - cut) + b"\0libmpi.so.12\0", "MPICH") for cut in (0, 1, 5, 13, 14)),
        (b"\0libmpich.a\0" + bytes(3 << 20) + b"\0libmpi.so.40\0", "Open MPI"),
    ],
    ids=lambda value: str(len(value)),
)
def test_what_a_package_was_built_for(tmp_path: Path, content: bytes, family: str) -> None:
    """By the library that its binary names; nothing is imported."""
    site = tmp_path / "lib/python3.11/site-packages"
    (site / "mpi4py").mkdir(parents=True)
    (site / "mpi4py/MPI.cpython-311-x86_64-linux-gnu.so").write_bytes(content)
    (site / "mpi4py-3.1.6.dist-info").mkdir()
    (site / "nvidia_nccl_cu12-2.21.5.dist-info").mkdir()
    (site / "unrelated-1.0.dist-info").mkdir()
    python = tmp_path / "bin/python3.11"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    assert find_packages(str(python), {}) == (
        Package("mpi4py", "3.1.6", str(site), family),
        Package("nvidia_nccl_cu12", "2.21.5", str(site)),
    )
    assert find_packages("/nonexistent/python", {}) is None
