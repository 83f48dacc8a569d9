"""Runs a rehearsal: builds the cluster, starts the job as a platform would, waits, ends everything."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

from launcher.core.log import say
from launcher.machine.pythons import own_program
from launcher.rehearse.caller import describe_taken, keep_own
from launcher.rehearse.cluster import Cluster
from launcher.rehearse.mpirun import find_mpirun
from launcher.rehearse.platforms import RehearsedJob, Start, find_platform, plan_starts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import FrameType

MAIN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "__main__.py")
"""Path of the launcher's main file: ``-m launcher`` could run a launcher.py in the working directory."""
GRACE_S = 30.0
"""Seconds between SIGTERM and SIGKILL, as on Kubernetes and Slurm: enough for a report after `--grace`."""
REPORT_S = 60.0
"""Seconds for the launchers of the other nodes to find that one is lost, stop their processes and report."""
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
    base = base_environ(os.environ)
    if not bare:
        base.setdefault("LAUNCHER_STAY", "1")  # for one report of the whole job
    mpirun = find_mpirun(base) if platform.uses == "mpirun" else None
    argv = tuple(command if bare else with_launcher(command))
    stem, domain = platform.names
    with Cluster(node_count, loopback=loopback, stem=stem, domain=domain) as cluster:
        job = RehearsedJob(cluster.nodes, cluster.agent, processes, chosen, argv, base, env or {}, mpirun)
        starts = plan_starts(like, job)
        _announce(like, job, cluster)
        _say_taken(os.environ, env or {})
        reports = not bare and not platform.uses
        restarts = not bare and may_restart(argv, env or {})
        return run_all(cluster, starts, is_decided_inside=restarts, reports=reports)


def base_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of every process of a rehearsal, before the platform adds to it."""
    path = environ.get("PATH", os.defpath)
    if not sys.flags.isolated:  # in an image the launcher's own Python is not that of the command
        path = f"{path}:{os.path.dirname(os.path.abspath(sys.executable))}"  # last, as for launcher run
    kept, _ = keep_own(environ)
    kept.setdefault("HOME", os.path.expanduser("~"))  # Open MPI 5 does not start without it
    return {"PYTHONUNBUFFERED": "1", **kept, "PATH": path}


def _say_taken(environ: Mapping[str, str], env: Mapping[str, str]) -> None:
    """Print a line on standard error that names the caller's variables which no node gets."""
    _, taken = keep_own(environ)
    words = describe_taken(tuple(name for name in taken if name not in env))
    if words:
        say(f"rehearsal: {words}", "rehearsal")


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


