"""``launcher run --ssh``: starts the launcher on the other nodes through the user's own ssh, for any engine.

This process becomes the parent of two kinds of children: the launcher of node 0, and an ssh for each other
node. What a node has to know, with the job's token, goes through ssh's standard input, never onto a command
line. The launchers then find each other as if someone had started the same command on every node.

The end of an ssh says something about its node only before the job has started: the launcher there cannot
start. Later its connection may have ended, or its launcher. That is for the control channel to notice, as in
any other job.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import shlex
import signal
import sys
import time

from launcher.channel.frames import TOKEN_VARIABLE, read_token
from launcher.core.environ import OWN_JOB_ID
from launcher.core.errors import EXIT_NOT_READY, NotReady, Problem, make_error
from launcher.core.log import say
from launcher.core.redact import quote
from launcher.engines.forward import choose_forwarded
from launcher.job.settings import LATE_COMERS_S, find_given_up_s
from launcher.machine.pythons import own_program
from launcher.options.flags import FLAGS
from launcher.planning.plan import plan_job
from launcher.process.kernel import collect, die_with_parent
from launcher.process.memory_files import write_file
from launcher.remote import started
from launcher.remote.protocol import LOST_AFTER_S
from launcher.remote.starter import STARTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from launcher.machine.host import Host
    from launcher.options.reading import Options

ALIVE_S = 5
SSH = (
    *("ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"),
    *("-o", f"ServerAliveInterval={ALIVE_S}"),
)
"""Never prompt; notice an unreachable node within 10 s."""
NOT_REACHED = (126, 127, 255)
"""Statuses of ssh, and of a shell there, that mean that no launcher has started."""
OF_FIRST = ("ssh", "hosts", "hostfile", "node_rank", "token_file")
"""Flags that the launchers that we start don't get: they are told the list, their rank, and the token."""
FLAG, RANK = "LAUNCHER_SSH", "LAUNCHER_NODE_RANK"
WATCHED = set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}
LOOK_S = 0.5
LEFT = (0, EXIT_NOT_READY)
"""Statuses of a launcher that has left before the start, as an unhealthy node does for a spare one."""
REFUSED_S = LATE_COMERS_S + 5.0
"""Seconds in which node 0 ends, if it has refused a launcher that ends with another status."""
LOST_S = 2.0
"""Seconds after the end of an ssh in which the job may end, too: then nothing is lost."""
SUSPEND_S = 1.0
"""Seconds for the launcher of node 0 to stop after a Ctrl-Z; it goes on where no shell could continue it."""
LEAVE_S = 10.0
"""Seconds after the end of node 0's launcher until the others are not waited for any more."""
MAIN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "__main__.py")


def run_on_all(
    typed: Mapping[str, str | bool],
    command: Sequence[str],
    options: Options,
    environ: Mapping[str, str],
    host: Host,
) -> int:
    """Start the launcher here and on the other hosts, and return the status of the one here.

    Args:
        typed: The flags of ``launcher run`` as typed, by `dest`.
        command: The command.
        options: The user's options.
        environ: Our environment.
        host: This node.

    Raises:
        LauncherError: There are no other hosts, this is not the first one, or the job cannot be planned.
    """
    token = os.fsdecode(read_token(options.text("token_file"), environ) or secrets.token_hex(32).encode())
    shared = {**environ, FLAG: "0"}  # also against a file of defaults on another node
    plan = plan_job({**shared, TOKEN_VARIABLE: token}, host, options, command)
    hosts = (*plan.allocation.hosts, *plan.allocation.spare_hosts)
    if plan.allocation.node_rank:
        raise make_error("ssh-of-other-node", rank=plan.allocation.node_rank)
    if len(hosts) < 2:
        raise make_error("ssh-without-hosts", count=len(hosts))
    told = {name: shared[name] for name in choose_forwarded(shared, options.words("forward"))}
    told |= {TOKEN_VARIABLE: token, OWN_JOB_ID: secrets.token_hex(8), FLAG: "0"}
    told |= {"LAUNCHER_HOSTS": ",".join(hosts), "LAUNCHER_HOSTFILE": "", "LAUNCHER_TOKEN_FILE": ""}
    lost_after_s = LOST_AFTER_S if plan.peers is None else plan.peers.lost_after_s
    patience = math.ceil(find_given_up_s(lost_after_s) / ALIVE_S)
    ssh = (*SSH, "-o", f"ServerAliveCountMax={patience}")
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    isolated = ("-I", "-S") if sys.flags.isolated and sys.flags.no_site else ()
    line = (sys.executable, *isolated, MAIN, "run", *_spell(typed), "--", *command)
    first = _fork(line, {**shared, **told, RANK: "0"}, "")
    others = {}
    for rank, name in enumerate(hosts[1:], start=1):
        what = {"argv": line, "cwd": os.getcwd(), "environ": {**told, RANK: str(rank)}}
        start = f"exec {shlex.join(own_program(started.__file__))}"
        words = (*ssh, "--", name, start)
        others[_fork(words, environ, json.dumps(what) + "\n")] = name
    return _watch(first, others)


