"""Numbers in texts, and lists of them as ranges: ranks (``ranks 0, 2-7, 9``), CPUs as in the kernel."""

from __future__ import annotations

from itertools import groupby

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

CPU_LIMIT = 1 << 16
"""More CPUs than any kernel supports (NR_CPUS is at most 8192); a larger number is not a CPU."""
RANK_LIMIT = 1 << 24


def is_number(text: str, digits: int) -> bool:
    """Whether a text is a decimal number of at most so many digits, without a sign."""
    return text.isascii() and text.isdecimal() and len(text) <= digits


def natural_order(name: str) -> tuple[tuple[bool, int, str], ...]:
    """Return a sort key by which mlx5_2 comes before mlx5_10; numbers may have any length."""
    groups = [(is_text, "".join(part)) for is_text, part in groupby(name, lambda one: not "0" <= one <= "9")]
    return tuple(
        (True, 0, part) if is_text else (False, len(part.lstrip("0")), part.lstrip("0"))
        for is_text, part in groups
    )


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


def parse_ranges(text: str) -> frozenset[int]:
    """Return the ranks in what `render_ranges` returns; empty if they are none, or too many."""
    return parse_cpu_list(text.replace(" ", ""), RANK_LIMIT)


def parse_cpu_list(text: str, limit: int = CPU_LIMIT) -> frozenset[int]:
    """Return the CPUs in a kernel list such as ``0-3,8,10-11``; empty if the text is not such a list.

    At most `CPU_LIMIT`, with numbers below ``limit``.
    """
    cpus: set[int] = set()
    count = 0
    for part in text.strip().split(","):
        low, dash, high = part.partition("-")
        high = high if dash else low
        if not all(is_number(end, 9) and int(end) < limit for end in (low, high)) or int(low) > int(high):
            return frozenset()
        count += int(high) + 1 - int(low)
        if count > CPU_LIMIT:  # an own limit for each range would be none for the list
            return frozenset()
        cpus.update(range(int(low), int(high) + 1))
    return frozenset(cpus)


def render_cpu_list(cpus: Iterable[int]) -> str:
    """Return CPUs as the kernel and taskset write them: ``0-3,8,10-11``."""
    return render_ranges(cpus).replace(" ", "")
