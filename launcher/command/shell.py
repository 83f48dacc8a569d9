"""Shell commands that only start one program: a file, or an image's CMD such as ``sh -c "python train.py"``.

We run that program without the shell. Then its script shows the framework, its ``torchrun`` runs once per
node and not once per GPU, and signals reach it directly. We do so only if the shell would do nothing else:
no variable, no pattern, no second command, no redirection. ``set -e`` and comments may come first. Any other
text keeps its shell, and we only read which commands it calls.

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
"""Shell flags that change nothing for a single program: exit on errors, and tracing."""
NAMES = ("errexit", "nounset", "xtrace", "pipefail")
BEFORE = ("exec", "env", "nohup", "command")
"""Prefix commands that do not change which program runs."""


@frozen
class Text:
    """The text that a shell would read.

    Attributes:
        path: The file, or ``sh -c``; empty if a command is not a shell, or its text is unknown.
        text: The text.
        is_usual: Whether the shell has only harmless flags: no profile is read, and the text can see its
            arguments only through variables.
    """

    path: str = ""
    text: str = ""
    is_usual: bool = False


def open_shell(command: Sequence[str]) -> tuple[str, ...]:
    """Return the only command that a shell would start if it is a Python or launcher; else the shell's."""
    read = read_shell(command)
    lines = [line for line in read_lines(read.text) if not _only_sets(line)] if read.is_usual else []
    words = lines[0].words if len(lines) == 1 and lines[0].is_plain else ()
    if words[:1] == ("exec",):
        words = words[1:]
    return words if words and (is_python(words[0]) or may_be_launcher(words)) else tuple(command)


def _only_sets(line: Line) -> bool:
    """Whether a command only sets shell flags that change nothing for a single program."""
    return line.is_plain and line.words[0] == "set" and _are_harmless(line.words[1:])


def _are_harmless(flags: Sequence[str]) -> bool:
    """Whether words are shell flags that change nothing for a single program: ``-eu``, ``-eo pipefail``."""
    words = iter(flags)
    for word in words:
        letters = word[1:].removesuffix("o")
        named = next(words, "") if word.endswith("o") else NAMES[0]
        if not word.startswith("-") or word == "-" or not LETTERS.issuperset(letters) or named not in NAMES:
            return False
    return True


def read_shell(command: Sequence[str]) -> Text:
    """Return the text that a shell would read if a command is a shell or a shell script."""
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
        place += 1  # skip the option's name
    file = command[place] if place < len(command) else ""
    return _read_file(file, _are_harmless(command[1:place])) if file else Text()


def _has_text(word: str) -> bool:
    """Whether a word of a shell's command line is its file, or the flag before its text."""
    return not word.startswith(("-", "+")) or (word.endswith("c") and not word.startswith("--"))


def _read_file(path: str, is_usual: bool) -> Text:
    """Return the text of a file that a shell would run; empty if it is unreadable, binary or too large."""
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
    """Return the commands in a shell's text without prefixes such as ``exec`` or ``env A=1``."""
    return [line for line in map(_strip, read_lines(read.text)) if line.words]


def _strip(line: Line) -> Line:
    count = 0
    while count < len(line.words) and (line.words[count] in BEFORE or _follows_env(line, count)):
        count += 1
    replaced = tuple(place - count for place in line.replaced if place >= count)
    return replace(line, words=line.words[count:], replaced=replaced)


def _follows_env(line: Line, count: int) -> bool:
    return "env" in line.words[:count] and "=" in line.words[count].partition("-")[0]
