"""What all tests share of pytest: the table of the truth model's counts at the end of its output."""

from __future__ import annotations

import json
from collections import Counter

import pytest

COUNTED = "truth"
"""Property of a test whose value is a row as JSON (see `tests.unit.truth_judge.Tally`)."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many jobs were planned right, how many were refused, by code, and how many were wrong."""
    rows: dict[str, Counter[str]] = {}
    reports = [r for kind in ("passed", "failed") for r in terminalreporter.stats.get(kind, [])]
    for report in reports:
        for name, value in getattr(report, "user_properties", ()):
            if name == COUNTED:
                row = json.loads(value)
                counts = rows.setdefault(row.pop("kind"), Counter())
                counts.update({f"refused {code}": count for code, count in row.pop("refused").items()})
                counts.update(row)
    if not rows:
        return
    total = sum(rows.values(), Counter())
    terminalreporter.section("truth model: jobs planned right, refused by code, wrong")
    terminalreporter.write_line(f"{'':24}{'right':>8}{'refused':>9}{'unknowable':>12}{'wrong':>7}")
    for kind, counts in {**rows, "all": total}.items():
        refused = {name: count for name, count in counts.items() if name.startswith("refused ")}
        numbers = f"{counts['right']:8}{sum(refused.values()):9}{counts['blind']:12}{counts['wrong']:7}"
        terminalreporter.write_line(f"{kind:24}{numbers}")
    codes = sorted((name, count) for name, count in total.items() if name.startswith("refused "))
    for name, count in codes:
        terminalreporter.write_line(f"  {name}: {count}")
