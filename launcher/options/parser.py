"""Command line parsers: one per command, built only for the requested command."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence

from launcher.core.environ import Malformed
from launcher.core.errors import Problem, UsageError
from launcher.options.flag_values import parser_of
from launcher.options.flags import FLAGS, GROUPS, Flag
from launcher.options.quick import ABOUT_RUN
from launcher.options.unknown import OTHERS, describe_flags

HELP_WIDTH = 100
RUN_USAGE = "[options] [--] COMMAND ..."
BRIEF = {
    "how many processes": ("nproc_per_node", "nnodes"),
    "which node this is": ("node_rank", "master_addr", "hosts"),
    "stopping and failures": ("restarts", "grace"),
    "output": ("log_dir", "tee"),
}
"""The flags that ``launcher run --help`` shows, which most users need."""
UNKNOWN = "unrecognized arguments: "
"""Start of argparse's message for unknown arguments."""


class Parser(argparse.ArgumentParser):
    """argparse parser with our exit status and message format."""

    def error(self, message: str) -> None:  # type: ignore[override]
        """Raise an error instead of exiting with status 2, which a training script may use itself."""
        has_brief = any(action.dest == "help_all" for action in self._actions)
        fix = f"{self.prog} {'--help-all' if has_brief else '--help'}"
        if message.startswith(UNKNOWN):
            words = message.removeprefix(UNKNOWN).split()
            fix = describe_flags(self.prog, self._known(), words, fix, takes_command=self._takes_command())
        raise UsageError(Problem("usage", message, "command line", fix))

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        """Parse words after expanding abbreviated flags by our rule, which differs from argparse's."""
        try:
            words = spell_out(args or (), self._known(), takes_command=self._takes_command())
        except Ambiguous as error:
            self.error(str(error))
        return super().parse_known_args(words, namespace)

    def _known(self) -> dict[str, argparse.Action]:
        """Return each spelling of a flag, and its action."""
        return {name: action for action in self._actions for name in action.option_strings}

    def _takes_command(self) -> bool:
        return any(action.dest == "command" for action in self._actions)


def make_parser(name: str, usage: str, description: str, *, add_help: bool = True) -> Parser:
    """Return the parser of one command."""
    return Parser(
        add_help=add_help,
        # A fixed width: to find one, argparse loads shutil and three compressors
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=32, width=HELP_WIDTH),
        prog=f"launcher {name}",
        usage=f"launcher {name} {usage}",
        description=description,
        allow_abbrev=False,
    )


def of_kind(kind: str) -> Callable[[str], object]:
    """Return a parser of values for argparse, by a kind of the table of flags: ``number 1 200``."""
    parse = parser_of(kind)

    def check(text: str) -> object:
        try:
            return parse(text)
        except Malformed as error:
            raise argparse.ArgumentTypeError(f"{text!r}: expected {error}") from error

    return check


def add_replay(parser: Parser, environ: Mapping[str, str]) -> None:
    """Add ``--replay``."""
    parser.add_argument(
        "--replay",
        metavar="FILE",
        default=environ.get("LAUNCHER_REPLAY") or None,
        help="use a snapshot file instead of this machine [LAUNCHER_REPLAY]",
    )


def add_flags(parser: Parser, only: Collection[str] | None = None) -> None:
    """Add the flags of ``launcher run`` from the table; ``only`` limits them by ``dest``."""
    for name, title in GROUPS.items():
        flags = [flag for flag in FLAGS if flag.group == name and (only is None or flag.dest in only)]
        if flags:
            _add_group(parser, title, flags)


