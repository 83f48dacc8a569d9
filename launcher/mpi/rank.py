"""The rank shim: what mpirun starts in place of the user's command, and the parent of that one process.

It asks the node's session which node this is and which variables the job has, plans as any launcher
does that was started once per process, and reports how its process starts and ends. It stays, where
otherwise a launcher becomes the command: only a parent knows the real status (Intel MPI says 255 for
all of them), and can keep a rank that has ended from being noticed while others still save their
state, since an mpirun that sees one exit kills the rest within 0.5 to 2 s.

Run as a file (``python -I rank.py JOB [OPTIONS] -- COMMAND``), so that the working directory and
PYTHONPATH cannot stand in for this package.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

import signal
import time

from launcher.agent.agent import Agent, Place
from launcher.agent.coordination import Coordination
from launcher.core.errors import LauncherError, NotReady, Problem, UsageError
from launcher.core.frozen import replace
from launcher.core.messages import RANKS_MAX
from launcher.core.mpi import HYDRA, OPEN_MPI
from launcher.mpi.channel import Channel
from launcher.mpi.messages import Abandoned, Briefing, RankEnded, Started
from launcher.mpi.placeholder import leave_placeholder
from launcher.mpi.session_folder import SERVE_SOCKET, remove_folder
from launcher.process.loop import Later
from launcher.process.refused import explain
from launcher.process.signals import hold

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.core.model import Plan
    from launcher.failure.model import Verdict

FACTS = {
    "node_rank": "LAUNCHER_NODE_RANK",
    "node_count": "LAUNCHER_NNODES",
    "master_addr": "LAUNCHER_MASTER_ADDR",
    "master_port": "LAUNCHER_MASTER_PORT",
}
"""What the session knows, and the variable that tells it to a launcher."""
LATE_S = 5.0
"""The head, or a session without a head, kills what runs after the grace; we do where both fail."""
UNHEARD_S = 1.0
"""How long the session may take to pass on that the job ends."""
PLACE = {
    "rank": (*OPEN_MPI.rank, *HYDRA.rank),
    "size": (OPEN_MPI.size, HYDRA.size),
    "local_rank": (OPEN_MPI.local_rank, HYDRA.local_rank),
}
"""What mpirun says of a rank, and in which variables."""


class RankSession(Coordination):
    """The rank's line to the session of its node: what it reports, and until when it is held."""

    speaks = False
    """What one of a thousand ranks is told is for the head to say; where the logs are is known."""
    guards = False
    """Should we be killed, the kernel ends our process, and the session what that has started."""

    def __init__(self, channel: Channel, place: Started, grace_s: float) -> None:
        """Remember what is reported.

        Args:
            channel: The line to the session.
            place: Where mpirun has put us.
            grace_s: What the head gives all ranks.
        """
        self._channel, self._place, self._grace_s = channel, place, grace_s
        self._verdict: Verdict | None = None
        self._holds = False

    def attach(self, agent: Agent) -> None:
        """Listen to the session."""
        super().attach(agent)
        agent.loop.add(self._channel.socket.fileno(), self._on_channel)
        agent.loop.add(self._channel.placeholder, self._on_abandoned)

    def begin(self) -> None:
        """The process is about to be started."""
        self.agent.group.stopper.grace_s = self._grace_s + LATE_S

    def _on_abandoned(self) -> None:
        """mpirun has ended what it knows of us: the head ends the job, with the grace."""
        self.agent.loop.remove(self._channel.placeholder)
        self._channel.say(Abandoned())
        self.agent.loop.timers.append(Later(time.monotonic() + UNHEARD_S, self._on_unheard))

    def _on_unheard(self) -> None:
        """The session has not passed SIGTERM on: it may be stopped."""
        if self.agent.forwarder.told is None and self.agent.group.running:
            self.agent.on_signal(signal.SIGTERM, from_terminal=False)

    def _on_channel(self) -> None:
        """The session has said something, or is gone, and with it the job."""
        channel, agent = self._channel, self.agent
        if not channel.hear():
            agent.loop.remove(channel.socket.fileno())
            if not channel.released:
                remove_folder(channel.path)  # a session that was killed has left it
                if agent.group.running:
                    agent.target.stop(signal.SIGTERM)
            channel.released = True

    def takes_signal(self, number: int, *, from_terminal: bool) -> bool:
        """While we only wait for the others, a signal comes from a session that did not know that yet."""
        return self._holds

    def publish(self, verdict: Verdict, *, shown: bool) -> None:
        """Keep the verdict for the head, which gives the one that counts."""
        self._verdict = verdict

    def finish(self) -> int:
        """Tell the head how the process ended; with a failure, wait until all ranks have ended."""
        agent = self.agent
        status = super().finish()
        first = agent.first or next(iter(agent.group.ended), None)
        code, asked = (status, None) if first is None else (first.code or 0, first.passed_on)
        verdict = None
        if self._verdict is not None:
            from launcher.failure.transfer import fit

            verdict = fit(replace(self._verdict, others=()))
        place = self._place
        self._channel.say(RankEnded(place.rank, place.local_rank, status, code, asked, verdict=verdict))
        self._holds = True
        while status and not self._channel.released:
            agent.loop.turn()
        return status


