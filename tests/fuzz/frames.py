"""Bytes to what reads a connection: messages, more to wait for, or an end with a reason, in whatever pieces.

A case has the name of a reader on a line of its own, and steps: ``*`` is a right handshake, ``+JSON`` a frame
or a line as the other side would send it, whatever is in it, and ``-BYTES`` are bytes as they are.
"""

from __future__ import annotations

import hmac
import os
import random
import socket
import struct
import sys
import zlib
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING
from unittest.mock import patch

from launcher.channel import frames, lines
from launcher.channel.acceptor import READ_BYTES, Acceptor
from launcher.channel.connection import Connection
from launcher.channel.frames import Calling, HandshakeFailed, Sealed, make_key
from launcher.control import QUESTION_LIMIT_BYTES
from launcher.control.responder import Asking
from launcher.process.loop import Loop
from tests.fuzz.engine import pattern_of
from tests.fuzz.mutate import mutate_bytes, mutate_json
from tests.saying import keep

if TYPE_CHECKING:
    from launcher.channel.connection import Framing

READERS = (b"acceptor", b"caller", b"sealed", b"lines", b"question")
KEY = make_key(b"a token of sixteen", "1")
NONCES = bytes(2 * frames.NONCE_BYTES)
KEPT_BYTES = {
    b"lines": (LINE_LIMIT := 300),
    b"question": QUESTION_LIMIT_BYTES,
    b"": 4 + frames.SEAL_BYTES + frames.FRAME_LIMIT_BYTES,
}
"""What a reader may keep of a message that is not complete; the last for all that read frames."""
SPARE_BYTES = 1 << 10
"""What Python takes for empty buffers."""
FINE_BYTES = 500
"""What is no longer is also cut into single bytes."""
LENGTHS = (b"\0\0\0\x02", b"\0\1\0\0", b"\0\1\0\1")
WORDS = (frames.PREAMBLE, bytes(32), b"\n+{}", b"\n+[]", b"\n-", b"\n*\n", *LENGTHS)
STEPS = (b'+{"is":"beat"}', b'+{"is":"told","number":15,"name":"x"}', b'+{"ask":"status"}', b"*", b"-\0")


