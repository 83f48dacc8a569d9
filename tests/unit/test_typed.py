"""Every command of the launcher that a page shows is one that it understands: typed into its own parser."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.cli.main import COMMANDS
from launcher.core.errors import LauncherError
from launcher.options.parser import Parser, read_run
from tests.process.starting import ROOT

SHOWN_WRONG = "mistakes.md"
"""Its commands are wrong on purpose, and typed by `tests/process/test_mistakes.py`."""
DOCS = sorted(path.name for path in Path(ROOT, "docs").glob("*.md") if path.name != SHOWN_WRONG)
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", *(f"docs/{name}" for name in DOCS))
MISSPELT = "--nporc"
FENCED = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Parsed(Exception):
    """The words were understood; nothing has been done yet."""


def lines(page: str) -> Iterator[str]:
    """Yield the lines of a page's blocks, continued lines in one piece."""
    text = Path(ROOT, page).read_text(encoding="utf-8").replace("\\\n", " ")
    for block in FENCED.findall(text):
        yield from block.splitlines()
    yield from re.findall(r"^    (.*)$", FENCED.sub("", text), re.MULTILINE)


def typed(page: str) -> Iterator[list[str]]:
    """Yield the words of each call of the launcher, from the name of its command on."""
    for line in lines(page):
        if "launcher " not in line or line.startswith(("launcher:", "[rank")):
            continue
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:
            continue  # no line of a shell: a quotation of something else
        for index, word in enumerate(words[:-1]):
            if word == "launcher" and words[index + 1] in COMMANDS:
                rest = words[index + 1 :]
                end = next((place for place, one in enumerate(rest) if set(one) <= set("|&;<>")), len(rest))
                yield rest[:end]


ALL = [(page, words) for page in PAGES for words in typed(page) if MISSPELT not in words]


@pytest.mark.parametrize(
    ("page", "words"), ALL, ids=[f"{page}-{' '.join(words)[:60]}" for page, words in ALL]
)
def test_a_command_on_a_page_is_understood(
    page: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No flag that is not there, and no value that is none."""
    real = Parser.parse_args

    def parse(self: Parser, *given: object) -> None:
        real(self, *given)  # type: ignore[call-overload]
        raise Parsed

    monkeypatch.setattr(Parser, "parse_args", parse)
    read = read_run if words[0] == "run" else COMMANDS[words[0]]
    try:
        read(words[1:], {})
    except (Parsed, SystemExit):
        return
    except LauncherError as error:
        pytest.fail(f"{page}: launcher {' '.join(words)}: {error}")


def test_the_pages_have_commands() -> None:
    assert len(ALL) > 120 and len({page for page, _ in ALL}) > 20
