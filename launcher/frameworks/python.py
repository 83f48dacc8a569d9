"""What Python itself reads."""

from __future__ import annotations

from launcher.core.model import Setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

UNBUFFERED = "PYTHONUNBUFFERED"


def plan_unbuffered(count: int, environ: Mapping[str, str]) -> list[Setting]:
    """Return the variable that makes lines appear when they are printed, where we put a pipe in between.

    Python keeps what goes to a pipe until it has 8 KiB, and loses it when it is killed: the last lines
    before a death are the ones that matter. Set, even to nothing, it is the user's.

    Args:
        count: How many processes there are whose lines come together.
        environ: What they inherit.

    Source:
        docs.python.org, "Command line and environment", PYTHONUNBUFFERED.
    """
    if count < 2 or UNBUFFERED in environ:
        return []
    return [Setting(UNBUFFERED, "1", "several processes write through the launcher's pipes")]
