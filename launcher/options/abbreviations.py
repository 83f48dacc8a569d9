"""Abbreviated flags, by argparse's rule: a prefix of exactly one flag, or a flag without its last s.

torchrun accepts them. So a prefix that is unique among torchrun's flags means torchrun's flag, even if other
flags of ours begin so: ``--no-p`` is ``--no-python``. Loaded only with argparse.
"""

from __future__ import annotations

from argparse import Action
from collections.abc import Mapping, Sequence

from launcher.options.flags import FLAGS
from launcher.options.unknown import OTHERS

TORCHRUNS = frozenset((*(flag.dest for flag in FLAGS if flag.is_torchruns), "help"))


class Ambiguous(Exception):
    """Several flags have this prefix; the message names them."""


def spell_out(words: Sequence[str], known: Mapping[str, Action], *, takes_command: bool) -> list[str]:
    """Return the words of a command line with abbreviated flags in full.

    Args:
        words: The words.
        known: Each spelling of a flag, and its action.
        takes_command: Whether the first word that is not a flag begins a command, with flags of its own.

    Raises:
        Ambiguous: An abbreviation fits several flags.
    """
    found, place = list(words), 0
    while place < len(found) and found[place] != "--":
        name, equals, value = found[place].partition("=")
        if not name.startswith("-") and takes_command:
            break
        if name not in known and name.startswith("--") and name != "--":
            name = find_full(name, known)
            found[place] = f"{name}{equals}{value}"
        takes_next = name in known and not equals and known[name].nargs != 0
        place += 2 if takes_next else 1
    return found


def find_full(name: str, known: Mapping[str, Action]) -> str:
    """Return the flag with this prefix; the name itself if none has it, or if it is another launcher's flag.

    Raises:
        Ambiguous: Several flags have this prefix.
    """
    found: dict[tuple[str, object], str] = {}  # counts both spellings of a flag once
    for spelling, action in known.items():
        if spelling.startswith(name):
            found.setdefault((action.dest, action.const), spelling)
    theirs = [spelling for (dest, _), spelling in found.items() if dest in TORCHRUNS]
    if len(theirs) == 1:
        return theirs[0]
    if f"{name}s" in known:
        return f"{name}s"  # --restart 2
    if not found or name in OTHERS:  # --gpus is another launcher's name of --nproc-per-node
        return name
    if len(found) > 1:
        raise Ambiguous(f"{name} is ambiguous: {' or '.join(found.values())}")
    return next(iter(found.values()))
