"""Makes the table of docs/variables.md from the program and the other pages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from launcher.core import mpi
from launcher.options.flags import FLAGS
from launcher.sources import TABLE, SourceRow, rows

ROOT = Path(__file__).resolve().parent.parent
DOCS, CODE = ROOT / "docs", ROOT / "launcher"
GENERATED, SOURCES = "variables.md", "environments.md"
VARIABLE = re.compile(r"[A-Z][A-Z0-9]*(_[A-Za-z0-9]+)+")


def variable_rows() -> list[tuple[str, str, str]]:
    """Return (variable, what it is, pages) of every variable of a flag or a source, or named on a page."""
    pages = {
        path.name: path.read_text(encoding="utf-8")
        for path in sorted(DOCS.glob("*.md"))
        if path.name not in (GENERATED, "flags.md")
    }
    flags = {flag.variable: flag.name for flag in FLAGS}
    told = {row.name: set(name_variables(row)) for row in TABLE}
    names = {name for path in CODE.rglob("*.py") for name in quoted(path)}.union(flags, *told.values())
    data = [path for path in CODE.rglob("*.txt") if path.name != "symptoms.txt"]
    names |= {word for path in data for word in read_words(path) if VARIABLE.fullmatch(word)}
    rows = []
    for name in sorted(names):
        what = [f"flag [`{flags[name]}`](flags.md)"] if name in flags else []
        tells = [source for source, variables in told.items() if name in variables]
        what += (
            ["detected: " + ", ".join(f"[{source}](environments.md#{source})" for source in tells)]
            if tells
            else []
        )
        also = [page for page, text in pages.items() if re.search(rf"`{re.escape(name)}\b", text)]
        if tells:
            also.remove(SOURCES)  # the links in the second column lead there already
        if what or also:
            links = ", ".join(f"[{page.removesuffix('.md')}]({page})" for page in also)
            rows.append((f"`{name}`", "; ".join(what), links))
    return rows


def read_words(path: Path) -> list[str]:
    """Return the words of a data file, which also end at an equals sign."""
    return re.split(r"[\s=]+", path.read_text(encoding="utf-8"))


def name_variables(row: SourceRow) -> Iterator[str]:
    """Yield the variables that a source reads: its markers, and those that its file or its row names."""
    yield from (name for name in row.markers if VARIABLE.fullmatch(name) or name == "RANK")
    if row.name in rows.PLATFORMS:
        names = rows.PLATFORMS[row.name]
        yield from filter(None, getattr(mpi, names.family).numbers() if names.family else ())
        yield from (name for name in vars(names).values() if VARIABLE.fullmatch(name))
    elif row.name == "node_names":
        yield from (name for node in rows.NODES for name in vars(node).values() if VARIABLE.fullmatch(name))
    elif row.name in ("torch_env", "torch_agent"):  # one file for torch, and for its agent's PET_*
        found = quoted(CODE / "sources" / "torch_env.py")
        yield from (name for name in found if name.startswith("PET_") == (row.name == "torch_agent"))
    elif row.read == f"{row.name}.read":
        yield from quoted(CODE / "sources" / f"{row.name}.py")


@cache
def find_nodes(path: Path) -> Sequence[ast.AST]:
    """Return all nodes of a module's tree."""
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def quoted(path: Path) -> Iterator[str]:
    """Yield the variables that a module names, in quotes or by a row of `launcher.core.mpi`."""
    for node in find_nodes(path):
        for text in _find_texts(node):
            if VARIABLE.fullmatch(text) or text == "RANK":
                yield text


def _find_texts(node: ast.AST) -> tuple[str, ...]:
    """Return the texts that are the value of a constant, of ``OPEN_MPI.rank`` or of ``RANK_ON_NODE``."""
    value: object = None
    if isinstance(node, ast.Constant):
        value = node.value
    elif isinstance(node, ast.Name) and node.id == "RANK_ON_NODE":
        value = mpi.RANK_ON_NODE
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        family = getattr(mpi, node.value.id, None)
        value = getattr(family, node.attr, None) if isinstance(family, mpi.Family) else None
        value = tuple(filter(None, value())) if callable(value) else value
    if isinstance(value, tuple):
        return tuple(text for text in value if isinstance(text, str))
    return (value,) if isinstance(value, str) else ()
