"""How the lines of a process look in the log: with a prefix, with the time, or as JSON.

A `Stream` has one format. It asks the format where the finished lines of a chunk end and how long an
unfinished one waits, and hands it the text to show. Text and JSON take a few operations on bytes for each
chunk, however many lines it has. `launcher.output.dedupe` looks at each line.
"""

from __future__ import annotations

from launcher.core.ranks import name_ranks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.core.log import UtcClock
    from launcher.output.console import Bytes, Screen

HOLD_S = 0.2
"""Seconds that an unfinished line (a prompt, a progress bar) waits for its end."""
JSON_HOLD_S = 5.0
"""The same for JSON: no person waits for a prompt there, and each piece is an object."""
_CONTROLS = bytes((*range(0x0A), *range(0x0B, 0x20), 0x7F))
"""All that JSON escapes, but the newline, which ends the object; and DEL."""
_BREAKS = {chr(code).encode(): b"\\u%04x" % code for code in (*range(0x80, 0xA0), 0x2028, 0x2029)}
"""What moves some terminals' cursors, and what some readers take for the end of a line."""
_ESCAPES = {0x08: b"\\b", 0x09: b"\\t", 0x0C: b"\\f", 0x0D: b"\\r"}


class PlainLines:
    """Lines with a prefix; a carriage return also ends a line, as in a progress bar."""

    def __init__(self, prefix: bytes = b"", clock: UtcClock | None = None, *, bars: bool = True) -> None:
        """Set the look of one stream.

        Args:
            prefix: Prefix of each line, without a line end.
            clock: Puts the time before the prefix; None for no time.
            bars: Whether progress bars are shown. Otherwise only the last state of each is, at its newline.
        """
        self._prefix, self._clock, self._bars = prefix, clock, bars

    def find_end(self, data: bytes) -> int:
        """Return the number of bytes up to the end of the last finished line."""
        end = data.rfind(b"\n") + 1
        return max(end, data.rfind(b"\r") + 1) if self._bars else end

    def hold_s(self, partial: bytearray) -> float | None:
        """Return how long an unfinished line waits for its end; None: as long as it takes.

        Of a progress bar that is not shown this keeps only the last state.
        """
        if self._bars or b"\r" not in partial:
            return HOLD_S
        del partial[: max(0, partial.rfind(b"\r", 0, len(partial) - 1))]
        return None

    def show(
        self, screen: Screen, writer: object, text: bytes, ranks: Sequence[int] = (), moment: str = ""
    ) -> None:
        """Write lines, or a piece of one, to a screen.

        Args:
            screen: The screen.
            writer: The stream, as `Screen.put` compares it.
            text: Not empty.
            ranks: The processes that wrote it, if there are several.
            moment: When it was written; now by default.
        """
        prefix = self._prefix
        if ranks:
            prefix = f"[{name_ranks(ranks)}] ".encode()
        if self._clock is not None:
            prefix = f"{moment or self._clock.read()} ".encode() + prefix
        if not self._bars and b"\r" in text:
            text = _last_states(text)
        elif prefix and text[:1] == b"\r" and text[1:2] != b"\n" and not screen.is_open_for(writer):
            text = text.lstrip(b"\r")  # tqdm returns before each bar: at the start of a line, to where we are
        if text:
            screen.put(writer, prefix, _with_prefixes(text, prefix))


class JsonLines:
    """Lines as JSON objects; only a newline ends a line."""

    def __init__(self, clock: UtcClock, facts: Mapping[str, object]) -> None:
        """Set the look of one stream.

        Args:
            clock: Tells the time of each line.
            facts: What is the same in all of them.
        """
        from json import dumps

        self._clock, self._facts = clock, dumps(facts, ensure_ascii=False, separators=(",", ":"))[1:-1]

    def find_end(self, data: bytes) -> int:
        """Return the number of bytes up to the end of the last finished line."""
        return data.rfind(b"\n") + 1

    def hold_s(self, partial: bytearray) -> float | None:
        """Return how long an unfinished line waits for its end."""
        return JSON_HOLD_S

    def show(
        self, screen: Screen, writer: object, text: bytes, ranks: Sequence[int] = (), moment: str = ""
    ) -> None:
        """Write lines, or a piece of one, to a screen; see `PlainLines.show`."""
        screen.put(None, b"", self.render(text, ranks, moment))

    def render(self, text: bytes, ranks: Sequence[int] = (), moment: str = "") -> bytes:
        """Return an object for each line; a partial line's object is marked unfinished."""
        more = f',"ranks":{[*ranks]}' if ranks else ""
        head = f'{{"time":"{moment or self._clock.read()}",{self._facts}{more},"text":"'.encode()
        if not _is_utf8(text):
            return b"".join(_render_line(head, line) for line in split(text, b"\n"))
        return _render_lines(head, text)


def split(text: bytes, end: bytes) -> list[bytes]:
    """Return a text's lines with their ends, and the rest after the last one."""
    *lines, rest = text.split(end)
    return [line + end for line in lines] + ([rest] if rest else [])


def _with_prefixes(text: bytes, prefix: bytes) -> Bytes:
    """Return the lines with the prefix after each line end but the last."""
    if not prefix:
        return text
    whole = text[-1:] in (b"\n", b"\r")
    found = text.replace(b"\n", b"\n" + prefix)
    if b"\r" in text:
        # Now there is a prefix after every \r and \n; remove the one inside each \r\n again.
        # The process's own text cannot match, because we have put a prefix after each of its \r.
        found = found.replace(b"\r", b"\r" + prefix)
        found = found.replace(b"\r" + prefix + b"\n", b"\r\n")
    return memoryview(found)[: -len(prefix)] if whole else found


def _last_states(text: bytes) -> bytes:
    """Return each line as a terminal shows it in the end: after its last carriage return."""
    found = []
    for line in split(text, b"\n"):
        end = len(line.rstrip(b"\r\n"))
        found.append(line[line.rfind(b"\r", 0, end) + 1 :])
    return b"".join(found)


def _is_utf8(text: bytes) -> bool:
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _render_lines(head: bytes, text: bytes) -> bytes:
    text = text.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    for byte in _CONTROLS:  # 31 searches for one byte take a fifth of the time of one for any of 31
        if byte in text:
            text = text.replace(bytes((byte,)), _ESCAPES.get(byte, b"\\u%04x" % byte))
    for letter, escaped in () if text.isascii() else _BREAKS.items():
        text = text.replace(letter, escaped)
    end = text.rfind(b"\n") + 1
    parts = [head, text[: end - 1].replace(b"\n", b'"}\n' + head), b'"}\n'] if end else []
    if end < len(text):
        parts += [head, text[end:], b'","unfinished":true}\n']
    return b"".join(parts)


def _render_line(head: bytes, line: bytes) -> bytes:
    """Return the object of one line; if it is not UTF-8, with its bytes."""
    if _is_utf8(line):
        return _render_lines(head, line)
    from base64 import b64encode

    shown = line.decode("utf-8", "replace").encode()
    bare = line.removesuffix(b"\n")
    return _render_lines(head, shown)[:-2] + b',"base64":"' + b64encode(bare) + b'"}\n'
