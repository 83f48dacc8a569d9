"""``launcher run --ssh``: starts the launcher on the other nodes through the user's own ssh, for any engine.

This process becomes the parent of two kinds of children: the launcher of node 0, and an ssh for each other
node. What a node has to know, with the job's token, goes through ssh's standard input, never onto a command
line. The launchers then find each other as if someone had started the same command on every node.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import signal
import sys
import time

from launcher.channel.keys import TOKEN_VARIABLE, read_token
from launcher.core.environ import OWN_JOB_ID
from launcher.core.errors import NotReady, Problem, UsageError
from launcher.core.log import say
from launcher.core.redact import quote
from launcher.engines.forward import choose_forwarded
from launcher.machine.pythons import own_program
from launcher.planning.plan import plan_job
from launcher.process.kernel import die_with_parent
from launcher.process.memory_files import write_file
from launcher.remote import started

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.machine.host import Host
    from launcher.options.reading import Options

SSH = (
    *("ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
)
"""Never prompt; notice an unreachable node within 10 s, and a lost one within 20 s."""
NOT_REACHED = (126, 127, 255)
"""Statuses of ssh, and of a shell there, that mean that no launcher has started."""
FLAG, RANK = "LAUNCHER_SSH", "LAUNCHER_NODE_RANK"
WATCHED = set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}
LOOK_S = 0.5
LEAVE_S = 10.0
"""Seconds after the end of node 0's launcher until the others are not waited for any more."""
MAIN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "__main__.py")


def run_on_all(
    argv: Sequence[str], command: Sequence[str], options: Options, environ: Mapping[str, str], host: Host
) -> int:
    """Start the launcher here and on the other hosts, and return the status of the one here.

    Args:
        argv: The words after ``launcher run``.
        command: The command, the last of these words.
        options: The user's options.
        environ: Our environment.
        host: This node.

    Raises:
        LauncherError: There are no other hosts, this is not the first one, or the job cannot be planned.
    """
    token = os.fsdecode(read_token(options.text("token_file"), environ) or secrets.token_hex(32).encode())
    shared = {**environ, FLAG: "0"}  # also against a file of defaults on another node
    allocation = plan_job({**shared, TOKEN_VARIABLE: token}, host, options, command).allocation
    hosts = allocation.hosts
    if len(hosts) < 2 or allocation.node_rank:
        raise UsageError(_no_hosts(len(hosts), allocation.node_rank))
    told = {name: shared[name] for name in choose_forwarded(shared, options.words("forward"))}
    told |= {TOKEN_VARIABLE: token, OWN_JOB_ID: secrets.token_hex(8), FLAG: "0"}
    told["LAUNCHER_HOSTS"] = ",".join(hosts)
    flags = [word for word in argv[: len(argv) - len(command)] if word != "--ssh"]
    isolated = ("-I", "-S") if sys.flags.isolated and sys.flags.no_site else ()
    line = (sys.executable, *isolated, MAIN, "run", *flags, *command)
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    first = _fork(line, {**shared, **told, RANK: "0"}, "")
    others = {}
    for rank, name in enumerate(hosts[1:], start=1):
        what = {"argv": line, "cwd": os.getcwd(), "environ": {**told, RANK: str(rank)}}
        start = f"exec {shlex.join(own_program(started.__file__))}"
        words = (*SSH, "--", name, start)
        others[_fork(words, environ, json.dumps(what) + "\n")] = name
    return _watch(first, others)


def _no_hosts(count: int, node_rank: int | None) -> Problem:
    if node_rank:
        what = f"--ssh starts the launcher on the other nodes, but this is node {node_rank}"
        fix = "start it on node 0 alone; or leave out --ssh, where a launcher is started on each node"
    else:
        what, fix = (
            f"--ssh: {count} hosts are known",
            "--hosts HOST,... or --hostfile FILE, with this node first",
        )
    return Problem("no-hosts", what, "command line and environment", fix)


def _fork(argv: Sequence[str], environ: Mapping[str, str], words: str) -> int:
    """Start a program, and return its PID.

    Args:
        argv: Its command line.
        environ: Its environment.
        words: Its whole standard input, which need not be read; it is kept apart from our terminal. Empty to
            let it have ours.

    Raises:
        LauncherError: No more processes or descriptors, or no files in memory.
    """
    try:
        stdin = write_file(words, inherited=False) if words else None
        parent, pid = os.getpid(), os.fork()
    except OSError as error:
        problem = Problem(
            "no-processes", f"{argv[0]}: {error.strerror}", "this node", "raise ulimit -u and -n"
        )
        raise NotReady(problem) from error
    if pid == 0:
        try:
            die_with_parent(signal.SIGTERM)
            if stdin is not None:
                os.setsid()
                os.lseek(stdin, 0, os.SEEK_SET)
                os.dup2(stdin, 0)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
            if os.getppid() == parent:
                os.execvpe(argv[0], list(argv), dict(environ))
        except OSError as error:
            os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
        finally:
            os._exit(127)
    if stdin is not None:
        os.close(stdin)
    return pid


def _watch(first: int, others: dict[int, str]) -> int:
    """Wait for all children, pass signals on to the first, and return its status."""
    status: int | None = None
    deadline = 0.0
    while status is None or (others and time.monotonic() < deadline):
        while (ended := _reap()) is not None:
            pid, code = ended
            if pid == first:
                status, deadline = code, time.monotonic() + LEAVE_S
            elif (name := others.pop(pid, "")) and code in NOT_REACHED and status is None:
                say(f"cannot start the launcher on {quote(name, 80)}: ssh exited with {code}", "ssh-failed")
                os.kill(first, signal.SIGTERM)
        found = signal.sigtimedwait(WATCHED, LOOK_S)
        from_kernel = found is not None and found.si_code > 0  # of a terminal: the first child has it, too
        if found is not None and found.si_signo != signal.SIGCHLD and not from_kernel and status is None:
            os.kill(first, found.si_signo)
    for pid in others:
        os.kill(pid, signal.SIGTERM)
    return status


def _reap() -> tuple[int, int] | None:
    """Return the PID of a child that has ended, and its status as in a shell; None if none has."""
    try:
        pid, code = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    ended = os.waitstatus_to_exitcode(code)
    return (pid, ended if ended >= 0 else 128 - ended) if pid else None
