"""The texts of errors and conclusions: each row is used, and is given the values that it names."""

from __future__ import annotations

import ast
import string
from pathlib import Path

from launcher.cluster.outcome import OF_NODES
from launcher.core.blocks import read_blocks
from launcher.core.errors import KINDS, make_error, name_page
from launcher.failure.arbiter import GAVE_UP
from launcher.failure.symptoms import read_conclusions

PACKAGE = Path(__file__).parents[2] / "launcher"
METHODS: dict[str, set[str]] = {
    "ledger.refuse": {"where"},
    "ledger.refuse_facts": {"where", "values", "fix"},
    "reader.refuse": {"source", "value", "name"},
    "Invalid": {"source", "value", "name"},
    "self._reject": set(),
}
"""What makes an error of a row outside of functions, and the values that it gives by itself."""
FIELDS = {"code", "status", "where", "what", "fix"}


def find_calls(*makers: str) -> list[tuple[str, str, set[str] | None]]:
    """Return the place, the row and the names of the values of each call; None where some are in a dict."""
    found = []
    for path in sorted({*PACKAGE.rglob("*.py")} - {PACKAGE / "core" / "errors.py"}):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            is_function = isinstance(node.func, ast.Name) and node.func.id in makers
            method = ast.unparse(node.func)
            method = method.replace("self.", "reader.") if path.name == "reader.py" else method
            passed_on = bool(node.args) and ast.unparse(node.args[0]) == "row"  # in such a method
            is_error = method in METHODS and "make_error" in makers
            if (is_function or is_error) and not passed_on:
                place = f"{path.relative_to(PACKAGE)}:{node.lineno}"
                row, names = node.args[0], {keyword.arg for keyword in node.keywords}
                names |= METHODS.get(method, set())
                if makers == ("make_cause",) and isinstance(row, ast.Attribute) and row.attr == "kind":
                    rows: list[ast.expr] = [ast.Constant(kind) for kind in OF_NODES if kind != GAVE_UP]
                else:
                    rows = [row.body, row.orelse] if isinstance(row, ast.IfExp) else [row]
                for one in rows:
                    assert isinstance(one, ast.Constant), f"{place}: the row must be written here"
                    known = {name for name in names if name is not None}
                    found.append((place, str(one.value), None if None in names else known))
    return found


def read_names(texts: dict[str, str]) -> set[str]:
    """Return the names in braces in the texts of a row."""
    parsed = (part for text in texts.values() for part in string.Formatter().parse(text))
    return {name for _, name, _, _ in parsed if name is not None}


def test_each_error_has_a_row_that_fits_and_each_row_is_used() -> None:
    rows = {row.name: dict(row.fields) for row in read_blocks("core/errors.txt")}
    calls = find_calls("make_error", "make_problem")
    for place, name, values in calls:
        assert name in rows, f"{place}: no row {name}"
        expected = read_names(rows[name])
        if values is not None:
            fits = expected <= values and values - expected <= {"name"}  # which a reader always gives
            assert fits, f"{place}: row {name} names {expected}, the call gives {values}"
    assert {name for _, name, _ in calls} == rows.keys()
    assert list(rows) == sorted(rows), "in the order of the alphabet"
    for name, texts in rows.items():
        assert {"status", "what", "fix"} <= texts.keys() <= FIELDS, name
        assert texts["status"] in KINDS, name


def test_each_conclusion_is_used_with_the_values_that_it_names() -> None:
    rows = read_conclusions()
    calls = find_calls("make_cause")
    for place, name, values in calls:
        texts = {"meaning": rows[name].meaning, "fix": rows[name].fix}
        assert (values or set()) - {"fix"} == read_names(texts), f"{place}: row {name}"
    assert {name for _, name, _ in calls} == rows.keys()


def test_values_are_shown_as_they_are() -> None:
    """A value with braces or quotes is no part of the text that is filled in."""
    error = make_error("horovod-port", text="{x}'", expected="an integer in 1..65535")
    (problem,) = error.problems
    assert problem.what == 'HOROVOD_GLOO_RENDEZVOUS_PORT="{x}\'": expected an integer in 1..65535'
    assert (problem.code, problem.where, error.exit_status) == ("malformed-variable", "environment", 78)


def test_a_message_has_the_address_of_its_page_where_the_docs_have_one() -> None:
    """LAUNCHER_DOCS_URL is printed, so it is an address or nothing."""
    address = "https://docs.example.com/launcher"
    for given in (address, f"{address}/"):
        found = name_page("errors", "usage", {"LAUNCHER_DOCS_URL": given})
        assert found == f"{address}/errors.html#usage"
    for given in (
        "",
        "docs.example.com",
        "javascript:x",
        f"{address}\n",
        f"{address} x",
        "https://u:p@h",
        "https://é",
    ):
        assert name_page("errors", "usage", {"LAUNCHER_DOCS_URL": given}) == ""
    assert name_page("errors", "usage", {"LAUNCHER_DOCS_URL": f"https://{'d' * 200}"}) == ""
