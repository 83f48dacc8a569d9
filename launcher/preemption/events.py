"""What a machine that is taken back means to its node, in one word each."""

from __future__ import annotations

ANNOUNCED = "announced"
"""It will be taken back, and there is more time than a checkpoint needs."""
WITHDRAWN = "withdrawn"
"""It will not, after all."""
DUE = "due"
"""The processes must be told now."""
STATUS_WORDS = "was preempted"
FIX = "start the same command again: it goes on where the last checkpoint was"
MARGIN_S = 10.0
"""Added to the grace: our own last word, the way to the other nodes, and clocks that differ a little."""
