"""The rank wrapper: mpirun starts it in place of the user's command, and it runs that as its only child.

It asks the launcher of its node for the node rank and the job's variables, makes its plan like any launcher
that is started once per process, and reports the start and the end of its process. Such a launcher otherwise
becomes the command. The wrapper stays for two reasons:

- Only a parent knows the real status: Intel MPI reports 255 for every failure.
- An mpirun that sees one rank exit kills the rest within 0.5 to 2 s. The wrapper hides the end of its rank
  while others still save their state.

It runs as a file (``python -I rank.py JOB [OPTIONS] -- COMMAND``), so that neither the working directory nor
PYTHONPATH can replace this package.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

import select
import socket
import struct
import time

from launcher.agent.agent import Agent
from launcher.agent.coordination import Coordination
from launcher.agent.runtime import NodePlace
from launcher.channel import lines as wire
from launcher.core.errors import LauncherError, make_error
from launcher.core.frozen import replace
from launcher.core.log import say
from launcher.core.mpi import HYDRA, OPEN_MPI
from launcher.core.redact import quote
from launcher.core.signal import signal
from launcher.core.wire import RANKS_MAX, Garbled, pack, unpack
from launcher.mpi.folder import find_socket
from launcher.mpi.placeholder import ENDING, leave_placeholder
from launcher.mpi.protocol import TO_RANK, Abandoned, Attached, Briefing, RankEnded, Release, Started
from launcher.process.kernel import FULL, open_signal_file, read_signals
from launcher.process.loop import Later
from launcher.process.refused import explain
from launcher.process.signals import hold
from launcher.process.spawn import cannot_start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from launcher.agent.runtime import Runtime
    from launcher.core.model import Plan
    from launcher.failure.model import Verdict

FACTS = {
    "node_rank": "LAUNCHER_NODE_RANK",
    "node_count": "LAUNCHER_NNODES",
    "master_addr": "LAUNCHER_MASTER_ADDR",
    "master_port": "LAUNCHER_MASTER_PORT",
}
"""Fields of the `Briefing`, and the variables that tell them to a launcher."""
LATE_S = 5.0
"""Seconds after the grace until we kill our process, if nothing else has."""
UNHEARD_S = 1.0
"""Seconds that the launcher may take to pass on that the job ends."""
PLACE = {
    "rank": (*OPEN_MPI.rank, *HYDRA.rank),
    "size": (OPEN_MPI.size, HYDRA.size),
    "local_rank": (OPEN_MPI.local_rank, HYDRA.local_rank),
}
"""Variables of mpirun for each fact about a rank."""
ANSWER_TIMEOUT_S = 30.0


class RankChannel:
    """The connection to the launcher of this node.

    Attributes:
        job: Name of the job.
        placeholder: Descriptor that reaches end of file when the placeholder ends.
        released: Whether we may exit, because all ranks have ended or the head or the launcher is gone.
        is_lost: Whether the launcher is gone.
        path: Path of its socket.
    """

    def __init__(self, job: str, placeholder: int) -> None:
        """Connect to the launcher.

        Args:
            job: Name of the job.
            placeholder: Descriptor from `launcher.mpi.placeholder.leave_placeholder`.

        Raises:
            NotReady: The job has no launcher on this node, where mpirun was not to start a rank.
        """
        self.job, self.placeholder = job, placeholder
        self.released = self.is_lost = False
        self._lines = wire.Lines(wire.WELCOME_LIMIT_BYTES)
        self.path = path = find_socket(job) or ""
        self.socket = socket.socket(socket.AF_UNIX)
        limit = struct.pack("ll", int(ANSWER_TIMEOUT_S), 0)  # also limits connect, unix(7)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        try:
            if not path:
                raise FileNotFoundError
            self.socket.connect(path)
        except OSError as error:
            raise make_error("no-session", node=os.uname().nodename, job=quote(job, 64)) from error

    def attach(self) -> Briefing:
        """Report to the launcher, and return its answer: the facts about this node and the job.

        Raises:
            NotReady: There was no answer within `ANSWER_TIMEOUT_S`, or an invalid one.
            SystemExit: We were told to end.
        """
        self.send(Attached())
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        try:
            while self._wait(deadline) and (data := self.socket.recv(wire.READ_BYTES)):
                for message in self._read(data):
                    if isinstance(message, Briefing):
                        return message
        except (OSError, Garbled):
            pass
        raise make_error("session-silent", node=os.uname().nodename)

    def _read(self, data: bytes) -> Iterator[object]:
        return (unpack(packed, TO_RANK) for packed in self._lines.feed(data))

    def send(self, message: object) -> None:
        """Send the launcher a message; if that fails it is gone, and we need not wait for it."""
        try:
            self.socket.sendall(wire.pack(pack(message)))
        except OSError:
            self.released = self.is_lost = True

    def _wait(self, deadline: float) -> bool:
        """Wait until the launcher has sent something or is gone; return False at the deadline.

        Raises:
            SystemExit: We were told to end.
        """
        signals = open_signal_file(ENDING)  # these signals are blocked
        try:
            poll = select.poll()
            for fd in (signals, self.placeholder, self.socket.fileno()):
                poll.register(fd, select.POLLIN)
            ready = {fd for fd, _ in poll.poll(max(0.0, deadline - time.monotonic()) * 1000)}
            if ready & {signals, self.placeholder}:
                told = [number for number, _, _ in read_signals(signals)]
                raise SystemExit(128 + next(iter(told), signal.SIGTERM))
            return bool(ready)
        finally:
            os.close(signals)

    def refuse(self, error: LauncherError, place: Started, wait_s: float) -> None:
        """Report that our process cannot be started, and wait: the head may know the cause better.

        Return when we are released, when the launcher is gone, or after ``wait_s``.

        Raises:
            SystemExit: We were told to end.
        """
        status = error.exit_status
        self.send(RankEnded(place.rank, place.local_rank, status, status, why=str(error)))
        deadline = time.monotonic() + wait_s
        while not self.released and self._wait(deadline) and self.hear():
            pass

    def hear(self) -> bool:
        """Read the launcher's messages; return False if it is gone or sends an invalid one."""
        try:
            data = self.socket.recv(wire.READ_BYTES)
            for message in self._read(data):
                self.released = self.released or isinstance(message, Release)
        except (OSError, Garbled):
            data = b""
        self.is_lost = self.is_lost or not data
        return bool(data)


