"""What a script's own text says of its Trainer: the numbers that are written there."""

from __future__ import annotations

import ast
import warnings

from launcher.core.frozen import frozen
from launcher.frameworks.lightning_job import ARGUMENTS, count_devices

TRAINER, FABRIC, CLI = "Trainer", "Fabric", "LightningCLI"
POSITIONS = {FABRIC: ("accelerator", "strategy", "devices", "num_nodes")}
"""What arguments without a name are."""
STARTERS = ("spawn", "fork", "notebook")
"""Parts of the names of strategies that start the processes themselves, whoever has started the script."""


@frozen
class Trainer:
    """One call.

    Attributes:
        line: Where it stands.
        name: What is called.
        counts: Of each argument that is a number there (as it is written, count); 0 stands for ``"auto"``.
        given: The arguments that are given, whatever they are.
        starts: Whether it starts the other processes itself, whoever has started the script.
    """

    line: int
    name: str
    counts: dict[str, tuple[str, int]]
    given: tuple[str, ...]
    starts: bool


def read_trainers(text: str) -> list[Trainer]:
    """Return the calls that make something of Lightning's; none of a text that is not this Python's."""
    calls = (TRAINER, FABRIC, CLI)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # 3.10 takes no action here
            nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [_read(node) for node in nodes if isinstance(node, ast.Call) and _name(node) in calls]


def _name(call: ast.Call) -> str:
    return getattr(call.func, "attr", "") or getattr(call.func, "id", "")


def _read(call: ast.Call) -> Trainer:
    given = dict(zip(POSITIONS.get(_name(call), ()), call.args, strict=False))
    given |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    strategy = getattr(given.get("strategy"), "value", None)
    starts = any(word in str(strategy) for word in STARTERS)
    found = {name: (given[name], _count(given[name])) for name in ARGUMENTS if name in given and not starts}
    counts = {
        name: (f"{name}={ast.unparse(value)}", count)
        for name, (value, count) in found.items()
        if count is not None
    }
    return Trainer(call.lineno, _name(call), counts, tuple(given), starts)


def _count(value: ast.expr) -> int | None:
    """Return how many devices or nodes a literal means, 0 for all; None for what is worked out later."""
    if isinstance(value, (ast.List, ast.Tuple)):
        return len(value.elts)
    if isinstance(value, ast.Constant) and isinstance(value.value, (int, str)):
        return 0 if value.value == "auto" else count_devices(str(value.value))
    return None
