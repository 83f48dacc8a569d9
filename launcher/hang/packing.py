"""Packs the stacks of a node's ranks into an answer that fits the channel, and unpacks it without trust.

A stack that several processes share is sent once. An answer that is too long loses the other threads and the
processes below the ranks, then outer frames and the ends of texts.
"""

from __future__ import annotations

import json

from launcher.core.redact import shorten
from launcher.core.shorten import SIZES
from launcher.hang.limits import FRAMES_MAX, RANKS_MAX, STACKS_BYTES, TEXT_LENGTH, THREADS_MAX
from launcher.hang.model import Answer, Frame, Thread
from launcher.hang.places import find_speakers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Message = dict[str, object]

ITEMS_MAX = 1 << 16
TEXTS = ("command", "state", "call", "kernel", "folder", "means", "why")


def pack(answers: Sequence[Answer], *, threads: bool, limit_bytes: int = STACKS_BYTES) -> Message:
    """Return processes with their stacks, within the size limit; ``cut``: whether some are left out."""
    shown: dict[str, str] = {}  # a text occurs in many stacks, and is redacted only once
    packed = {**_pack(answers, threads, FRAMES_MAX, TEXT_LENGTH, shown), "cut": False}
    speakers = find_speakers(answers)[:RANKS_MAX]
    for frames, characters in SIZES:
        if len(json.dumps(packed)) <= limit_bytes:
            break
        packed = {**_pack(speakers, False, frames, characters, shown), "cut": True}
    return packed


def _pack(
    answers: Sequence[Answer], threads: bool, depth: int, characters: int, shown: dict[str, str]
) -> Message:
    words: dict[str, int] = {}
    stacks: dict[tuple[tuple[int, int, int], ...], int] = {}

    def word(text: str) -> int:
        if text not in shown:
            shown[text] = shorten(text, TEXT_LENGTH)
        return words.setdefault(shown[text][:characters], len(words))

    def stack(frames: Sequence[Frame]) -> int:
        key = tuple((word(one.file), one.line, word(one.function)) for one in frames[:depth])
        return stacks.setdefault(key, len(stacks))

    processes = [
        {
            "rank": one.rank,
            "pid": one.pid,
            "python": one.is_python,
            **{name: word(getattr(one, name)) for name in TEXTS},
            "threads": [[word(t.name), stack(t.frames)] for t in one.threads[: None if threads else 1]],
        }
        for one in answers
    ]
    return {"processes": processes, "stacks": [list(map(list, key)) for key in stacks], "words": list(words)}


def unpack(message: Mapping[str, object]) -> list[Answer]:
    """Return the processes of an answer; none if it is malformed.

    The sender is not trusted: each value is checked. Items of a wrong type are left out; any other fault
    discards all processes.
    """
    words = [text[:TEXT_LENGTH] for text in _list(message, "words") if isinstance(text, str)]
    try:
        stacks = [
            tuple(_frame(item, words) for item in stack[:FRAMES_MAX])
            for stack in _list(message, "stacks")
            if isinstance(stack, list)
        ]
        return [
            _process(item, words, stacks) for item in _list(message, "processes") if isinstance(item, dict)
        ]
    except (TypeError, ValueError, LookupError, AttributeError):
        return []


def _list(message: Mapping[str, object], name: str) -> list[object]:
    value = message.get(name)
    return value[:ITEMS_MAX] if isinstance(value, list) else []


def _frame(item: Sequence[object], words: Sequence[str]) -> Frame:
    file, line, function = item
    return Frame(words[_index(file)], _index(line), words[_index(function)])


def _process(item: Mapping[str, object], words: Sequence[str], stacks: Sequence[tuple[Frame, ...]]) -> Answer:
    pairs = [pair for pair in _list(item, "threads")[:THREADS_MAX] if isinstance(pair, list)]
    return Answer(
        _index(item["rank"]),
        _index(item["pid"]),
        is_python=item["python"] is True,
        threads=tuple(Thread(words[_index(name)], stacks[_index(stack)]) for name, stack in pairs),
        **{name: words[_index(item[name])] for name in TEXTS},
    )


def _index(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 31:
        raise ValueError(f"no index: {value!r}")
    return value
