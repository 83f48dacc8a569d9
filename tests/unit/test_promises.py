"""The promises of docs/compatibility.md: names stay, documents have numbers, messages stay readable."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from launcher.channel.version import CHANNEL, OLDEST, Spoken, read_spoken
from tests.unit.test_docs import read
from tools import promises

MADE, KEPT = promises.read(), promises.find()
PAGE = "compatibility.md"


def broken(made: set[str], kept: set[str]) -> list[str]:
    """Return a sentence for each promise of the first set that the second does not keep."""
    return [
        f"{line}: this is a promise; deprecate first (docs/compatibility.md). "
        f"After its time, remove the line from {promises.LIST.relative_to(promises.ROOT)}"
        for line in sorted(made - kept)
    ]


def test_every_promise_is_kept() -> None:
    """Flags, variables, statuses, codes, documents and messages; a channel may be newer."""
    assert broken({line for line in MADE if not line.startswith(promises.NUMBER)}, KEPT) == []


def test_what_is_new_can_be_read_by_the_version_before() -> None:
    """New fields have defaults, and new messages another channel."""
    assert promises.find_unreadable(MADE, KEPT) == []


def test_what_is_new_is_promised() -> None:
    """Adding is free: one command writes it down."""
    assert sorted(KEPT - MADE) == [], "new names are promises, too: python tools/promises.py adds them"


@pytest.mark.parametrize(
    "line",
    ["flag run --restarts", "cause cuda-out-of-memory", "status 75", "field Join.rank NodeRank required"],
)
def test_what_is_removed_is_seen(line: str) -> None:
    """A name that is gone or has become another one, said in a sentence with what to do."""
    assert line in MADE
    (sentence,) = broken(MADE, MADE - {line})
    assert sentence.startswith(f"{line}: this is a promise; deprecate first")


@pytest.mark.parametrize(
    ("line", "channel", "said"),
    [
        ("field Join.colour Fact required", CHANNEL, "a new field needs a default"),
        ("field Join.colour Fact", CHANNEL, ""),
        ("field Novel.colour Fact required", CHANNEL, ""),
        ("message Novel from a node", CHANNEL, "Count CHANNEL"),
        ("message Novel from a node", CHANNEL + 1, ""),
    ],
)
def test_what_the_version_before_cannot_read_is_seen(line: str, channel: int, said: str) -> None:
    """A field that it does not send; a message that it does not know."""
    found = promises.find_unreadable(MADE, MADE | {line}, channel)
    assert [said in sentence for sentence in found] == [True] * bool(said)


def test_the_page_names_the_number_of_each_document_and_of_the_channel() -> None:
    """The table has one row for each document, with the key and the number of today."""
    rows = re.findall(r"^\| ([^|]+) \| `(\w+)` (\d+) \|", read(PAGE), flags=re.MULTILINE)
    table = {re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", name).replace("`", ""): row for name, *row in rows}
    assert table == {name: [key, str(number)] for name, (key, number) in promises.DOCUMENTS.items()}
    assert f"channel {CHANNEL}, and understands {OLDEST} and later" in read(PAGE)


def test_the_list_is_what_the_command_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is sorted, and the command keeps what is gone, so that it cannot hide a removal."""
    lines = ["flag run --gone", *promises.LIST.read_text().splitlines()[:-1]]
    copy = tmp_path / "promises.txt"
    copy.write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(promises, "LIST", copy)
    monkeypatch.setattr(promises, "ROOT", tmp_path)
    assert promises.main() == 0
    assert copy.read_text().splitlines() == sorted({*lines, *MADE})


@pytest.mark.parametrize(
    ("one", "other", "fits"),
    [((3, 2), (2, 2), True), ((3, 3), (2, 2), False), ((4, 3), (3, 2), True), ((5, 4), (3, 2), False)],
)
def test_two_launchers_fit_if_each_understands_the_other(
    one: tuple[int, int], other: tuple[int, int], fits: bool
) -> None:
    """Whichever of them is asked."""
    this, that = Spoken("1", *one), Spoken("2", *other)
    assert (this.fits(that), that.fits(this)) == (fits, fits)


@pytest.mark.parametrize(
    ("stated", "channel"),
    [
        (("0.1.0", None, None), 1),
        (("0.2.0", None, None), 2),
        ((None, None, None), 2),
        (("0.3.0", 4, 3), 4),
        (("0.3.0", 4, None), 4),
    ],
)
def test_a_launcher_that_states_no_channel_has_that_of_its_release(
    stated: tuple[object, object, object], channel: int
) -> None:
    """Releases before the statement, and builds between."""
    assert read_spoken(*stated).channel == channel


def test_a_version_cannot_write_to_a_terminal() -> None:
    """It comes from another launcher."""
    assert "\x1b" not in read_spoken("\x1b[31m" + "9" * 900, 3, 2).describe()
    assert len(read_spoken("9" * 900, 3, 2).describe()) < 120
