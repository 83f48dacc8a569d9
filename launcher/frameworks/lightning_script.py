"""What a script's own text says of its Trainer: the numbers that are written there."""

from __future__ import annotations

import ast

from launcher.frameworks.lightning_job import ARGUMENTS, count_devices
from launcher.frozen import frozen

CALLS = ("Trainer", "Fabric")
STARTERS = ("spawn", "fork", "notebook")
"""Parts of the names of strategies that start the processes themselves, whoever has started the script."""


@frozen
class Trainer:
    """One call: its line, its name, and of each argument that is a number there (as it is written, count)."""

    line: int
    name: str
    counts: dict[str, tuple[str, int]]


def read_trainers(text: str) -> list[Trainer]:
    """Return the calls that make a Trainer or a Fabric; none of a text that is not this Python's."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [_read(node) for node in nodes if isinstance(node, ast.Call) and _name(node) in CALLS]


def _name(call: ast.Call) -> str:
    return getattr(call.func, "attr", "") or getattr(call.func, "id", "")


def _read(call: ast.Call) -> Trainer:
    given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    strategy = getattr(given.get("strategy"), "value", None)
    starts = any(word in str(strategy) for word in STARTERS)
    found = {name: (given[name], _count(given[name])) for name in ARGUMENTS if name in given and not starts}
    counts = {
        name: (f"{name}={ast.unparse(value)}", count) for name, (value, count) in found.items() if count
    }
    return Trainer(call.lineno, _name(call), counts)


def _count(value: ast.expr) -> int | None:
    """Return how many devices or nodes a literal means; None for anything that is worked out later."""
    if isinstance(value, (ast.List, ast.Tuple)):
        return len(value.elts)
    if isinstance(value, ast.Constant) and isinstance(value.value, (int, str)):
        return count_devices(str(value.value))
    return None