class RankCoordination:
    """Coordination of a rank with the launcher of its node, which holds the wrapper until it is released."""

    on_signal: Callable[[int, bool], None]
    """Handles a signal; set before the agent runs."""
    _runtime: Runtime

    def __init__(self, channel: RankChannel, place: Started, grace_s: float) -> None:
        """Create the coordination.

        Args:
            channel: The connection to the launcher.
            place: Our place according to mpirun.
            grace_s: The grace that the head gives all ranks, in seconds.
        """
        self._channel, self._place, self._grace_s = channel, place, grace_s
        self._verdict: Verdict | None = None
        self._holds = False

    def coordinate(self) -> Coordination:
        """Return what the agent asks and reports.

        The head reports a signal once for all ranks, and the directory of the logs is known. If we are
        killed, the kernel kills our process, and the launcher kills what that has started.
        """
        return Coordination(
            self._attach, self._gather, speaks=False, guards=False, name_run=lambda own: self._channel.job,
            begin=self._begin, takes_signal=self._takes_signal, takes_verdict=self._takes_verdict,
            finish=self._finish,
        )  # fmt: skip

    def _attach(self, runtime: Runtime) -> None:
        """Watch the launcher and the placeholder."""
        self._runtime = runtime
        runtime.loop.add(self._channel.socket.fileno(), self._on_channel)
        runtime.loop.add(self._channel.placeholder, self._on_abandoned)

    def _gather(self) -> bool:
        """Whether the process is to be started: there is nothing to wait for."""
        return self._runtime.forwarder.told is None

    def _begin(self) -> None:
        """Set our own, longer grace: the launcher ends the process first."""
        self._runtime.group.stopper.grace_s = self._grace_s + LATE_S

    def _on_abandoned(self) -> None:
        """Report that mpirun has ended our placeholder; the head then ends the job, with the grace.

        If our launcher is gone, the other ranks must not abort with the process that has started them.
        """
        self._runtime.loop.remove(self._channel.placeholder)
        self._channel.send(Abandoned())
        if self._channel.is_lost and self._runtime.group.running:
            from launcher.mpi.leftovers import stop_daemon

            stop_daemon(os.getpid())
        self._runtime.loop.timers.append(Later(time.monotonic() + UNHEARD_S, self._on_unheard))

    def _on_unheard(self) -> None:
        """Act on SIGTERM ourselves if the launcher has not sent it: it may be stopped."""
        if self._runtime.forwarder.told is None and self._runtime.group.running:
            self.on_signal(signal.SIGTERM, False)

    def _on_channel(self) -> None:
        """Read from the launcher; if it is gone, end the process, because the job has ended."""
        channel, runtime = self._channel, self._runtime
        if not channel.hear():
            runtime.loop.remove(channel.socket.fileno())
            if not channel.released and runtime.group.running:
                runtime.target.stop(signal.SIGTERM)
            channel.released = True

    def _takes_signal(self, number: int, from_terminal: bool) -> bool:
        """Whether we only wait for other ranks, which the launcher did not know when it sent the signal."""
        return self._holds

    def _takes_verdict(self, verdict: Verdict) -> bool:
        """Keep the verdict for our report; the head publishes the whole job's."""
        self._verdict = verdict
        return True

    def _finish(self, report: Callable[[], int]) -> int:
        """Report how the process ended; after a failure wait until we are released. Return its status."""
        runtime, status = self._runtime, report()
        first = runtime.first or next(iter(runtime.group.ended), None)
        code, asked = (status, None) if first is None else (first.code or 0, first.passed_on)
        verdict = None
        if self._verdict is not None:
            from launcher.core.shorten import fit

            verdict = fit(replace(self._verdict, others=()))
        place = self._place
        self._channel.send(RankEnded(place.rank, place.local_rank, status, code, asked, verdict=verdict))
        self._holds = True
        while status and not self._channel.released:
            runtime.loop.turn()
        return status


