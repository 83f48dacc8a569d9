"""``launcher status``, ``stacks``, ``exec`` and ``debug``: ask a running job, or run a program beside it."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence

from launcher.control import QUESTION_LIMIT_BYTES
from launcher.control.client import Launcher, ask_launcher, await_launchers, choose
from launcher.control.received import number, rows_of, words
from launcher.control.table import RIGHT, View, make_view, render_json, render_terminal, render_text, with_cpu
from launcher.core.errors import EXIT_BUG, EXIT_NOT_READY, NotReady, UsageError, make_error
from launcher.core.log import say
from launcher.core.stdout import write
from launcher.core.wire import NODES_MAX
from launcher.machine.process import find_descendants, read_link, read_users
from launcher.machine.pythons import isolate
from launcher.options.parser import Parser, make_parser, of_kind
from launcher.output.progress import duration
from launcher.output.tables import align, find_paper
from launcher.process.execute import execute

REMOTE_PDB = (3, 14)
"""The first Python to which pdb attaches (PEP 768)."""
VERSION_S = 10.0
WATCH_S = 2.0
CPU_S = 0.5
"""Seconds between two queries: the difference of their CPU times is the CPU use shown."""
EXEC_S = 60.0
REST_BYTES = 256
"""Of a question, beside the command line and the nodes."""


def status(argv: Sequence[str], environ: Mapping[str, str], description: str) -> int:
    """Run ``launcher status``."""
    parser = make_parser("status", "[options]", description)
    _add_common(parser)
    every, text = of_kind("duration 0.5 3600"), "refresh every S seconds (2), until the job ends"
    parser.add_argument("--watch", metavar="S", nargs="?", type=every, const=WATCH_S, help=text)
    options = parser.parse_args(argv)
    try:
        launcher = _find(options.job, environ)
    except UsageError:
        if options.json or options.watch is not None:
            raise
        write("one of them: launcher status --job PID\n")
        return 0
    before = make_view(ask_launcher(launcher, "status"))
    if options.watch is not None:
        return _watch(launcher, before, options)
    time.sleep(CPU_S)
    view = with_cpu(before, make_view(ask_launcher(launcher, "status")))
    write(_render(view, options.json))
    return _status_of(view)


def stacks(argv: Sequence[str], environ: Mapping[str, str], description: str) -> int:
    """Run ``launcher stacks``."""
    parser = make_parser("stacks", "[options]", description)
    _add_common(parser)
    parser.add_argument("--threads", action="store_true", help="show all threads, not only the main ones")
    text = "show C functions too, using py-spy, which pauses the processes"
    parser.add_argument("--native", action="store_true", help=text)
    options = parser.parse_args(argv)
    from launcher.control import render

    launcher = _find(options.job, environ)
    view = make_view(ask_launcher(launcher, "stacks", threads=options.threads, native=options.native))
    write(render.render_json(view) if options.json else render.render_text(view, threads=options.threads))
    return _status_of(view)


def run_program(argv: Sequence[str], environ: Mapping[str, str], description: str) -> int:
    """Run ``launcher exec``: a program on nodes of the job; return the highest of its statuses."""
    parser = make_parser("exec", "NODE,...|--all [options] -- COMMAND ...", description)
    parser.add_argument("nodes", metavar="NODE,...", nargs="?", type=_ranks, help="node ranks")
    parser.add_argument("--all", action="store_true", help="run it on all nodes")
    _add_job(parser)
    limit, text = of_kind("duration 0.5 3600"), "kill it and everything it started after S seconds (60)"
    parser.add_argument("--timeout", metavar="S", type=limit, default=EXEC_S, help=text)
    end = argv.index("--") if "--" in argv else len(argv)
    options, command = parser.parse_args(argv[:end]), argv[end + 1 :]
    if (options.nodes is None) != options.all:
        parser.error("expected either NODE or --all")
    if not command:
        parser.error("expected -- COMMAND")
    question = {"argv": list(command), "nodes": options.nodes or []}
    if len(json.dumps(question)) > QUESTION_LIMIT_BYTES - REST_BYTES:
        parser.error(f"expected a shorter command line: {QUESTION_LIMIT_BYTES >> 10} KiB at most")
    from launcher.control import render

    answers = ask_launcher(_find(options.job, environ), "exec", options.timeout, **question)
    if any(answer.get("error") == "no-token" for answer in answers):
        raise make_error("exec-without-token")
    text, remarks, status = render.render_run(make_view(answers), options.nodes or ())
    write(text)
    for remark in remarks:
        say(remark, "exec")
    return status


def debug(argv: Sequence[str], environ: Mapping[str, str], description: str) -> int:
    """Run ``launcher debug``: become the debugger of one rank."""
    parser = make_parser("debug", "[options]", description)
    _add_job(parser)
    a_number, text = of_kind("number"), "the rank to debug"
    parser.add_argument("--rank", metavar="N", type=a_number, required=True, help=text)
    options = parser.parse_args(argv)
    launcher = _find(options.job, environ)
    if not launcher.is_ours:  # it may name any process of ours as its rank
        raise make_error("debug-other-job", owner=launcher.owner)
    pid = _find_rank(launcher, options.rank)
    execute(find_debugger(options.rank, pid), environ)
    return EXIT_BUG


def _find_rank(launcher: Launcher, rank: int) -> int:
    """Return the PID of a rank's process on this machine.

    Raises:
        UsageError: It runs elsewhere, or there is none.
    """
    for _, answer in make_view(ask_launcher(launcher, "status")).nodes:
        for row in rows_of(answer):
            pid = number(row, "pid")
            if number(row, "rank") == rank and pid is not None:
                if words(answer, "host") == words(launcher.identity, "host"):
                    return int(pid)
                raise make_error("rank-elsewhere", rank=rank, host=words(answer, "host"))
    raise make_error("no-such-rank", rank=rank)


def find_debugger(rank: int, pid: int) -> tuple[str, ...]:
    """Return the command line that attaches pdb to a rank, by the rank's own Python.

    Raises:
        Unavailable: pdb cannot attach to it, or it runs as another user, who may have made that Python.
    """
    found = [(one, *_read_program(one)) for one in (pid, *find_descendants([pid]))]
    pythons = [row for row in found if os.path.basename(row[1]).startswith("python")]
    one, python, users = pythons[0] if pythons else (pid, "", found[0][2])
    others = ", ".join(map(str, sorted(users - {os.geteuid()})))
    if others:
        raise make_error("debug-other-user", rank=rank, pid=one, users=others)
    version = _read_version(python) if python else ()
    if version >= REMOTE_PDB:
        return (python, "-I", "-m", "pdb", "-p", str(one))
    runs = "no Python of this machine"
    if python:
        runs = f"Python {'.'.join(map(str, version)) or 'of an unknown version'}"
    raise make_error("cannot-debug", rank=rank, pid=one, runs=runs)


def _read_program(pid: int) -> tuple[str, set[int]]:
    """Return the path of a process's program, and all users that the process had before or after we read it.

    Another user's process can become a set-user-ID program of root in between. The path is empty if it leads
    to another file here than there: a process in a container of its own sees other files.
    """
    users, exe = read_users(pid), f"/proc/{pid}/exe"
    path = read_link(exe) if users else ""
    try:
        path = path if os.path.samefile(path, exe) else ""
    except OSError:
        path = ""
    return path, users | read_users(pid)


def _read_version(python: str) -> tuple[int, ...]:
    """Return an interpreter's version; empty if unknown."""
    code = "import sys; print(*sys.version_info[:2])"
    try:
        line = isolate(python, code)
        done = subprocess.run(line, capture_output=True, text=True, timeout=VERSION_S, check=True)
        return tuple(map(int, done.stdout.split()))
    except (OSError, ValueError, subprocess.SubprocessError):
        return ()


