"""Reads dumps of flight recorders, which may contain anything: ``python -I -S dumps.py JSON``.

Dumps come from processes that may have written anything, and are on file systems that may hang. So a process
of its own reads and copies them, which can neither use up the launcher's memory nor stop its loop. For each
dump it prints a `ReadDump` as JSON.

A dump is a pickle, or JSON, of ``{"version", "entries": [...], "pg_config", "pg_status"}``. The pickle is one
of containers, texts and numbers; anything else in it is refused before it has an effect.

Source: torch/csrc/distributed/c10d/FlightRecorderDetail.hpp (versions 2.0 to 2.10 of the format). NCCL's
entries complete when their state says so, and a retired one that has not completed has timed out; gloo's have
no state, and complete when they are retired.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

import io
import json
import pickle
import re
import resource
import time

from launcher.core.files import PRIVATE_FOLDER, make_folder, replace_file
from launcher.core.ranks import render_ranges
from launcher.core.redact import quote
from launcher.core.wire import render
from launcher.hang import limits
from launcher.hang.model import Collective, Frame, GroupRecord, RankRecord, ReadDump
from launcher.hang.stacks import is_users
from launcher.machine.whole import read_own

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    Fields = Mapping[Any, object]

BEFORE, AFTER = 3, 3
"""Collectives that are kept before and after the first that has not completed."""
ITEM_BYTES = {
    **dict.fromkeys(("Byte", "Char", "Bool", "QInt8", "QUInt8"), 1),
    **dict.fromkeys(("Short", "Half", "BFloat16", "UInt16"), 2),
    **dict.fromkeys(("Int", "Float", "QInt32", "UInt32", "ComplexHalf"), 4),
    **dict.fromkeys(("Long", "Double", "ComplexFloat", "UInt64"), 8),
    "ComplexDouble": 16,
}
"""Bytes of a value by torch's name of its type; the Float8 types have one."""
PREFIX, JSON_PREFIX, REFUSED_PREFIX = "recorder_rank_", "recorder_json_rank_", "recorder_refused_rank_"
"""Begin of the names of copies; the rank follows. torch's own analyzer can read the first kind."""
RUN_FD = 3
"""Descriptor of the run's directory, if the directory for copies is in it."""


class NotADump(ValueError):
    """The dump is no flight recorder's."""


class _Plain(pickle.Unpickler):
    """Makes containers, texts and numbers only: a recorder needs no class and no function."""

    def find_class(self, module: str, name: str) -> object:
        """Refuse."""
        raise NotADump(f"it names {module}.{name}")

    def persistent_load(self, pid: object) -> object:
        """Refuse."""
        raise NotADump("it names an object outside of it")


def load(data: bytes) -> dict[str, object]:
    """Return the content of a dump.

    Raises:
        NotADump: It is neither a plain pickle nor JSON of a recorder.
    """
    try:
        loaded = json.loads(data) if data[:1] == b"{" else _Plain(io.BytesIO(data)).load()
    except NotADump:
        raise
    except Exception as error:
        raise NotADump(f"it cannot be read: {type(error).__name__}") from None
    if not isinstance(loaded, dict) or not isinstance(loaded.get("entries", []), list):
        raise NotADump("it has no entries")
    return loaded


def read_rank(rank: int, data: bytes, now_ns: int | None = None) -> RankRecord:
    """Return the facts of a dump.

    Args:
        rank: The rank that wrote it.
        data: The dump.
        now_ns: Time of the dump since 1970; None for now.

    Raises:
        NotADump: It is no flight recorder's.
    """
    loaded = load(data)
    now_ns = time.time_ns() if now_ns is None else now_ns
    by_group: dict[tuple[str, str], list[Fields]] = {}
    for entry in _list(loaded, "entries")[-limits.ENTRIES_MAX :]:
        if isinstance(entry, dict):
            by_group.setdefault(_group_of(entry), []).append(entry)
    kept = list(by_group.items())[: limits.GROUPS_MAX]
    groups = [_read_group(key, entries, loaded, now_ns) for key, entries in kept]
    # Those that wait come last: `launcher.core.shorten` keeps the last ones
    groups.sort(key=lambda group: any(not one.is_done for one in group.recent))
    backend = _text(kept[0][1][0], "profiling_name").partition(":")[0] if kept else ""
    return RankRecord(rank, backend[:32], tuple(groups), "" if groups else "it has recorded nothing")


