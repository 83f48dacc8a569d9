"""Plain words: those that do not belong stand in no page, message, docstring, comment or name."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.starting import ROOT

pytestmark = pytest.mark.xdist_group("source")
PAGES = (*("README", "SECURITY", "CONTRIBUTING", "CHANGELOG"), "docs/*")
NOT = (
    "whoever whom nobody somebody anybody everybody thereby court crew guardian guest guests obstacle "
    "parting roster"
)
"""A process, a node and a program are no persons; the rest has a name in the field."""
NOT_NAMES = (
    f"{NOT} desk door hello intruder keeper last_words praise shim spy stranger strangers tidings witness"
)
"""Words that are in no name of a module, class, function or variable; py-spy is a program."""
ONCE = ("Agent", "Event", "Job", "Place")
"""Names of classes that mean one thing."""
BANNED = re.compile(rf"\b({'|'.join(NOT.split())})\b", re.IGNORECASE)
PERSON = re.compile(r"\b(users?|persons?|people|readers?|authors?|engineers?|a user of \w+)\b", re.IGNORECASE)


def texts() -> Iterator[tuple[str, str]]:
    """Yield each page, and the comments and texts of each module, with where it stands."""
    for name in PAGES:
        for path in sorted(Path(ROOT).glob(f"{name}.md")):
            yield path.name, re.sub(r"`[^`\n]*`", "``", path.read_text(encoding="utf-8"))
    for path in sorted(Path(ROOT, "launcher").rglob("*.txt")):
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("- ")]
        yield str(path.relative_to(ROOT)), re.sub(r"`[^`\n]*`", "``", "\n".join(lines))
    for path in sorted(Path(ROOT, "launcher").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING):
                text = re.sub(r"``[^`]*``|\{[^{}]*\}", "``", token.string)  # names of variables stay
                yield f"{path.relative_to(ROOT)}:{token.start[0]}", text


def wrong_words(text: str) -> list[str]:
    """Return the words that do not belong, and each who that is no person's."""
    found = BANNED.findall(text)
    for match in re.finditer(r"\bwho\b", text, re.IGNORECASE):
        before = text[max(0, match.start() - 50) : match.start()]
        if not PERSON.search(before) and text.strip("\"'") != "who":
            found.append(text[max(0, match.start() - 30) : match.end() + 20])
    return found


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Processes that nobody started", 1),
        ("a process who exits", 1),
        ("the user who has typed it", 0),
        ("the job ends", 0),
    ],
)
def test_words_are_seen(text: str, count: int) -> None:
    assert len(wrong_words(text)) == count


def test_every_word_belongs() -> None:
    found = [(where, word) for where, text in texts() for word in wrong_words(text)]
    assert found == []


def bad_words(name: str) -> list[str]:
    """Return the words of an identifier that do not belong: of ``LastWords`` and ``LAST_WORDS`` the same."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace("py_spy", "")
    return [word for word in NOT_NAMES.split() if f"_{word}_" in f"_{words}_"]


def names() -> Iterator[tuple[str, str]]:
    """Yield each module and each name in it, with where it stands."""
    for path in sorted(Path(ROOT, "launcher").rglob("*.py")):
        where = str(path.relative_to(ROOT))
        yield where, path.stem
        for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
            if token.type == tokenize.NAME:
                yield f"{where}:{token.start[0]}", token.string


def test_every_name_belongs() -> None:
    assert [(where, name) for where, name in names() if bad_words(name)] == []


@pytest.mark.parametrize(
    ("name", "count"),
    [("LastWords", 1), ("read_last_words", 1), ("_praise", 1), ("SPY_S", 1), ("PY_SPY_S", 0), ("last", 0)],
)
def test_names_are_split_into_words(name: str, count: int) -> None:
    assert len(bad_words(name)) == count


@pytest.mark.parametrize("name", ONCE)
def test_a_name_of_a_class_means_one_thing(name: str) -> None:
    texts = [path.read_text(encoding="utf-8") for path in Path(ROOT, "launcher").rglob("*.py")]
    count = sum(len(re.findall(rf"^class {name}\b", text, re.MULTILINE)) for text in texts)
    assert count == 1
