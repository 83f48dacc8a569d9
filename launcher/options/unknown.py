"""Unknown variables, flags and commands: finds the ones that the user may have meant."""

from __future__ import annotations

from launcher.core.blocks import read_rows
from launcher.options.flags import FLAGS, PREFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NEAR = 0.75
"""Least similarity (0 to 1) of two names without their common prefix for one to suggest the other."""
OTHERS = {row[0]: row[1] for row in read_rows("options/other_names.txt")}
"""Other launchers' names of some of our flags."""
OTHER_COMMANDS = {"version": "--version", "launch": "run", "start": "run", "exec": "run"}
"""Other programs' names of some of our commands."""
NEAR_COMMAND = 0.6
"""`NEAR` for commands, whose names are short."""
REHEARSED = {"--nproc-per-node": "--processes", "--nnodes": "--nodes"}
"""The names of these flags in ``launcher rehearse``."""


def describe_unknown(names: Sequence[str]) -> tuple[str, ...]:
    """Return a sentence for each unknown variable, with the nearest known name; never its value."""
    known, what = [flag.variable for flag in FLAGS], "is not a variable of the launcher, and has no effect"
    return tuple(f"{name} {what}; {name_nearest(find_near(name, known, len(PREFIX)))}" for name in names)


def mend_command(name: str, known: Sequence[str]) -> str:
    """Return what to type instead of an unknown command.

    Args:
        name: The word that was typed; empty if there is none.
        known: Our commands.
    """
    if name[:1] in ("", "-"):
        return "launcher --help"
    import difflib

    near = [OTHER_COMMANDS[name]] if name in OTHER_COMMANDS else []
    near = near or difflib.get_close_matches(name, known, 1, NEAR_COMMAND)
    meant = f"did you mean launcher {near[0]}?" if near else f"launcher run -- {name} ..."
    return f"{meant}; launcher --help lists the commands".replace("?; ", "? ")


def describe_flags(
    prog: str, known: Iterable[str], words: Sequence[str], fix: str, *, takes_command: bool
) -> str:
    """Return the fix for words that a command does not know: the nearest flags, and where other flags belong.

    Args:
        prog: The command, e.g. ``launcher run``.
        known: Its flags.
        words: The words that it could not parse.
        fix: The fix if no flag is near: its help.
        takes_command: Whether a command with flags of its own follows.
    """
    shown = [name for name in known if name[:2] == "--" and "_" not in name]  # torchrun's spelling is not
    flags = [word.partition("=")[0].replace("_", "-") for word in words if word.startswith("-")]
    fixes = [_mend(flag, shown, prog) for flag in dict.fromkeys(flags)]
    fixes = [text for text in fixes if text] or [fix]
    if takes_command:
        fixes.append(f"flags of your command come after it: {prog} [options] -- COMMAND ...")
    return "; ".join(fixes).replace("?; ", "? ")


def _mend(flag: str, known: Sequence[str], prog: str) -> str:
    """Return what to type instead of one flag; empty if unknown."""
    run = {name for one in FLAGS for name in (one.name, one.short) if name}
    ours = OTHERS.get(flag, flag)
    near = [ours] if ours in known else find_near(flag, [*known, *OTHERS], 2)
    near = [OTHERS.get(name, name) for name in near]
    if prog == "launcher rehearse" and ours in REHEARSED:
        near = [REHEARSED[ours]]
    if near:
        return f"did you mean {near[0]}?"
    if ours not in run:
        return ""
    if prog == "launcher rehearse":
        return f"{flag} is for launcher run: {prog} ... -- launcher run {flag} ... -- COMMAND"
    if prog == "launcher bandwidth":
        variable = next(one.variable for one in FLAGS if ours in (one.name, one.short))
        return f"{flag} is for launcher run, here a variable: {variable}=... {prog}"
    return ""


def find_near(name: str, known: Sequence[str], start: int) -> list[str]:
    """Return the nearest known name as a list, empty if none is near.

    The first ``start`` characters, which all names share, do not count.
    """
    import difflib

    tails = {text[start:]: text for text in known}
    return [tails[tail] for tail in difflib.get_close_matches(name[start:], tails, 1, NEAR)]


def name_nearest(near: Sequence[str]) -> str:
    """Return the name that an unknown one may mean, as the second half of a sentence."""
    return f"{near[0]} is the nearest" if near else "none is similar: launcher run --help-all lists all"
