"""The command line of ``launcher rehearse``."""

from __future__ import annotations

import argparse

from launcher.command.line import plan_argv
from launcher.core.errors import CommandNotFound, Problem, UsageError
from launcher.frameworks.script import describe_missing, find_missing
from launcher.options.parser import Parser, make_parser, of_kind, strip_dashes
from launcher.options.reading import Options
from launcher.rehearse.job import run_rehearsal
from launcher.rehearse.platforms import PLATFORMS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def rehearse(argv: Sequence[str], environ: Mapping[str, str], description: str) -> int:
    """Run ``launcher rehearse ARGV``; return the job's exit status."""
    parser = _make_parser(description)
    words = parser.parse_args(argv)
    command = strip_dashes(words.command)
    if not command:
        parser.error("no COMMAND to rehearse")
    missing = find_missing(plan_argv(command, Options(), environ))
    if missing:
        raise CommandNotFound(describe_missing(missing))
    return run_rehearsal(
        words.like,
        words.nodes,
        words.processes,
        command,
        scope=words.scope,
        bare=words.bare,
        env=_read_pairs(words.env, environ),
        loopback=words.loopback,
    )


def _make_parser(description: str) -> Parser:
    parser = make_parser(
        "rehearse", "[--like PLATFORM] [--nodes N] [--processes P] [--] COMMAND ...", description
    )
    parser.add_argument(
        "--like", choices=tuple(PLATFORMS), default="plain", help="the platform to imitate (plain: none)"
    )
    parser.add_argument(
        "--nodes", type=of_kind("number 1 200"), default=2, metavar="N", help="simulated nodes (2)"
    )
    parser.add_argument(
        "--processes", type=of_kind("number 1 200"), default=1, metavar="P", help="processes per node (1)"
    )
    parser.add_argument(
        "--scope",
        choices=("node", "process"),
        help="how often the platform starts the command (as it does by default)",
    )
    parser.add_argument(
        "--bare", action="store_true", help="start COMMAND itself, without launcher run in front"
    )
    parser.add_argument(
        "--loopback",
        action="store_true",
        help="nodes as loopback addresses even where namespaces are possible",
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="pass a variable to every node",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _read_pairs(items: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    pairs = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not name:
            what = f"--env {item!r}: expected NAME or NAME=VALUE"
            raise UsageError(Problem("usage", what, "command line", "launcher rehearse --help"))
        pairs[name] = value if equals else environ.get(name, "")
    return pairs