class Recorder:
    """What came of a connection: the messages that were heard, and why it ended."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.end = ""

    def hear(self, message: object) -> None:
        """Take a message."""
        assert not self.end, "a message after the end"
        assert isinstance(message, dict)
        self.heard.append(repr(message))

    def lose(self, why: str) -> None:
        """Take the end."""
        assert not self.end, "two ends"
        assert why.isprintable() and 0 < len(why) < 500, why
        self.end = why


def seal(sender: Sealed, data: bytes) -> bytes:
    """Return bytes in a frame whose seal is right."""
    key, number = sender._key_out, sender._sent
    sender._sent += 1
    mark = hmac.digest(key, struct.pack(">Q", number) + data, "sha256")[: frames.SEAL_BYTES]
    return struct.pack(">I", len(data)) + mark + data


def encode(name: bytes, steps: Sequence[bytes]) -> bytes:
    """Return what the other side sends."""
    to_hub, to_caller = frames._make_keys(KEY, NONCES)
    sender = Sealed(to_caller, to_hub) if name == b"caller" else Sealed(to_hub, to_caller)
    data = []
    for step in steps:
        if step[:1] != b"+" and step != b"*":
            data.append(step[1:])
        elif name in (b"lines", b"question"):
            data.append(step[1:] + b"\n")
        elif step != b"*":
            data.append(seal(sender, step[1:]))
        elif name == b"acceptor":
            data.append(frames.PREAMBLE + NONCES[:32] + frames._prove(KEY, b"caller", NONCES))
        elif name == b"caller":
            data.append(NONCES[32:] + frames._prove(KEY, b"coordinator", NONCES))
    return b"".join(data)


def read(name: bytes, pieces: Sequence[bytes]) -> Recorder:
    """Let a reader have what the other side sends, in pieces."""
    faults: list[str] = []
    recorder = Recorder()
    # Nonces of zeros: a case has the whole of a handshake
    with closing(Loop(keep(faults))) as loop, patch.object(os, "urandom", bytes):
        (_read_accepted if name == b"acceptor" else _read_opened)(name, pieces, loop, recorder)
    assert not faults, faults
    return recorder


def _read_accepted(name: bytes, pieces: Sequence[bytes], loop: Loop, recorder: Recorder) -> None:
    """Send the pieces to an acceptor."""
    admitted: list[Connection] = []

    def admit(connection: Connection, address: str, message: dict[str, object]) -> None:
        admitted[:] = [connection]
        recorder.hear(message)

    listening = socket.socket(socket.AF_UNIX)
    listening.bind("")
    listening.listen()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)  # what the acceptor does not take is a fault, and nothing to wait for
    acceptor = Acceptor(listening, KEY, loop, keep([]), admit)
    acceptor._take(ours, "10.0.0.4")
    with theirs, closing(acceptor):
        for piece in pieces:
            while piece and not acceptor.turned_away.total:
                sent = theirs.send(piece)
                piece = piece[sent:]
                for _ in range(sent // READ_BYTES + 2):
                    loop.turn(wait=False)
        for _, why in acceptor.turned_away.counts:
            recorder.lose(why)
    for connection in admitted:
        connection.close()


def _read_opened(name: bytes, pieces: Sequence[bytes], loop: Loop, recorder: Recorder) -> None:
    """Give the pieces to a connection, after the handshake of a caller if the reader is one."""
    framing: Framing
    to_hub, to_caller = frames._make_keys(KEY, NONCES)
    if name == b"caller":
        calling = Calling(KEY)
        while calling.sealed is None and pieces:
            piece, *pieces = pieces
            try:
                calling.feed(piece)
            except HandshakeFailed as failure:
                recorder.lose(str(failure))
                return
            assert len(calling._buffer) < frames.NONCE_BYTES + frames.PROOF_BYTES
        if calling.sealed is None:
            return
        framing, pieces = calling.sealed, [calling.rest, *pieces]
    elif name == b"lines":
        framing = lines.Lines(LINE_LIMIT)
    elif name == b"question":
        framing = Asking()
    else:
        framing = Sealed(to_caller, to_hub)
    ours, theirs = socket.socketpair()
    connection = Connection(ours, framing, loop, recorder.hear, recorder.lose)
    most = KEPT_BYTES.get(name, KEPT_BYTES[b""])
    with theirs, closing(connection):
        for piece in pieces:
            connection.take(piece)
            if recorder.end:
                break
            assert size_of(framing) <= most * 5 // 4 + SPARE_BYTES, "more is kept than the bound"


def size_of(value: object) -> int:
    """Return the bytes that the buffers of a reader take."""
    if isinstance(value, (bytes, bytearray)):
        return sys.getsizeof(value)
    if isinstance(value, list):
        return sys.getsizeof(value) + sum(map(size_of, value))
    return sum(map(size_of, vars(value).values())) if isinstance(value, (Sealed, lines.Lines, Asking)) else 0


def cut(data: bytes, dice: random.Random) -> list[bytes]:
    """Return bytes in some pieces."""
    places = sorted(dice.randrange(len(data) + 1) for _ in range(dice.randint(1, 9)))
    return [
        data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True) if start < end
    ]


def seeds() -> list[bytes]:
    """Return a conversation with each reader."""
    return [b"\n".join([name, *([b"*"] * (name in READERS[:2])), *STEPS[:3]]) for name in READERS]


def mutate(case: bytes, other: bytes, dice: random.Random) -> bytes:
    """Return another conversation."""
    if dice.random() < 0.2:
        return mutate_bytes(case, other, dice, WORDS)
    name, *steps = case.split(b"\n")
    others = [*other.split(b"\n")[1:], *STEPS]
    for _ in range(dice.randint(1, 3)):
        place, way = dice.randrange(len(steps) + 1), dice.randrange(6)
        if way == 0 or place == len(steps):
            steps.insert(place, dice.choice(others))
        elif way == 1:
            del steps[place]
        elif way == 2:
            steps[place] = mutate_bytes(steps[place], dice.choice(others), dice, WORDS)
        elif way == 3:
            steps[place : place + 1] = [steps[place]] * dice.choice((2, 2, 5, 400))
        elif way == 4:
            name = dice.choice(READERS)
        else:
            changed = mutate_json(steps[place][1:], dice.choice(others)[1:], dice)
            steps[place] = steps[place][:1] + changed[: dice.choice((frames.FRAME_LIMIT_BYTES, 1 << 20))]
    return b"\n".join([name, *steps])[: 1 << 18]


def try_one(case: bytes) -> str:
    """Send a conversation in one piece, in some, and in single bytes."""
    name, *steps = case.split(b"\n")
    name = name if name in READERS else b"sealed"
    data = encode(name, steps)
    whole = read(name, [data[start : start + READ_BYTES] for start in range(0, len(data), READ_BYTES)])
    ways = [cut(data, random.Random(zlib.crc32(data)))]
    ways += [[bytes([byte]) for byte in data]] if len(data) <= FINE_BYTES else []
    for pieces in ways:
        cutted = read(name, pieces)
        assert (cutted.heard, cutted.end) == (whole.heard, whole.end), "another result when it is cut"
    return f"{name.decode()}: {min(len(whole.heard), 3)} messages, {pattern_of(whole.end)}"
