"""The command line of ``launcher rehearse``."""

from __future__ import annotations

import argparse

from launcher.command.line import plan_argv
from launcher.core.errors import CommandNotFound, make_error
from launcher.frameworks.script import describe_missing, find_missing
from launcher.options.parser import make_parser, of_kind, strip_dashes
from launcher.options.reading import Options
from launcher.rehearse.job import run_rehearsal
from launcher.rehearse.platforms import PLATFORMS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def rehearse(argv: Sequence[str], environ: Mapping[str, str], description: str) -> int:
    """Run ``launcher rehearse ARGV``; return the job's exit status."""
    parser = make_parser(
        "rehearse", "[--like PLATFORM] [--nodes N] [--processes P] [--] COMMAND ...", description
    )
    add, count = parser.add_argument, of_kind("number 1 200")
    add("--like", choices=tuple(PLATFORMS), default="plain", help="platform to imitate (plain: none)")
    add("--nodes", type=count, default=2, metavar="N", dest="node_count", help="simulated nodes (2)")
    add("--processes", type=count, default=1, metavar="P", help="processes per node (1)")
    text = "whether the platform starts the command once per node or per process (its default)"
    add("--scope", choices=("node", "process"), help=text)
    text = "start COMMAND itself, without adding launcher run"
    add("--bare", action="store_true", help=text)
    text = "simulate nodes with loopback addresses even if namespaces are possible"
    add("--loopback", action="store_true", help=text)
    text = "pass a variable to all nodes"
    add("--env", action="append", default=[], metavar="NAME[=VALUE]", help=text)
    add("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    words = parser.parse_args(argv)
    command = words.command = strip_dashes(words.command)
    if not command:
        parser.error("no COMMAND to rehearse")
    missing = find_missing(plan_argv(command, Options(), environ))
    if missing:
        raise CommandNotFound(describe_missing(missing))
    words.env = dict(_read_pair(item, environ) for item in words.env)
    return run_rehearsal(**vars(words))


def _read_pair(item: str, environ: Mapping[str, str]) -> tuple[str, str]:
    name, equals, value = item.partition("=")
    if not name:
        raise make_error("rehearsal-env", item=item)
    return name, value if equals else environ.get(name, "")
