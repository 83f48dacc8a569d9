"""The command line: words to options, one function per command.

Parsers are built for the one command that was asked for, and what a command needs is imported in it:
``launcher run`` must be on its way in milliseconds.
"""

from __future__ import annotations

import os
import sys

from launcher import __version__
from launcher.errors import NotReady, Problem, UsageError
from launcher.host import Host
from launcher.model import Companion, Mode, Plan, Process, Scope
from launcher.options import Options, read_options
from launcher.quick import read_quickly

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.arguments import Parser

DESCRIPTION = {
    "run": "start COMMAND with everything a distributed process must see",
    "env": "print the variables that a process would get",
    "plan": "print every fact, where it came from, what lost and why, and the exact commands",
    "check": "say what would make a job fail, hang or crawl on this machine, and the fix",
    "topology": "show GPUs, network ports and NUMA nodes, how near they are, and which rank has what",
    "snapshot": "write this node as the launcher sees it to one JSON file, without secrets",
    "serve": "be a node of a job whose head starts the processes by mpirun",
    "keygen": "make the ssh keys by which the nodes of a job know each other",
    "bandwidth": "measure how fast the processes of a job talk to each other, and whether that is right",
    "tf-server": "be a task of TensorFlow: its standard server, until the job is over",
    "rehearse": "run COMMAND on simulated nodes of this machine, as a platform would start it",
}
STYLES = ("table", "sh", "json", "dotenv")
VIEWS = ("text", "json", "svg", "nccl-xml")


