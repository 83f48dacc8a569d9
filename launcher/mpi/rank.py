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

from launcher.agent.agent import Agent, widen_cpus
from launcher.agent.coordination import Coordination
from launcher.agent.runtime import NodePlace
from launcher.channel import lines as wire
from launcher.core.errors import LauncherError, make_error, print_problems
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
from launcher.process.signal_file import hold
from launcher.process.spawn import cannot_start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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


class RankCoordination:
    """Coordination of a rank with the launcher of its node, which holds the wrapper until it is released.

    Attributes:
        job: Name of the job.
        place: Our place according to mpirun.
        path: Path of the launcher's socket.
        on_signal: Handles a signal; set before the agent runs.
    """

    on_signal: Callable[[int, bool], None]
    _runtime: Runtime
    _briefing: Briefing | None = None
    _verdict: Verdict | None = None
    _is_released = False
    """Whether we may exit, because all ranks have ended or the head or the launcher is gone."""
    _is_lost = False
    """Whether the launcher is gone."""
    _holds = False
    """Whether we only wait for other ranks."""

    def __init__(self, job: str, place: Started, placeholder: int) -> None:
        """Connect to the launcher.

        Args:
            job: Name of the job.
            place: Our place according to mpirun.
            placeholder: Descriptor from `launcher.mpi.placeholder.leave_placeholder`.

        Raises:
            NotReady: The job has no launcher on this node, where mpirun was not to start a rank.
        """
        self.job, self.place, self._placeholder = job, place, placeholder
        self._lines = wire.Lines(wire.WELCOME_LIMIT_BYTES)
        self.path = path = find_socket(job) or ""
        self._socket = socket.socket(socket.AF_UNIX)
        limit = struct.pack("ll", int(ANSWER_TIMEOUT_S), 0)  # also limits connect, unix(7)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        try:
            if not path:
                raise FileNotFoundError
            self._socket.connect(path)
        except OSError as error:
            raise make_error("no-session", node=os.uname().nodename, job=quote(job, 64)) from error

    def join(self) -> Briefing:
        """Report to the launcher, and return its answer: the facts about this node and the job.

        Raises:
            NotReady: There was no answer within `ANSWER_TIMEOUT_S`, or an invalid one.
            SystemExit: We were told to end.
        """
        self.send(Attached())
        self._wait(lambda: self._briefing is not None, ANSWER_TIMEOUT_S)
        if self._briefing is None:
            raise make_error("session-silent", node=os.uname().nodename)
        return self._briefing

    def refuse(self, error: LauncherError, wait_s: float) -> None:
        """Report that our process cannot be started, and wait: the head may know the cause better.

        Return when we are released, when the launcher is gone, or after ``wait_s``.

        Raises:
            SystemExit: We were told to end.
        """
        place, status = self.place, error.exit_status
        self.send(RankEnded(place.rank, place.local_rank, status, status, why=str(error)))
        self._wait(lambda: self._is_released, wait_s)

    def send(self, message: object) -> None:
        """Send the launcher a message; if that fails it is gone, and we need not wait for it."""
        try:
            self._socket.sendall(wire.pack(pack(message)))
        except OSError:
            self._is_released = self._is_lost = True

    def _wait(self, is_over: Callable[[], bool], limit_s: float) -> None:
        """Read the launcher's messages until a condition holds, it is gone, or the time is up.

        Raises:
            SystemExit: We were told to end.
        """
        deadline = time.monotonic() + limit_s
        signals = open_signal_file(ENDING)  # these signals are blocked
        try:
            poll = select.poll()
            for fd in (signals, self._placeholder, self._socket.fileno()):
                poll.register(fd, select.POLLIN)
            while not is_over():
                ready = {fd for fd, _ in poll.poll(max(0.0, deadline - time.monotonic()) * 1000)}
                if ready & {signals, self._placeholder}:
                    told = [number for number, _, _ in read_signals(signals)]
                    raise SystemExit(128 + next(iter(told), signal.SIGTERM))
                if not (ready and self._hear()):
                    return
        finally:
            os.close(signals)

    def _hear(self) -> bool:
        """Read the launcher's messages; return False if it is gone or sends an invalid one."""
        try:
            data = self._socket.recv(wire.READ_BYTES)
            for packed in self._lines.feed(data):
                match unpack(packed, TO_RANK):
                    case Release():
                        self._is_released = True
                    case Briefing() as briefing:
                        self._briefing = briefing
        except (OSError, Garbled):
            data = b""
        self._is_lost = self._is_lost or not data
        return bool(data)

    # --- with the agent

    def coordinate(self) -> Coordination:
        """Return what the agent asks and reports.

        The head reports a signal once for all ranks, and the directory of the logs is known. If we are
        killed, the kernel kills our process, and the launcher kills what that has started.
        """
        return Coordination(
            self._gather, self._attach, speaks=False, guards=False, name_run=lambda own: self.job,
            begin=self._begin, takes_signal=self._takes_signal, takes_verdict=self._takes_verdict,
            finish=self._finish,
        )  # fmt: skip

    def _attach(self, runtime: Runtime) -> None:
        """Watch the launcher and the placeholder."""
        self._runtime = runtime
        runtime.loop.add(self._socket.fileno(), self._on_channel)
        runtime.loop.add(self._placeholder, self._on_abandoned)

    def _gather(self) -> bool:
        """Whether the process is to be started: there is nothing to wait for."""
        return self._runtime.forwarder.told is None

    def _begin(self) -> None:
        """Set our own, longer grace: the launcher ends the process first."""
        assert self._briefing is not None  # noqa: S101 - we have joined
        self._runtime.group.stopper.grace_s = self._briefing.grace_s + LATE_S

    def _on_abandoned(self) -> None:
        """Report that mpirun has ended our placeholder; the head then ends the job, with the grace.

        If our launcher is gone, the other ranks must not abort with the process that has started them.
        """
        self._runtime.loop.remove(self._placeholder)
        self.send(Abandoned())
        if self._is_lost and self._runtime.group.running:
            from launcher.mpi.leftovers import stop_daemon

            stop_daemon(os.getpid())
        self._runtime.loop.timers.append(Later(time.monotonic() + UNHEARD_S, self._on_unheard))

    def _on_unheard(self) -> None:
        """Act on SIGTERM ourselves if the launcher has not sent it: it may be stopped."""
        if self._runtime.forwarder.told is None and self._runtime.group.running:
            self.on_signal(signal.SIGTERM, False)

    def _on_channel(self) -> None:
        """Read from the launcher; if it is gone, end the process, because the job has ended."""
        runtime = self._runtime
        if not self._hear():
            runtime.loop.remove(self._socket.fileno())
            if not self._is_released and runtime.group.running:
                runtime.target.stop(signal.SIGTERM)
            self._is_released = True

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
        place = self.place
        self.send(RankEnded(place.rank, place.local_rank, status, code, asked, verdict=verdict))
        self._holds = True
        while status and not self._is_released:
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
    node = RankCoordination(job, read_place(environ), placeholder)
    briefing = node.join()
    take_stdin(briefing.stdin if node.place.rank == 0 else os.devnull)
    node.send(node.place)
    try:
        change_folder(briefing.cwd)
        return make_agent(words, environ, briefing, node).run()
    except LauncherError as error:
        node.refuse(error, briefing.grace_s + LATE_S)
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


