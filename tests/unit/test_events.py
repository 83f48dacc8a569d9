"""Each line of the launcher's own is an event, whose name has a row in docs/events.md or docs/errors.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tools.reference import find_nodes

pytestmark = pytest.mark.xdist_group("source")
ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "launcher"
SAYS = {"say", "_say", "_notice", "notice", "say_as_is", "_note_moment", "Print"}
"""What prints a message or writes an event without one: a text, and the name of the event."""
OTHERS = {"servers", "inprocess"}
"""Programs and modules that run inside of other processes; what they print is output of these."""
ROW = re.compile(r"^\| `([a-z][a-z-]*)` \|", re.MULTILINE)
CODE = re.compile(r'"([a-z][a-z-]*)"')


def rows(page: str) -> list[str]:
    """Return the first column of the tables of a page, but for tables of keys."""
    parts = (ROOT / "docs" / page).read_text(encoding="utf-8").split("\n\n")
    return [name for part in parts if not part.startswith("| key |") for name in ROW.findall(part)]


def find_calls(
    tree: ast.AST, outer: frozenset[str] = frozenset()
) -> Iterator[tuple[ast.Call, frozenset[str]]]:
    """Yield each call that prints a message, with the parameters and variables of loops around it."""
    for child in ast.iter_child_nodes(tree):
        inner = outer
        if isinstance(child, ast.FunctionDef | ast.Lambda):
            inner = outer | {one.arg for one in child.args.args}
        elif isinstance(child, ast.For):
            inner = outer | {one.id for one in ast.walk(child.target) if isinstance(one, ast.Name)}
        if isinstance(child, ast.Call):
            name = getattr(child.func, "attr", getattr(child.func, "id", ""))
            if name in SAYS and child.args:
                yield child, inner
        yield from find_calls(child, inner)


def read_names(event: ast.expr, parameters: frozenset[str]) -> list[str] | None:
    """Return the names that an argument can be, ``[]`` if the caller has named it; None for anything else."""
    match event:
        case ast.Constant(value=str(name)):
            return [name]
        case ast.IfExp(body=ast.Constant(value=str(one)), orelse=ast.Constant(value=str(other))):
            return [one, other]
        case ast.Name(id="event") if "event" in parameters:
            return []
        case ast.Attribute(attr="code" | "event"):
            return []  # of a problem (docs/errors.md), or of a command `Print`, which is found itself
    return None


def find_events(path: Path) -> Iterator[tuple[str, list[str] | None]]:
    """Yield the place of each message of a module, and the names that its event can have."""
    for call, parameters in find_calls(find_nodes(path)[0]):
        place = f"{path.relative_to(ROOT)}:{call.lineno}"
        yield place, read_names(call.args[1], parameters) if len(call.args) > 1 else None


def modules() -> list[Path]:
    """Return the modules whose messages are events."""
    return [one for one in sorted(PACKAGE.rglob("*.py")) if one.relative_to(PACKAGE).parts[0] not in OTHERS]


@cache
def found_events() -> list[tuple[str, list[str] | None]]:
    """Return the messages of all modules."""
    return [found for path in modules() for found in find_events(path)]


def test_the_table_has_each_event_and_no_other() -> None:
    """Errors have their codes as names, so that their rows are those of docs/errors.md."""
    named = {name for _, names in found_events() for name in names or ()}
    errors = set(rows("errors.md"))
    assert named - errors - set(rows("events.md")) == set()
    assert set(rows("events.md")) - named == set()
    assert len(rows("events.md")) == len(set(rows("events.md")))


def test_each_message_names_its_event_and_is_printed_in_one_way() -> None:
    """A message without a literal name fails; the prefix stands in one place."""
    # A message without a literal name fails, and one that hides it in a variable.
    assert len(found_events()) > 100
    assert [place for place, names in found_events() if names is None] == []
    # The prefix is in one place, in the failure report, which `say_as_is` prints, and where that fails.
    reports = {"failure/report.py", "failure/causes.py"}
    allowed = {"core/log.py", *reports, "remote/started.py", "process/loop.py"}
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in modules()
        if re.search(r"[\"']launcher: ", path.read_text(encoding="utf-8"))
    }
    assert found <= allowed


@pytest.mark.parametrize(
    "code", ["say('x')", "say('x', name)", "self._say('x', 'a' + 'b')", "agent.say('x', f'{a}')"]
)
def test_a_message_without_a_name_is_found(code: str) -> None:
    """The check above sees what it is there for."""
    ((call, parameters),) = find_calls(ast.parse(code))
    assert len(call.args) < 2 or read_names(call.args[1], parameters) is None
