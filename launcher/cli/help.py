"""The overview of all commands: ``launcher``, ``launcher help``, ``launcher --help``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from launcher.core.blocks import read_rows
from launcher.core.frozen import frozen
from launcher.core.stdout import write


@frozen
class CommandRow:
    """A command: its group in the overview, its function, an example, and what it does."""

    group: str
    function: str
    example: str
    about: str


COMMANDS = {name: CommandRow(*cells) for name, *cells in read_rows("cli/commands.txt")}
GROUPS = tuple(dict.fromkeys(one.group for one in COMMANDS.values()))


def render_overview() -> str:
    """Return the commands in groups, what each does, and an example of each."""
    lines = [
        "usage: launcher COMMAND [options] [--] ...",
        "",
        "Run distributed training on any platform: find the nodes and ranks, and start the processes.",
    ]
    for title in GROUPS:
        lines += ["", f"{title}:"]
        for name, one in COMMANDS.items():
            if one.group == title:
                lines += [f"  {name:<10} {one.about}", f"  {'':<10}   $ {one.example}"]
    lines += [
        "",
        "launcher help COMMAND lists a command's options; launcher --help-all adds the options of run.",
        "launcher --version prints the version; man launcher has everything.",
    ]
    return "\n".join(lines) + "\n"


def show_help(words: Sequence[str], dispatch: Callable[[Sequence[str]], int]) -> int:
    """Print the overview, or the help of the command that is named first; return the exit status.

    ``--help-all`` prints the overview and all flags of ``launcher run``.
    """
    if words and words[0] != "--help-all":
        return dispatch([words[0], "--help-all" if "--help-all" in words and words[0] == "run" else "--help"])
    write(render_overview())
    if words:
        write("\n")
        return dispatch(["run", "--help-all"])
    return 0