def _read_group(key: tuple[str, str], entries: Sequence[Fields], loaded: Fields, now_ns: int) -> GroupRecord:
    status = _mapping(_mapping(loaded, "pg_status"), _id_of(entries[0]))
    done = _number(status, "last_completed_collective")
    marks = [_is_done(entry, done) for entry in entries]
    called = [
        (_number(entry, "collective_seq_id"), mark)
        for entry, mark in zip(entries, marks, strict=True)
        if not entry.get("is_p2p")
    ]
    waits = next((place for place, mark in enumerate(marks) if not mark), len(entries) - 1)
    kept = range(max(0, waits - BEFORE), min(len(entries), waits + AFTER + 1))
    return GroupRecord(
        *key,
        _read_members(key[0], _mapping(loaded, "pg_config")),
        max((number for number, _ in called), default=_number(status, "last_enqueued_collective")),
        max([done, *(number for number, mark in called if mark)]),
        tuple(_read_collective(entries[place], marks[place], now_ns) for place in kept),
    )


def _is_done(entry: Fields, completed: int) -> bool:
    if entry.get("state") == "completed":
        return True
    if _text(entry, "profiling_name").startswith("nccl:"):
        return False
    is_counted = not entry.get("is_p2p") and 0 < _number(entry, "collective_seq_id") <= completed
    return is_counted or entry.get("retired") is True


def _read_collective(entry: Fields, is_done: bool, now_ns: int) -> Collective:
    is_p2p = bool(entry.get("is_p2p"))
    side = "input" if entry.get("input_sizes") else "output"
    sizes = [
        [n for n in one[: limits.DEPTH_MAX] if type(n) is int and abs(n) < limits.NUMBER_LIMIT]
        for one in _list(entry, f"{side}_sizes")[: limits.DEPTH_MAX]
        if isinstance(one, (list, tuple))
    ]
    dtypes = [one[:32] for one in _list(entry, f"{side}_dtypes")[: limits.DEPTH_MAX] if isinstance(one, str)]
    created = _number(entry, "time_created_ns")
    age_s = (now_ns - created) / 1e9 if 0 < created <= now_ns else 0.0
    return Collective(
        max(0, _number(entry, "p2p_seq_id" if is_p2p else "collective_seq_id")),
        _text(entry, "profiling_name").rpartition(":")[2],
        is_done,
        is_p2p,
        str(sizes) if sizes else "",
        ", ".join(dict.fromkeys(dtypes)),
        _count_bytes(sizes, dtypes),
        min(age_s, 1e9),
        _find_script(_list(entry, "frames")[: limits.FRAMES_MAX]),
    )


def _group_of(entry: Fields) -> tuple[str, str]:
    named = entry.get("process_group")
    if isinstance(named, (list, tuple)) and len(named) == 2 and all(isinstance(one, str) for one in named):
        return named[0], named[1]
    return _id_of(entry), ""


def _id_of(entry: Fields) -> str:
    number = _number(entry, "pg_id")
    return _text(entry, "pg_id")[:32] if number < 0 else str(number)


def _read_members(name: str, configs: Fields) -> str:
    """Return the ranks of a group; empty for gloo's groups, which are all listed under an empty name."""
    listed = _mapping(configs, name).get("ranks")
    text = listed[: limits.MEMBERS_MAX * 10] if isinstance(listed, str) else ""
    text = render_ranges(map(int, re.findall(r"\d{1,8}", text)[: limits.MEMBERS_MAX]))
    return text if len(text) < 800 else ""


