"""docs/troubleshooting.md says what the program does: a message gives the verdict beside it."""

from __future__ import annotations

import re

import pytest

from launcher import checks
from launcher.core.model import Fact
from launcher.failure.causes import find_causes
from tests.unit.test_causes import EMPTY_HOST, UNKNOWN, codes, death
from tests.unit.test_docs import read

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
    found = codes(find_causes(death(1, f"{message}\n"), UNKNOWN, EMPTY_HOST))
    assert found[:1] == ([verdict] if verdict else [])
    assert check is None or check in {row.name for row in checks.TABLE}
    assert plan is None or plan in LINES
