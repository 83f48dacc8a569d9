"""Checks MPI: the first mpirun on PATH, others after it, and packages that were built for another family.

Under the mpirun of another family, each rank becomes a separate job of one process.

Source: MPICH ABI Compatibility Initiative; Open MPI "Version number scheme" (see
`launcher.machine.packages`).
"""

from __future__ import annotations

from launcher.checks.case import CheckedNode
from launcher.checks.finding import PROBLEM, WARNING, Finding, ok
from launcher.core.errors import Unavailable
from launcher.machine.mpi import KIN, MPICH, OPEN_MPI, Mpi

ABI = {"Intel MPI": MPICH}
"""Families that have the same library as another."""


def look(case: CheckedNode) -> list[Finding]:
    """Report the mpirun, and what does not match it."""
    try:
        mpi = case.host.find_mpi(case.environ)
    except Unavailable as error:
        (problem,) = error.problems
        return [Finding("mpi", WARNING, "mpirun", "one that the launcher knows", problem.what, problem.fix)]
    if mpi is None:
        return []
    first = ok("mpi", "mpirun", f"{mpi.family} {mpi.version}, {mpi.path}")
    paths = case.host.mpi_starters(case.environ)
    fix = "if your program was built with another one, put its directory first on PATH"
    several = Finding("mpi", WARNING, "mpiruns on PATH", "one", ", ".join(paths), fix)
    return [first, *([several] if len(paths) > 1 else []), *_look_at_packages(case, mpi)]


def _look_at_packages(case: CheckedNode, mpi: Mpi) -> list[Finding]:
    family = ABI.get(mpi.family, KIN.get(mpi.family, mpi.family))
    built = [package for package in case.packages or () if package.mpi in (OPEN_MPI, MPICH)]
    return [
        Finding(
            "mpi",
            PROBLEM,
            f"{package.name} {package.version}",
            f"built for {family}, as mpirun is",
            f"built for {package.mpi}",
            f"the mpirun of {package.mpi} first on PATH, or pip install --force-reinstall --no-binary "
            f":all: --no-deps {package.name}",
        )
        for package in built
        if package.mpi != family
    ]
