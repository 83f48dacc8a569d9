"""Numbers of bytes as people read them."""

from __future__ import annotations


def say_size(count: int) -> str:
    """Return a number of bytes as people read it: ``64 MiB``, ``1.5 GiB``."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:.4g} {name}"
    return f"{count} B"