def _find_script(frames: Sequence[object]) -> str:
    """Return the innermost frame that is of no library: frames begin with the innermost."""
    for item in frames:
        if isinstance(item, dict):
            frame = Frame(_text(item, "filename"), _number(item, "line"), _text(item, "name"))
            if frame.file and is_users(frame):
                return f"{frame.file.rpartition('/')[2]}:{frame.line} {frame.function}"
    return ""


def _count_bytes(sizes: list[list[int]], dtypes: list[str]) -> int:
    """Return the bytes of tensors; -1 if a type is not known, or if there may be more of them."""
    widths = [1 if dtype.startswith("Float8") else ITEM_BYTES.get(dtype, 0) for dtype in dtypes]
    total = 0
    for dims, width in zip(sizes, widths, strict=False):
        for size in dims:
            width *= max(size, 0)
        total += width
    known = sizes and all(widths) and len(sizes) < limits.DEPTH_MAX
    return total if known and total < limits.NUMBER_LIMIT else -1


def _mapping(value: Fields, name: str) -> Fields:
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def _list(value: Fields, name: str) -> Sequence[Any]:
    found = value.get(name)
    return found if isinstance(found, (list, tuple)) else []


def _text(value: Fields, name: str) -> str:
    found = value.get(name)
    if not isinstance(found, str):
        return ""
    return found if len(found) <= limits.TEXT_LENGTH else quote(found, limits.TEXT_LENGTH)


def _number(value: Fields, name: str) -> int:
    """Return a whole number, which is a text in JSON; -1 if it is none."""
    found = value.get(name)
    if isinstance(found, str) and len(found) < 20 and found.removeprefix("-").isdecimal():
        found = int(found)
    return found if type(found) is int and abs(found) < limits.NUMBER_LIMIT else -1


# --- the process


def read(rank: int, path: str, task: dict[str, Any]) -> ReadDump:
    """Read and copy one dump.

    Args:
        rank: The rank.
        path: Its dump.
        task: The directory for copies (``to``; empty for none), its path in the run's directory if it is
            there (``inside``), the limits of a file and of all (``file``, ``all``), and the bytes of the
            copies so far (``used``), which are counted here.
    """
    limit, to, prefix = task["file"], task["to"], PREFIX
    try:
        data = read_own(path, limit)
        written_ns = os.stat(path).st_mtime_ns
    except OSError as error:
        return ReadDump(RankRecord(rank, missing=f"its dump: {error.strerror}"))
    if len(data) > limit:
        return ReadDump(
            RankRecord(rank, missing=f"its dump is larger than {limit >> 20} MiB"), left="too large"
        )
    try:
        record = read_rank(rank, data, written_ns)
        prefix = JSON_PREFIX if data[:1] == b"{" else PREFIX
    except NotADump as refused:
        record, prefix = RankRecord(rank, missing=f"its dump is refused: {refused}"), REFUSED_PREFIX
    if not to:
        return ReadDump(record)
    if task["used"] + len(data) > task["all"]:
        return ReadDump(record, left=f"the limit of {task['all'] >> 20} MiB")
    try:
        at, folder = (RUN_FD, task["inside"]) if task["inside"] else (None, to)
        os.close(make_folder(folder, PRIVATE_FOLDER, at=at))
        replace_file(data, f"{folder}/{prefix}{rank}", 0o600, at=at)
    except OSError as error:
        return ReadDump(record, left=f"{to}: {error.strerror}")
    task["used"] += len(data)
    return ReadDump(record, f"{to}/{prefix}{rank}")


def main() -> None:
    """Read the dumps of a task, and print the answers."""
    for kind, limit in (
        (resource.RLIMIT_AS, limits.READER_MEMORY_BYTES),
        (resource.RLIMIT_CPU, limits.READER_CPU_S),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (limit, limit))
    task = json.loads(sys.argv[1])
    for rank, path in task["dumps"]:
        print(json.dumps(render(read(rank, path, task))), flush=True)


if __name__ == "__main__":
    main()
