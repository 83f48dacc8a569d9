"""The command line of ``launcher check``, and the quick checks of ``launcher run``."""

from __future__ import annotations

import os

from launcher.checks import run_checks
from launcher.checks.case import read_case
from launcher.checks.finding import PROBLEM, Finding
from launcher.core.environ import Malformed, shorten
from launcher.core.errors import EXIT_HARDWARE, LauncherError, Problem, UsageError, make_error
from launcher.core.model import Plan
from launcher.core.stdout import write
from launcher.frameworks.script import describe_missing
from launcher.machine.host import Host
from launcher.options.flags import FLAGS
from launcher.options.reading import read_options
from launcher.views.check import render_finding, render_json, render_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HEALTH = "health_command"


def check(argv: Sequence[str], environ: Mapping[str, str], description: str) -> int:
    """``launcher check``: finds problems of this machine before a job does.

    Raises:
        UsageError: The command line or the snapshot is wrong.
    """
    from launcher.options.parser import add_command, add_flags, add_replay, make_parser, strip_dashes

    parser = make_parser("check", "[options] [--] [COMMAND ...]", description)
    parser.add_argument("--strict", action="store_true", help="exit with code 69 if there is a problem")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="output format (text)")
    parser.add_argument("--json", action="store_const", const="json", dest="format", help="--format json")
    text = "add your own check; can be repeated [LAUNCHER_HEALTH_COMMAND]"
    parser.add_argument("--health-command", action="append", metavar="CMD", dest="health_commands", help=text)
    add_replay(parser, environ)
    add_flags(parser, {flag.dest for flag in FLAGS} - {HEALTH})
    add_command(parser)
    words = parser.parse_args(argv)
    host = Host()
    if words.replay:
        from launcher.planning.recorded import read_snapshot

        host = read_snapshot(words.replay)
        environ = host.environ
    command = strip_dashes(words.command)
    health_commands = _read_health_commands(words.health_commands or (), environ, host)
    plan, refused = _plan(vars(words), environ, host, command)
    case = read_case(host, environ, plan, command, asks=True, health_commands=health_commands)
    result = run_checks(case, more=refused)
    colours = os.isatty(1) and not environ.get("NO_COLOR")
    write(render_json(result, case) if words.format == "json" else render_text(result, case, colours=colours))
    return EXIT_HARDWARE if words.strict and result.count(PROBLEM) else 0


def _read_health_commands(
    typed: Sequence[str], environ: Mapping[str, str], host: Host
) -> tuple[tuple[str, ...], ...]:
    """Return the site's own checks: from the command line, or else the variable or a file.

    Raises:
        LauncherError: A command is malformed or cannot be started, which is no fault of the node.
    """
    from launcher.options.flag_values import words as words_of
    from launcher.recovery.health import require_command

    commands = []
    for text in typed:
        try:
            commands.append(words_of("1")(text))
        except Malformed as error:
            where, name = "command line", "--health-command"
            origin = f"{name} {shorten(text)}"
            raise make_error(
                "malformed-flag", where=where, origin=origin, expected=error, name=name
            ) from error
    if not typed:
        commands += filter(None, [read_options({}, environ, host, ()).words(HEALTH)])
    for argv in () if host.is_recorded() else commands:
        require_command(argv, environ)
    return tuple(commands)


def _plan(
    typed: Mapping[str, str | bool], environ: Mapping[str, str], host: Host, command: Sequence[str]
) -> tuple[Plan | None, list[Finding]]:
    """Return the plan and its findings; without a plan, None and the reasons. The checks run either way."""
    from launcher.planning.plan import plan_job

    options = read_options(typed, environ, host, command)
    try:
        job = plan_job(environ, host, options, command)
    except UsageError:
        raise
    except LauncherError as error:
        what, expected = "the plan of this job", "one that can be made"
        return None, [_report(one, what, expected, f"{one.what} ({one.where})") for one in error.problems]
    if not job.missing:
        return job, []
    problem = describe_missing(job.missing)
    return job, [_report(problem, "the script of this job", "a file that can be run", problem.what)]


def _report(problem: Problem, what: str, expected: str, found: str) -> Finding:
    return Finding("plan", PROBLEM, f"{what} [{problem.code}]", expected, found, problem.fix)


def find_problems(
    plan: Plan, environ: Mapping[str, str], command: Sequence[str], *, started: bool = False
) -> tuple[str, ...]:
    """Run the quick checks and return their problems, one line each.

    Args:
        plan: The plan of the job.
        environ: The environment that the launcher was started with.
        command: The command line of the job.
        started: Whether the job's processes are already running.
    """
    result = run_checks(read_case(Host(), environ, plan, command), quick=True, started=started)
    return tuple(
        f"check: [{finding.check}] {render_finding(finding)}"
        for finding in result.findings
        if finding.level == PROBLEM
    )
