"""The launcher's own lines in the log: each is an event with a stable name, see docs/events.md.

An agent prints its lines between those of its processes (`launcher.output.router`). This module prints the
lines of a launcher that has no agent, or none yet.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Say = Callable[[str, str], None]
    """Prints a message of the launcher: its text, and the name of its event from docs/events.md."""


def say(text: str, event: str, **fields: object) -> None:
    """Print a message on standard error; secrets are removed, and it is made safe for a terminal."""
    from launcher.core.redact import printable, redact

    lines = redact(text).split("\n")
    sys.stderr.write("".join(f"launcher: {printable(line)}\n" for line in lines))