def run_rank(job: str, words: Sequence[str], environ: Mapping[str, str], placeholder: int) -> int:
    """Run a rank; return its status.

    Args:
        job: Name of the job, see `launcher.mpi.session_folder.find_session`.
        words: Options of ``launcher run``, then ``--`` and the command.
        environ: The environment that mpirun has given us.
        placeholder: Ends when what mpirun knows of us does.

    Raises:
        LauncherError: There is no session, no sense in the environment, or the command cannot run.
    """
    channel = Channel(job, placeholder)
    briefing = channel.attach()
    place = read_place(environ)
    take_stdin(briefing.stdin if place.rank == 0 else os.devnull)
    channel.say(place)
    try:
        change_folder(briefing.cwd)
        return prepare(words, environ, briefing, channel, place).run()
    except LauncherError as error:
        channel.refuse(error, place, briefing.grace_s + LATE_S)
        raise


def change_folder(path: str) -> None:
    """Work where the head does: where that is missing, three of four mpiruns would use the home folder.

    Raises:
        NotReady: It is not there.
    """
    if path:
        try:
            os.chdir(path)
        except OSError as error:
            raise NotReady(_no_folder(path, error)) from error


def take_stdin(path: str | None) -> None:
    """Read from there instead of from what mpirun has given us.

    Rank 0 runs where the head does, and reads what the head would: Open MPI 5.0 never forwards the end of
    it, and repeats parts of more than 64 KiB (openpmix/prrte issues 2373 and 2579). The others have nothing
    to read, but MPICH leaves them a pipe from sshd that has no end.

    Args:
        path: A file, or a descriptor of the head in /proc; None for what mpirun has given us.
    """
    if path is None:
        return
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a named pipe without a writer
    except OSError as error:
        print(f"launcher: standard input of the head cannot be read: {error}", file=sys.stderr)
        return
    os.set_blocking(fd, True)
    try:
        with open(path.replace("/fd/", "/fdinfo/"), encoding="ascii") as file:
            os.lseek(fd, int(file.readline().split()[1]), os.SEEK_SET)
    except (OSError, ValueError, IndexError):
        pass  # no regular file
    os.dup2(fd, 0)
    os.close(fd)


