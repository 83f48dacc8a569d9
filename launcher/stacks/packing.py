"""Packs the stacks of a node's ranks into an answer that fits the channel, and unpacks it without trust.

A stack that several processes share is sent once. An answer that is too long loses the other threads first,
then the processes below the ranks, then the outer frames, and then the last ranks.
"""

from __future__ import annotations

import json

from launcher.core.redact import shorten
from launcher.stacks.answer import Answer, Frame, Thread
from launcher.stacks.report import find_speakers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Message = dict[str, object]

FRAMES = (100, 24, 8)
"""Number of frames kept of a stack: all that faulthandler gives, then fewer if the answer is too long."""
TEXT_LENGTH = 400
LIMIT_BYTES = 44_000
"""Limit of packed stacks as JSON; with what stands around them they fit into one frame."""
ITEMS_MAX = 1 << 16
THREADS_MAX = 101
"""Maximum number of threads of a process; faulthandler gives 100."""
TEXTS = ("command", "state", "call", "kernel", "folder", "means", "why")


def pack(answers: Sequence[Answer], *, threads: bool, limit_bytes: int = LIMIT_BYTES) -> Message:
    """Return processes with their stacks, within the size limit; ``cut`` tells that some are left out."""
    packed: Message = {}
    shown: dict[str, str] = {}  # a text occurs in many stacks, and is redacted only once
    for index, (kept, all_threads, depth) in enumerate(_levels(answers, threads)):
        packed = {**_pack(kept, all_threads, depth, shown), "cut": index > 0}
        if len(json.dumps(packed)) <= limit_bytes:
            return packed
    kept = list(find_speakers(answers))
    while kept and len(json.dumps(packed)) > limit_bytes:
        kept = kept[: len(kept) * 3 // 4]
        packed = {**_pack(kept, False, FRAMES[-1], shown), "cut": True}
    return packed


def _levels(answers: Sequence[Answer], threads: bool) -> Iterator[tuple[Sequence[Answer], bool, int]]:
    if threads:
        yield answers, True, FRAMES[0]
    yield answers, False, FRAMES[0]
    speakers = find_speakers(answers)
    for depth in FRAMES:
        yield speakers, False, depth


def _pack(answers: Sequence[Answer], threads: bool, depth: int, shown: dict[str, str]) -> Message:
    words: dict[str, int] = {}
    stacks: dict[tuple[tuple[int, int, int], ...], int] = {}

    def word(text: str) -> int:
        if text not in shown:
            shown[text] = shorten(text, TEXT_LENGTH)
        return words.setdefault(shown[text], len(words))

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
            tuple(_frame(item, words) for item in stack[: FRAMES[0]])
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
