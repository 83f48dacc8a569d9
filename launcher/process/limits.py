"""How many files a launcher may have open: more, where it holds the connections to many nodes."""

from __future__ import annotations

import resource

OWN = 256
"""What a launcher needs by itself, with room to spare."""


def raise_limit(more: int) -> None:
    """Raise the soft limit, as far as the hard one lets us, so that `OWN` and ``more`` files can be open.

    What we start inherits it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OWN + more
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))