def dispatch(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Find the command and run it; return the exit status."""
    name = argv[0] if argv else ""
    if name in COMMANDS:
        return COMMANDS[name](argv[1:], environ)
    if name in ("-h", "--help"):
        _write(_overview() + "\n")
        return 0
    if name == "--version":
        print(f"launcher {__version__}")
        return 0
    what = f"{name!r} is no command" if name else "no command given"
    fix = (
        f"launcher run -- {name} ..., or launcher --help" if name[:1] not in ("", "-") else "launcher --help"
    )
    raise UsageError(Problem("usage", f"{what}: expected one of {', '.join(COMMANDS)}", "command line", fix))


def _overview() -> str:
    lines = [f"  {name:<10} {text}" for name, text in DESCRIPTION.items()]
    return "\n".join(
        [
            "usage: launcher COMMAND [options] [--] ...",
            "",
            "Starts distributed training right, whatever platform started the container.",
            "",
            *lines,
            "",
            "launcher COMMAND --help lists the options. Documentation: docs/ and README.md",
        ]
    )


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """``launcher run``: exec the command, or start one process per GPU and wait."""
    if os.getpid() == 1:
        from launcher.run.signals import hold

        hold()
    quick = read_quickly(argv, environ)
    if quick is None:
        typed, command, dry_run = read_run(argv, environ)
    else:
        (typed, command), dry_run = quick, False
    plan, inherited = _plan(typed, environ, command)
    if dry_run:
        return _print_plan(plan, inherited, "text")
    from launcher.engines.process import plan_argv
    from launcher.notes import name_unknown

    plan_argv(command, Options(), environ)  # says so if there is no command
    if plan.allocation.scope is Scope.NODE or plan.allocation.local_rank == 0:
        _warn(name_unknown(environ))
    if plan.meeting is not None:
        from launcher.plan import plan_job
        from launcher.run.meeting import meet

        options = read_options(typed, environ)
        plan = plan_job(inherited, Host(), options, command, met=meet(plan.meeting))
    if plan.ports:
        from launcher.run.ports import check_ports

        check_ports(plan.ports, Host())
    checks = _plan_checks(plan, typed, environ, command)
    if plan.agent is not None:
        from launcher.run.agent import run_agent

        return run_agent(plan, plan.agent, inherited, checks)
    if plan.mode is Mode.EXEC:
        from launcher.run.execute import execute
        from launcher.run.memory import name_files
        from launcher.settings import render_environ

        (one,) = plan.companions or plan.processes
        cpus = one.cpus if isinstance(one, Process) else None
        (environment,) = name_files(plan, [render_environ(plan, one, inherited)], becomes=True)
        execute(one.argv, environment, cpus)
    from launcher.run.children import make_children
    from launcher.run.supervise import Node, supervise

    children = make_children(plan, inherited)
    node = Node(plan.topology.node_rank, plan.topology.world_size)
    return supervise(children, plan.supervision, node, environ, widen_cpus=plan.widen_cpus, checks=checks)


def _warn(sentences: Sequence[str]) -> None:
    if sentences:
        from launcher.redact import printable

        for sentence in sentences:
            sys.stderr.write(f"launcher: warning: {printable(sentence)}\n")


def _plan_checks(
    plan: Plan, typed: Mapping[str, str | bool], environ: Mapping[str, str], command: Sequence[str]
) -> Callable[[], Sequence[str]] | None:
    """Make the quick checks now, where the user asks for that; return what makes them after the start.

    By default they are made beside a job that has something to lose by a wrong machine, if we stay
    anyhow. They would cost as much as the whole start.
    """
    given = None
    if typed.get("check") is not None or "LAUNCHER_CHECK" in environ:
        given = read_options(typed, environ).get("check")
    if given is None:
        has_stakes = plan.topology.spans_nodes or bool(plan.machine.gpu_count)
        if plan.mode is not Mode.SUPERVISE or not has_stakes:
            return None
        return lambda: _find_problems(plan, environ, command)
    if given.value:
        from launcher.checks.command import say_problems

        say_problems(plan, environ, command)
    return None


def _find_problems(plan: Plan, environ: Mapping[str, str], command: Sequence[str]) -> Sequence[str]:
    from launcher.checks.command import find_problems

    return find_problems(plan, environ, command, started=True)


def read_run(
    argv: Sequence[str], environ: Mapping[str, str]
) -> tuple[dict[str, str | bool], tuple[str, ...], bool]:
    """Return typed flags, command, and whether this is a dry run, as argparse has them."""
    from launcher.arguments import add_command, add_flags, add_replay, make_parser, strip_dashes

    parser = make_parser("run", "[options] [--] COMMAND ...", DESCRIPTION["run"])
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


def env(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """``launcher env``: the variables of one process, for people, shells and tools."""
    from launcher.arguments import add_flags, add_replay, make_parser

    parser = make_parser("env", "[options]", DESCRIPTION["env"])
    parser.add_argument("--format", choices=STYLES, default="table", help="how to print (table)")
    parser.add_argument(
        "--local-rank", type=int, metavar="N", default=0, help="which process of this node (0)"
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="the whole environment of the process, not only what the launcher sets",
    )
    add_replay(parser, environ)
    add_flags(parser)
    words = parser.parse_args(argv)
    plan, inherited = _plan(vars(words), environ, ())
    if plan.meeting is not None:
        raise UsageError(_addresses_at_start())
    from launcher.settings import render_environ
    from launcher.views.environment import render_environment, without_files

    process = _choose(parser, plan, words.local_rank)
    result = render_environ(plan, process, inherited)
    if not words.all:
        chosen = {setting.name for setting in (*plan.settings, *process.settings)}
        result = {name: value for name, value in result.items() if name in chosen}
    result, missing = without_files(plan, result)
    text, notes = render_environment(result, plan.unset, words.format)
    _write(text)
    for note in (*missing, *notes):
        sys.stderr.write(f"launcher: note: {note}\n")
    return 0


def _choose(parser: Parser, plan: Plan, local_rank: int) -> Process | Companion:
    """Return the process with a local rank; at PROCESS scope there is only this one."""
    if not plan.processes and plan.companions:
        return plan.companions[0]
    if not plan.processes:
        raise UsageError(_ranks_at_start())
    if plan.allocation.scope is Scope.PROCESS:
        return plan.processes[0]
    if not 0 <= local_rank < len(plan.processes):
        parser.error(f"--local-rank {local_rank}: this node runs {len(plan.processes)} processes")
    return plan.processes[local_rank]


def _ranks_at_start() -> Problem:
    return Problem(
        "ranks-at-start",
        "this job's ranks are given out when its processes start: no variables can be shown before",
        "command line and environment",
        "launcher run, or a fixed job: --nnodes N --node-rank R without --max-restarts and --rdzv-backend",
    )


def _addresses_at_start() -> Problem:
    return Problem(
        "addresses-at-start",
        "TF_CONFIG has the address of every node, which the nodes tell each other when the job starts",
        "command line and environment",
        "launcher run, or --hosts HOST,... with all nodes",
    )


def plan(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """``launcher plan``: everything the launcher knows and would do."""
    from launcher.arguments import add_command, add_flags, add_replay, make_parser, strip_dashes

    parser = make_parser("plan", "[options] [--] [COMMAND ...]", DESCRIPTION["plan"])
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="for people, or for tools (text)"
    )
    add_replay(parser, environ)
    add_flags(parser)
    add_command(parser)
    words = parser.parse_args(argv)
    job, inherited = _plan(vars(words), environ, strip_dashes(words.command))
    return _print_plan(job, inherited, words.format)


def check(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """``launcher check``: what is wrong with this machine, before a job finds out."""
    from launcher.checks import command

    status, text = command.check(argv, environ, DESCRIPTION["check"])
    _write(text)
    return status


def snapshot(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """``launcher snapshot``: one file that replays this node anywhere."""
    from launcher.arguments import make_parser

    parser = make_parser("snapshot", "[-o FILE]", DESCRIPTION["snapshot"])
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="-", help="where to write (standard output)"
    )
    words = parser.parse_args(argv)
    from launcher.snapshot import render_snapshot, take_snapshot, write_snapshot

    text = render_snapshot(take_snapshot(Host(), environ))
    if words.output == "-":
        _write(text)
    else:
        write_snapshot(text, words.output)
    return 0


def topology(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """``launcher topology``: the parts of this node, and what the processes of the plan have of them."""
    from launcher.arguments import add_flags, add_replay, make_parser

    parser = make_parser("topology", "[options]", DESCRIPTION["topology"])
    parser.add_argument("--format", choices=VIEWS, default="text", help="how to show it (text)")
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="-", help="where to write (standard output)"
    )
    add_replay(parser, environ)
    add_flags(parser)
    words = parser.parse_args(argv)
    from launcher.views.survey import render, take_view

    host, environ = _find_host(vars(words), environ)
    text = render(take_view(host, environ, read_options(vars(words), environ)), words.format)
    if words.output == "-":
        _write(text)
    else:
        from launcher.snapshot import write_snapshot

        write_snapshot(text, words.output)
    return 0


def _plan(
    typed: Mapping[str, str | bool], environ: Mapping[str, str], command: Sequence[str]
) -> tuple[Plan, Mapping[str, str]]:
    """Return the plan, and the environment that it starts from: ours, or the recorded one."""
    from launcher.plan import plan_job

    host, environ = _find_host(typed, environ)
    return plan_job(environ, host, read_options(typed, environ), command), environ


def _find_host(typed: Mapping[str, str | bool], environ: Mapping[str, str]) -> tuple[Host, Mapping[str, str]]:
    """Return the machine and its environment: ours, or the recorded ones."""
    replay = typed.get("replay")
    if not isinstance(replay, str) or not replay:
        return Host(), environ
    from launcher.snapshot import read_snapshot

    recorded = read_snapshot(replay)
    return recorded, recorded.environ


def _print_plan(job: Plan, environ: Mapping[str, str], style: str) -> int:
    from launcher.views.plan import render_json, render_text

    _write(render_json(job, environ) if style == "json" else render_text(job, environ))
    return 0


def _write(text: str) -> None:
    """Write to standard output byte for byte: values may hold bytes that are not UTF-8."""
    sys.stdout.flush()
    data = text.encode("utf-8", "surrogateescape")
    try:
        while data:
            data = data[os.write(1, data) :]
    except BrokenPipeError:
        raise
    except OSError as error:
        what = f"standard output: {error.strerror}"
        raise NotReady(
            Problem("cannot-write", what, "command line", "free the disk, or name another file")
        ) from error


def serve(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """``launcher serve``: what ``launcher run --engine mpirun`` does on a node that is not the first."""
    from launcher.arguments import add_flags, make_parser
    from launcher.mpi.start import SERVE_FLAGS, serve_here

    parser = make_parser("serve", "[options]", DESCRIPTION["serve"])
    add_flags(parser, SERVE_FLAGS)
    words = parser.parse_args(argv)
    return serve_here(read_options({**vars(words), "engine": "mpirun"}, environ), environ)


def keygen(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """``launcher keygen``: the keys of a job of several nodes."""
    from launcher.ssh import command

    return command.keygen(argv, environ, DESCRIPTION["keygen"])


def bandwidth(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """``launcher bandwidth``: ``launcher run -- python -m launcher.bandwidth``, with this Python."""
    from launcher.bandwidth.options import parse_options

    parse_options(argv)  # what is wrong is said once, and not by every process
    return run(("--", sys.executable, "-m", "launcher.bandwidth", *argv), environ)


def tf_server(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """``launcher tf-server``: TensorFlow's standard server, until its job is over."""
    from launcher.servers import tf_server as server

    return server.main(argv)


def rehearse(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """``launcher rehearse``: a job of simulated nodes."""
    from launcher.rehearse import command

    return command.rehearse(argv, environ, DESCRIPTION["rehearse"])


COMMANDS: dict[str, Callable[[Sequence[str], Mapping[str, str]], int]] = {
    "run": run,
    "env": env,
    "plan": plan,
    "check": check,
    "topology": topology,
    "snapshot": snapshot,
    "serve": serve,
    "keygen": keygen,
    "bandwidth": bandwidth,
    "tf-server": tf_server,
    "rehearse": rehearse,
}