def _spell(typed: Mapping[str, str | bool]) -> Iterator[str]:
    """Yield the typed flags as words, except flags of this launcher alone."""
    for flag in FLAGS:
        value = typed.get(flag.dest)
        if value is None or flag.dest in OF_FIRST:
            continue
        if isinstance(value, bool):
            yield flag.name if value else f"--no-{flag.name[2:]}"
        else:
            yield f"{flag.name}={value}"


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
    has_started = False
    deadline = 0.0
    news: list[tuple[float, str, int]] = []
    """When the end of an ssh counts, if nothing else has explained it: the host, and the status."""
    while status is None or (others and time.monotonic() < deadline):
        running = others.keys() if status is not None else {first, *others}
        codes = {pid: code for pid in running if (code := collect(pid)) is not None}
        ended = {pid: code if code >= 0 else 128 - code for pid, code in codes.items()}
        received = [*_receive(0.0 if ended else LOOK_S)]
        has_started = has_started or any(one.si_signo == STARTED and one.si_pid == first for one in received)
        now = time.monotonic()
        for pid, code in ended.items():
            name = others.pop(pid, "")
            if pid == first:
                status, deadline = code, now + LEAVE_S
            elif code in NOT_REACHED:
                news.append((now + LOST_S if has_started else now, name, code))
            elif code not in LEFT and not has_started:
                news.append((now + REFUSED_S, name, code))
        for one in [one for one in news if now >= one[0] and status is None]:
            news.remove(one)
            _, name, code = one
            if not has_started:
                say(f"cannot start the launcher on {quote(name, 80)}: ssh exited with {code}", "ssh-failed")
                os.kill(first, signal.SIGTERM)
            elif code in NOT_REACHED:
                what = f"the ssh to {quote(name, 80)} has ended: what its processes print is lost"
                say(what, "ssh-ended")
        for sent in received if status is None else ():
            from_kernel = sent.si_code > 0  # of a terminal: the first child has it, too
            if sent.si_signo == signal.SIGTSTP and from_kernel:
                _suspend(first)
            elif sent.si_signo not in (signal.SIGCHLD, STARTED) and not from_kernel:
                os.kill(first, sent.si_signo)
    for pid in others:
        os.kill(pid, signal.SIGTERM)
    return status


def _receive(wait_s: float) -> Iterator[signal.struct_siginfo]:
    """Yield the signals that have come; wait for the first one."""
    while (found := signal.sigtimedwait(WATCHED, wait_s)) is not None:
        yield found
        wait_s = 0.0


def _suspend(first: int) -> None:
    """Handle Ctrl-Z: stop after the launcher of node 0 has, as the shell expects, and continue it with us."""
    until = time.monotonic() + SUSPEND_S
    while time.monotonic() < until:
        if os.waitid(os.P_PID, first, os.WSTOPPED | os.WNOHANG) is not None:
            os.kill(os.getpid(), signal.SIGSTOP)
            os.kill(first, signal.SIGCONT)
            return
        time.sleep(SUSPEND_S / 100)
