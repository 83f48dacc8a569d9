"""Words to options: one parser per command, built when that command is asked for."""

from __future__ import annotations

import argparse

from launcher.core.errors import Problem, UsageError
from launcher.options.flags import FLAGS, Flag
from launcher.options.quick import ABOUT_RUN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

HELP_WIDTH = 100
UNKNOWN = "unrecognized arguments: "
"""How argparse begins to say so."""


class Parser(argparse.ArgumentParser):
    """argparse, with our exit status and our form of message."""

    def error(self, message: str) -> None:  # type: ignore[override]
        """Raise instead of exiting with status 2, which a training script may use itself."""
        fix = f"{self.prog} --help"
        if message.startswith(UNKNOWN):
            from launcher.options.unknown import describe_flags

            fix = describe_flags(self, message.removeprefix(UNKNOWN).split(), fix)
        raise UsageError(Problem("usage", message, "command line", fix))


def make_parser(name: str, usage: str, description: str) -> Parser:
    """Return the parser of one command."""
    return Parser(
        formatter_class=_formatter,
        prog=f"launcher {name}",
        usage=f"launcher {name} {usage}",
        description=description,
        allow_abbrev=False,
    )


def _formatter(prog: str) -> argparse.HelpFormatter:
    """Return a formatter of a given width; asked for one, argparse loads shutil and three compressors."""
    return argparse.HelpFormatter(prog, max_help_position=32, width=HELP_WIDTH)


def add_replay(parser: Parser, environ: Mapping[str, str]) -> None:
    """Add ``--replay``."""
    parser.add_argument(
        "--replay",
        metavar="FILE",
        default=environ.get("LAUNCHER_REPLAY") or None,
        help="work from a snapshot file instead of this machine [LAUNCHER_REPLAY]",
    )


def add_flags(parser: Parser, only: Collection[str] | None = None) -> None:
    """Add the flags of ``launcher run``, from their table; ``only`` some of them, by ``dest``."""
    for flag in FLAGS:
        if only is not None and flag.dest not in only:
            continue
        names = [*([flag.short] if flag.short else []), flag.name]
        text = f"{flag.help} [{flag.variable}]"
        _add(parser, flag, names, text)
        if "_" in flag.dest:  # torchrun takes both spellings; to show both would double the help
            _add(parser, flag, ["--" + flag.dest], argparse.SUPPRESS)
        if flag.negatable:
            opposite, text = f"--no-{flag.name[2:]}", f"the opposite of {flag.name}"
            parser.add_argument(opposite, dest=flag.dest, action="store_false", default=None, help=text)


def _add(parser: Parser, flag: Flag, names: list[str], text: str) -> None:
    if flag.parse is None:
        parser.add_argument(*names, dest=flag.dest, action="store_true", default=None, help=text)
    else:
        parser.add_argument(*names, dest=flag.dest, metavar=flag.metavar, help=text)


def add_command(parser: Parser) -> None:
    """Add COMMAND: everything from the first word on that is no flag."""
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def strip_dashes(command: Sequence[str]) -> tuple[str, ...]:
    """Drop the ``--`` that separates options from the command; argparse keeps it in a remainder."""
    return tuple(command[1:] if command and command[0] == "--" else command)


def read_run(
    argv: Sequence[str], environ: Mapping[str, str]
) -> tuple[dict[str, str | bool], tuple[str, ...], bool]:
    """Return typed flags, command, and whether this is a dry run, of ``launcher run``."""
    parser = make_parser("run", "[options] [--] COMMAND ...", ABOUT_RUN)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        default=environ.get("LAUNCHER_DRY_RUN", "0") not in ("", "0"),
        help="print the plan and stop [LAUNCHER_DRY_RUN]",
    )
    add_replay(parser, environ)
    add_flags(parser)
    add_command(parser)
    words = parser.parse_args(argv)
    if words.replay and not words.dry_run:
        parser.error("--replay goes with --dry-run: a recorded machine runs nothing")
    return vars(words), strip_dashes(words.command), words.dry_run
