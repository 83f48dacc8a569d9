"""Words of a command line: a Python with its flags and script or module, a shell, the ``#!`` of a file."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

SHELLS = ("sh", "bash", "dash", "ash")
"""Shells, whose ``-c STRING`` may be a single command."""
FIRST_LINE_BYTES = 256
"""Linux reads this much of a file's first line."""
STDIN = ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")
ASK = ("-V", "--version", "-h", "--help", "-VV")
"""Python's flags that print something about it, and run nothing."""
VALUED = frozenset(("-c", "-m", "-W", "-X", "--check-hash-based-pycs"))
"""Python's flags with a value."""


def name_program(word: str) -> str:
    """Return the name of a program that a command line calls by name, path, or hatch's ENVIRONMENT:NAME."""
    return word.rpartition("/")[2].rpartition(":")[2]


def is_python(word: str) -> bool:
    """Whether a command's first word is a Python: ``python``, ``/usr/bin/python3.11``, ``pypy3``."""
    name = name_program(word)
    kind = next((kind for kind in ("python", "pypy") if name.startswith(kind)), None)
    return kind is not None and not name[len(kind) :].strip("0123456789.")


def is_shell(word: str) -> bool:
    """Whether a command's first word is a shell."""
    return name_program(word) in SHELLS


def may_be_shell(argv: Sequence[str]) -> bool:
    """Whether a command is a shell or a shell script."""
    return bool(argv) and not is_python(argv[0]) and any(map(is_shell, (argv[0], *read_interpreter(argv[0]))))


def read_interpreter(path: str) -> list[str]:
    """Return the words after ``#!`` in the first line of a file; none without ``#!`` or without a path.

    For a long path, or one with blanks, pip and uv write a shell's line that starts the Python.
    """
    if "/" not in path or not os.path.isfile(path):
        return []
    try:
        with open(path, "rb") as file:
            first, second = file.readline(FIRST_LINE_BYTES), file.readline(4 * FIRST_LINE_BYTES)
    except OSError:
        return []
    if second.startswith(b"'''exec' "):
        parts = second.decode("utf-8", "replace").replace('"', "'").split("'")
        return [part for part in parts if is_python(part)]
    return first[2:].decode("utf-8", "replace").split() if first.startswith(b"#!") else []


def read_python(path: str) -> tuple[str, ...]:
    """Return the Python in the ``#!`` line of an executable file, with its flags; empty if there is none."""
    words = read_interpreter(path) if os.access(path, os.X_OK) else []
    if words and name_program(words[0]) == "env":
        words = words[2:] if words[1:2] == ["-S"] else words[1:]
    return tuple(words) if words and is_python(words[0]) else ()


def read_flag(word: str, valued: Collection[str]) -> tuple[str, bool]:
    """Return the letter of a flag that has a value, which may be combined, and whether the next word is it.

    ``-fo FILE``, ``-oFILE``; ``valued`` has the flags with a value: ``-o``, ``--output``.
    """
    letters = "" if word.startswith("--") else word[1:]
    letter = next((letter for letter in letters if f"-{letter}" in valued), "")
    return letter, word in valued or (letter != "" and word.index(letter) == len(word) - 1)


def read_flags(argv: Sequence[str]) -> tuple[int, str, int]:
    """Return where a Python's own flags end, what ends them, and where its program's arguments begin.

    ``c`` or ``m`` ends them for that flag, which may be combined with others (``-um NAME``) or with its value
    (``-mNAME``). Otherwise the text is empty: the index is that of a script, of ``-`` for standard input, or
    of no word.

    Source:
        docs.python.org, "Command line and environment", Interface options.
    """
    place = 1
    while place < len(argv) and argv[place].startswith("-") and argv[place] != "-":
        letter, is_apart = read_flag(argv[place], VALUED)
        if letter in ("c", "m"):
            return place, letter, min(place + 1 + is_apart, len(argv))
        place += 1 + is_apart
    return place, "", min(place + 1, len(argv))


def find_script(argv: Sequence[str]) -> int | None:
    """Return the index of ``-m`` or the script in a Python's command line; None if there is neither."""
    place, flag, _ = read_flags(argv)
    return None if flag == "c" or place >= len(argv) or argv[place] == "-" else place


def part_module(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command line with a Python's ``-m`` and its module as separate words."""
    place, flag, _ = read_flags(argv) if is_python(argv[0]) else (0, "", 0)
    if flag != "m" or argv[place] == "-m":
        return argv
    others, _, name = argv[place].partition("m")
    flags = (*([others] if others != "-" else []), "-m", *([name] if name else []))
    return (*argv[:place], *flags, *argv[place + 1 :])


def match_call(argv: Sequence[str], call: Sequence[str]) -> int:
    """Return how many words of a command line make this call; 0 if it makes another one.

    Args:
        argv: A command line, whose ``-m`` and module are separate words.
        call: The name of a program, and words that follow it; or ``-m NAME``, which comes behind a Python.
            A Python may also run the program's file.
    """
    place = find_script(argv) if is_python(argv[0]) else 0
    if place is None or (call[0] == "-m" and not place):
        return 0
    words = argv[place : place + len(call)]
    return place + len(call) if (name_program(words[0]), *words[1:]) == tuple(call) else 0


def reads_program(argv: Sequence[str]) -> bool:
    """Whether a Python or a shell reads its program from standard input: no file, module or text is named.

    Source:
        POSIX, sh, OPTIONS; bash(1), "Options".
    """
    if not argv or not (is_python(argv[0]) or is_shell(argv[0])):
        return False
    if is_python(argv[0]):
        place, flag, _ = read_flags(argv)
        asks = any(word in ASK for word in argv[1:place])
        return not asks and not flag and (place >= len(argv) or argv[place] in STDIN)
    place, letters = read_shell_flags(argv)
    # Few long flags run anything, and their files come next
    return not {"c", "-"} & {*letters} and ("s" in letters or place >= len(argv) or argv[place] in STDIN)


def read_shell_flags(argv: Sequence[str]) -> tuple[int, str]:
    """Return where a shell's own flags end, and their letters; a long flag gives a dash."""
    place, letters = 1, ""
    while place < len(argv) and argv[place][:1] in ("-", "+") and argv[place] != "-":
        is_long = argv[place].startswith("--")
        letters += argv[place][2:3] and "-" if is_long else argv[place][1:]
        # After -o comes the name of an option
        place += 2 if argv[place].endswith("o") and not is_long else 1
    return place, letters
