"""A shell that would only start one program: a file, or ``sh -c "python train.py"``, of an image's CMD.

What such a text names is then known: its script shows the framework, its ``torchrun`` is run once
per node and not once per GPU, and signals reach it without a shell between. Only where the shell would do
nothing else: no variable, no pattern, no second command, no redirection. ``set -e`` may stand before, and
comments. What does more stays with its shell, and is read for what it calls.

Source: POSIX, Shell Command Language, 2.2 Quoting and 2.9.1 Simple Commands; execve(2), Interpreter scripts.
"""

from __future__ import annotations

import os

from launcher.command.line import is_python, is_shell, may_be_launcher, read_interpreter
from launcher.command.shell_lines import Line, read_lines
from launcher.core.frozen import frozen, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

FILE_LIMIT_BYTES = 1 << 16
LETTERS = frozenset("eux")
"""Flags of a shell that change nothing for one program: when to give up, and to say what is run."""
NAMES = ("errexit", "nounset", "xtrace", "pipefail")
BEFORE = ("exec", "env", "nohup", "command")
"""Programs in front of a program that change nothing for it."""


@frozen
class Text:
    """What a shell would read.

    Attributes:
        path: The file, or ``sh -c``; empty if a command is no shell, or its text is not known.
        text: The text.
        is_usual: Whether the shell is started as for any text: without a profile, and with arguments that the
            text can only see by variables.
    """

    path: str = ""
    text: str = ""
    is_usual: bool = False


def open_shell(command: Sequence[str]) -> tuple[str, ...]:
    """Return the one command that a shell would start, if that is a Python or a launcher."""
    read = read_shell(command)
    lines = [line for line in read_lines(read.text) if not _only_sets(line)] if read.is_usual else []
    words = lines[0].words if len(lines) == 1 and lines[0].is_plain else ()
    if words[:1] == ("exec",):
        words = words[1:]
    return words if words and (is_python(words[0]) or may_be_launcher(words)) else tuple(command)


def _only_sets(line: Line) -> bool:
    """Whether a command does nothing but set flags that change nothing for one program."""
    return line.is_plain and line.words[0] == "set" and _are_harmless(line.words[1:])


def _are_harmless(flags: Sequence[str]) -> bool:
    """Whether words are flags of a shell that change nothing for one program: ``-eu``, ``-eo pipefail``."""
    words = iter(flags)
    for word in words:
        letters = word[1:].removesuffix("o")
        named = next(words, "") if word.endswith("o") else NAMES[0]
        if not word.startswith("-") or word == "-" or not LETTERS.issuperset(letters) or named not in NAMES:
            return False
    return True


def read_shell(command: Sequence[str]) -> Text:
    """Return what a shell would read, where a command is a shell, or an executable file that is for one."""
    if not is_shell(command[0]):
        words = read_interpreter(command[0])
        by_env = words[:1] != [] and words[0].endswith("/env")
        words = words[2 if words[1:2] == ["-S"] else 1 :] if by_env else words
        if not words or not is_shell(words[0]):
            return Text()
        return _read_file(command[0], _are_harmless(words[1:]) and os.access(command[0], os.X_OK))
    place = next((place for place, word in enumerate(command) if place and _has_text(word)), len(command))
    if place < len(command) and command[place].startswith("-"):
        text = command[place + 1] if place + 1 < len(command) else ""
        is_usual = place == 1 and len(command) == 3 and command[1] in ("-c", "-ec")
        return Text(f"{command[0]} {command[place]}", text, is_usual)
    flags = command[1:place]
    if flags and flags[-1].endswith("o") and not flags[-1].startswith("--"):
        place += 1  # the name of an option
    file = command[place] if place < len(command) else ""
    return _read_file(file, _are_harmless(command[1:place])) if file else Text()


def _has_text(word: str) -> bool:
    """Whether a word of a shell's command line is its file, or the flag in front of its text."""
    return not word.startswith(("-", "+")) or (word.endswith("c") and not word.startswith("--"))


def _read_file(path: str, is_usual: bool) -> Text:
    """Return the text of a file that a shell would run; nothing if it is none."""
    if not os.path.isfile(path):
        return Text()
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_LIMIT_BYTES + 1)
    except OSError:
        return Text()
    if b"\0" in data or len(data) > FILE_LIMIT_BYTES:
        return Text()
    return Text(path, data.decode("utf-8", "surrogateescape"), is_usual)


def list_calls(read: Text) -> list[Line]:
    """Return the commands in a shell's text without what stands in front of each: ``exec``, ``env A=1``."""
    return [line for line in map(_strip, read_lines(read.text)) if line.words]


def _strip(line: Line) -> Line:
    count = 0
    while count < len(line.words) and (line.words[count] in BEFORE or _follows_env(line, count)):
        count += 1
    replaced = tuple(place - count for place in line.replaced if place >= count)
    return replace(line, words=line.words[count:], replaced=replaced)


def _follows_env(line: Line, count: int) -> bool:
    return "env" in line.words[:count] and "=" in line.words[count].partition("-")[0]
