"""Draws SVG: shapes, and texts that are cut to the room they are given.

The viewer's font is unknown, so text widths are those of a wide font (DejaVu Sans): a text that fits in it
fits in other fonts, too. All texts are escaped.
"""

from __future__ import annotations

from xml.sax.saxutils import escape, quoteattr

from launcher.core.redact import printable

FONT = "'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
NARROW, WIDE = frozenset("ijl.,:;|'!()[]-/ "), frozenset("mwMW@%&")
BOLD = 1.1
ELLIPSIS = "\u2026"


def measure(text: str, size: float, bold: bool = False) -> float:
    """Return the maximum width of a text, in the unit of ``size``."""
    return sum(map(_advance, text)) * size * (BOLD if bold else 1.0)


def _advance(character: str) -> float:
    if not character.isascii():
        return 1.05  # the width of the widest character, an ideograph
    if character in NARROW:
        return 0.4
    if character in WIDE:
        return 1.0
    return 0.73 if character.isupper() else 0.64


def fit(text: str, room: float, size: float, bold: bool = False) -> str:
    """Return a text in printable characters, cut with an ellipsis if it is wider than the room."""
    text = printable(text)
    if measure(text, size, bold) <= room:
        return text
    left, kept = room - measure(ELLIPSIS, size, bold), 0
    for character in text:
        left -= measure(character, size, bold)
        if left < 0:
            break
        kept += 1
    return text[:kept] + ELLIPSIS if kept else ""


class Drawing:
    """A list of shapes in the order in which they were drawn; later ones are on top."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def rectangle(
        self, kind: str, x: float, y: float, width: float, height: float, *, radius: float = 6, fill: str = ""
    ) -> None:
        """Draw a rectangle with a CSS class; ``fill`` overrides the colour of the class."""
        own = f" style={quoteattr(f'fill:{fill}')}" if fill else ""
        box = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}"'
        self._parts.append(f'<rect class="{kind}" {box}{own}/>')

    def path(self, kind: str, steps: str, width: float) -> None:
        """Draw an SVG path with a CSS class."""
        self._parts.append(f'<path class="{kind}" d="{steps}" style="stroke-width:{width:g}"/>')

    def text(
        self,
        kind: str,
        x: float,
        y: float,
        text: str,
        room: float,
        *,
        size: float = 11,
        bold: bool = False,
        centre: bool = False,
    ) -> float:
        """Draw a text on a baseline and return its width; if it is cut, its tooltip shows the whole text."""
        shown = fit(text, room, size, bold)
        if not shown:
            return 0.0
        anchor = ' text-anchor="middle"' if centre else ""
        weight = ' font-weight="600"' if bold else ""
        whole = f"<title>{_clean(text)}</title>" if shown != printable(text) else ""
        self._parts.append(
            f'<text class="{kind}" x="{x:g}" y="{y:g}" font-size="{size:g}"{anchor}{weight}>'
            f"{_clean(shown)}{whole}</text>"
        )
        return measure(shown, size, bold)

    def joined(self, later: Drawing) -> Drawing:
        """Return a drawing of both, with the later one on top."""
        both = Drawing()
        both._parts = [*self._parts, *later._parts]
        return both

    def render(self, width: float, height: float, title: str, style: str) -> str:
        """Return the text of the SVG file."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
            f'height="{height:g}" role="img" font-family="{FONT}">'
        )
        return "\n".join(
            [head, f"<title>{_clean(title)}</title>", f"<style>{style}</style>", *self._parts, "</svg>", ""]
        )


def _clean(text: str) -> str:
    """Return a text escaped for XML, which allows neither control characters nor lone surrogates."""
    return escape(printable(text))
