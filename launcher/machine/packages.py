"""Finds the packages of a Python that matter to a job, by directory names and without importing them.

Importing mpi4py would call MPI_Init, and importing torch takes seconds. The MPI that a package was built for
is read from the library names in its binaries.

Source: "Recording installed projects" of the Python packaging specifications (NAME-VERSION.dist-info);
ELF, DT_NEEDED; the names of MPI libraries: Open MPI "Version number scheme" (libmpi.so.40 since 3.0),
MPICH ABI Compatibility Initiative (libmpi.so.12: MPICH, Intel MPI, MVAPICH).
"""

from __future__ import annotations

import os
import re

from launcher.core.errors import attempt
from launcher.core.frozen import frozen
from launcher.machine.files import open_file
from launcher.machine.mpi import MPICH, OPEN_MPI
from launcher.machine.pythons import import_folders, list_installed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

RUNTIMES = ("nvidia_cuda_runtime", "nvidia_cuda_runtime_cu13", "nvidia_cuda_runtime_cu12")
RUNTIMES_ALL = (*RUNTIMES, "nvidia_cuda_runtime_cu11")
NCCLS = ("nvidia_nccl_cu13", "nvidia_nccl_cu12", "nvidia_nccl_cu11")
BUILT_FOR_MPI = {"mpi4py": ("mpi4py",), "horovod": ("horovod/torch", "horovod/tensorflow")}
"""Packages that are built for one MPI, and the directories whose binaries show which one."""
WANTED = frozenset(("torch", *RUNTIMES_ALL, *NCCLS, *BUILT_FOR_MPI))
FAMILIES = {"libmpi.so.40": OPEN_MPI, "libmpi.so.12": MPICH, "libmpich.so.12": MPICH}
"""Families of MPI libraries; MPICH also stands for all MPIs with its library name."""
_NEEDED = re.compile(rb"\0(libmpi(?:ch)?\.so\.[0-9]+)(?=\0)")
_BINARY_BYTES = 16 << 20


@frozen
class Package:
    """An installed package.

    Attributes:
        name: Name in its metadata, in lower case with underscores.
        version: Its version.
        folder: Directory that it is imported from.
        mpi: MPI family that it was built for; empty for none, for any, or if unknown.
    """

    name: str
    version: str
    folder: str
    mpi: str = ""


def find_packages(python: str, environ: Mapping[str, str]) -> tuple[Package, ...] | None:
    """Return the packages in `WANTED` that a Python would import, one per name; None if unknown.

    Args:
        python: The interpreter as on a command line: a path, or a name on PATH.
        environ: The environment that it would be started with.
    """
    folders = import_folders(python, environ)
    if folders is None:
        return None
    found: dict[str, Package] = {}
    for folder in folders:
        for name, version in list_installed(folder or "."):
            if name in WANTED and name not in found:
                found[name] = Package(name, version, folder, _built_for(folder, name))
    return tuple(found[name] for name in sorted(found))


def parse_packages(recorded: object) -> tuple[Package, ...] | None:
    """Return the packages in a snapshot; None if unknown."""
    if not isinstance(recorded, list):
        return None
    items = [item if isinstance(item, dict) else {} for item in recorded]
    return tuple(Package(*(str(item.get(name, "")) for name in Package.__annotations__)) for item in items)


def _built_for(folder: str, name: str) -> str:
    """Return the MPI family whose library a package's binaries need; empty unless it is exactly one."""
    if name not in BUILT_FOR_MPI:
        return ""
    places = [os.path.join(folder, part) for part in BUILT_FOR_MPI[name]]
    found = ((place, name) for place in places for name in attempt(os.listdir, place) or ())
    files = [os.path.join(place, name) for place, name in found if ".so" in name]
    try:
        needed = {name for file in files for name in _find_mpi(file)}
    except OSError:
        return ""
    families = {FAMILIES.get(name.decode("ascii"), "") for name in needed}
    return families.pop() if len(families) == 1 else ""


def _find_mpi(path: str) -> set[bytes]:
    """Return the names of MPI libraries in the first 16 MiB of a binary: they are near its beginning."""
    with open(open_file(path), "rb") as file:
        return set(_NEEDED.findall(file.read(_BINARY_BYTES)))
