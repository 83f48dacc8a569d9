"""Imports of a script's own modules: files beside it and in PYTHONPATH, read and never imported.

Most scripts and their modules import none of the frameworks in question. So the files are scanned for lines
that start with ``import`` and ``from``, and parsed only if one of them imports such a framework. Installed
packages are not followed.

Source: docs.python.org, "The import system", 5.3 to 5.5, and "The initialization of the sys.path module
search path".
"""

from __future__ import annotations

import os
import sys
from itertools import islice

from launcher.core.frozen import frozen
from launcher.frameworks.imports import list_first, list_lines, read_imports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from launcher.frameworks.script import Script
    from launcher.machine.host import Host

DEPTH, FILES, BYTES = 3, 50, 1 << 20
"""Limits of the search: levels of modules, number of files, and characters in total."""
NAMES = 4096
"""Maximum number of names that are read from a folder."""
INSTALLED = ("site-packages", "dist-packages")
"""Names of folders with installed packages, which may be in PYTHONPATH, too."""
OWN = __name__.partition(".")[0]
STANDARD: frozenset[str] = getattr(sys, "stdlib_module_names", frozenset(sys.builtin_module_names))


@frozen
class Module:
    """A module that is a file of the job.

    Attributes:
        path: The file.
        text: Its text.
        package: The package from which its relative imports start.
    """

    path: str
    text: str
    package: str


@frozen
class Reached:
    """Imports of a script's modules.

    Attributes:
        modules: The modules that they import, and whether each is imported unconditionally.
        places: For each unconditional import, the file with it.
    """

    modules: Mapping[str, bool] = {}
    places: Mapping[str, str] = {}

    def find(self, name: str) -> str:
        """Return the file that unconditionally imports a module or a part of it; empty for none."""
        return next((path for module, path in self.places.items() if _is_of(module, name)), "")

    def imports(self, name: str) -> bool:
        """Whether one of them imports it, even in a function or a ``try``."""
        return any(_is_of(module, name) for module in self.modules)


def _is_of(module: str, name: str) -> bool:
    return module == name or module.startswith(f"{name}.")


def read_reached(script: Script, names: Sequence[str], host: Host) -> Reached:
    """Return the imports of a script's modules, following its unconditional imports.

    Args:
        script: The script.
        names: The packages in question: if no file imports one of these, nothing is parsed.
        host: This node; a recorded one has no such files.
    """
    shelf = _Shelf(script, host)
    first = Module(script.path, script.text, script.package)
    if host.is_recorded() or not shelf.folders or not _may_import(shelf, first, names):
        return Reached()
    found: dict[str, bool] = {}
    places: dict[str, str] = {}
    for module in _walk(shelf, first, shelf.list_certain):
        for name, is_certain in shelf.parse(module).items() if module != first else ():
            found[name] = found.get(name, False) or is_certain
            if is_certain:
                places.setdefault(name, module.path)
    return Reached(found, places)


def list_outer(script: Script, host: Host) -> tuple[str, ...]:
    """Return what a script always imports first, itself or by its own modules, which are left out.

    First: before it changes variables or ``sys.path``, see `launcher.frameworks.imports.list_first`.
    """
    shelf = _Shelf(script, host)
    first = Module(script.path, script.text, script.package)
    walked = _walk(shelf, first, _list_first)
    names = [name for module in walked for name in _list_first(module)]
    return tuple(dict.fromkeys(name for name in names if not shelf.owns(name)))


def _may_import(shelf: _Shelf, first: Module, names: Sequence[str]) -> bool:
    """Whether a line of one of the modules imports one of these packages."""
    modules = (module for module in _walk(shelf, first, _list_all) if module != first)
    return any(
        any(name in module.text for name in names)
        and any(_is_of(one, name) for one in _list_all(module) for name in names)
        for module in modules
    )


def _list_all(module: Module) -> list[str]:
    return list_lines(module.text, module.package)


def _list_first(module: Module) -> list[str]:
    return list_first(module.text, module.package)


def _walk(shelf: _Shelf, first: Module, list_names: Callable[[Module], list[str]]) -> Iterator[Module]:
    """Yield a module and the modules that it imports, nearest first."""
    seen, level = {first.path}, [first]
    for depth in range(DEPTH + 1):
        yield from level
        behind: list[Module] = []
        for module in level if depth < DEPTH else ():
            names = [*([module.package] if module.package else []), *list_names(module)]
            for found in (found for name in names for found in shelf.find(name)):
                if found.path not in seen:
                    seen.add(found.path)
                    behind.append(found)
        level = behind


class _Shelf:
    """The folders with a job's own modules, each listed once, and the modules read from them."""

    def __init__(self, script: Script, host: Host) -> None:
        parts = ((folder, os.path.normpath(folder).split(os.sep)) for folder in script.folders)
        self.folders = [folder for folder, names in parts if not {*INSTALLED} & {*names}]
        self._host = host
        self._names: dict[str, frozenset[str]] = {}
        self._read: dict[str, Module | None] = {}
        self._parsed: dict[str, Mapping[str, bool]] = {}
        self._left = BYTES

    def parse(self, module: Module) -> Mapping[str, bool]:
        """Return the imports of a module, parsed once."""
        if module.path not in self._parsed:
            self._parsed[module.path] = read_imports(module.text, module.package)
        return self._parsed[module.path]

    def list_certain(self, module: Module) -> list[str]:
        """Return the modules that a module imports unconditionally."""
        return [name for name, is_certain in self.parse(module).items() if is_certain]

    def find(self, name: str) -> list[Module]:
        """Return the files that run when a module is imported: those of its packages, and its own."""
        parts = name.split(".")
        if parts[0] in STANDARD or parts[0] == OWN:
            return []
        for folder in self.folders:
            names = self._list(folder)
            if parts[0] in names or f"{parts[0]}.py" in names:
                return [module for module in self._descend(folder, parts) if module is not None]
        return []

    def owns(self, name: str) -> bool:
        """Whether a module is one of these files, or in a package of them."""
        first = name.partition(".")[0]
        return any(not {first, f"{first}.py"}.isdisjoint(self._list(folder)) for folder in self.folders)

    def _descend(self, folder: str, parts: Sequence[str]) -> Iterator[Module | None]:
        for depth, part in enumerate(parts, 1):
            names, path = self._list(folder), os.path.join(folder, part)
            if part in names and ("__init__.py" in self._list(path) or f"{part}.py" not in names):
                if "__init__.py" in self._list(path):
                    yield self._take(os.path.join(path, "__init__.py"), ".".join(parts[:depth]))
                folder = path
            elif f"{part}.py" in names:
                yield self._take(f"{path}.py", ".".join(parts[: depth - 1]))
                return
            else:
                return

    def _list(self, folder: str) -> frozenset[str]:
        if folder not in self._names:
            try:
                with os.scandir(folder) as entries:
                    self._names[folder] = frozenset(entry.name for entry in islice(entries, NAMES))
            except OSError:
                self._names[folder] = frozenset()
        return self._names[folder]

    def _take(self, path: str, package: str) -> Module | None:
        path = os.path.normpath(path)
        if path not in self._read and len(self._read) < FILES and self._left > 0:
            text = self._host.read_text(os.path.abspath(path)) or ""
            self._left -= len(text)
            self._read[path] = Module(path, text, package) if self._left >= 0 else None
        return self._read.get(path)
