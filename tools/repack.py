"""Writes a source archive anew, so that the same content gives the same bytes.

    python tools/repack.py ARCHIVE

Setuptools stores when it wrote the files, and their owner. Here all have SOURCE_DATE_EPOCH, root and one of
two modes, in the order of their names.
"""

from __future__ import annotations

import gzip
import io
import os
import sys
import tarfile
from pathlib import Path


def repack(path: Path, time_s: int) -> None:
    """Replace an archive by one with this time."""
    stream = io.BytesIO()
    with tarfile.open(path) as old, tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda one: one.name):
            clean = tarfile.TarInfo(member.name)
            clean.type, clean.size, clean.linkname, clean.mtime = (
                member.type,
                member.size,
                member.linkname,
                time_s,
            )
            clean.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            new.addfile(clean, old.extractfile(member) if member.isfile() else None)
    with path.open("wb") as file, gzip.GzipFile("", "wb", 9, file, time_s) as packed:
        packed.write(stream.getvalue())


if __name__ == "__main__":
    repack(Path(sys.argv[1]), int(os.environ["SOURCE_DATE_EPOCH"]))
