"""Runs a rehearsal: builds the cluster, starts the job as a platform would, waits, ends everything."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial

from launcher.command.fronts import look_behind
from launcher.command.words import reads_program
from launcher.core.blocks import PACKAGE, read_blocks
from launcher.core.log import say
from launcher.engines import forward
from launcher.machine.pythons import own_program
from launcher.output.stdin import copy_input, open_copy
from launcher.process.loop import Later, Loop
from launcher.rehearse.cluster import Cluster
from launcher.rehearse.mpirun import find_mpirun
from launcher.rehearse.platforms import PlatformStart, RehearsedJob, find_platform, plan_starts
from launcher.sources import TABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAIN = os.path.join(PACKAGE, "__main__.py")
"""Path of the launcher's main file: ``-m launcher`` could run a launcher.py in the working directory."""
GRACE_S = 30.0
"""Seconds between SIGTERM and SIGKILL, as on Kubernetes and Slurm: enough for a report after `--grace`."""
REPORT_S = 60.0
"""Seconds for the launchers of the other nodes to find that one is lost, stop their processes and report."""
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
SHOWN = 12


def run_rehearsal(
    like: str,
    node_count: int,
    processes: int,
    command: Sequence[str],
    *,
    scope: str | None = None,
    bare: bool = False,
    env: Mapping[str, str] | None = None,
    loopback: bool = False,
) -> int:
    """Run a job of several simulated nodes on this machine and return its exit status.

    Args:
        like: The platform, a key of `launcher.rehearse.platforms.PLATFORMS`.
        node_count: Number of nodes.
        processes: Number of processes that end up on each node.
        command: The command. As in an image with ``ENTRYPOINT ["launcher", "run", "--"]``, the launcher runs
            it, unless it is the launcher itself.
        scope: ``"process"`` or ``"node"``; None for the platform's default.
        bare: Whether to run the command without the launcher, to see what the platform gives.
        env: Variables to set in the job; they win over the platform's.
        loopback: Whether to use loopback addresses even if namespaces are possible.

    Returns:
        The status of the process that failed first (128+n if signal n ended it), else 0.

    Raises:
        UsageError: The platform cannot start such a job.
        NotReady: A program that the platform uses is not installed, or no node could be started.
    """
    platform, chosen = find_platform(like, processes, scope)
    env = env or {}
    base, removed = base_environ(os.environ)
    if not bare:
        base.setdefault("LAUNCHER_STAY", "1")  # for one report of the whole job
    mpirun = find_mpirun(base) if platform.uses == "mpirun" else None
    argv = tuple(command if bare else with_launcher(command))
    stem, domain = platform.names
    with Cluster(node_count, loopback=loopback, stem=stem, domain=domain) as cluster:
        job = RehearsedJob(cluster.nodes, cluster.agent, processes, chosen, argv, base, env, mpirun)
        starts = plan_starts(like, job)
        _announce(like, job, cluster, [name for name in removed if name not in env])
        reports = not bare and not platform.uses
        flags = words = argv
        if "--" in argv:
            place = argv.index("--")
            flags, words = argv[:place], argv[place + 1 :]
        program = copy_input() if reads_program(look_behind(words, base)) else None
        restarts = "LAUNCHER_RESTARTS" in env or any(flag.partition("=")[0] == "--restarts" for flag in flags)
        return run_all(cluster, starts, restarts=restarts and not bare, reports=reports, program=program)


