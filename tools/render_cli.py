"""Makes the completions and the man page from the program's own parsers; setup.py puts them into a wheel.

Needs shtab in the version that setup.py pins.
"""

from __future__ import annotations

import argparse

import shtab

from launcher import __version__
from launcher.cli.help import COMMANDS, GROUPS
from launcher.options.flags import FLAGS
from tools.parsers import find_parser

SUMMARY = "starts distributed training on every platform"
STATUSES = {
    "0": "success",
    "1 to 255": "the status of the command",
    "128+N": "signal N ended the command",
    "64": "usage error",
    "69": "missing hardware or no running job",
    "70": "a bug in the launcher",
    "75": "not ready or interrupted: try again",
    "78": "the environment is contradictory or incomplete",
    "126, 127": "the command cannot be executed, or does not exist",
}
ABOUT = (
    "Run distributed training with the same command on Azure ML, Azure Batch, Slurm and Kubernetes, under "
    "mpirun, or from a shell. The launcher detects the platform, sets the variables of the framework, "
    "starts one process per GPU, and reports which rank failed first and why."
)
ENVIRONMENT = {
    "LAUNCHER_FLAG": "the value of --flag of launcher run, for each flag; the flag itself wins",
    "LAUNCHER_CONFIG": "a file of defaults, before launcher.toml and /etc/launcher.conf",
    "LAUNCHER_DOCS_URL": "where the documentation is: messages and reports give the address of their page",
    "LAUNCHER_DISABLE": "1 or true: launcher run starts the command and does nothing else",
}
FILES = {
    "/etc/launcher.conf": "defaults of a fleet, below flags and variables",
    "/dev/termination-log": "where Kubernetes looks for the reason of a failure",
}
PLUMBING = "plumbing"
PATHS = {"FILE": shtab.FILE, "PATH": shtab.FILE, "DIR": shtab.DIRECTORY}
"""Placeholders of values that are completed from the file system."""
SHARED = "run"
"""The command whose section of the man page has the flags that several commands take."""


def render() -> dict[str, str]:
    """Return the texts of the files, by path below ``share/``."""
    everything = make_parser(set())
    brief = make_parser({flag.dest for flag in FLAGS})
    return {
        "bash-completion/completions/launcher": shtab.complete(everything, "bash"),
        "zsh/site-functions/_launcher": shtab.complete(everything, "zsh"),
        "fish/vendor_completions.d/launcher.fish": shtab.complete(everything, "fish"),
        "man/man1/launcher.1": render_man(brief),
    }


def render_man(parser: argparse.ArgumentParser) -> str:
    """Return the man page of a parser with commands, as man(7) macros."""
    commands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    lines = [
        f'.TH LAUNCHER 1 "" "launcher {__version__}" "User Commands"',  # a date would differ from day to day
        *(".SH NAME", f"launcher \\- {_roff(SUMMARY)}"),
        *(".SH SYNOPSIS", ".B launcher", "COMMAND [options] ..."),
        *(".SH DESCRIPTION", _roff(ABOUT)),
    ]
    for title in GROUPS:
        lines.append(f".SH COMMANDS TO {_roff(title.upper())}" if title != PLUMBING else ".SH OTHER COMMANDS")
        for name, one in COMMANDS.items():
            if one.group == title:
                lines += [".TP", rf"\fBlauncher {_roff(name)}\fR", _roff(one.about)]
    for name, command in commands.choices.items():
        lines += [
            f".SH OPTIONS OF {_roff(name.upper())}",
            _roff(command.format_usage().removeprefix("usage: ")),
        ]
        for action in command._actions:
            if action.option_strings and action.help != argparse.SUPPRESS:
                lines += [".TP", _roff_flag(action), _roff(action.help or "")]
    for title, table in (("ENVIRONMENT", ENVIRONMENT), ("FILES", FILES), ("EXIT STATUS", STATUSES)):
        lines.append(f".SH {title}")
        for name, meaning in table.items():
            lines += [".TP", rf"\fB{_roff(name)}\fR", _roff(meaning)]
    lines.append(".SH EXAMPLES")
    for one in COMMANDS.values():
        lines += [".TP", rf"\fB{_roff(one.example)}\fR", _roff(one.about)]
    lines += [".SH SEE ALSO", ".BR torchrun (1),", ".BR mpirun (1),", ".BR srun (1)"]
    return "\n".join(lines) + "\n"


def _roff_flag(action: argparse.Action) -> str:
    """Return the spellings of a flag in bold, and its value in italics."""
    names = ", ".join(rf"\fB{_roff(spelling)}\fR" for spelling in action.option_strings)
    value = "" if action.nargs == 0 else str(action.metavar or "|".join(action.choices or ()))
    return rf"{names} \fI{_roff(value)}\fR" if value else names


def _roff(text: str) -> str:
    """Return text that roff prints as it is, even if it begins with a full stop or a quote."""
    return "\\&" + text.replace("\\", "\\e").replace("-", "\\-") if text else ""


def _complete(action: argparse.Action) -> argparse.Action:
    """Have a shell complete files where an argument names one, and behind the command's first word."""
    kind = shtab.FILE if action.nargs == argparse.REMAINDER else PATHS.get(str(action.metavar))
    if kind:
        action.complete = kind  # type: ignore[attr-defined]
    if action.nargs == argparse.REMAINDER:
        action.help = "the command and its words"  # shtab leaves out what has no help
    return action


def make_parser(shared: set[str]) -> argparse.ArgumentParser:
    """Return one parser of all commands.

    Args:
        shared: Flags, by ``dest``, that are left out of all commands but `SHARED`.
    """
    parser = argparse.ArgumentParser(prog="launcher", description=SUMMARY)
    parser.add_argument("--version", action="version", version=__version__, help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, text in ((name, one.about) for name, one in COMMANDS.items()):
        found = find_parser(name)
        usage = found.format_usage().removeprefix("usage: ").strip().replace("%", "%%")
        command = commands.add_parser(name, add_help=False, help=text, description=text, usage=usage)
        for action in found._actions:
            if name == SHARED or action.dest not in shared:
                command._add_action(_complete(action))
    return parser
