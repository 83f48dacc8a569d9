"""Tells which packages a Python would import, from its directories: importing torch would take 1.6 seconds.

Changes to an interpreter's import path by a ``sitecustomize`` or an import hook are not seen. A version that
cannot be determined is unknown and never guessed.

Source: docs.python.org, library/site and PEP 405 (pyvenv.cfg); Debian Python Policy (dist-packages).
"""

from __future__ import annotations

import os
import sys

from launcher.core.errors import attempt
from launcher.machine.files import read_whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

UNNAMED = "unknown"
"""Version of a package without metadata (a source checkout)."""
LINES_LIMIT_BYTES = 1 << 16
PYTHON_VARIABLE = "PYTHON_EXEC"
"""torchrun's variable for the Python that runs scripts."""


def own_python(environ: Mapping[str, str], apart: bool | None = None) -> str:
    """Return the Python for scripts whose command line names none.

    This is PYTHON_EXEC, or else the Python that runs us. In an image the launcher runs isolated from all
    packages (``-I -S``). There it is the first ``python3`` or ``python`` on PATH, which has the packages of
    the job.

    Args:
        environ: The environment that the Python would be started with.
        apart: Whether the launcher runs isolated; None to find out.
    """
    asked = environ.get(PYTHON_VARIABLE)
    if asked:
        return asked
    if apart is None:
        apart = bool(sys.flags.isolated and sys.flags.no_site)
    folders = environ.get("PATH", os.defpath).split(os.pathsep) if apart else []
    names = ((folder, name) for folder in folders for name in ("python3", "python"))
    return next((name for folder, name in names if _is_program(os.path.join(folder, name))), sys.executable)


def own_program(file: str, *words: str) -> tuple[str, ...]:
    """Return the command line of a program of ours: it imports its own package and Python's."""
    return (sys.executable, "-I", "-S", file, *words)


def isolate(python: str, code: str, *words: str) -> tuple[str, ...]:
    """Return the command line of our code in a user's Python, with the packages installed in it."""
    return (os.path.abspath(python), "-I", "-c", code, *words)


def find_version(python: str, environ: Mapping[str, str], name: str) -> str | None:
    """Return the version of a package that an interpreter would import; empty without it, None if unknown.

    Args:
        python: The interpreter as on a command line: a path, or a name on PATH.
        environ: The environment that it would be started with.
        name: Name of the package, both as it is imported and as it is installed.
    """
    folders = import_folders(python, environ)
    if folders is None:
        return None
    return next((version for folder in folders for version in _versions(folder, name)), "")


def import_folders(python: str, environ: Mapping[str, str]) -> list[str] | None:
    """Return the directories that an interpreter imports from, in search order; None if unknown."""
    path = find_program(python, environ)
    if path is None:
        return None
    return sys.path if _is_ours(path) and not sys.flags.no_site else _site_folders(path, environ)


def find_module(name: str, folders: Iterable[str]) -> str:
    """Return the file in these directories that ``-m NAME`` would run; empty without one.

    Imports nothing, not even the parent packages. For a package the file is its ``__main__.py``.
    """
    inside = name.replace(".", os.sep)
    for folder in folders:
        path = os.path.join(folder, inside)
        main = os.path.join(path, "__main__.py")
        is_package = os.path.isfile(os.path.join(path, "__init__.py"))
        if not is_package and os.path.isfile(f"{path}.py"):
            return f"{path}.py"
        if os.path.isfile(main):
            return main
        if is_package:
            return ""
    return ""


def find_program(name: str, environ: Mapping[str, str]) -> str | None:
    """Return the path of a program, as a shell finds it; None without one."""
    folders = [""] if "/" in name else environ.get("PATH", os.defpath).split(os.pathsep)
    paths = (os.path.abspath(os.path.join(folder, name)) for folder in folders)
    return next(filter(_is_program, paths), None)


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _is_ours(path: str) -> bool:
    ours = os.path.abspath(sys.executable)
    same_folder = os.path.dirname(path) == os.path.dirname(ours)
    return path == ours or (same_folder and os.path.realpath(path) == os.path.realpath(ours))


