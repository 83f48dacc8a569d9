"""Imports of a script, from its syntax: names of modules, and whether each import is unconditional.

We call Python's own parser by `compile`: the module ``ast`` would cost as much as the rest of a start.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

ONLY_AST = 0x400
"""``ast.PyCF_ONLY_AST``: parse only, generate no code."""
INNER = ("body", "orelse", "finalbody", "handlers", "cases")
"""Fields with inner statements."""
OF_VARIABLES = ("environ", "environb", "putenv", "unsetenv", "load_dotenv")
"""Names by which a script changes variables."""


def read_imports(text: str) -> dict[str, bool]:
    """Return the modules that a script imports, and whether each is imported unconditionally.

    ``from a import b`` may mean a module ``a.b``, and counts as both. An import inside a function, an ``if``,
    or a ``try`` with handlers is conditional. An import only for type checkers does not count. A text that
    this Python cannot parse is read line by line. Relative imports do not count: they are the user's own.
    """
    found: dict[str, bool] = {}
    body = _parse(text)
    pairs = _read_lines(text) if body is None else _visit(body, True)
    for name, is_certain in pairs:
        found[name] = found.get(name, False) or is_certain
    return found


def list_first(text: str) -> list[str]:
    """Return the modules that a script always imports before it changes variables or ``sys.path``.

    What comes behind such a line may be another module, or may read the variable.
    """
    body = _parse(text)
    if body is None:
        return [name for name, is_certain in read_imports(text).items() if is_certain]
    end = next((index for index, node in enumerate(body) if _may_change(node)), len(body))
    return [name for name, is_certain in _visit(body[:end], True) if is_certain]


def _may_change(node: Any) -> bool:
    """Whether a statement names the variables or ``sys.path``, other than in a function."""
    kind = type(node).__name__
    if kind.endswith("FunctionDef"):
        return False
    name = _name(node)
    if name in OF_VARIABLES or (name == "path" and _name(getattr(node, "value", None)) == "sys"):
        return True
    children = [getattr(node, field) for field in getattr(node, "_fields", ())]
    return any(
        _may_change(one) for child in children for one in (child if isinstance(child, list) else [child])
    )


def _parse(text: str) -> list[Any] | None:
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the script's own Python will print its warnings
            body: list[Any] = compile(text, "script", "exec", ONLY_AST, True).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return body


def _visit(body: list[Any], is_certain: bool) -> Iterator[tuple[str, bool]]:
    for node in body:
        kind = type(node).__name__
        if kind == "Import":
            yield from ((alias.name, is_certain) for alias in node.names)
        elif kind == "ImportFrom":
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            yield from ((name, is_certain) for name in names if not node.level)
        elif kind != "If" or _name(node.test) != "TYPE_CHECKING":
            is_reached = is_certain and _is_straight(node, kind)
            yield from (pair for part in INNER for pair in _visit(getattr(node, part, []), is_reached))


def _is_straight(node: Any, kind: str) -> bool:
    """Whether the body of a statement always runs when the statement is reached."""
    if kind == "If":
        return _name(getattr(node.test, "left", None)) == "__name__"
    return kind in ("With", "ClassDef") or (kind.startswith("Try") and not node.handlers)


def _name(node: Any) -> str:
    return getattr(node, "id", "") or getattr(node, "attr", "")


def _read_lines(text: str) -> Iterator[tuple[str, bool]]:
    for line in text.splitlines():
        word, _, rest = line.strip().partition(" ")
        names = rest.split(",") if word == "import" else [rest] if word == "from" else []
        for name in names:
            if name.split()[:1]:
                yield name.split()[0], line.startswith(word)
