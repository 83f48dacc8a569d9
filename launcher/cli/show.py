"""Commands that only show: ``env``, ``plan``, ``topology`` and ``snapshot``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from launcher.core.errors import LauncherError, make_error, print_problems
from launcher.core.files import replace_file
from launcher.core.log import say
from launcher.core.model import DEFAULT_PORT, Companion, Plan, PlannedProcess, Scope
from launcher.core.stdout import write
from launcher.machine.host import Host
from launcher.options.parser import (
    Parser,
    add_command,
    add_flags,
    add_replay,
    make_parser,
    of_kind,
    strip_dashes,
)
from launcher.options.reading import read_options
from launcher.planning.plan import plan_job

STYLES = ("table", "sh", "json", "dotenv")


def env(argv: Sequence[str], environ: Mapping[str, str], description: str) -> int:
    """``launcher env``: the variables of one process, for people, shells and tools."""
    parser = make_parser("env", "[options]", description)
    parser.add_argument("--format", choices=STYLES, default="table", help="output format (table)")
    number, text = of_kind("number"), "local rank of the process (0)"
    parser.add_argument("--local-rank", type=number, metavar="N", default=0, help=text)
    text = "the process's whole environment, with its secrets, not only what the launcher sets"
    parser.add_argument("--all", action="store_true", help=text)
    add_replay(parser, environ)
    add_flags(parser)
    words = parser.parse_args(argv)
    plan, inherited = plan_here(vars(words), environ, ())
    if plan.meeting is not None:
        raise make_error("addresses-at-start")
    if plan.takes_free_port and not words.replay:
        if plan.topology.world_size == 1:
            host = Host()
            plan = plan_job(environ, host, read_options(vars(words), environ, host, ()), ())
        else:  # each process of the job runs this command, and all must get the same port
            what = f"launcher run picks a free port; here MASTER_PORT is {plan.topology.master_port}"
            say(f"note: {what} (another one: --master-port N)", "note")
    from launcher.planning.settings import apply_settings, list_changes
    from launcher.views.environment import render_environment, without_files

    unset, settings = list_changes(plan, _choose(parser, plan, words.local_rank))
    result = apply_settings(inherited, unset, settings)
    if not words.all:
        chosen = {setting.name for setting in settings}
        result = {name: value for name, value in result.items() if name in chosen}
    result, missing = without_files(plan, result)
    text, notes = render_environment(result, unset, words.format)
    write(text)
    if words.all and os.isatty(1):
        notes = ["--all shows secrets, too: remove them before you share this", *notes]
    for note in (*missing, *notes):
        say(f"note: {note}", "note")
    return 0


def _choose(parser: Parser, plan: Plan, local_rank: int) -> PlannedProcess | Companion:
    """Return the process with this local rank; at PROCESS scope, the only one."""
    if not plan.processes and plan.companions:
        return plan.companions[0]
    if not plan.processes:
        raise make_error("ranks-at-start")
    if plan.allocation.scope is Scope.PROCESS:
        return plan.processes[0]
    if not 0 <= local_rank < len(plan.processes):
        parser.error(f"--local-rank {local_rank}: this node runs {len(plan.processes)} processes")
    return plan.processes[local_rank]


def plan(argv: Sequence[str], environ: Mapping[str, str], description: str) -> int:
    """``launcher plan``: every fact that the launcher knows, and what it would do."""
    parser = make_parser("plan", "[options] [--] [COMMAND ...]", description)
    parser.add_argument("--format", choices=("text", "json"), default="text", help="output format (text)")
    text = "show every variable, and every source that agrees"
    parser.add_argument("--all", action="store_true", help=text)
    add_replay(parser, environ)
    add_flags(parser)
    add_command(parser)
    words = parser.parse_args(argv)
    return show_plan(vars(words), environ, strip_dashes(words.command), words.format, whole=words.all)


def snapshot(argv: Sequence[str], environ: Mapping[str, str], description: str) -> int:
    """``launcher snapshot``: one file that replays this node anywhere."""
    parser = make_parser("snapshot", "[-o FILE]", description)
    _add_output(parser)
    words = parser.parse_args(argv)
    from launcher.planning.snapshot import render_snapshot, take_snapshot

    write_to(words.output, render_snapshot(take_snapshot(Host(), environ)))
    return 0


def _add_output(parser: Parser) -> None:
    parser.add_argument("-o", "--output", metavar="FILE", default="-", help="output file (standard output)")


def write_to(output: str, text: str) -> None:
    """Write to standard output for ``-``, else a file: a reader sees the old file or the whole new one.

    Raises:
        NotReady: The file cannot be written, e.g. because of permissions or a full disk.
    """
    if output == "-":
        write(text)
        return
    try:
        replace_file(text, output)
    except OSError as error:
        raise make_error("output-file", path=output, reason=error.strerror) from error


def topology(argv: Sequence[str], environ: Mapping[str, str], description: str) -> int:
    """``launcher topology``: the parts of this node, and which processes of the plan get them."""
    parser = make_parser("topology", "[options]", description)
    parser.add_argument("--format", choices=("text", "json"), default="text", help="output format (text)")
    _add_output(parser)
    add_replay(parser, environ)
    add_flags(parser)
    words = parser.parse_args(argv)
    from launcher.views.topology import render, take_view

    host, environ = _find_host(vars(words), environ)
    view = take_view(host, environ, read_options(vars(words), environ, host, ()))
    write_to(words.output, render(view, words.format))
    return 0


def show_and_refuse(typed: Mapping[str, str | bool], environ: Mapping[str, str]) -> NoReturn:
    """Print the plan and fail because there is no command: an image that is started alone explains itself.

    Raises:
        UsageError: Always.
    """
    from launcher.views.plan import render_text

    try:
        sys.stderr.write(render_text(*plan_here(typed, environ, ()), fd=2))
    except LauncherError as error:
        print_problems(error)
    raise make_error("no-command")


def show_plan(
    typed: Mapping[str, str | bool],
    environ: Mapping[str, str],
    command: Sequence[str],
    style: str = "text",
    *,
    whole: bool = False,
) -> int:
    """Print the plan that ``launcher run`` would carry out."""
    from launcher.views.plan import render_text
    from launcher.views.plan_json import render_json

    job, environ = plan_here(typed, environ, command)
    write(render_json(job, environ) if style == "json" else render_text(job, environ, whole=whole))
    return 0


def plan_here(
    typed: Mapping[str, str | bool], environ: Mapping[str, str], command: Sequence[str]
) -> tuple[Plan, Mapping[str, str]]:
    """Return the plan and the environment that it starts from: ours or the recorded one."""
    host, environ = _find_host(typed, environ)
    return plan_job(environ, host, read_options(typed, environ, host, command), command), environ


def _find_host(typed: Mapping[str, str | bool], environ: Mapping[str, str]) -> tuple[Host, Mapping[str, str]]:
    """Return the machine and its environment: ours or the recorded ones."""
    replay = typed.get("replay")
    if not isinstance(replay, str) or not replay:
        return Host(port=DEFAULT_PORT), environ  # a fixed port gives the same plan each time
    from launcher.planning.recorded import read_snapshot

    recorded = read_snapshot(replay)
    return recorded, recorded.environ
