"""Runs DeepSpeed's autotuner, a command on node 0 that starts processes on the other nodes through ssh.

It finds two programs of ours first on its PATH. ``ssh`` is `launcher.remote.rsh`. ``deepspeed`` adds the
master address, which the autotuner does not pass to its experiments.
"""

from __future__ import annotations

import os
import shlex
import shutil

from launcher.cluster.messages import Over
from launcher.cluster.outcome import read_verdict
from launcher.core.errors import EXIT_NOT_READY, make_error
from launcher.core.files import create_file, make_private_folder, remove_file, remove_tree
from launcher.core.frozen import replace
from launcher.core.signal import signal
from launcher.engines.mpirun import FOLDER, HOSTFILE, plan_rsh
from launcher.job.commands import Stop
from launcher.mpi.lead import Lead
from launcher.planning.settings import apply_settings
from launcher.process.execute import find_program
from launcher.process.signal_file import ending_of
from launcher.process.spawn import Child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.agent.coordination import Coordination
    from launcher.core.model import Fleet, NodeCommand

COMMANDS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - mkdtemp makes a directory of mode 700
"""Places for the programs, in this order: in containers /dev/shm is often mounted noexec."""
PDSH, MODULE = "pdsh", "deepspeed.launcher.runner"


class Tuner(Lead):
    """Coordination of the autotuner with the nodes.

    Attributes:
        lost: Whether a node is lost.
    """

    lost = False

    def coordinate(self) -> Coordination:
        """Return what the agent asks and reports."""
        return replace(super().coordinate(), finish=self.finish)

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
        """Report how the job ended, and return its status; 75 and the node if one is lost."""
        is_lost = self.lost and self.runtime.forwarder.told is None
        status = EXIT_NOT_READY if is_lost else report()
        self.end_all(status)
        if is_lost:
            verdict = None
            if isinstance(self.over, Over):
                verdict = read_verdict(self.over, None, self.job.shape, self.runtime.started_ns, self.attempt)
            if verdict is None:
                report()
            else:
                self.parts.outcomes.publish(verdict, shown=True)
        return status


def plan_child(
    agent: NodeCommand, fleet: Fleet, inherited: Mapping[str, str], folder: str, commands: str
) -> tuple[Child, str]:
    """Return the autotuner's process, and the path of its program.

    Args:
        agent: The autotuner.
        fleet: The nodes.
        inherited: Our environment, without the token.
        folder: A private directory that already contains the agent's files.
        commands: A directory for the programs that it finds first.

    Raises:
        LauncherError: A program is missing.
    """
    if len(fleet.hosts) > 1 and shutil.which(PDSH, path=inherited.get("PATH", os.defpath)) is None:
        raise make_error("pdsh-missing", program=agent.argv[0])
    argv = tuple(word.replace(HOSTFILE, f"{folder}/hostfile") for word in agent.argv)
    environment = apply_settings(inherited, agent.unset, agent.settings)
    path = find_program(argv[0], environment)
    rsh = (word.replace(FOLDER, folder) for word in plan_rsh())
    write_program(commands, "ssh", f'exec {shlex.join(rsh)} "$@"\n')
    write_own(commands, (path, *argv[1:]), fleet)
    environment["PATH"] = f"{commands}:{environment.get('PATH', os.defpath)}"
    return Child(0, 0, argv, environment, called=agent.engine), path


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