def _versions(folder: str, package: str) -> Iterator[str]:
    if os.path.isfile(os.path.join(folder, package, "__init__.py")):
        yield next((version for name, version in list_installed(folder) if name == package), UNNAMED)


def list_installed(folder: str) -> Iterator[tuple[str, str]]:
    """Yield name and version of each package with metadata in a directory, the name as in an import."""
    for entry in sorted(attempt(os.listdir, folder) or ()):
        name, dash, version = entry.removesuffix(".dist-info").partition("-")
        if dash and entry.endswith(".dist-info"):
            yield name.lower().replace(".", "_"), version


def _site_folders(path: str, environ: Mapping[str, str]) -> list[str] | None:
    """Return the directories that another interpreter imports from; None if we do not know its layout."""
    prefix = os.path.dirname(os.path.dirname(path))
    pairs = (line.partition("=") for line in _lines(os.path.join(prefix, "pyvenv.cfg")))
    config = {key.strip().lower(): value.strip() for key, _, value in pairs}
    real = attempt(os.path.realpath, path)  # None if readlink is refused
    version = None if real is None else _version_of(real, prefix, config)
    if real is None or version is None:
        return None
    sites = list(_venv_folders(prefix, version))
    if not config or config.get("include-system-site-packages") == "true":
        base = os.path.dirname(config["home"]) if "home" in config else prefix
        sites += _system_folders(base, version, environ)
        sites += _system_folders(os.path.dirname(os.path.dirname(real)), version, environ)
    found = [folder for folder in dict.fromkeys(sites) if os.path.isdir(folder)]
    if not found:
        return None
    asked = environ.get("PYTHONPATH", "").split(os.pathsep)
    return [*filter(None, asked), *found, *(line for folder in found for line in _linked(folder))]


def _version_of(real: str, prefix: str, config: Mapping[str, str]) -> str | None:
    named = _read_version(os.path.basename(real))
    if named is not None:
        return named
    if "version" in config:
        return ".".join(config["version"].split(".")[:2])
    names = attempt(os.listdir, os.path.join(prefix, "lib")) or ()
    found = [version for version in map(_read_version, names) if version is not None]
    return found[0] if len(found) == 1 else None


def _read_version(name: str) -> str | None:
    """Return ``3.11`` for ``python3.11``; None for any name that is not ``python3.N``."""
    minor = name.removeprefix("python3.")
    return f"3.{minor}" if minor != name and minor.isascii() and minor.isdecimal() else None


def _venv_folders(prefix: str, version: str) -> Iterator[str]:
    for lib in ("lib", "lib64"):
        yield os.path.join(prefix, lib, f"python{version}", "site-packages")


def _system_folders(prefix: str, version: str, environ: Mapping[str, str]) -> Iterator[str]:
    yield from _venv_folders(prefix, version)
    for root in {prefix, "/usr/local" if prefix == "/usr" else prefix}:
        yield os.path.join(root, "lib", f"python{version}", "dist-packages")
    yield os.path.join(prefix, "lib", "python3", "dist-packages")
    if environ.get("HOME") and not environ.get("PYTHONNOUSERSITE"):
        yield from _venv_folders(os.path.join(environ["HOME"], ".local"), version)


def _linked(folder: str) -> Iterator[str]:
    """Yield the absolute paths in the .pth files of a directory, and the sources of editable installs.

    Source:
        setuptools, command/editable_wheel.py (83): a finder has one line ``MAPPING: ... = {'name': 'path'}``.
    """
    for name in sorted(attempt(os.listdir, folder) or ()):
        if name.endswith(".pth"):
            yield from (line for line in _lines(os.path.join(folder, name)) if line.startswith("/"))
        elif name.startswith("__editable___") and name.endswith("_finder.py"):
            lines = _lines(os.path.join(folder, name))
            for text in (line for line in lines if line.startswith("MAPPING") and " = {" in line):
                parts = text.split("'")  # a dictionary of strings, written by repr
                pairs = zip(parts[1::4], parts[3::4], strict=False)
                yield from (os.path.dirname(path) for one, path in pairs if os.path.basename(path) == one)


def _lines(path: str) -> list[str]:
    return (attempt(read_whole, path, LINES_LIMIT_BYTES) or b"").decode("utf-8", "replace").splitlines()
