"""All bytecode of this package in one file, beside Python's own: a start finds all modules in one place.

Python looks for each module in its folder, checks its source, and opens its bytecode: 2.5 ms of a start, more
where files are far away. ``python -m launcher.bundle`` gathers what Python has compiled; whoever builds an
image does it once, after ``pip install``. It is Python's own bargain: where a source has another size or
time than what was compiled, where the Python is another one, or where there is no bundle, Python
does what it always does.

Source: importlib, "Cached bytecode invalidation" (docs.python.org/3/reference/import.html).
"""

from __future__ import annotations

import marshal
import os
import sys
from _frozen_importlib import ModuleSpec  # loaded by every Python; what importlib itself is made of
from _frozen_importlib_external import MAGIC_NUMBER, SourceFileLoader, _compile_bytecode  # type: ignore[attr-defined]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType

    Entry = tuple[str, bool, int, int, int, int]
    """Of one module: path from the package's root, whether it is a package, source's time in ns and size,
    place of its code in the bundle, and how many bytes it has there."""

PACKAGE = os.path.dirname(os.path.abspath(__file__))
HEAD_BYTES = 8
"""The length of the index stands first, in so many bytes."""
INDEX_BYTES = 1 << 20
"""No index is longer."""


def bundle_file() -> str:
    """Return where the bundle of this Python stands."""
    return os.path.join(PACKAGE, "__pycache__", f"launcher.{sys.implementation.cache_tag}.bundle")


class Bundled(SourceFileLoader):
    """Loads one module whose code is in the bundle; its source is where it would be without."""

    def __init__(self, name: str, path: str, code: bytes) -> None:
        super().__init__(name, path)
        self._code = code

    def get_code(self, fullname: str) -> CodeType:
        """Return the compiled module."""
        code: CodeType = _compile_bytecode(self._code, fullname, source_path=self.path)
        return code


class Finder:
    """Finds the modules of this package in the bundle, before Python looks for them."""

    def __init__(self, file: str, fd: int, index: dict[str, Entry]) -> None:
        self._file, self._fd, self._index = file, fd, index

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return how to load a module; None if it is not ours, or has changed: then Python knows better."""
        entry = self._index.get(name)
        if entry is None:
            return None
        relative, is_package, time_ns, size, place, length = entry
        file = os.path.join(PACKAGE, relative)
        try:
            status = os.stat(file)
            code = os.pread(self._fd, length, place)
        except OSError:
            return None
        if (status.st_mtime_ns, status.st_size, len(code)) != (time_ns, size, length):
            return None
        spec = ModuleSpec(name, Bundled(name, file, code), origin=file, is_package=is_package)
        spec.has_location, spec.cached = True, self._file
        if is_package:
            spec.submodule_search_locations = [os.path.dirname(file)]
        return spec


def use() -> bool:
    """Take modules from the bundle from now on, if there is a good one; return whether there is."""
    if sys.flags.optimize:
        return False  # compiled otherwise
    file = bundle_file()
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        length = int.from_bytes(os.pread(fd, HEAD_BYTES, 0), "little")
        head = os.pread(fd, min(length, INDEX_BYTES), HEAD_BYTES)
        magic, index = marshal.loads(head)  # noqa: S302 - as trusted as the folder of the sources
    except (OSError, ValueError, EOFError, TypeError):
        magic = None
    if magic != MAGIC_NUMBER:
        os.close(fd)
        return False
    sys.meta_path.insert(0, Finder(file, fd, index))
    return True


if __name__ == "__main__":
    from launcher.bundling import main

    sys.exit(main())
