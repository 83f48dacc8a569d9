"""docs/failures.md and docs/troubleshooting.md say what the code does: every code, Xid, key, and message."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator

import pytest

from launcher import checks
from launcher.core.model import Fact
from launcher.failure import arbiter
from launcher.failure.causes import find_causes
from launcher.failure.record import render_json
from launcher.failure.report import render_text
from launcher.failure.symptoms import read_conclusions, read_signals, read_symptoms
from launcher.machine.xids import XIDS
from tests.unit.test_causes import EMPTY_HOST, UNKNOWN, death
from tests.unit.test_causes import codes as codes_of
from tests.unit.test_docs import CODE, read, sections
from tests.unit.test_verdict import KILLED, OOM, PEER, dead, judge
from tools.reference import find_nodes

pytestmark = pytest.mark.xdist_group("source")
PAGE = "failures.md"
RETRY = {True: "yes", False: "no", None: "unknown"}


def rows(heading: str) -> list[list[str]]:
    """Return the cells of every row of the tables under a heading of the second level."""
    lines = re.findall(r"^\| (.+) \|$", sections(read(PAGE))[heading], flags=re.MULTILINE)
    return [[cell.strip() for cell in line.split(" | ")] for line in lines]


def causes_in_code() -> Iterator[tuple[str, str]]:
    """Yield (code, retry) of every cause of the code, in quotes or by a name of the arbiter."""
    for path in sorted(CODE.rglob("*.py")):
        for node in find_nodes(path):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Cause":
                first = next(iter(node.args), None)
                code = getattr(arbiter, first.id, None) if isinstance(first, ast.Name) else None
                code = first.value if isinstance(first, ast.Constant) else code
                if isinstance(code, str):
                    yield code, _retry(node)


def _retry(call: ast.Call) -> str:
    named = [keyword.value for keyword in call.keywords if keyword.arg == "retryable"]
    if len(call.args) < 4 and not named:
        return "unknown"
    (retryable,) = named or call.args[3:4]
    return RETRY[retryable.value] if isinstance(retryable, ast.Constant) else "depends on the number"  # type: ignore[index]


def test_every_cause_and_consequence_is_documented() -> None:
    """Each code has one row with its retry, each row is a code."""
    # Each code has one row, each row is a code, and the page says what the code says.
    table = [(row[0].strip("`"), row[2]) for row in rows("Causes") if row[0].startswith("`")]
    rows_of_file = (*read_symptoms().values(), *read_signals().values(), *read_conclusions().values())
    expected = {(symptom.code, RETRY[symptom.retryable]) for symptom in rows_of_file} | set(causes_in_code())
    assert sorted(table) == sorted(expected)
    # Those that only tell of a failure elsewhere stand in a table of their own.
    section = re.split(r"^### ", sections(read(PAGE))["Causes"], flags=re.MULTILINE)
    (part,) = [text for text in section if text.startswith("Consequences")]
    assert re.findall(r"^\| `([a-z-]+)`", part, flags=re.MULTILINE) == [
        symptom.code for symptom in read_symptoms().values() if symptom.consequence
    ]
    # Number and who is at fault.
    xids = {int(row[0]): row[2] for row in rows("Causes") if row[0].isdecimal()}
    assert xids == {number: meaning.fault for number, meaning in XIDS.items()}


def test_every_key_of_the_record_is_documented() -> None:
    """The table has the keys of a real record, in its order; those of others that repeat are named."""
    record = json.loads(render_json(judge(dead(0, -9), [dead(1, 1, 1)], [OOM, PEER])))
    keys = []
    for key, value in record.items():
        keys.append(key)
        inner = value[0] if isinstance(value, list) and value and isinstance(value[0], dict) else {}
        keys += [f"{key}.{name}" for name in inner]
    table = [row[0].strip("`") for row in rows("The record") if row[0] != "key" and set(row[0]) != {"-"}]
    names = ("rank", "local_rank", "pid", "exit_status", "signal", "status")
    repeated = {f"others.{name}" for name in names}
    assert [key for key in keys if key not in repeated] == table
    row = next(row for row in rows("The record") if row[0] == "`others.called`")
    assert {f"others.{name}" for name in re.findall(r"`(\w+)`", row[2])} == repeated


def test_the_screen_in_the_page_is_a_real_one() -> None:
    """All but the fix, which is shorter in the test, and the stacks, which the test's ranks do not have."""
    shown = re.findall(r"^    (launcher: .+)$", read(PAGE), flags=re.MULTILINE)
    assert [line for line in shown if "  fix: " not in line and "  stacks: " not in line] == [
        line for line in KILLED.splitlines() if "  fix: " not in line
    ]
    assert "launcher: rank" in render_text(judge(dead(0, 1)))


ROW = re.compile(
    r"^\| `(?P<message>.+?)` \| (?:`(?P<verdict>[a-z-]+)`)? ?\| (?:`(?P<check>[a-z]+)`)? ?"
    r"\| (?:`(?P<plan>\w+)`)? ?\| .+ \|$",
    re.M,
)
ROWS = [match.groups() for match in ROW.finditer(read("troubleshooting.md"))]
LEAST = 25
LINES = {*(fact.value for fact in Fact), "fabric", *re.findall(r"^\| `(\w+)` \|", read("variables.md"), re.M)}
"""What `launcher plan` has lines about."""


def test_every_row_was_read() -> None:
    """There are as many as promised, and none has another form."""
    rows = [line for line in read("troubleshooting.md").splitlines() if line.startswith("| `")]
    assert len(ROWS) == len(rows) >= LEAST


@pytest.mark.parametrize(("message", "verdict", "check", "plan"), ROWS)
def test_the_verdict_on_a_message(
    message: str, verdict: str | None, check: str | None, plan: str | None
) -> None:
    """As the last line of a process it gives that cause first, or none; checks and plans have such lines."""
    found = codes_of(find_causes(death(1, f"{message}\n"), UNKNOWN, EMPTY_HOST))
    assert [code for code in found if code != "program-message"][:1] == ([verdict] if verdict else [])
    assert check is None or check in {row.name for row in checks.TABLE}
    assert plan is None or plan in LINES
