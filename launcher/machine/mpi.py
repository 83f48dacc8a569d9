"""Finds mpirun on PATH, and reads its family and version.

No MPI library is loaded: ``mpirun --version`` prints its version and exits. The first line of each family, as
the real programs print it (Spectrum MPI and MVAPICH from their documentation)::

    mpirun (Open MPI) 4.1.4
    mpirun (Open MPI) 5.0.11
    mpirun (IBM Spectrum MPI) 10.4.0.3
    HYDRA build details:                         (MPICH, and MVAPICH, whose name follows further down)
    Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)
"""

from __future__ import annotations

import os

from launcher.core.errors import LauncherError, make_error
from launcher.core.frozen import frozen
from launcher.core.redact import printable, quote
from launcher.machine.pythons import find_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

OPEN_MPI = "Open MPI"
SPECTRUM = "Spectrum MPI"
MPICH = "MPICH"
MVAPICH = "MVAPICH"
INTEL = "Intel MPI"
PATTERNS = (
    (OPEN_MPI, r"\((?:Open MPI|OpenRTE)\) ([0-9]+[0-9.]*)"),
    (SPECTRUM, r"\(IBM Spectrum MPI\) ([0-9]+[0-9.]*)"),
    (INTEL, r"Intel\(R\) MPI Library .*Version ([0-9]+[0-9.]*)"),
    (MVAPICH, r"(?is)HYDRA build details:\s*Version:\s*([0-9]+[0-9.]*)(?=.*mvapich)"),
    (MPICH, r"HYDRA build details:\s*Version:\s*([0-9]+[0-9.]*)"),
)
"""(family, pattern of its output with the version); the first match counts."""

KIN = {SPECTRUM: OPEN_MPI, MVAPICH: MPICH}
"""Families that accept the options of another one, from which they are derived."""

NAMES = ("mpirun", "mpiexec")
VERSION_TIMEOUT_S = 20.0
NEEDED = ("PATH", "HOME", "LD_LIBRARY_PATH", "OPAL_PREFIX", "I_MPI_ROOT", "TMPDIR")
"""Variables that a starter needs to find its files and print its version. Open MPI 5 needs any HOME."""
QUOTED_LENGTH = 120


@frozen
class Mpi:
    """An installed MPI starter.

    Attributes:
        path: Absolute path of mpirun or mpiexec, in the directory of its daemons.
        family: One of the families in `PATTERNS`.
        version: Its version, e.g. ``"4.1.4"``.
    """

    path: str
    family: str
    version: str

    def __str__(self) -> str:
        return f"{self.family} {self.version} {os.path.basename(self.path)}"

    @property
    def major(self) -> int:
        """First number of the version."""
        return int(self.version.partition(".")[0])

    @property
    def dialect(self) -> str:
        """Family whose options it accepts: Open MPI, MPICH or Intel MPI."""
        return KIN.get(self.family, self.family)

    @property
    def uses_prrte(self) -> bool:
        """Whether it is Open MPI 5 or newer: PRRTE starts its processes, and renames most options."""
        return self.family == OPEN_MPI and self.major >= 5


def find_mpi(environ: Mapping[str, str]) -> Mpi | None:
    """Return the first mpirun on PATH, or else the first mpiexec; None without either.

    Runs it once, to read its version, with only the variables in `NEEDED`.

    Raises:
        Unavailable: It does not report its version, or is of an unknown family.
    """
    import subprocess

    path = next(filter(None, (find_program(name, environ) for name in NAMES)), None)
    if path is None:
        return None
    path = _beside_its_daemons(path)
    try:
        done = subprocess.run(
            [path, "--version"],
            env={"HOME": "/"} | {name: environ[name] for name in NEEDED if name in environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise _unknown_mpirun(f"{path} --version: {error}") from error
    return parse_version(path, done.stdout.decode(errors="replace"))


def list_starters(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the starters on PATH: each directory's mpirun or else mpiexec, without repeats. Runs nothing."""
    found: dict[str, str] = {}
    for folder in environ.get("PATH", os.defpath).split(os.pathsep):
        path = next(filter(None, (find_program(name, {"PATH": folder}) for name in NAMES)), None)
        if folder and path:
            found.setdefault(os.path.realpath(path), path)
    return tuple(found.values())


def parse_version(path: str, text: str) -> Mpi:
    """Return the starter that the output of ``mpirun --version`` describes.

    Raises:
        Unavailable: It is of an unknown family.
    """
    import re

    for family, pattern in PATTERNS:
        match = re.search(pattern, text)
        if match:
            return Mpi(path, family, match[1].strip("."))
    first = quote(text.strip().partition("\n")[0], QUOTED_LENGTH)
    raise _unknown_mpirun(f"{path} is none of {_known()}: its first line is {first!r}")


def parse_mpi(recorded: Mapping[str, object]) -> Mpi | None:
    """Return the starter in a snapshot; None if there is none.

    Raises:
        Unavailable: A problem with it was recorded.
    """
    if "problem" in recorded:
        raise _unknown_mpirun(str(recorded["problem"]))
    path, family, version = (str(recorded.get(name)) for name in ("path", "family", "version"))
    return Mpi(path, family, version) if version.partition(".")[0].isdecimal() else None


def _unknown_mpirun(what: str) -> LauncherError:
    """Return the error for a starter that we cannot use."""
    return make_error("unknown-mpirun", what=printable(what), known=_known())


def _known() -> str:
    families = [family for family, _ in PATTERNS]
    return f"{', '.join(families[:-1])} or {families[-1]}"


def _beside_its_daemons(path: str) -> str:
    """Return the path in the directory that a link leads to, if the program has the same name there.

    Started by its path, Open MPI looks for its daemon in the directory of that path on every node. The
    directory of a link, e.g. /usr/local/bin, has no daemon.
    """
    real = os.path.join(os.path.dirname(os.path.realpath(path)), os.path.basename(path))
    return real if os.access(real, os.X_OK) else path
