"""Which of the packages that matter to a job does a Python have? From folder names: nothing is imported.

Importing mpi4py would call MPI_Init, importing torch takes seconds. What a package was built against is
read from the library names in its binaries.

Source: "Recording installed projects" of the Python packaging specifications (NAME-VERSION.dist-info);
ELF, DT_NEEDED; the names of MPI libraries: Open MPI "Version number scheme" (libmpi.so.40 since 3.0),
MPICH ABI Compatibility Initiative (libmpi.so.12: MPICH, Intel MPI, MVAPICH).
"""

from __future__ import annotations

import os
import re

from launcher.core.frozen import frozen
from launcher.machine.mpi import MPICH, OPEN_MPI
from launcher.machine.pythons import import_folders
from launcher.machine.whole import open_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

RUNTIMES = ("nvidia_cuda_runtime", "nvidia_cuda_runtime_cu13", "nvidia_cuda_runtime_cu12")
RUNTIMES_ALL = (*RUNTIMES, "nvidia_cuda_runtime_cu11")
NCCLS = ("nvidia_nccl_cu13", "nvidia_nccl_cu12", "nvidia_nccl_cu11")
BUILT_FOR_MPI = {"mpi4py": ("mpi4py",), "horovod": ("horovod/torch", "horovod/tensorflow")}
"""Packages that are built for one MPI, and the folders with the binaries that say which."""
WANTED = frozenset(("torch", *RUNTIMES_ALL, *NCCLS, *BUILT_FOR_MPI))
FAMILIES = {"libmpi.so.40": OPEN_MPI, "libmpi.so.12": MPICH, "libmpich.so.12": MPICH}
"""Whose library that is; all that has the library of MPICH takes MPICH's place."""
_BEGIN = b"\0libmpi"
_NEEDED = re.compile(rb"\0(libmpi(?:ch)?\.so\.[0-9]+)(?=\0)")
_BINARY_BYTES, _PIECE_BYTES = 16 << 20, 1 << 20
_NAME_BYTES = 40
"""More than a name has that is cut by the end of a piece."""


@frozen
class Package:
    """An installed package.

    Attributes:
        name: As in its metadata, in lower case with underscores.
        version: Of it.
        folder: Where it is imported from.
        mpi: Family of MPI that it was built for; empty if it is for none, for any, or if that is unknown.
    """

    name: str
    version: str
    folder: str
    mpi: str = ""


def find_packages(python: str, environ: Mapping[str, str]) -> tuple[Package, ...] | None:
    """Return those of `WANTED` that a Python would import, the first of a name; None if it is unknown.

    Args:
        python: The interpreter, as in a command line: found through PATH.
        environ: The environment that it would be started with.
    """
    folders = import_folders(python, environ)
    if folders is None:
        return None
    found: dict[str, Package] = {}
    for folder in folders:
        for package in _installed(folder):
            found.setdefault(package.name, package)
    return tuple(found[name] for name in sorted(found))


def _installed(folder: str) -> Iterator[Package]:
    try:
        names = sorted(os.listdir(folder or "."))
    except OSError:
        return
    for entry in names:
        name, dash, version = entry.removesuffix(".dist-info").partition("-")
        name = name.lower().replace(".", "_")
        if dash and entry.endswith(".dist-info") and name in WANTED:
            yield Package(name, version, folder, _built_for(folder, name))


def _built_for(folder: str, name: str) -> str:
    """Return the family of MPI whose library a package's binaries need; empty if not exactly one."""
    if name not in BUILT_FOR_MPI:
        return ""
    files = [file for part in BUILT_FOR_MPI[name] for file in _binaries(os.path.join(folder, part))]
    try:
        needed = {name for file in files for name in _find_mpi(file)}
    except OSError:
        return ""
    families = {FAMILIES.get(name.decode("ascii"), "") for name in needed}
    return families.pop() if len(families) == 1 else ""


def _binaries(folder: str) -> list[str]:
    try:
        return [os.path.join(folder, entry) for entry in os.listdir(folder) if ".so" in entry]
    except OSError:
        return []


def _find_mpi(path: str) -> set[bytes]:
    """Return the names of MPI libraries in the first piece of a binary that has any.

    Horovod's have many MiB: a search for a text is 20 times as fast as one for a pattern, and the names of
    what is needed stand together, near the beginning.
    """
    with open(open_file(path), "rb") as file:
        before = b""
        for _ in range(_BINARY_BYTES // _PIECE_BYTES):
            piece = file.read(_PIECE_BYTES)
            data = before + piece
            if _BEGIN in data:
                found = set(_NEEDED.findall(data))
                if found:
                    return found
            if len(piece) < _PIECE_BYTES:
                break
            before = data[-_NAME_BYTES:]
    return set()
