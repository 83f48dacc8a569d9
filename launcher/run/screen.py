"""What stands on the last line of a terminal or log, so that nobody writes into somebody else's line."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.run.console import Bytes, Console

_FRESH, _RETURNED, _OPEN = range(3)
_STATE_AFTER = {0x0A: _FRESH, 0x0D: _RETURNED}
_NEWLINE = 0x0A
_ERASE_TO_END = b"\x1b[K"
_ERASE_LINE = b"\r\x1b[K"


def share_screens(out: Console, err: Console, *, escapes: bool = True) -> tuple[Screen, Screen]:
    """Return the screens of standard output and error: one and the same where both lead to one place.

    Then everything goes through ``out``: two queues for one terminal would tear lines.
    """
    screen = Screen(out, escapes=escapes)
    return screen, screen if out.place == err.place else Screen(err, escapes=escapes)


class Screen:
    """One destination, and what stands on its last line.

    Attributes:
        console: Where it goes.
        inserted_newlines: How often an open line was ended so that somebody else could write.
    """

    def __init__(self, console: Console, *, escapes: bool = True) -> None:
        """Begin with a cursor at the start of a line.

        Args:
            console: Where to write.
            escapes: Whether a terminal understands escape codes (``TERM`` is not ``dumb``); what is
                no terminal never gets any.
        """
        self.console = console
        self.inserted_newlines = 0
        self._escapes = escapes and console.is_terminal
        self._writer: object = None
        self._line = _FRESH
        self._status = b""
        self._drawn = b""

    def put(self, writer: object, prefix: bytes, text: Bytes) -> None:
        """Write the bytes of one writer, on a line of its own.

        Args:
            writer: Whose bytes these are; compared by identity.
            prefix: For the first line, unless it goes on with a line of this writer.
            text: Not empty; its second and later lines have their prefixes already.
        """
        lead = self._lead_in(writer, prefix, text[0])
        self._writer, self._line = writer, _STATE_AFTER.get(text[-1], _OPEN)
        self._send(lead, text)

    def notice(self, text: str) -> None:
        """Write a message of the launcher.

        Args:
            text: One or more lines; each gets ``launcher: `` in front, and is made safe for a terminal.
                Secrets are the caller's to take out (`launcher.redact.redact`).
        """
        from launcher.redact import printable

        lines = [f"launcher: {printable(line)}\n".encode() for line in text.split("\n")]
        self.put(None, b"", b"".join(lines))

    def status(self, text: bytes) -> None:
        """Show one line below all output, on a terminal; an empty text takes it away.

        It is not there while a line of output is open, or a progress bar stands where it would be.

        Args:
            text: UTF-8 without escape codes, a column per character; cut to the terminal's width.
        """
        self._status = text
        self._send(b"", b"")

    def clear(self) -> None:
        """Take the status line away."""
        self.status(b"")

    def is_open_for(self, writer: object) -> bool:
        """Return whether the last line is this writer's and has no end yet."""
        return self._line == _OPEN and self._writer is writer

    def _lead_in(self, writer: object, prefix: bytes, first: int) -> bytes:
        """Return what must stand between the last byte written and the first of this writer."""
        if self.console.torn:
            self._writer, self._line = None, _OPEN
        same = self._writer is writer and writer is not None
        if same and (self._line == _OPEN or (self._line == _RETURNED and first == _NEWLINE)):
            return b""
        if self._line == _OPEN:
            self.inserted_newlines += 1
            return b"\n" + prefix
        if self._line == _RETURNED and not same and self._escapes:
            return _ERASE_TO_END + prefix
        return prefix

    def _send(self, lead: bytes, text: Bytes) -> None:
        """Write output between taking the status line away and drawing it again."""
        wanted = self._clip_status()
        if text or wanted != self._drawn:
            before = _ERASE_LINE if self._drawn else b""
            self._drawn = wanted
            self.console.write(b"".join((before, lead, text, wanted)))

    def _clip_status(self) -> bytes:
        """Return the status line as it can stand there now; empty where it cannot."""
        if not (self._status and self._escapes) or self._line != _FRESH or self.console.backlog_bytes:
            return b""
        from launcher.redact import printable

        text = printable(self._status.decode(errors="replace"))
        return text[: self.console.columns() - 1].encode()
