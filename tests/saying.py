"""Keeps what a part of the launcher says, for tests."""

from __future__ import annotations

from collections.abc import Callable


def keep(said: list[str]) -> Callable[[str, str], None]:
    """Return what prints a message of the launcher: into a list, without the name of its event."""
    return lambda text, event: said.append(text)
