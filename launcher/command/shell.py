"""A shell that would only start one program: ``sh -c "python train.py"``, of an image's CMD in one string.

What such a string names is then known: its script shows the framework, its ``torchrun`` is run once per
node and not once per GPU, and signals reach it without a shell between. Only where the shell would do
nothing else: no variable, no pattern, no second command, no redirection.

Source: POSIX, Shell Command Language, 2.2 Quoting and 2.9.1 Simple Commands.
"""

from __future__ import annotations

from launcher.command.line import is_python, may_be_launcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

SPECIAL = frozenset("$`\\*?[]{}~|&;<>()#!=^\n")
"""Outside of quotes these can mean something to a shell; ``=`` only in front of the program."""
IN_DOUBLE_QUOTES = frozenset("$`\\!")


def open_shell(command: Sequence[str]) -> tuple[str, ...]:
    """Return the one command that a shell would start, if that is a Python or a launcher."""
    if len(command) != 3 or command[1] not in ("-c", "-ec"):
        return tuple(command)
    words = split_simple(command[2])
    if words and words[0] == "exec":
        words = words[1:]
    if words and (is_python(words[0]) or may_be_launcher(words)):
        return words
    return tuple(command)


def split_simple(text: str) -> tuple[str, ...]:
    """Return the words of a string as a shell splits it; none if it would do anything but start a program."""
    words: list[str] = []
    word, quote, begun = "", "", False
    for char in text.strip(" \t\n"):
        if quote:
            if char == quote:
                quote = ""
            elif quote == '"' and char in IN_DOUBLE_QUOTES:
                return ()
            else:
                word += char
        elif char in "'\"":
            quote, begun = char, True
        elif char in " \t":
            if begun:
                words.append(word)
            word, begun = "", False
        elif char in SPECIAL and not (char == "=" and words):
            return ()
        else:
            word += char
            begun = True
    if quote:
        return ()
    return (*words, word) if begun else tuple(words)
