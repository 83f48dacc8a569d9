"""Makes the bundle that `launcher.bundle` reads: ``python -m launcher.bundle``."""

from __future__ import annotations

import marshal
import os
import tempfile
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path

from launcher.__main__ import print_problems
from launcher.bundle import HEAD_BYTES, PACKAGE, bundle_file
from launcher.errors import NotReady, Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.bundle import Entry


def main() -> int:
    """Write it, and say where it is."""
    file = bundle_file()
    try:
        write_bundle(file)
    except OSError as error:
        fix = "run it as the one who installed the package; starts work without, a little slower"
        refused = NotReady(
            Problem("no-bundle", f"{file}: {error.strerror}", "python -m launcher.bundle", fix)
        )
        print_problems(refused)
        return refused.exit_status
    print(file)
    return 0


def write_bundle(file: str) -> None:
    """Write the bundle, in one step for those who read it meanwhile.

    Raises:
        OSError: It cannot be written there.
    """
    index: dict[str, Entry] = {}
    codes: list[bytes] = []
    place = 0
    for name, relative, is_package in list_modules():
        path = os.path.join(PACKAGE, relative)
        status = os.stat(path)
        code = marshal.dumps(SourceFileLoader(name, path).get_code(name))
        index[name] = (relative, is_package, status.st_mtime_ns, status.st_size, place, len(code))
        codes.append(code)
        place += len(code)
    packed = pack_index(index)
    os.makedirs(os.path.dirname(file), exist_ok=True)
    fd, written = tempfile.mkstemp(dir=os.path.dirname(file), suffix=".bundle.part")
    try:
        with open(fd, "wb") as stream:
            stream.write(len(packed).to_bytes(HEAD_BYTES, "little"))
            stream.writelines((packed, *codes))
        os.chmod(written, 0o644)
        os.replace(written, file)
    except BaseException:
        os.unlink(written)
        raise


def pack_index(index: dict[str, Entry]) -> bytes:
    """Return the index with places counted from the file's beginning, which depend on its own length."""
    length = len(marshal.dumps((MAGIC_NUMBER, index)))
    while True:
        moved = {
            name: (*entry[:4], entry[4] + HEAD_BYTES + length, entry[5]) for name, entry in index.items()
        }
        packed = marshal.dumps((MAGIC_NUMBER, moved))
        if len(packed) == length:
            return packed
        length = len(packed)


def list_modules() -> Iterator[tuple[str, str, bool]]:
    """Yield (name, path from the package's root, is package) of all modules of this package."""
    root = Path(PACKAGE)
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        parts = ("launcher", *relative.with_suffix("").parts)
        is_package = parts[-1] == "__init__"
        yield ".".join(parts[:-1] if is_package else parts), str(relative), is_package
