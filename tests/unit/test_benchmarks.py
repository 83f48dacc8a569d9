"""The benchmarks' report says what its parts printed: tables are read back, ratios and promises found."""

from __future__ import annotations

import pytest

from benchmarks.plots import PLOTS, find_table, read_report
from benchmarks.report import PARTS, Answer, compose
from benchmarks.tables import Table, markdown, number, promise, read_tables

PARENT = (("launcher", "of all, MiB"), [("launcher", "20.0"), ("torchrun", "1,230"), ("mpiexec", "failed")])


def test_what_was_written_is_read_back() -> None:
    """Two tables and words between them."""
    text = "\n".join(
        ["words", *markdown(*PARENT), "", "| no table without rows |", "", *markdown(("x",), [("1",)])]
    )
    first, _, last = read_tables(text)
    assert first == Table(list(PARENT[0]), [list(row) for row in PARENT[1]])
    assert last == Table(["x"], [["1"]])
    assert first.numbers("of all") == {"launcher": 20.0, "torchrun": 1230.0}
    with pytest.raises(KeyError):
        first.column("of none")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("1,097 / 1,688", 1097.0), ("0.88", 0.88), ("12.7 (stopped)", 12.7), ("not within 10 s", None)),
        ("", None),
    ],
)
def test_a_cell_has_its_first_number(text: str, value: float | None) -> None:
    """Or none, where a launcher did not do it."""
    assert number(text) == value


def test_the_report_begins_with_ratios_and_promises() -> None:
    """Then come the plots, then all that was printed, a broken part named."""
    kept, broken = promise("MiB", 25.0, 20.0), promise("ms", 0.3, 4.0)
    parts = {part.module: part for part in PARTS}
    processes = Answer(parts["processes"], "\n".join([*markdown(*PARENT), "", kept]), 0)
    lines = compose(
        "a machine",
        [processes, Answer(parts["hook"], broken, 1), Answer(parts["planning"], "half", -9)],
        "day",
    )
    text = "\n".join(lines)
    places = [text.index(words) for words in ("| torchrun | 62 |", kept, broken, "](day/memory.svg)", "## ")]
    assert places == sorted(places)
    assert "BROKEN (4.0) (hook)" in text and "kept (20.0) (processes)" in text
    assert "| mpiexec |" not in text[: places[-1]]
    assert text.endswith("**It failed with status -9**; what it printed:\n\nhalf")
    assert read_report(text)["processes"] == read_tables(processes.text)


def test_a_promise_has_a_direction() -> None:
    """A cost is kept below its limit, a rate above."""
    assert promise("ms", 30, 31) == "- promise: at most 30 ms: BROKEN (31.0)"
    assert promise("MiB/s", 500, 649, least=True) == "- promise: at least 500 MiB/s: kept (649)"


def test_every_plot_is_of_a_part() -> None:
    """And is left out where the part has not printed its table."""
    assert {plot.module for plot in PLOTS} <= {part.module for part in PARTS}
    assert find_table([Table(["a"], [])], "b") is None
