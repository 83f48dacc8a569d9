"""Reads one dump of a flight recorder, which may contain anything, into facts.

A dump is a pickle, or JSON, of ``{"version", "entries": [...], "pg_config", "pg_status"}``. The pickle is one
of containers, texts and numbers; anything else in it is refused before it has an effect. A hostile pickle can
still ask for more memory than there is: `launcher.hang.reader` runs this in a process with limits.

Source: torch/csrc/distributed/c10d/FlightRecorderDetail.hpp (versions 2.0 to 2.10 of the format). NCCL's
entries complete when their state says so, and a retired one that has not completed has timed out; gloo's have
no state, and complete when they are retired.
"""

from __future__ import annotations

import io
import json
import pickle
import re
import time

from launcher.core.ranks import render_ranges
from launcher.core.redact import quote
from launcher.hang.model import Collective, GroupRecord, RankRecord

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ENTRIES_MAX = 1 << 17
GROUPS_MAX = 64
RANKS_MAX = 1 << 16
FRAMES_MAX = 64
BEFORE, AFTER = 3, 3
"""Collectives that are kept before and after the first that has not completed."""
DEEP = 8
TEXT_LENGTH = 400
NUMBER_LIMIT = 1 << 62
LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python", "<frozen ")
"""Parts of paths that are no script's."""
ITEM_BYTES = {
    **dict.fromkeys(("Byte", "Char", "Bool", "QInt8", "QUInt8"), 1),
    **dict.fromkeys(("Short", "Half", "BFloat16", "UInt16"), 2),
    **dict.fromkeys(("Int", "Float", "QInt32", "UInt32", "ComplexHalf"), 4),
    **dict.fromkeys(("Long", "Double", "ComplexFloat", "UInt64"), 8),
    "ComplexDouble": 16,
}
"""Bytes of a value by torch's name of its type; the Float8 types have one."""


class NotADump(ValueError):
    """The dump is no flight recorder's."""


class _Plain(pickle.Unpickler):
    """Makes containers, texts and numbers only."""

    def find_class(self, module: str, name: str) -> object:
        """Refuse: a recorder needs no class and no function.

        Raises:
            Refused: Always.
        """
        raise NotADump(f"it names {module}.{name}")

    def persistent_load(self, pid: object) -> object:
        """Refuse.

        Raises:
            Refused: Always.
        """
        raise NotADump("it names an object outside of it")


def load(data: bytes) -> dict[str, object]:
    """Return the content of a dump.

    Raises:
        Refused: It is neither a plain pickle nor JSON of a recorder.
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
        Refused: It is no flight recorder's.
    """
    loaded = load(data)
    entries = loaded.get("entries", [])
    assert isinstance(entries, list)  # noqa: S101 - see `load`
    now_ns = time.time_ns() if now_ns is None else now_ns
    statuses, configs = _mapping(loaded, "pg_status"), _mapping(loaded, "pg_config")
    by_group: dict[tuple[str, str], list[Mapping[str, object]]] = {}
    for entry in entries[-ENTRIES_MAX:]:
        if isinstance(entry, dict):
            by_group.setdefault(_group_of(entry), []).append(entry)
    groups = [
        _read_group(key, items, statuses, configs, now_ns)
        for key, items in list(by_group.items())[:GROUPS_MAX]
    ]
    # Those that wait come last: `launcher.core.shorten` keeps the last ones
    groups.sort(key=lambda group: any(not one.is_done for one in group.recent))
    first = next((entry for entry in entries if isinstance(entry, dict)), {})
    backend = _text(first, "profiling_name").partition(":")[0] if first else ""
    return RankRecord(rank, backend[:32], tuple(groups), "" if groups else "it has recorded nothing")


def _read_group(
    key: tuple[str, str],
    entries: Sequence[Mapping[str, object]],
    statuses: Mapping[object, object],
    configs: Mapping[object, object],
    now_ns: int,
) -> GroupRecord:
    status = _mapping(statuses, _id_of(entries[0]))
    done = _number(status, "last_completed_collective")
    marks = [_is_done(entry, done) for entry in entries]
    together = [not entry.get("is_p2p") for entry in entries]
    numbers = [_number(entry, "collective_seq_id") for entry in entries]
    called = [number for number, counts in zip(numbers, together, strict=True) if counts]
    completed = [n for n, counts, mark in zip(numbers, together, marks, strict=True) if counts and mark]
    waits = next((place for place, mark in enumerate(marks) if not mark), len(entries) - 1)
    kept = range(max(0, waits - BEFORE), min(len(entries), waits + AFTER + 1))
    return GroupRecord(
        key[0],
        key[1],
        _read_members(key[0], configs),
        max(called, default=_number(status, "last_enqueued_collective")),
        max([done, *completed]),
        tuple(_read_collective(entries[place], marks[place], now_ns) for place in kept),
    )


