"""Tables on terminals and in logs: aligned, never wider than the terminal, nothing lost where cells fold."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.output.tables import (
    BOLD,
    LEAST,
    RED,
    Paper,
    cut,
    find_paper,
    find_size,
    fold,
    lay_out,
    measure,
    paint,
)

HEAD = ("name", "size", "from")
ROWS = [("WORLD_SIZE", "2", "one node x 2 per node"), ("RANK", "1024", "counted")]
TEXTS = st.text("ab 漢e\u0301-", max_size=40)


@given(TEXTS, st.integers(2, 30))
def test_folding_loses_no_letter(text: str, width: int) -> None:
    """And no line is too wide, though some letters take two columns and some none."""
    lines = list(fold(text, width))
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert max(map(measure, lines)) <= width


@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS), max_size=4), st.integers(22, 80), st.booleans())
def test_a_table_is_as_wide_as_the_terminal_at_most(
    rows: list[tuple[str, str, str]], width: int, folds: bool
) -> None:
    lines = lay_out(Paper(width), HEAD, rows, folds=HEAD if folds else ())
    assert max(map(measure, lines)) <= max(width, 1 + 6 + 3 * LEAST)


@pytest.mark.parametrize(
    ("paper", "painted"),
    [
        (Paper(80, 24, True, True), "\x1b[1;31mgone\x1b[0m"),
        (Paper(80, 24, True, False), "\x1b[1mgone\x1b[0m"),
        (Paper(80, 24), "gone"),
    ],
    ids=["colours", "NO_COLOR", "dumb"],
)
def test_styles_are_those_of_the_terminal(paper: Paper, painted: str) -> None:
    assert paint(paper, "gone", BOLD, RED) == painted
    assert paint(paper, "") == ""


def test_a_table_fits_the_terminal() -> None:
    """Columns are aligned, the widest one is folded, and what does not fold is cut."""
    assert lay_out(Paper(), HEAD, ROWS, right=("size",)) == [
        " name         size   from",
        " ─────────────────────────────────────────",
        " WORLD_SIZE      2   one node x 2 per node",
        " RANK         1024   counted",
    ]
    assert lay_out(Paper(32), HEAD, ROWS, folds=("from",))[2:] == [
        " WORLD_SIZE   2      one node x",
        "                     2 per node",
        " RANK         1024   counted",
    ]
    assert lay_out(Paper(32), HEAD, ROWS)[2] == " WORLD_SIZE   2      one node x…"
    assert (measure("漢字"), measure("e\u0301"), measure("plain")) == (4, 1, 5)
    assert cut("漢字漢字", 6) == "漢字…" and cut("plain", 5) == "plain"
    paper = Paper(60, 24, True, True)
    lines = lay_out(paper, HEAD, ROWS, styles=[(BOLD, RED), ()], marked="size")
    assert [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in lines] == lay_out(
        Paper(60), HEAD, ROWS, marked="size"
    )
    # A variable may have 128 KiB.
    (line, *_), rest = [list(fold("x" * 131072, 100)), ""]
    assert line == "x" * 100 and not rest
    assert len(lay_out(Paper(80), ("a", "b"), [("n", "y" * 131072)], folds=("b",))) > 1000


@pytest.mark.parametrize(
    ("environ", "size"),
    [
        ({"COLUMNS": "132", "LINES": "50"}, (132, 50)),
        ({"COLUMNS": "-1", "LINES": "x"}, (80, 24)),
        ({"COLUMNS": "9" * 9999}, (10_000, 24)),
        ({}, (80, 24)),
    ],
)
def test_the_size_is_what_the_user_says(environ: dict[str, str], size: tuple[int, int]) -> None:
    with open("/dev/null") as null:  # no terminal
        assert find_size(environ, null.fileno()) == size
        assert find_paper(environ, null.fileno()) == Paper()
