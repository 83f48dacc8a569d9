"""Write what shells and man know of the command line anew from the program: ``python tools/render_cli.py``.

The files are those of `share/`, as a wheel installs them. With ``--check`` nothing is written, and the
status is 1 if something would be; a test does that. Needs shtab and argparse-manpage (the extra ``test``).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # run from anywhere, installed or not

import shtab  # noqa: E402
from argparse_manpage.manpage import Manpage  # noqa: E402

from launcher import __version__  # noqa: E402
from launcher.cli.main import DESCRIPTION  # noqa: E402
from launcher.options.flags import FLAGS  # noqa: E402
from tools.render_docs import find_parser  # noqa: E402

SHARE = ROOT / "share"
SUMMARY = "starts distributed training right, whatever platform started the container"
STATUSES = """The command's own; 128+N where signal N ended it.
64: usage. 69: hardware that was asked for is missing. 75: not ready, try again. 78: the environment cannot be
trusted. 70: a bug in the launcher. 126, 127: the command cannot be run, or is not there.
"""
SHARED = "run"
"""Whose section of the man page has the flags that several commands take."""


def main(argv: list[str]) -> int:
    """Write the files, or compare them."""
    changed = 0
    for name, text in render().items():
        path = SHARE / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        changed += 1
        if argv != ["--check"]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {'differs' if argv == ['--check'] else 'changed'}")
    return int(argv == ["--check"] and changed > 0)


def render() -> dict[str, str]:
    """Return the files of `share/` by their paths in it."""
    everything = make_parser(set())
    brief = make_parser({flag.dest for flag in FLAGS})
    return {
        "bash-completion/completions/launcher": shtab.complete(everything, "bash"),
        "zsh/site-functions/_launcher": shtab.complete(everything, "zsh"),
        "man/man1/launcher.1": render_man(brief),
    }


def render_man(parser: argparse.ArgumentParser) -> str:
    """Return the man page of a parser."""
    page = Manpage(parser)
    page.description = SUMMARY
    page.source, page.manual = f"launcher {__version__}", "User Commands"
    page.date = ""  # it would differ from day to day
    page.add_section("exit status", "=", STATUSES)
    return str(page)


def make_parser(shared: set[str]) -> argparse.ArgumentParser:
    """Return one parser of all commands.

    Args:
        shared: Flags, by ``dest``, that are left out of all commands but one.
    """
    parser = argparse.ArgumentParser(prog="launcher", description=SUMMARY)
    parser.add_argument("--version", action="version", version=__version__, help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, text in DESCRIPTION.items():
        found = find_parser(name)
        usage = (found.usage or f"launcher {name} [options]").replace("%", "%%")
        command = commands.add_parser(name, add_help=False, help=text, description=text, usage=usage)
        for action in found._actions:
            if name == SHARED or action.dest not in shared:
                command._add_action(action)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
