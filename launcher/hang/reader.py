"""Program that reads and copies dumps in a separate process: ``python -I -S reader.py JSON``.

Dumps come from processes that may have written anything, and lie on file systems that may hang. Here they can
neither use up the launcher's memory nor stop its loop. It prints a JSON object per dump, see `Answer`.
"""

from __future__ import annotations

import json
import os
import resource
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

MEMORY_BYTES = 2 << 30
CPU_S = 20
PIECE_BYTES = 1 << 20
PREFIX = "recorder_rank_"
"""Begin of the names of copies that torch's own analyser can read; the rank follows."""
RUN_FD = 3
"""Descriptor of the run's directory, if the directory for copies is in it."""
JSON_PREFIX, REFUSED_PREFIX = "recorder_json_rank_", "recorder_refused_rank_"


class TooLarge(Exception):
    """The dump, or all of them together, are over the limit."""


def read_dump(path: str, limit_bytes: int) -> tuple[bytes, int]:
    """Return the content of a dump, and when it was written (ns since 1970).

    Raises:
        OSError: It is not a regular file of ours, or cannot be read.
        TooLarge: It is larger than the limit.
    """
    from launcher.core.files import open_own

    fd = open_own(path)
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        if found.st_size > limit_bytes:
            raise TooLarge
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise TooLarge
    return data, found.st_mtime_ns


def answer(
    rank: int, path: str, task: Mapping[str, object], used_bytes: int
) -> tuple[dict[str, object], int]:
    """Return the answer for one dump, and how many bytes its copy has.

    Args:
        rank: The rank.
        path: Its dump.
        task: The directory for copies (``to``; empty for none), its path in the run's
            directory if it is there (``inside``), and the limits of a file and of all (``file``, ``all``).
        used_bytes: Bytes of the copies so far.
    """
    from launcher.core.files import PRIVATE_FOLDER, make_folder, replace_file
    from launcher.core.wire import render
    from launcher.hang.dumps import NotADump, read_rank
    from launcher.hang.model import RankRecord

    per_file, in_all, to = int(str(task["file"])), int(str(task["all"])), str(task["to"] or "")
    prefix = PREFIX
    try:
        data, written_ns = read_dump(path, per_file)
    except TooLarge:
        record = RankRecord(rank, missing=f"its dump is larger than {per_file >> 20} MiB")
        return {"record": render(record), "left": "too large"}, 0
    except OSError as error:
        return {"record": render(RankRecord(rank, missing=f"its dump: {error.strerror}"))}, 0
    try:
        record = read_rank(rank, data, written_ns)
        prefix = JSON_PREFIX if data[:1] == b"{" else PREFIX
    except NotADump as refused:
        record, prefix = RankRecord(rank, missing=f"its dump is refused: {refused}"), REFUSED_PREFIX
    found: dict[str, object] = {"record": render(record)}
    if not to:
        return found, 0
    if used_bytes + len(data) > in_all:
        return {**found, "left": f"the limit of {in_all >> 20} MiB"}, 0
    try:
        at, folder = (RUN_FD, str(task["inside"])) if task["inside"] else (None, to)
        os.close(make_folder(folder, PRIVATE_FOLDER, at=at))
        replace_file(data, f"{folder}/{prefix}{rank}", 0o600, at=at)
        return {**found, "path": f"{to}/{prefix}{rank}"}, len(data)
    except OSError as error:
        return {**found, "left": f"{to}: {error.strerror}"}, 0


def main() -> None:
    """Read the dumps of a task, and print the answers."""
    for kind, limit in ((resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_CPU, CPU_S)):
        resource.setrlimit(kind, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    task = json.loads(sys.argv[1])
    used_bytes = task["used"]
    for rank, path in task["dumps"]:
        found, more = answer(rank, path, task, used_bytes)
        used_bytes += more
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    main()
