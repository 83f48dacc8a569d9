"""Limits of a process: open files, of which a launcher with many nodes needs more, and memory."""

from __future__ import annotations

import resource

from launcher.core.errors import attempt

OWN = 256
"""Number of open files that a launcher itself needs, with a margin."""


def raise_limit(more: int) -> None:
    """Raise the soft limit, up to the hard limit, so that `OWN` plus ``more`` files can be open.

    Processes that we start inherit it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OWN + more
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))


def count_spare(kept: int) -> int:
    """Return how many files clients without the key may make us open: half of those that the job leaves.

    ``kept``: number of files that the job itself needs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if soft == resource.RLIM_INFINITY else max(1, (soft - kept) // 2)


def limit_memory(most_bytes: int) -> None:
    """Limit the memory of this process, which reads what a stranger sends: more raises MemoryError.

    Nothing changes if the kernel refuses, or the user's own limit is lower.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    attempt(resource.setrlimit, resource.RLIMIT_DATA, (most_bytes, hard))
