"""Preemption events, and their texts."""

from __future__ import annotations

ANNOUNCED = "announced"
"""The machine will be preempted, and there is more time than a checkpoint needs."""
WITHDRAWN = "withdrawn"
"""The machine will not be preempted after all."""
DUE = "due"
"""The processes must be told now."""
STATUS_WORDS = "was preempted"
MARGIN_S = 10.0
"""Seconds added to the grace: for our own messages, the way to the other nodes, and small clock
differences."""