def _is_done(entry: Mapping[str, object], completed: int) -> bool:
    if entry.get("state") == "completed":
        return True
    if _text(entry, "profiling_name").startswith("nccl:"):
        return False
    is_counted = not entry.get("is_p2p") and 0 < _number(entry, "collective_seq_id") <= completed
    return is_counted or entry.get("retired") is True


def _read_collective(entry: Mapping[str, object], is_done: bool, now_ns: int) -> Collective:
    is_p2p = bool(entry.get("is_p2p"))
    side = "input" if entry.get("input_sizes") else "output"
    sizes, dtypes = _sizes(entry.get(f"{side}_sizes")), _texts(entry.get(f"{side}_dtypes"))
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
        _find_script(entry.get("frames")),
    )


def _group_of(entry: Mapping[str, object]) -> tuple[str, str]:
    named = entry.get("process_group")
    if isinstance(named, (list, tuple)) and len(named) == 2 and all(isinstance(one, str) for one in named):
        return named[0], named[1]
    return _id_of(entry), ""


def _id_of(entry: Mapping[str, object]) -> str:
    number = _number(entry, "pg_id")
    return _text(entry, "pg_id")[:32] if number < 0 else str(number)


def _read_members(name: str, configs: Mapping[object, object]) -> str:
    """Return the ranks of a group; empty for gloo's groups, which are all listed under an empty name."""
    listed = _mapping(configs, name).get("ranks")
    found = re.findall(r"\d{1,8}", listed[: RANKS_MAX * 10])[:RANKS_MAX] if isinstance(listed, str) else []
    text = render_ranges([int(rank) for rank in found])
    return text if len(text) < 800 else ""


def _find_script(frames: object) -> str:
    """Return the innermost frame that is of no library: frames begin with the innermost."""
    for frame in frames[:FRAMES_MAX] if isinstance(frames, list) else ():
        if isinstance(frame, dict):
            path = _text(frame, "filename")
            if path and not any(part in path for part in LIBRARIES):
                return f"{path.rpartition('/')[2]}:{_number(frame, 'line')} {_text(frame, 'name')}"
    return ""


def _sizes(value: object) -> list[list[int]]:
    found = value[:DEEP] if isinstance(value, (list, tuple)) else []
    return [
        [n for n in one[:DEEP] if type(n) is int and abs(n) < NUMBER_LIMIT]
        for one in found
        if isinstance(one, (list, tuple))
    ]


def _count_bytes(sizes: list[list[int]], dtypes: list[str]) -> int:
    total = 0
    for dims, dtype in zip(sizes, dtypes, strict=False):
        count = ITEM_BYTES.get(dtype, 1 if dtype.startswith("Float8") else 0)
        for size in dims:
            count *= max(size, 0)
        total += count
    known = sizes and all(dtype in ITEM_BYTES or dtype.startswith("Float8") for dtype in dtypes)
    return total if known and len(sizes) < DEEP and total < NUMBER_LIMIT else -1


def _mapping(value: Mapping[object, object] | Mapping[str, object], name: str) -> dict[object, object]:
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def _text(value: Mapping[str, object] | Mapping[object, object], name: str) -> str:
    found = value.get(name)
    if not isinstance(found, str):
        return ""
    return found if len(found) <= TEXT_LENGTH else quote(found, TEXT_LENGTH)


def _texts(value: object) -> list[str]:
    found = value[:DEEP] if isinstance(value, (list, tuple)) else []
    return [one[:32] for one in found if isinstance(one, str)]


def _number(value: Mapping[str, object] | Mapping[object, object], name: str) -> int:
    """Return a whole number, which is a text in JSON; -1 if it is none."""
    found = value.get(name)
    if isinstance(found, str) and len(found) < 20 and found.removeprefix("-").isdecimal():
        found = int(found)
    return found if type(found) is int and abs(found) < NUMBER_LIMIT else -1
