"""Variables that Python itself reads."""

from __future__ import annotations

from launcher.core.model import Setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

UNBUFFERED = "PYTHONUNBUFFERED"


def plan_unbuffered(count: int, environ: Mapping[str, str]) -> list[Setting]:
    """Return the variable that makes Python write each line at once, even into our pipe.

    Python buffers up to 8 KiB for a pipe, and loses it when it is killed, although the last lines before the
    end matter most. If the user has set the variable, even to nothing, it stays.

    Args:
        count: Number of processes whose lines are merged.
        environ: The environment that they inherit.

    Source:
        docs.python.org, "Command line and environment", PYTHONUNBUFFERED.
    """
    if count < 2 or UNBUFFERED in environ:
        return []
    return [Setting(UNBUFFERED, "1", "several processes write through the launcher's pipes")]
