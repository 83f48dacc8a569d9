"""The usual command line of ``launcher run``, read without argparse.

argparse, with re, gettext and locale behind it, costs 9 ms of every start, most of what there is.
So whatever is plainly right is read here: known flags in their full spelling, each with a value that is
no flag. Anything else, from ``--help`` to a typing error, is argparse's, with the same outcome
(tests/unit/test_quick.py compares the two).
"""

from __future__ import annotations

from launcher.options.flags import FLAGS, Flag

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Typed = dict[str, str | bool]
ABOUT_RUN = "start COMMAND on this node, once per GPU, with the variables of a distributed job"
"""What ``launcher run`` does, in all helps."""

SLOWLY = ("LAUNCHER_DRY_RUN", "LAUNCHER_REPLAY")
"""Variables that are flags of the command, not of the table."""


def read_quickly(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[Typed, tuple[str, ...]] | None:
    """Return the flags that were typed (dest to text, or on and off) and the command; None: ask argparse."""
    if any(environ.get(name) for name in SLOWLY):
        return None
    known = spellings()
    typed: Typed = {}
    words = iter(enumerate(argv))
    for index, word in words:
        if word == "--":
            return typed, tuple(argv[index + 1 :])
        if not word.startswith("-"):
            return typed, tuple(argv[index:])
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if name not in known:
            return None
        flag, on = known[name]
        if flag.parse is None:
            if equals:
                return None
            typed[flag.dest] = on
            continue
        if not equals:
            _, value = next(words, (0, "-"))
            if value.startswith("-"):
                return None
        typed[flag.dest] = value
    return typed, ()


def spellings() -> dict[str, tuple[Flag, bool]]:
    """Return every way to type a flag, and for a switch whether that turns it on."""
    found: dict[str, tuple[Flag, bool]] = {}
    for flag in FLAGS:
        found[flag.name] = found["--" + flag.dest] = (flag, True)
        if flag.short:
            found[flag.short] = (flag, True)
        if flag.negatable:
            found["--no-" + flag.name[2:]] = (flag, False)
    return found