def may_restart(argv: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether the launchers of a job may go on without one of them: it has restarts.

    Args:
        argv: The command line of a launcher.
        env: The variables that the user gives the job.
    """
    own = argv[: argv.index("--")] if "--" in argv else argv
    return "LAUNCHER_RESTARTS" in env or any(word.partition("=")[0] == "--restarts" for word in own)


def run_all(
    cluster: Cluster,
    starts: Sequence[Start],
    grace_s: float = GRACE_S,
    *,
    is_decided_inside: bool = False,
    reports: bool = False,
) -> int:
    """Start processes on a cluster, wait for all, and return the first failing status or 0.

    If it is decided inside of the job how it ends, by launchers that may replace one of them, a failure stops
    no other process, and the status is that of the first node's process.

    At the first failure, and at SIGINT, SIGTERM or SIGHUP, the remaining ones get SIGTERM, and SIGKILL at the
    end of the grace. Such a signal during the grace ends it.

    If a launcher on each node ``reports`` how the job ends, we do not. A process that was killed is a lost
    node: the others get `REPORT_S` to find that, and the status is theirs.
    """
    with _signals_as_bytes() as wakeup:
        children: list[subprocess.Popen[bytes]] = []
        try:
            for start in starts:
                children.append(_start(cluster, start))
            names = [start.node.name for start in starts]
            return _Watch(
                cluster, children, names, wakeup, grace_s,
                is_decided_inside=is_decided_inside, reports=reports,
            ).run()  # fmt: skip
        finally:
            for child in children:
                if child.returncode is None:
                    cluster.kill(child.pid, signal.SIGKILL)
                    _reap(child)


class _Watch:
    """Waits for processes; after a failure or a signal the wait has a deadline."""

    def __init__(
        self,
        cluster: Cluster,
        children: Sequence[subprocess.Popen[bytes]],
        names: Sequence[str],
        wakeup: int,
        grace_s: float,
        *,
        is_decided_inside: bool,
        reports: bool,
    ) -> None:
        self._cluster = cluster
        self._wakeup = wakeup
        self._grace_s = grace_s
        self._running = {os.pidfd_open(child.pid): child for child in children}
        self._names = {child.pid: name for child, name in zip(children, names, strict=True)}
        self._deadline: float | None = None
        self._patience: float | None = None
        self._status = 0
        self._is_decided_inside, self._reports, self._first = is_decided_inside, reports, children[0]

    def run(self) -> int:
        """Wait until no process is left, or until the grace is over; return the job's status."""
        poll = select.poll()
        for descriptor in (self._wakeup, *self._running):
            poll.register(descriptor, select.POLLIN)
        while self._running and not self._expired():
            if self._patience is not None and time.monotonic() >= self._patience:
                self._patience = None
                self._stop(self._status)
            for descriptor, _ in poll.poll(self._timeout_ms()):
                if descriptor == self._wakeup:
                    self._signalled(os.read(self._wakeup, 64))
                else:
                    poll.unregister(descriptor)
                    self._ended(descriptor)
        for descriptor in self._running:
            os.close(descriptor)
        return self._status

    def _ended(self, descriptor: int) -> None:
        os.close(descriptor)
        child = self._running.pop(descriptor)
        code = _reap(child)
        status = 128 - code if code < 0 else code
        if self._is_decided_inside and self._deadline is None:
            self._note_end(child, status)
            return
        if code == -signal.SIGKILL and self._reports and self._running and self._deadline is None:
            self._note_lost(child, status)
            return
        if status and self._deadline is None and not self._reports:
            others = f"; stopping the other {len(self._running)}" if self._running else ""
            what = f"the process on {self._names[child.pid]} ended first, with status {status}"
            say(f"rehearsal: {what}{others}", "rehearsal")
        if status:
            self._stop(status)

    def _note_lost(self, child: subprocess.Popen[bytes], status: int) -> None:
        """Give the others time to report the loss of a node."""
        self._status = self._status or status
        self._patience = self._patience or time.monotonic() + REPORT_S
        what = f"{self._names[child.pid]} is lost (SIGKILL); waiting for the other nodes to report it"
        say(f"rehearsal: {what}", "rehearsal")

    def _note_end(self, child: subprocess.Popen[bytes], status: int) -> None:
        if child is self._first:
            self._status = status
        elif status and self._running:
            what = f"the process on {self._names[child.pid]} has ended with status {status}; the others go on"
            say(f"rehearsal: {what}", "rehearsal")

    def _signalled(self, signals: bytes) -> None:
        for signum in signals:
            if signum not in STOPS:
                continue
            if self._deadline is not None:
                self._deadline = time.monotonic()
            else:
                name = signal.Signals(signum).name
                what = f"{name}: stopping all processes, {self._grace_s:g} s until SIGKILL"
                say(f"rehearsal: {what}", "rehearsal")
            self._stop(128 + signum)

    def _stop(self, status: int) -> None:
        """Send the rest SIGTERM, once; the first status is the job's."""
        if self._deadline is not None:
            return
        self._status, self._deadline = status, time.monotonic() + self._grace_s
        for child in self._running.values():
            self._cluster.kill(child.pid, signal.SIGTERM)

    def _expired(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def _timeout_ms(self) -> float | None:
        due = self._deadline if self._deadline is not None else self._patience
        return None if due is None else max(0.0, due - time.monotonic()) * 1000


def _start(cluster: Cluster, start: Start) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        cluster.argv(start.node, start.argv),
        env=dict(start.environ),
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C must reach us only: we stop them in our order
    )


def _reap(child: subprocess.Popen[bytes]) -> int:
    """Reap a process that has ended, and kill what it has left in its process group.

    This is what the end of a container does. The group ID is safe to use: it is not reused before `wait`
    returns.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    return child.wait()


@contextlib.contextmanager
def _signals_as_bytes() -> Iterator[int]:
    """Turn the signals of `STOPS` into bytes on a pipe within a block; yield the read end."""
    read, write = os.pipe()
    os.set_blocking(write, False)

    def ignore(signum: int, frame: FrameType | None) -> None:
        """Do nothing: a signal without a Python handler would write no byte."""

    before = {signum: signal.signal(signum, ignore) for signum in STOPS}
    wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    try:
        yield read
    finally:
        signal.set_wakeup_fd(wakeup)
        for signum, handler in before.items():
            signal.signal(signum, handler)
        os.close(read)
        os.close(write)


def _announce(like: str, job: RehearsedJob, cluster: Cluster) -> None:
    """Print on standard error what is about to run, and why nodes are not namespaces, with the fix."""
    nodes, processes = len(job.nodes), job.processes
    how = [str(job.mpirun)] if job.mpirun else []
    how += [f"started once per {job.scope}"]
    how += ["network namespaces" if cluster.isolated else "loopback addresses"]
    shape = f"{nodes} node{'s' * (nodes > 1)} x {processes} process{'es' * (processes > 1)}"
    say(f"rehearsal: {shape} as {like} ({', '.join(how)})", "rehearsal")
    if cluster.fallback_reason:
        text = f"the nodes share one host name, network and /tmp ({cluster.fallback_reason})"
        say(f"rehearsal: {text}", "rehearsal")
