"""Reads values of a launcher's answer, which is not trusted: what is malformed counts as missing. Pure."""

from __future__ import annotations

from launcher.core.redact import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

Message = dict[str, object]
TEXT_LENGTH = 300


def rows_of(answer: Mapping[str, object]) -> list[Message]:
    """Return the processes of a node's answer."""
    return mappings(answer, "ranks")


def mappings(answer: Mapping[str, object], name: str) -> list[Message]:
    """Return the objects in a list of an answer; none if it is not a list."""
    value = answer.get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def number(message: Mapping[str, object], name: str) -> float | None:
    """Return a received number; None for anything else."""
    value = message.get(name)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return value if abs(value) < 1e15 else None  # False for NaN, too


def words(message: Mapping[str, object], name: str) -> str:
    """Return a received text, made safe for a terminal; empty for anything else."""
    value = message.get(name)
    return printable(value)[:TEXT_LENGTH] if isinstance(value, str) else ""