def _add_job(parser: Parser) -> None:
    text = "which job, if several run on this machine"
    parser.add_argument("--job", metavar="PID|RUN", default="", help=text)


def _add_common(parser: Parser) -> None:
    _add_job(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, for tools")


def _ranks(text: str) -> tuple[int, ...]:
    words = text.split(",")
    if not all(word.isdecimal() and int(word) < NODES_MAX for word in words):
        raise argparse.ArgumentTypeError(f"{text!r}: expected node ranks, as 0 or 0,3")
    return tuple(map(int, words))


def _find(job: str, environ: Mapping[str, str]) -> Launcher:
    """Return the launcher that ``--job`` selects; print the list of all if the choice fails."""
    launchers, others = await_launchers(environ, job)
    try:
        return choose(launchers, others, job)
    except UsageError:
        write(render_launchers(launchers))
        raise


def render_launchers(launchers: Sequence[Launcher]) -> str:
    """Return a table of launchers, with a column of their users if not all are ours."""
    ours = all(one.is_ours for one in launchers)
    rows = [
        (
            str(one.pid),
            one.run,
            duration(number(one.identity, "elapsed_s") or 0.0),
            f"{number(one.identity, 'node_rank') or 0:g}",
            *(() if ours else (str(one.owner),)),
            words(one.identity, "command"),
        )
        for one in launchers
    ]
    head = ("pid", "run", "since", "node", *(() if ours else ("user",)), "command")
    lines = align([head, *rows], RIGHT)
    return "".join(f"{line}\n" for line in lines)


def _render(view: View, as_json: bool) -> str:
    if as_json:
        return render_json(view)
    paper = find_paper(os.environ)
    return render_terminal(view, paper) if paper.width else render_text(view)


def _status_of(view: View) -> int:
    """Return 0 if all nodes have answered, else EXIT_NOT_READY."""
    return 0 if not view.silent and not view.note else EXIT_NOT_READY


def _watch(launcher: Launcher, before: View, options: argparse.Namespace) -> int:
    """Show the job periodically until its launcher has exited."""

    def ask_again(last: View) -> View | None:
        """Return a new view, with the CPU use since the last one; None once the launcher has exited."""
        try:
            return with_cpu(last, make_view(ask_launcher(launcher, "status")))
        except NotReady:
            if os.path.exists(launcher.path):
                raise
            return None

    if find_paper(os.environ).has_styles and not options.json:
        from launcher.control.watch import watch

        view, has_ended = watch(before, options.watch, ask_again, write)
        write(render_terminal(view, find_paper(os.environ)))
        if has_ended:
            say("the job has ended", "job-ended")
        return 0
    last: View | None = before
    while last is not None:
        time.sleep(options.watch)
        last = ask_again(last)
        if last is not None:
            write(_render(last, options.json) + ("" if options.json else "\n"))
    return 0
