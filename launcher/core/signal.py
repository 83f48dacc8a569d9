"""The signal module without the enums around it, which are 1 ms and 60 pages of every start."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal

__all__ = ["signal"]
