"""The MPI families that tests start for real, where ``bash tools/test.sh`` has put them."""

from __future__ import annotations

import os
import subprocess
from typing import NamedTuple

import pytest

FAMILIES = {
    "openmpi4": "bin/mpirun",
    "openmpi5": "bin/mpirun",
    "mpich": "bin/mpiexec",
    "impi": "bin/mpiexec.hydra",
}
DEBIAN_MPIRUN = "/usr/bin/mpirun"


class Mpi(NamedTuple):
    """One MPI's starter, and the variables it needs.

    Attributes:
        name: A key of ``FAMILIES``.
        mpirun: Path of its mpirun, mpiexec or mpiexec.hydra; all take ``-n 2 COMMAND``.
        environ: To be added to a test's own environment; it has a PATH.
    """

    name: str
    mpirun: str
    environ: dict[str, str]


def find_mpi(family: str) -> Mpi:
    """Return the MPI of this family, or fail the test.

    Open MPI 4 is Debian's where the machine has it, else the one of the wheel.
    """
    if family == "openmpi4" and _is_open_mpi_4(DEBIAN_MPIRUN):
        return Mpi(family, DEBIAN_MPIRUN, _environ(""))
    folder = os.path.join(mpis_folder(), family)
    mpirun = os.path.join(folder, FAMILIES[family])
    if not os.access(mpirun, os.X_OK):
        pytest.fail(f"no {mpirun}: run bash tools/test.sh", pytrace=False)
    return Mpi(family, mpirun, _environ(folder))


def mpis_folder() -> str:
    """Return the folder with one folder per family, as ``tools/setup.sh`` names it."""
    home_cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    cache = os.environ.get("LAUNCHER_CACHE") or os.path.join(home_cache, "cluster-launcher")
    return os.environ.get("LAUNCHER_TEST_MPIS") or os.path.join(cache, "mpis")


def _environ(folder: str) -> dict[str, str]:
    # Open MPI refuses root unless told twice; 5 reads the same names.
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    path = os.environ.get("PATH", os.defpath)
    if not folder:
        return allowed | {"PATH": path}
    # On PATH because Intel's mpirun looks for its own mpiexec.hydra there; the libraries are for
    # programs that call MPI_Init; each MPI ignores the others' root.
    return allowed | {
        "PATH": f"{folder}/bin:{path}",
        "LD_LIBRARY_PATH": f"{folder}/lib",
        **({"I_MPI_ROOT": folder} if folder.endswith("impi") else {}),
    }


def _is_open_mpi_4(mpirun: str) -> bool:
    if not os.access(mpirun, os.X_OK):
        return False
    said = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False)
    return "(Open MPI) 4." in said.stdout