def prepare(
    words: Sequence[str],
    environ: Mapping[str, str],
    briefing: Briefing,
    channel: Channel,
    put: Started,
) -> Agent:
    """Plan, as any launcher does that was started once per process, and return the rank's agent.

    Raises:
        LauncherError: There is no sense in the environment, or the command cannot run.
    """
    from launcher.agent.agent import widen_cpus
    from launcher.agent.children import make_children
    from launcher.process.execute import find_program

    inherited = apply_briefing(environ, briefing)
    told = inherited | {
        name: str(value) for key, name in FACTS.items() if (value := getattr(briefing, key)) is not None
    }
    plan = plan_rank(words, told)
    (child,) = make_children(plan, inherited)
    place = Place(plan.topology.node_rank, plan.topology.world_size)
    path = find_program(child.argv[0], child.environ)
    if not briefing.colours:  # Open MPI gives each rank a terminal of its own
        told["NO_COLOR"] = "1"
    told["TMPDIR"] = os.path.dirname(channel.path)  # a killed rank leaves what the session takes away
    if plan.widen_cpus:
        widen_cpus()
    # All ranks of a node write below one folder, where logs were asked for
    log_id = channel.job if plan.supervision.log_dir else ""
    session = RankSession(channel, put, briefing.grace_s)
    agent = Agent(plan.supervision, place, told, session, log_id=log_id)
    agent.take([child], [path])
    return agent


def plan_rank(words: Sequence[str], told: Mapping[str, str]) -> Plan:
    """Return the plan of one rank, at PROCESS scope.

    Raises:
        LauncherError: There is no sense in the environment, or this rank cannot stand alone.
    """
    from launcher.machine.host import Host
    from launcher.options.parser import read_run
    from launcher.options.reading import read_options
    from launcher.planning.plan import plan_job

    typed, command, _ = read_run(words, told)
    options = read_options(typed, told)
    plan = plan_job(told, Host(), options, command)
    if plan.companions:
        raise UsageError(_no_companions(plan.companions[0].name))
    if plan.meeting is None:
        return plan
    from launcher.cluster.address_exchange import meet

    return plan_job(told, Host(), options, command, met=meet(plan.meeting, told))


def read_place(environ: Mapping[str, str]) -> Started:
    """Return where mpirun has put us, by what it says: the head compares that with what it asked for.

    Before anything is made of it: a plan would refuse a place that cannot be.
    """
    place = {}
    for key, names in PLACE.items():
        text = next((environ[name] for name in names if environ.get(name)), "")
        number = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else -1
        place[key] = number if number <= RANKS_MAX else -1
    return Started(**place)


def apply_briefing(environ: Mapping[str, str], briefing: Briefing) -> dict[str, str]:
    """Return the environment with the head's variables as the head has them, byte for byte.

    mpirun has carried them, too, but Open MPI puts folders of its own in front of PATH on the way. What a
    node's own launcher was told is not for a rank: the head has passed on what is.
    """
    from launcher.planning.settings import CONSUMED

    ours = {name: value for name, value in environ.items() if name not in (*CONSUMED, SERVE_SOCKET)}
    merged = {**ours, **briefing.variables}
    return {name: value for name, value in merged.items() if value is not None}


def _no_companions(name: str) -> Problem:
    return Problem(
        "companion-per-rank",
        f"this job needs a {name} beside rank 0, and a rank that mpirun has started runs alone",
        "command line and environment",
        "leave out --engine mpirun: launcher run on every node starts it (Horovod: or build it for this MPI)",
    )


def _no_folder(path: str, error: OSError) -> Problem:
    return Problem(
        "no-folder",
        f"the head's working directory {path!r}, on {os.uname().nodename}: {error.strerror}",
        "this node",
        "start the job in a folder that all nodes have, or name one: --mpi-args '-wdir FOLDER'",
    )


def main(argv: list[str]) -> int:
    """Be the parent of a rank; what is wrong is said as ``launcher run`` says it."""
    from launcher.core.errors import print_problems

    hold()  # from when the session knows us, a signal is to be passed on, not to end us
    try:
        return run_rank(argv[0], argv[1:], dict(os.environ), leave_placeholder())
    except LauncherError as error:
        print_problems(error)
        return error.exit_status
    except OSError as error:
        known = explain(error)
        if known is None:
            raise
        print_problems(known)
        return known.exit_status


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(status)