def run_rank(job: str, words: Sequence[str], environ: Mapping[str, str], placeholder: int) -> int:
    """Run a rank; return its status.

    Args:
        job: Name of the job, see `launcher.mpi.folder.find_socket`.
        words: Options of ``launcher run``, then ``--`` and the command.
        environ: The environment from mpirun.
        placeholder: Descriptor from `launcher.mpi.placeholder.leave_placeholder`.

    Raises:
        LauncherError: The node has no launcher of the job, the environment is contradictory, or the command
            cannot run.
    """
    channel = RankChannel(job, placeholder)
    briefing = channel.attach()
    place = read_place(environ)
    take_stdin(briefing.stdin if place.rank == 0 else os.devnull)
    channel.send(place)
    try:
        change_folder(briefing.cwd)
        return prepare(words, environ, briefing, channel, place).run()
    except LauncherError as error:
        channel.refuse(error, place, briefing.grace_s + LATE_S)
        raise


def change_folder(path: str) -> None:
    """Change to the head's working directory; without it three of four mpiruns would use the home directory.

    Raises:
        NotReady: The directory cannot be entered, e.g. because this node does not have it.
    """
    if path:
        try:
            os.chdir(path)
        except OSError as error:
            node, reason = os.uname().nodename, error.strerror
            raise make_error("no-head-folder", path=path, node=node, reason=reason) from error


def take_stdin(path: str | None) -> None:
    """Replace the standard input that mpirun has given us.

    Rank 0 runs on the head's node and reads the head's own standard input: Open MPI 5.0 never forwards its
    end, and repeats parts of more than 64 KiB (openpmix/prrte issues 2373 and 2579). The other ranks have
    nothing to read, but MPICH leaves them a pipe from sshd that never ends.

    Args:
        path: A file, or a descriptor of the head in /proc; None to keep what mpirun has given us.
    """
    if path is None:
        return
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # do not wait for a named pipe's writer
    except OSError as error:
        say(f"standard input of the head cannot be read: {error}", "no-input")
        return
    os.set_blocking(fd, True)
    try:
        with open(path.replace("/fd/", "/fdinfo/"), encoding="ascii") as file:
            os.lseek(fd, int(file.readline().split()[1]), os.SEEK_SET)
    except (OSError, ValueError, IndexError):
        pass  # not a regular file
    os.dup2(fd, 0)
    os.close(fd)


