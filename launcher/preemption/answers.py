"""Parses an answer of a metadata service from the bytes so far: limited in size, and without guesses."""

from __future__ import annotations

from launcher.core.frozen import frozen

LIMIT_BYTES = 1 << 16
"""Maximum size of head and body. Azure's answer for a scale set of 100 machines is a tenth of it."""
END_OF_HEAD = b"\r\n\r\n"
DIGITS_MAX = 8


class Unclear(Exception):
    """The service gave no usable answer; the message says why, and is safe to show."""


@frozen
class ServiceAnswer:
    """An answer of the service.

    Attributes:
        status: HTTP status.
        body: The whole body.
    """

    status: int
    body: bytes


def parse_answer(data: bytes, *, has_ended: bool) -> ServiceAnswer | None:
    """Return the answer in these bytes; None if it is not complete yet.

    Args:
        data: All bytes that have come.
        has_ended: Whether no more will come.

    Raises:
        Unclear: The bytes are not a valid answer.
    """
    if len(data) > LIMIT_BYTES:
        raise Unclear(f"an answer of more than {LIMIT_BYTES >> 10} KiB")
    head, end, rest = data.partition(END_OF_HEAD)
    if not end:
        if has_ended:
            raise Unclear("not an HTTP answer" if data else "closed without an answer")
        return None
    lines = head.decode("latin-1").split("\r\n")
    status = _parse_status(lines[0])
    body = _find_body(rest, dict(map(_parse_header, lines[1:])), has_ended)
    if body is None and has_ended:
        raise Unclear("a truncated answer")
    return None if body is None else ServiceAnswer(status, body)


def _parse_status(line: str) -> int:
    words = line.split(" ", 2)
    is_http = words[0].startswith("HTTP/1.") and len(words) > 1
    if not (is_http and len(words[1]) == 3 and words[1].isascii() and words[1].isdecimal()):
        raise Unclear("not an HTTP answer")
    return int(words[1])


def _parse_header(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip().lower(), value.strip()


def _find_body(rest: bytes, headers: dict[str, str], has_ended: bool) -> bytes | None:
    """Return the body; None if it is not complete yet."""
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return _join_chunks(rest)
    digits = headers.get("content-length")
    if digits is None:
        return rest if has_ended else None
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= DIGITS_MAX):
        raise Unclear("an answer without a valid length")
    length = int(digits)
    if length > LIMIT_BYTES:
        raise Unclear(f"an answer of more than {LIMIT_BYTES >> 10} KiB")
    return rest[:length] if len(rest) >= length else None


def _join_chunks(rest: bytes) -> bytes | None:
    """Return a body that comes in chunks (RFC 9112, section 7.1); None if the last one is missing."""
    body = b""
    while True:
        line, end, rest = rest.partition(b"\r\n")
        if not end:
            return None
        try:
            size = int(line.partition(b";")[0][: DIGITS_MAX + 1], 16)
        except ValueError:
            raise Unclear("chunks without a size") from None
        if size < 0 or size > LIMIT_BYTES:
            raise Unclear("invalid chunk size")
        if size == 0:
            return body
        if len(rest) < size + 2:
            return None
        body, rest = body + rest[:size], rest[size + 2 :]
