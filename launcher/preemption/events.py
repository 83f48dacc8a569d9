"""Preemption events, and their texts."""

from __future__ import annotations

ANNOUNCED = "announced"
"""The machine will be preempted, and there is more time than a checkpoint needs."""
WITHDRAWN = "withdrawn"
"""The machine will not be preempted after all."""
DUE = "due"
"""The processes must be told now."""
STATUS_WORDS = "was preempted"
LATEST_S = 366 * 86_400.0
"""One year: no cloud announces a preemption earlier, and any such time can be shown as a date."""
MARGIN_S = 10.0
"""Seconds added to the grace: for our own messages, the way to the other nodes, and small clock
differences."""
