"""Builds launcher.pyz, one file that ``python3 launcher.pyz run ...`` runs without pip.

    python tools/make_pyz.py OUT WHEEL ...      the launcher's wheel, and those of packages that it needs

It is a zip file with ``tools/pyz/__main__.py`` and one more zip file, which that unpacks: Python reads the
list of an archive's files at each start. The same wheels give the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

MAIN = Path(__file__).parent / "pyz" / "__main__.py"
SHEBANG = b"#!/usr/bin/env python3\n"
TIME = (1980, 1, 1, 0, 0, 0)
"""Of all files: the earliest that a zip file can say."""
HASH_LENGTH = 32
COMMIT = "lib/launcher/commit.txt"
LIST = "files.txt"
EXAMPLE = "example.py"
"""A script of nvidia-ml-py; images do not have it either."""


def main(argv: Sequence[str]) -> int:
    """Write the file."""
    out, *wheels = argv
    files = {f"lib/{name}": data for wheel in wheels for name, data in read_wheel(Path(wheel)).items()}
    if not files[COMMIT].startswith(b"$"):  # git's form, if no commit is known
        files[COMMIT] = files[COMMIT].rstrip() + b" a zipapp\n"
    listed = [f"{len(data)} {name}\n" for name, data in sorted(files.items())]
    payload = pack({**files, LIST: "".join(listed).encode()}, zipfile.ZIP_DEFLATED)
    text = MAIN.read_bytes().replace(b"@HASH@", hashlib.sha256(payload).hexdigest()[:HASH_LENGTH].encode())
    text = text.replace(b"@FILES@", str(len(listed)).encode())
    Path(out).write_bytes(SHEBANG + pack({"__main__.py": text, "payload.zip": payload}, zipfile.ZIP_STORED))
    Path(out).chmod(0o755)
    return 0


def read_wheel(wheel: Path) -> dict[str, bytes]:
    """Return the files that a wheel puts among the packages: no programs, no man pages."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/") and ".data/" not in name]
        return {name: archive.read(name) for name in names if name != EXAMPLE}


def pack(files: Mapping[str, bytes], method: int) -> bytes:
    """Return a zip file."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method, compresslevel=9) as archive:
        for name, data in sorted(files.items()):
            entry = zipfile.ZipInfo(name, TIME)
            entry.compress_type, entry.external_attr, entry.create_system = method, 0o644 << 16, 3
            archive.writestr(entry, data)
    return stream.getvalue()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
