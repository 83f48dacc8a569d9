"""Limit of open files of a launcher, which needs more if it holds the connections to many nodes."""

from __future__ import annotations

import resource

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