def make_agent(
    words: Sequence[str], environ: Mapping[str, str], briefing: Briefing, node: RankCoordination
) -> Agent:
    """Make the plan, like any launcher that is started once per process, and return the rank's agent.

    Args:
        words: Options of ``launcher run``, then ``--`` and the command.
        environ: The environment from mpirun.
        briefing: The facts from the launcher of this node.
        node: The coordination with it.

    Raises:
        LauncherError: The environment is contradictory, or the command cannot run.
    """
    from launcher.agent.children import make_children
    from launcher.core.supervision import LogStyle
    from launcher.planning.settings import CONSUMED
    from launcher.process.execute import find_program

    # The head's variables as they are: Open MPI puts its own directories in front of PATH. Without those for
    # the launcher of this node: the head has passed on what is for ranks
    ours = {name: value for name, value in environ.items() if name not in CONSUMED}
    merged = {**ours, **briefing.variables}
    inherited = {name: value for name, value in merged.items() if value is not None}
    told = inherited | {
        name: str(value) for key, name in FACTS.items() if (value := getattr(briefing, key)) is not None
    }
    plan = plan_rank(words, told, briefing.master_port)
    (child,) = make_children(plan, inherited)
    place = NodePlace(plan.topology.node_rank, plan.topology.world_size)
    path = find_program(child.argv[0], child.environ)
    if not briefing.colours:  # Open MPI gives each rank a terminal
        told["NO_COLOR"] = "1"
    told["TMPDIR"] = os.path.dirname(node.path)  # the launcher removes what a killed rank leaves
    if plan.widen_cpus:
        widen_cpus()
    # All ranks of a node write their logs below one directory
    log_id = node.job if plan.supervision.log_dir else ""
    # The head makes the lines; a variable that it has forwarded to us asks for them, too
    log = LogStyle(rotate_bytes=plan.supervision.log.rotate_bytes)
    # The head maps the job's status: mpirun and the head need the ranks' own. One mpirun is one world
    watch = replace(plan.supervision, log=log, stopped_status=None, fatal_status=None, contact=None)
    agent = Agent(watch, place, told, node.coordinate(), log_id=log_id)
    node.on_signal = agent.on_signal
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


def main(argv: list[str]) -> int:
    """Run the wrapper; return its status. It prints errors as ``launcher run`` does."""
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