def base_environ(environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the environment of every process of a rehearsal, before the platform adds to it.

    It has the caller's settings for the job (OMP_NUM_THREADS, HF_HOME), without the variables that identify
    a job, a node or a process, whose sorted names follow.
    """
    row = next(block for block in read_blocks("rehearse/variables.txt") if block.name == "identity")
    names = {*row.words("names"), *forward.OF_A_NODE} - {*row.words("kept")}
    prefixes = (*row.words("prefixes"), *forward.OF_A_NODE_PREFIXES)
    removed = [
        name for name in sorted(environ)
        if name in names or name.startswith(prefixes) or any(row.is_marked({name: "1"}) for row in TABLE)
    ]  # fmt: skip
    gone = {*removed, *row.words("caller")}
    kept = {name: value for name, value in environ.items() if name not in gone}
    kept.setdefault("HOME", os.path.expanduser("~"))  # Open MPI 5 does not start without it
    path = environ.get("PATH", os.defpath)
    if not sys.flags.isolated:  # in an image the launcher's own Python is not that of the command
        path = f"{path}:{os.path.dirname(os.path.abspath(sys.executable))}"  # last, as for launcher run
    return {"PYTHONUNBUFFERED": "1", **kept, "PATH": path}, removed


def with_launcher(command: Sequence[str]) -> list[str]:
    """Return the command as the entry point of an image with the launcher would run it."""
    launcher = [sys.executable, MAIN]
    if sys.flags.isolated:  # as the program of an image starts it: docker/launcher.sh
        launcher = [*own_program(sys.argv[0])]
    words = list(command)
    if words and os.path.basename(words[0]) == "launcher":
        return launcher + words[1:]
    if words[1:3] == ["-m", "launcher"]:
        return words
    return [*launcher, "run", "--", *words]


def run_all(
    cluster: Cluster,
    starts: Sequence[PlatformStart],
    grace_s: float = GRACE_S,
    *,
    restarts: bool = False,
    reports: bool = False,
    program: int | None = None,
) -> int:
    """Start processes on a cluster, wait for all, and return the first failing status or 0.

    If the job ``restarts``, its launchers may replace one of them: a failure stops no other process, and the
    status is that of the first node's process.

    At the first failure, and at one of `STOPS`, the remaining ones get SIGTERM, and SIGKILL at the end of the
    grace. Such a signal during the grace ends it.

    If a launcher on each node ``reports`` how the job ends, we do not. A process that was killed is a lost
    node: the others get `REPORT_S` to find that, and the status is theirs.

    Each reads a copy of ``program``, or nothing.
    """
    with contextlib.ExitStack() as stack:
        reading, writing = map(stack.enter_context, socket.socketpair())
        writing.setblocking(False)
        for signum in STOPS:  # a signal without a Python handler would write no byte
            stack.callback(signal.signal, signum, signal.signal(signum, lambda *_: None))
        stack.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(writing.fileno()))
        job = _Job(cluster, grace_s, restarts=restarts, reports=reports, program=program)
        stack.callback(job.close)
        for start in starts:
            job.start(start)
        return job.run(reading)


class _Job:
    """The processes that the platform has started."""

    def __init__(
        self, cluster: Cluster, grace_s: float, *, restarts: bool, reports: bool, program: int | None
    ) -> None:
        self._cluster, self._grace_s, self._program = cluster, grace_s, program
        self._restarts, self._reports = restarts, reports
        self._loop = Loop(lambda text, event: say(text, event))
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._status, self._stopping = 0, False

    def start(self, start: PlatformStart) -> None:
        """Start a process on its node."""
        program = subprocess.DEVNULL if self._program is None else open_copy(self._program)
        child = subprocess.Popen(
            self._cluster.argv(start.node, start.argv),
            env=dict(start.environ),
            stdin=program,
            start_new_session=True,  # Ctrl-C must reach us only: we stop them in our order
        )
        if program >= 0:
            os.close(program)
        descriptor, is_first = os.pidfd_open(child.pid), not self._running
        self._running[descriptor] = child
        self._loop.add(descriptor, partial(self._on_end, descriptor, start.node.name, is_first=is_first))

    def run(self, signals: socket.socket) -> int:
        """Wait until no process is left; return the job's status."""
        self._loop.add(signals.fileno(), lambda: self._on_signals(signals.recv(64)))
        while self._running:
            self._loop.turn()
        return self._status

    def kill(self) -> None:
        """Kill what is left."""
        for child in self._running.values():
            self._cluster.kill(child.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill and reap what is left."""
        self.kill()
        for descriptor, child in self._running.items():
            _reap(child)
            os.close(descriptor)
        self._loop.close()

    def _on_end(self, descriptor: int, node: str, *, is_first: bool) -> None:
        self._loop.remove(descriptor)
        os.close(descriptor)
        code = _reap(self._running.pop(descriptor))
        status, left = (128 - code if code < 0 else code), len(self._running)
        if not status or self._stopping:
            return
        if self._restarts:
            self._status = status if is_first else self._status
            if left and not is_first:
                _print(f"the process on {node} has ended with exit code {status}; the others go on")
        elif code == -signal.SIGKILL and self._reports and left:
            self._status = self._status or status
            _print(f"{node} is lost (SIGKILL); waiting for the other nodes to report it")
            self._loop.timers.append(Later(time.monotonic() + REPORT_S, lambda: self._stop(self._status)))
        else:
            if not self._reports:
                others = f"; stopping the other {'one' if left == 1 else left}" if left else ""
                _print(f"the process on {node} ended first, with status {status}{others}")
            self._stop(status)

    def _on_signals(self, signals: bytes) -> None:
        for signum in filter(STOPS.__contains__, signals):
            if self._stopping:
                self.kill()
            else:
                name = signal.Signals(signum).name
                _print(f"{name}: stopping all processes, {self._grace_s:g} s until SIGKILL")
                self._stop(128 + signum)

    def _stop(self, status: int) -> None:
        """Send the rest SIGTERM, once; the first status is the job's."""
        if not self._stopping:
            self._status, self._stopping = status, True
            for child in self._running.values():
                self._cluster.kill(child.pid, signal.SIGTERM)
            self._loop.timers.append(Later(time.monotonic() + self._grace_s, self.kill))


def _reap(child: subprocess.Popen[bytes]) -> int:
    """Reap a process that has ended, and kill what it has left in its process group.

    This is what the end of a container does. The group ID is safe to use: it is not reused before `wait`
    returns.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    return child.wait()


def _announce(like: str, job: RehearsedJob, cluster: Cluster, removed: Sequence[str]) -> None:
    """Print on standard error what is about to run, and what is unlike the platform."""
    nodes, processes = len(job.nodes), job.processes
    how = [str(job.mpirun)] if job.mpirun else []
    how += [f"started once per {job.scope}"]
    how += ["network namespaces" if cluster.isolated else "loopback addresses"]
    shape = f"{nodes} node{'s' * (nodes > 1)} x {processes} process{'es' * (processes > 1)}"
    _print(f"{shape} as {like} ({', '.join(how)})")
    if cluster.fallback_reason:
        _print(f"the nodes share one hostname, network and /tmp ({cluster.fallback_reason})")
    if removed:
        more = f" and {len(removed) - SHOWN} more" if len(removed) > SHOWN else ""
        shown = ", ".join(name if name.isprintable() else repr(name) for name in removed[:SHOWN])
        what = "removed from the environment, because the platform sets its own"
        _print(f"{what}: {shown}{more} (--env NAME keeps one)")


def _print(text: str) -> None:
    say(f"rehearsal: {text}", "rehearsal")
