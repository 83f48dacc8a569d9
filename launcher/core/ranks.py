"""Ranks in words: ``rank 3``, ``ranks 0, 2-7, 9``. A thousand ranks fit on a line."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def render_ranges(ranks: Iterable[int]) -> str:
    """Return ranks as ranges: ``0, 2-7, 9``."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def name_ranks(ranks: Iterable[int]) -> str:
    """Return ``rank 3`` or ``ranks 0, 2-7, 9``."""
    names = render_ranges(ranks)
    return f"rank {names}" if names.isdecimal() else f"ranks {names}"
