"""What the tutorial and the how-to pages tell a stranger to type, typed: real rehearsals, and their words."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.process.starting import ROOT, launch

pytestmark = [pytest.mark.mpi, pytest.mark.torch]
DOCS = Path(ROOT) / "docs"
REHEARSED = re.compile(r"^    launcher (rehearse --like ([\w-]+) --nodes 2 .*-- sh -c .+)$", re.MULTILINE)
TYPED = re.compile(r"^    (.*launcher (?:run|plan|rehearse) .*)$", re.MULTILINE)
PRINTED = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d+(\.\d+)?")
# The same on every machine, and all variables that the words after the prompt set.
ENVIRON = {"PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}


def read(page: str) -> str:
    """Return a page with its continued lines in one piece."""
    return (DOCS / page).read_text(encoding="utf-8").replace("\\\n        ", "")


def section(page: str, heading: str) -> str:
    """Return what stands under a heading, up to the next."""
    _, _, rest = read(page).partition(f"# {heading}\n")
    assert rest, f"{page}: {heading}"
    return re.split(r"^##", rest, maxsplit=1, flags=re.MULTILINE)[0]


def type_words(line: str) -> tuple[int, str]:
    """Type a line of a page; return the status, and all that is printed."""
    words = shlex.split(line)
    start = words.index("launcher")
    given = dict(word.split("=", 1) for word in words[:start])
    done = launch(*words[start + 1 :], environ={**ENVIRON, **given})
    return done.returncode, done.stdout + done.stderr


def without_numbers(text: str) -> list[str]:
    """Return the lines of a text, with blanks and numbers that differ from run to run taken out."""
    return [" ".join(NUMBER.sub("N", line).split()) for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize(
    ("words", "platform"), REHEARSED.findall(read("platforms.md")), ids=lambda item: item[:40]
)
def test_each_platform_can_be_tried_here(words: str, platform: str) -> None:
    """Every process says who it is; TensorFlow's tasks say which."""
    status, said = type_words(f"launcher {words}")
    assert status == 0, said
    if platform == "azureml-tensorflow":
        assert len(re.findall(r'"index":[01]', said)) == 2
    else:
        assert sorted(re.findall(r"\d of 4, node \d", said)) == [
            f"{rank} of 4, node {rank // 2}" for rank in range(4)
        ]


def test_every_platform_that_can_be_rehearsed_is_on_the_page() -> None:
    """What the program imitates, a stranger can find."""
    from launcher.rehearse.platforms import PLATFORMS

    assert {platform for _, platform in REHEARSED.findall(read("platforms.md"))} == set(PLATFORMS)


@pytest.mark.parametrize("heading", ["Precedence", "An example that stops"])
def test_the_examples_of_precedence_are_real(heading: str) -> None:
    """The lines that the page shows are among those that are printed."""
    text = section("precedence.md", heading)
    (line, *_), (shown, *_) = TYPED.findall(text), PRINTED.findall(text)
    _, said = type_words(line)
    assert set(without_numbers(shown)) <= set(without_numbers(said))


def test_the_failure_of_the_tutorial_is_a_real_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the script that stands there; process numbers and times differ."""
    text = section("tutorial.md", "5. Let it fail")
    (script,) = re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    (line,), (shown,) = TYPED.findall(text), PRINTED.findall(text)
    (tmp_path / "boom.py").write_text(script)
    monkeypatch.chdir(tmp_path)
    status, said = type_words(line)
    assert status == 1
    said = said.replace(f"{tmp_path}/", "")
    assert set(without_numbers(shown)) <= set(without_numbers(said))
    assert (tmp_path / "outputs" / "launcher-failure-node1.json").exists()
