"""Wire protocol of the launchers: the job's key, a handshake of fixed size, then sealed frames of JSON.

The key authenticates a job's launchers to each other. It comes from a token or the job's name.

Handshake, with a random nonce from each side:

    caller       PREAMBLE, its nonce
    coordinator  its nonce
    caller       proof of the caller: an HMAC of both nonces by the key of the job
    coordinator  proof of the coordinator: another one, once the caller's was right

A caller without the key receives nothing that is derived from it, so it cannot test guesses of a token
against what it has received. Nothing that either side sends before the proofs is parsed, and none of it is
longer than 64 bytes. After the handshake a frame is ``length | seal | JSON``. The seal is an HMAC over a
counter and the JSON, by a key for this connection and this direction. A frame that was made elsewhere,
changed, repeated, left out or sent back ends the connection.

Nothing is encrypted: facts, heartbeats and the last lines of a failed process are sent in clear text.

Source: RFC 2104 (HMAC; truncation to half of its length, section 5); NIST SP 800-108 (keys derived from a key
by a pseudorandom function).
"""

from __future__ import annotations

import hmac
import os
import struct

from launcher.channel.lines import encode, parse
from launcher.core.environ import find_job_id
from launcher.core.errors import make_error
from launcher.core.wire import OTHER_KEY, Garbled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TOKEN_VARIABLE = "LAUNCHER_TOKEN"  # noqa: S105 - a name, not a secret
PURPOSE = b"launcher peers 2 "
"""Separates these keys from others that are made from the same token; 2 is the protocol version."""
TOKEN_LIMIT_BYTES = 4096
TOKEN_LEAST_BYTES = 16
FRAME_LIMIT_BYTES = 1 << 20
"""Maximum size of the JSON of one frame, after the handshake; `launcher.core.shorten` makes messages fit."""
SEAL_BYTES = 16
NONCE_BYTES = PROOF_BYTES = 32
PREAMBLE = b"launcher/peers/2"
CALL_BYTES = len(PREAMBLE) + NONCE_BYTES
OTHER_LAUNCHER = f"a launcher with {OTHER_KEY}, or of another job, or something else"
_HEADER = struct.Struct(">I")
_COUNTER = struct.Struct(">Q")


def read_token(path: str, environ: Mapping[str, str]) -> bytes | None:
    """Return the job's token; None without one.

    Args:
        path: Path from ``--token-file``; empty for LAUNCHER_TOKEN, if set.
        environ: The environment of the launcher.

    Raises:
        UsageError: The file cannot be read or is too long, or the token is too short to be a secret.
    """
    if path:
        token, origin = _read_file(path), "--token-file"
    else:
        token, origin = os.fsencode(environ.get(TOKEN_VARIABLE, "")).strip(), TOKEN_VARIABLE
        if not token:
            return None
    if len(token) < TOKEN_LEAST_BYTES:
        raise make_error("short-token", origin=origin, length=len(token), least=TOKEN_LEAST_BYTES)
    return token


def _read_file(path: str) -> bytes:
    from launcher.machine.whole import read_whole

    # A value that is no path may be the token itself
    shown = path if "/" in path else f"(a path; {TOKEN_VARIABLE} takes a token)"
    try:
        data = read_whole(path, TOKEN_LIMIT_BYTES)
    except OSError as error:
        raise make_error("unread-token", path=shown, reason=error.strerror) from error
    if len(data) > TOKEN_LIMIT_BYTES:
        raise make_error("long-token", path=shown, most=TOKEN_LIMIT_BYTES)
    return data.strip()


def name_job(environ: Mapping[str, str], port: int, rendezvous_id: str = "") -> str:
    """Return the job's name: the same on all of its nodes, different for another job.

    It contains nothing that nodes may disagree on by mistake (their number, the command). Such mistakes must
    be reported, but a node with another key cannot even connect.
    """
    return "/".join(filter(None, (rendezvous_id, find_job_id(environ), str(port))))


def make_key(token: bytes | None, job: str) -> bytes:
    """Return the key of a job, 32 bytes. Without a token it only keeps two jobs apart."""
    if token is not None:
        # Two jobs with the same token must not have the same key.
        return hmac.digest(token, PURPOSE + b"token " + os.fsencode(job), "sha256")
    return hmac.digest(b"", PURPOSE + b"job " + os.fsencode(job), "sha256")


def at_port(key: bytes, port: int) -> bytes:
    """Return the key for connections to one port of node 0.

    Another user of node 0's machine who has taken the first port, so that node 0 listens at the next one,
    could pass connections on to it: the nodes would not notice, and that user could read and end them.
    """
    return hmac.digest(key, b"port %d" % port, "sha256")


class HandshakeFailed(Garbled):
    """The peer does not have the key of this job."""