def prepare(
    words: Sequence[str],
    environ: Mapping[str, str],
    briefing: Briefing,
    channel: RankChannel,
    put: Started,
) -> Agent:
    """Make the plan, like any launcher that is started once per process, and return the rank's agent.

    Args:
        words: Options of ``launcher run``, then ``--`` and the command.
        environ: The environment from mpirun.
        briefing: The facts from the launcher.
        channel: The connection to the launcher.
        put: Our place according to mpirun.

    Raises:
        LauncherError: The environment is contradictory, or the command cannot run.
    """
    from launcher.agent.agent import widen_cpus
    from launcher.agent.children import make_children
    from launcher.core.supervision import LogStyle
    from launcher.process.execute import find_program

    inherited = apply_briefing(environ, briefing)
    told = inherited | {
        name: str(value) for key, name in FACTS.items() if (value := getattr(briefing, key)) is not None
    }
    plan = plan_rank(words, told, briefing.master_port)
    (child,) = make_children(plan, inherited)
    place = NodePlace(plan.topology.node_rank, plan.topology.world_size)
    path = find_program(child.argv[0], child.environ)
    if not briefing.colours:  # Open MPI gives each rank a terminal
        told["NO_COLOR"] = "1"
    told["TMPDIR"] = os.path.dirname(channel.path)  # the launcher removes what a killed rank leaves
    if plan.widen_cpus:
        widen_cpus()
    # All ranks of a node write their logs below one directory
    log_id = channel.job if plan.supervision.log_dir else ""
    coordination = RankCoordination(channel, put, briefing.grace_s)
    # The head makes the lines; a variable that it has forwarded to us asks for them, too
    log = LogStyle(rotate_bytes=plan.supervision.log.rotate_bytes)
    # The head maps the job's status: mpirun and the head need the ranks' own. One mpirun is one world
    watch = replace(plan.supervision, log=log, stopped_status=None, fatal_status=None, contact=None)
    agent = Agent(watch, place, told, coordination.coordinate(), log_id=log_id)
    coordination.on_signal = agent.on_signal
    agent.runtime.attempt = briefing.attempt
    agent.take([child], [path])
    return agent


def plan_rank(words: Sequence[str], told: Mapping[str, str], port: int | None) -> Plan:
    """Return the plan of one rank, at PROCESS scope.

    Args:
        words: Options of ``launcher run``, then ``--`` and the command.
        told: The environment, with the facts from the launcher.
        port: The port of the rendezvous. In a variable it would be one that mpirun may not have forwarded.

    Raises:
        LauncherError: The environment is contradictory, or the job needs a companion beside rank 0.
    """
    from launcher.machine.host import Host
    from launcher.options.parser import read_run
    from launcher.options.reading import read_options
    from launcher.planning.plan import plan_job

    typed, command, _ = read_run(words, told)
    options = read_options(typed if port is None else {**typed, "master_port": str(port)}, told)
    plan = plan_job(told, Host(), options, command)
    if plan.companions:
        raise make_error("companion-per-rank", name=plan.companions[0].name)
    if plan.meeting is None:
        return plan
    from launcher.cluster.address_exchange import meet

    return plan_job(told, Host(), options, command, met=meet(plan.meeting, told))


def read_place(environ: Mapping[str, str]) -> Started:
    """Return our place according to mpirun; the head compares it with its request.

    It is read before the plan, which would refuse an impossible place.
    """
    place = {}
    for key, names in PLACE.items():
        text = next((environ[name] for name in names if environ.get(name)), "")
        number = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else -1
        place[key] = number if number <= RANKS_MAX else -1
    return Started(**place)


def apply_briefing(environ: Mapping[str, str], briefing: Briefing) -> dict[str, str]:
    """Return the environment with the head's variables, byte for byte.

    mpirun passes them on as well, but Open MPI puts its own directories in front of PATH. Variables for the
    launcher of this node are removed: the head has passed on those that are for ranks.
    """
    from launcher.planning.settings import CONSUMED

    ours = {name: value for name, value in environ.items() if name not in CONSUMED}
    merged = {**ours, **briefing.variables}
    return {name: value for name, value in merged.items() if value is not None}


def main(argv: list[str]) -> int:
    """Run the wrapper; return its status. It prints errors as ``launcher run`` does."""
    from launcher.core.errors import print_problems

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # as in `launcher.cli.entry`
    hold()  # once the launcher knows us, we must forward a signal and not end by it
    try:
        return run_rank(argv[0], argv[1:], dict(os.environ), leave_placeholder())
    except LauncherError as error:
        print_problems(error)
        return error.exit_status
    except OSError as error:
        known = cannot_start(error) if error.errno in FULL else explain(error)
        if known is None:
            raise
        print_problems(known)
        return known.exit_status


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(status)
