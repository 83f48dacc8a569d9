"""Checks MPI: the first mpirun on PATH, others after it, and packages that were built for another family.

Under the mpirun of another family, each rank becomes a separate job of one process.

Source: MPICH ABI Compatibility Initiative; Open MPI "Version number scheme" (see
`launcher.machine.packages`).
"""

from __future__ import annotations

from launcher.checks.case import CheckedNode
from launcher.checks.finding import Findings, fail, ok, warn
from launcher.core.errors import Unavailable
from launcher.machine.mpi import KIN, MPICH, OPEN_MPI

ABI = {"Intel MPI": MPICH}
"""Families that have the same library as another."""


def look(case: CheckedNode) -> Findings:
    """Report the mpirun, and what does not match it."""
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