def _add_group(parser: Parser, title: str, flags: Sequence[Flag]) -> argparse._ArgumentGroup:
    group = parser.add_argument_group(title)
    for flag in flags:
        names = [*([flag.short] if flag.short else []), flag.name]
        text = f"{flag.help} [{flag.variable}]"
        _add(group, flag, names, text)
        if "_" in flag.dest:  # torchrun accepts both spellings; showing both would double the help
            _add(group, flag, ["--" + flag.dest], argparse.SUPPRESS)
        if "negatable" in flag.kinds:
            opposite, text = f"--no-{flag.name[2:]}", f"the opposite of {flag.name}"
            group.add_argument(opposite, dest=flag.dest, action="store_false", default=None, help=text)
    return group


def _add(group: argparse._ArgumentGroup, flag: Flag, names: list[str], text: str) -> None:
    text = text.replace("%", "%%")  # argparse fills in its own names
    if flag.parse is None:
        group.add_argument(*names, dest=flag.dest, action="store_true", default=None, help=text)
    else:
        group.add_argument(*names, dest=flag.dest, metavar=flag.metavar, help=text)


def add_command(parser: Parser) -> None:
    """Add COMMAND: everything from the first word that is not a flag."""
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def strip_dashes(command: Sequence[str]) -> tuple[str, ...]:
    """Drop the ``--`` that separates options from the command; argparse keeps it in a remainder."""
    return tuple(command[1:] if command and command[0] == "--" else command)


def make_run_parser(environ: Mapping[str, str]) -> Parser:
    """Return the parser of ``launcher run``, with a brief ``--help`` and a full ``--help-all``."""
    parser = make_parser("run", RUN_USAGE, ABOUT_RUN, add_help=False)
    _add_helps(parser)
    _add_dry_run(parser, environ)
    add_replay(parser, environ)
    add_flags(parser)
    add_command(parser)
    return parser


def _add_helps(parser: Parser) -> None:
    text = "show the flags that most jobs need"
    parser.add_argument("-h", "--help", action=_BriefHelp, nargs=0, default=argparse.SUPPRESS, help=text)
    parser.add_argument("--help-all", action="help", default=argparse.SUPPRESS, help="show all flags")


def _add_dry_run(parser: Parser | argparse._ArgumentGroup, environ: Mapping[str, str]) -> None:
    parser.add_argument(
        "--dry-run",
        action="store_true",
        default=environ.get("LAUNCHER_DRY_RUN", "0") not in ("", "0"),
        help="print the plan and stop [LAUNCHER_DRY_RUN]",
    )


class _BriefHelp(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        brief = make_parser("run", RUN_USAGE, ABOUT_RUN, add_help=False)
        _add_helps(brief)
        known = {flag.dest: flag for flag in FLAGS}
        groups = [_add_group(brief, name, [known[dest] for dest in dests]) for name, dests in BRIEF.items()]
        _add_dry_run(groups[-1], {})
        brief.epilog = f"{len(FLAGS)} flags in total: {brief.prog} --help-all, and docs/flags.md"
        brief.print_help()
        parser.exit()


def read_run(
    argv: Sequence[str], environ: Mapping[str, str]
) -> tuple[dict[str, str | bool], tuple[str, ...], bool]:
    """Return the typed flags and the command of ``launcher run``, and whether this is a dry run."""
    parser = make_run_parser(environ)
    words = parser.parse_args(argv)
    if words.replay and not words.dry_run:
        parser.error("--replay goes with --dry-run: a recorded machine runs nothing")
    return vars(words), strip_dashes(words.command), words.dry_run


# --- abbreviated flags, by argparse's rule: a prefix of exactly one flag, or a flag without its last s

TORCHRUNS = frozenset((*(flag.dest for flag in FLAGS if flag.is_torchruns), "help"))
"""torchrun accepts abbreviations. So a prefix that is unique among torchrun's flags means torchrun's flag,
even if other flags of ours begin so: ``--no-p`` is ``--no-python``.
"""


class Ambiguous(Exception):
    """Several flags have this prefix; the message names them."""


def spell_out(
    words: Sequence[str], known: Mapping[str, argparse.Action], *, takes_command: bool
) -> list[str]:
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


def find_full(name: str, known: Mapping[str, argparse.Action]) -> str:
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
