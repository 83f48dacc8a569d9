"""Runs DeepSpeed's autotuner, a command on node 0 that starts processes on the other nodes through ssh.

It finds two programs of ours first on its PATH. ``ssh`` is `launcher.remote.rsh`. ``deepspeed`` adds the
master address, which the autotuner does not pass to its experiments.
"""

from __future__ import annotations

import os
import shlex
import shutil

from launcher.agent.agent import Agent
from launcher.agent.runtime import NodePlace
from launcher.channel.frames import TOKEN_VARIABLE
from launcher.core.errors import EXIT_NOT_READY, make_error
from launcher.core.files import create_file, make_private_folder, remove_file, remove_tree
from launcher.core.frozen import replace
from launcher.core.signal import signal
from launcher.engines.mpirun import FOLDER, HOSTFILE, plan_rsh
from launcher.job.commands import Stop
from launcher.mpi.lead import Lead
from launcher.planning.settings import apply_settings
from launcher.process.execute import find_program
from launcher.process.signals import ENDING_IDLE, ending_of
from launcher.process.spawn import Child
from launcher.process.watchdog import MARK, mark_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.agent.coordination import Coordination
    from launcher.core.model import Fleet, Plan
    from launcher.core.model import NodeCommand as Starter
    from launcher.mpi.nodes import ServedJob
    from launcher.process.watchdog import Watchdog
    from launcher.remote.hub import Gate

COMMANDS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - mkdtemp makes a directory of mode 700
"""Places for the programs, in this order: in containers /dev/shm is often mounted noexec."""
PDSH, MODULE = "pdsh", "deepspeed.launcher.runner"


class Tuner(Lead):
    """Coordination of the autotuner with the nodes.

    Attributes:
        lost: Whether a node is lost.
    """

    lost = _has_begun = False

    def coordinate(self) -> Coordination:
        """Return what the agent asks and reports."""
        return replace(super().coordinate(), takes_signal=self.takes_signal, finish=self.finish)

    def begin(self) -> None:
        """Note that the command begins: from now on a node whose connection ends is lost."""
        self._has_begun = True
        super().begin()

    def takes_signal(self, number: int, from_terminal: bool) -> bool:
        """Whether the command has not started yet; a signal to end then stops the wait for the nodes."""
        forwarder = self.runtime.forwarder
        if not self._has_begun and number in ENDING_IDLE:
            forwarder.told = forwarder.told or number
        return not self._has_begun

    def deliver(self, message: object) -> None:
        """End the job, because experiments on a lost node would not end, or a node has received a signal."""
        super().deliver(message)
        if not isinstance(message, Stop) or not self.runtime.group.running:
            return
        self.lost = message.number is None
        self.runtime.say(f"{message.why}; ending the job", "node-lost" if self.lost else "signal")
        if message.number is not None:
            self.parts.on_signal(ending_of(message.number), False)
        else:
            self.runtime.target.stop(signal.SIGTERM)

    def finish(self, report: Callable[[], int]) -> int:
        """Report how the job ended, and return its status; 75 if a node is lost."""
        status = report()
        status = EXIT_NOT_READY if self.lost and self.runtime.forwarder.told is None else status
        self.nodes.end_all(status)
        return status


def run_tuner(
    plan: Plan,
    agent: Starter,
    fleet: Fleet,
    environ: Mapping[str, str],
    folder: str,
    job: ServedJob,
    open_gate: Callable[[Fleet, Mapping[str, str], str, str], Gate],
    guard: Watchdog,
) -> int:
    """Run the autotuner on this node until it ends; return its status.

    Args:
        plan: The plan that contains this agent.
        agent: The autotuner.
        fleet: The nodes.
        environ: The environment of the launcher.
        folder: A private directory that already contains the agent's files.
        job: The job.
        open_gate: Listens for the other nodes, see `launcher.mpi.start.open_gate`.
        guard: See `launcher.mpi.lead.Lead`.

    Raises:
        LauncherError: A program is missing, or nodes do not answer.
    """
    inherited = {key: value for key, value in environ.items() if key != TOKEN_VARIABLE}
    if len(fleet.hosts) > 1 and shutil.which(PDSH, path=inherited.get("PATH", os.defpath)) is None:
        raise make_error("pdsh-missing", program=agent.argv[0])
    told = tuple(word.replace(HOSTFILE, f"{folder}/hostfile") for word in agent.argv)
    environment = apply_settings(inherited, agent.unset, agent.settings)
    path = find_program(agent.argv[0], environment)
    commands = make_commands()
    try:
        rsh = (word.replace(FOLDER, folder) for word in plan_rsh())
        write_program(commands, "ssh", f'exec {shlex.join(rsh)} "$@"\n')
        write_own(commands, (path, *told[1:]), fleet)
        environment["PATH"] = f"{commands}:{environment.get('PATH', os.defpath)}"
        child = Child(0, 0, told, environment, called=agent.engine)
        mark = shlex.quote(mark_of(job.briefing.job, environ))
        gate = open_gate(fleet, environ, folder, f"export {MARK}={mark}; ")
        tuner = Tuner(job, guard, gate)
        tuning = Agent(plan.supervision, NodePlace(0), inherited, tuner.coordinate(), run_id=job.briefing.job)
        tuner.parts = tuning.parts
        tuning.take([child], [path])
        return tuning.run()
    finally:
        remove_tree(commands)


def make_commands() -> str:
    """Return a new private directory that programs can run from.

    Raises:
        NotReady: There is none in any of `COMMANDS`.
    """
    for base in COMMANDS:
        try:
            folder = make_private_folder((base,))
        except OSError:
            continue
        trial = write_program(folder, "trial", "exit 0\n")
        runs = os.access(trial, os.X_OK)  # not if the file system is mounted noexec
        remove_file(trial)
        if runs:
            return folder
        remove_tree(folder)
    raise make_error("no-program-folder", folders=", ".join(COMMANDS))


def write_program(folder: str, name: str, text: str) -> str:
    """Write an executable shell script, and return its path."""
    path = os.path.join(folder, name)
    create_file(f"#!/bin/sh\n{text}", path, 0o700)
    return path


def write_own(commands: str, argv: Sequence[str], fleet: Fleet) -> None:
    """Write the ``deepspeed`` of the experiments: the program of ``argv``, with its --master_addr.

    The autotuner's scheduler passes on neither --master_addr nor the path of the command.
    """
    call = argv[: argv.index(MODULE) + 1] if MODULE in argv else argv[:1]
    address = (
        [word for word in argv if word.startswith("--master_addr=")][-1:] if len(fleet.hosts) > 1 else []
    )
    write_program(commands, "deepspeed", f'exec {shlex.join([*call, *address])} "$@"\n')
