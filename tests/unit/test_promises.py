"""The promises of docs/compatibility.md: names stay, and documents have numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.test_docs import read
from tools import promises

pytestmark = pytest.mark.xdist_group("source")
MADE = promises.read()
PAGE = "compatibility.md"


def broken(made: set[str], kept: set[str]) -> list[str]:
    """Return a sentence for each promise of the first set that the second does not keep."""
    return [
        f"{line}: this is a promise; deprecate first (docs/compatibility.md). "
        f"After its time, remove the line from {promises.LIST.relative_to(promises.ROOT)}"
        for line in sorted(made - kept)
    ]


def test_every_promise_is_kept_and_written_down() -> None:
    """Flags, variables, statuses, codes and documents; adding is one command."""
    # Flags, variables, statuses, codes and documents.
    assert broken(MADE, promises.find()) == []
    # Adding is free: one command writes it down.
    assert sorted(promises.find() - MADE) == [], (
        "new names are promises, too: python tools/promises.py adds them"
    )


@pytest.mark.parametrize("line", ["flag run --restarts", "cause cuda-out-of-memory", "status 75"])
def test_what_is_removed_is_seen(line: str) -> None:
    """A name that is gone or has become another one, said in a sentence with what to do."""
    assert line in MADE
    (sentence,) = broken(MADE, MADE - {line})
    assert sentence.startswith(f"{line}: this is a promise; deprecate first")


def test_the_page_names_the_number_of_each_document() -> None:
    """The table has one row for each document, with the key and the number of today."""
    rows = re.findall(r"^\| ([^|]+) \| `(\w+)` (\d+) \|", read(PAGE), flags=re.MULTILINE)
    table = {re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", name).replace("`", ""): row for name, *row in rows}
    assert table == {name: [key, str(number)] for name, (key, number) in promises.DOCUMENTS.items()}


def test_the_list_is_what_the_command_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is sorted, and the command keeps what is gone, so that it cannot hide a removal."""
    lines = ["flag run --gone", *promises.LIST.read_text().splitlines()[:-1]]
    copy = tmp_path / "promises.txt"
    copy.write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(promises, "LIST", copy)
    monkeypatch.setattr(promises, "ROOT", tmp_path)
    assert promises.main() == 0
    assert copy.read_text().splitlines() == sorted({*lines, *MADE})
