"""What shells and man know of the command line, from the program itself; setup.py makes it part of a wheel.

Needs shtab and argparse-manpage, in the versions that setup.py names.
"""

from __future__ import annotations

import argparse

import shtab
from argparse_manpage.manpage import Manpage

from launcher import __version__
from launcher.cli.main import DESCRIPTION
from launcher.options.flags import FLAGS
from tools.render_docs import find_parser

SUMMARY = "starts distributed training right, whatever platform started the container"
STATUSES = """The command's own; 128+N where signal N ended it.
64: usage. 69: hardware that was asked for is missing. 75: not ready, try again. 78: the environment cannot be
trusted. 70: a bug in the launcher. 126, 127: the command cannot be run, or is not there.
"""
SHARED = "run"
"""Whose section of the man page has the flags that several commands take."""


def render() -> dict[str, str]:
    """Return the files by their paths below ``share/``."""
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
