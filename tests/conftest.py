"""What all tests share: what is thorough or needs Horovod, deadlines, and the truth model's counts."""

from __future__ import annotations

import json
import os
from collections import Counter
from importlib.util import find_spec

import pytest

try:
    from hypothesis import settings
except ImportError:  # an image for GPUs, in which tools/gpu.sh runs only the tests marked gpu
    settings = None  # type: ignore[assignment, misc]

NO_HOROVOD = "no horovod: run bash tools/test.sh, which compiles it, or prints why it cannot"

REAL = tuple(f"tests/{name}/" for name in ("process", "cluster"))
"""Folders whose tests start real processes. Of a table there, the default suite runs the first row."""

LARGE = tuple(f"tests/{name}/" for name in ("container", "azure", "oracles"))
"""Folders whose tests need large downloads: images, Azure's clients, libraries that read our variables."""

COUNTED = "truth"
"""Property of a test whose value is a row as JSON (see `tests.unit.truth_judge.Tally`)."""


if settings is not None:
    settings.register_profile("busy machine", deadline=None)  # its deadline of 200 ms is the wall's time
    settings.load_profile("busy machine")


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is thorough by its folder, or as a later row of a table.

    What is in `LARGE` is thorough, and in `REAL` all rows of a table but the first N, ``rows(N)``, or one.
    What needs Horovod is skipped where it could not be compiled. In CI it fails instead.
    """
    without_horovod = find_spec("horovod") is None and not os.environ.get("CI")
    rows: Counter[str] = Counter()
    for item in items:
        rows[test := item.nodeid.partition("[")[0]] += 1
        marker = item.get_closest_marker("rows")
        is_later = rows[test] > (marker.args[0] if marker else 1)
        if test.startswith(LARGE) or (is_later and test.startswith(REAL)):
            item.add_marker("thorough")
        if without_horovod and item.get_closest_marker("horovod"):
            item.add_marker(pytest.mark.skip(reason=NO_HOROVOD))


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