class Sealed:
    """Framing of one connection after the handshake."""

    def __init__(self, key_out: bytes, key_in: bytes) -> None:
        self._key_out, self._key_in = key_out, key_in
        self._sent = self._received = 0
        self._buffer = b""

    def frame(self, encoded: bytes) -> bytes:
        """Return an encoded message as a frame.

        Raises:
            ValueError: It is longer than a frame may be.
        """
        if len(encoded) > FRAME_LIMIT_BYTES:
            raise ValueError(f"a message of {len(encoded)} bytes")
        seal = hmac.digest(self._key_out, _COUNTER.pack(self._sent) + encoded, "sha256")[:SEAL_BYTES]
        self._sent += 1
        return _HEADER.pack(len(encoded)) + seal + encoded

    def pack(self, message: Mapping[str, object]) -> bytes:
        """Return a message as a frame; see `frame`."""
        return self.frame(encode(message))

    def feed(self, data: bytes) -> Iterator[dict[str, object]]:
        """Yield the messages that are now complete; keeps less than one frame and ``data``.

        Raises:
            Garbled: A frame is too long, not sealed by the other side, out of order, or not a JSON object.
        """
        self._buffer = buffer = self._buffer + data if self._buffer else data
        start = 0
        try:
            while len(buffer) - start >= _HEADER.size:
                (length,) = _HEADER.unpack_from(buffer, start)
                if length > FRAME_LIMIT_BYTES:
                    raise Garbled(f"a frame of {length} bytes, expected {FRAME_LIMIT_BYTES} at most")
                end = start + _HEADER.size + SEAL_BYTES + length
                if len(buffer) < end:
                    break
                frame = buffer[start + _HEADER.size : end]
                start = end
                yield self._open(frame)
        finally:
            self._buffer = buffer[start:]

    def _open(self, frame: bytes) -> dict[str, object]:
        seal, data = frame[:SEAL_BYTES], frame[SEAL_BYTES:]
        expected = hmac.digest(self._key_in, _COUNTER.pack(self._received) + data, "sha256")[:SEAL_BYTES]
        if not hmac.compare_digest(seal, expected):
            raise Garbled("a frame with a wrong seal")
        self._received += 1
        return parse(data)


class Answering:
    """The coordinator's side of a handshake: takes bytes, returns bytes, and finally has a `Sealed`.

    Attributes:
        sealed: Framing of the connection, once the caller has proved itself.
        rest: Data that the caller sent after the handshake.
    """

    def __init__(self, key: bytes) -> None:
        self.sealed: Sealed | None = None
        self.rest = b""
        self._key, self._buffer = key, b""
        self._nonces: bytes | None = None

    def feed(self, data: bytes) -> bytes:
        """Take data, and return what to send: a nonce, then the proof for a caller with the key.

        Raises:
            HandshakeFailed: The caller has another protocol or no key; it gets no reason.
        """
        self._buffer += data
        reply = b""
        if self._nonces is None:
            begins = self._buffer[: len(PREAMBLE)]
            if begins != PREAMBLE[: len(begins)]:
                raise HandshakeFailed("does not speak the launchers' protocol")
            if len(self._buffer) < CALL_BYTES:
                return b""
            theirs, self._buffer = self._buffer[len(PREAMBLE) : CALL_BYTES], self._buffer[CALL_BYTES:]
            reply = os.urandom(NONCE_BYTES)
            self._nonces = theirs + reply
        if len(self._buffer) >= PROOF_BYTES:
            proof, self.rest = self._buffer[:PROOF_BYTES], self._buffer[PROOF_BYTES:]
            self._buffer = b""
            if not hmac.compare_digest(proof, _prove(self._key, b"caller", self._nonces)):
                raise HandshakeFailed(f"has {OTHER_KEY}, or is of another job")
            to_hub, to_caller = _make_keys(self._key, self._nonces)
            self.sealed = Sealed(to_caller, to_hub)
            reply += _prove(self._key, b"coordinator", self._nonces)
        return reply


class Calling:
    """The caller's side of a handshake.

    Attributes:
        call: Data to send first.
        has_proved: Whether our proof was sent to the coordinator.
        sealed: Framing of the connection, once the coordinator has proved itself too.
        rest: Data that the coordinator sent after the handshake.
    """

    def __init__(self, key: bytes) -> None:
        self.sealed: Sealed | None = None
        self.rest = b""
        self._key, self._nonce, self._buffer = key, os.urandom(NONCE_BYTES), b""
        self._nonces: bytes | None = None
        self.call = PREAMBLE + self._nonce

    @property
    def has_proved(self) -> bool:
        """Whether our proof was sent: a coordinator that closes the connection then has another key."""
        return self._nonces is not None

    def feed(self, data: bytes) -> bytes:
        """Take data, and return what to send.

        Raises:
            HandshakeFailed: The coordinator does not have the key.
        """
        self._buffer += data
        reply = b""
        if self._nonces is None:
            if len(self._buffer) < NONCE_BYTES:
                return b""
            self._nonces = self._nonce + self._buffer[:NONCE_BYTES]
            self._buffer = self._buffer[NONCE_BYTES:]
            reply = _prove(self._key, b"caller", self._nonces)
        if len(self._buffer) >= PROOF_BYTES:
            proof, self.rest = self._buffer[:PROOF_BYTES], self._buffer[PROOF_BYTES:]
            self._buffer = b""
            if not hmac.compare_digest(proof, _prove(self._key, b"coordinator", self._nonces)):
                raise HandshakeFailed(OTHER_LAUNCHER)
            to_hub, to_caller = _make_keys(self._key, self._nonces)
            self.sealed = Sealed(to_hub, to_caller)
        return reply


def _prove(key: bytes, who: bytes, nonces: bytes) -> bytes:
    return hmac.digest(key, b"proof of the " + who + b" " + nonces, "sha256")


def _make_keys(key: bytes, nonces: bytes) -> tuple[bytes, bytes]:
    """Return the two keys of a connection: for frames to the coordinator, and for frames to the caller."""
    return (
        hmac.digest(key, b"frames to the coordinator " + nonces, "sha256"),
        hmac.digest(key, b"frames to the caller " + nonces, "sha256"),
    )
