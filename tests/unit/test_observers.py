"""The table of observers in docs/internals.md: who watches what, how often, at what cost."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from launcher.agent import observers
from launcher.observers import kubeflow, meeting, nccl_log, pace, stall
from launcher.output import progress
from launcher.preemption import watch
from launcher.preemption.services import SERVICES

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "launcher"
ROOMS = ("observers", "preemption")


def read_rows() -> dict[str, list[str]]:
    """Return the cells of each row, by the file that watches."""
    page = (ROOT / "docs" / "internals.md").read_text(encoding="utf-8")
    table = page.partition("## Observers")[2].split("\n\n")[2]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {row[1]: row for row in rows}


def test_each_observer_has_a_row() -> None:
    """An observer has a time at which it looks; its row names its file or its room."""
    watching = {
        path.relative_to(PACKAGE).as_posix()
        for room in ROOMS
        for path in (PACKAGE / room).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name == "fire"
    }
    assert len(watching) >= 6
    where = " ".join(read_rows())
    assert [
        name for name in watching if name not in where and f"{name.partition('/')[0]}/`" not in where
    ] == []


def test_each_row_names_what_there_is() -> None:
    """A file or a room of the package."""
    for where in read_rows():
        for name in where.replace("`", "").split(", "):
            assert (PACKAGE / name).exists() or (PACKAGE / "observers" / name).exists(), name


@pytest.mark.parametrize(
    ("file", "texts"),
    [
        ("observers/pace.py", (f"{pace.LOOK_S:g} s", f"{observers.PACE_AFTER_S:g} s")),
        ("observers/kubeflow.py", (f"{kubeflow.EVERY_S:g} s",)),
        ("observers/nccl_log.py", (f"{nccl_log.LOOK_S:g} s",)),
        ("observers/meeting.py", (f"{meeting.PAUSE_S:g} s to {meeting.PAUSE_LIMIT_S:g} s",)),
        ("observers/meeting.py", (f"job / {meeting.AGE_SHARE}", f"{observers.WATCH_AFTER_S:g} s")),
        ("observers/stall.py", (f"{stall.LOOK_LIMIT_S:g} s at most", f"{stall.IDLE_LOOKS}th")),
        ("output/progress.py", (f"{progress.REDRAW_S:g} s", f"{progress.LOG_S:g} s")),
        ("preemption/", (f"{SERVICES['azure'][1]:g} s (AWS {SERVICES['aws'][1]:g} s)",)),
        ("preemption/", (f"{watch.RARELY_S:g} s after {watch.RARELY_AFTER} failures",)),
    ],
)
def test_periods_are_those_of_the_program(file: str, texts: tuple[str, ...]) -> None:
    """The table says what the code does."""
    (row,) = [" ".join(cells) for where, cells in read_rows().items() if file in where]
    assert [text for text in texts if text not in row] == []
