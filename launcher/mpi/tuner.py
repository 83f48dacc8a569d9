"""A command on node 0 that starts processes on the other nodes by an ssh of its own: DeepSpeed's autotuner.

It finds two programs of ours first on its PATH: ssh, which has the job's key and port and runs here what is
for this node, and its own name, with the address that its experiments are not told.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence

from launcher.engines.autotuning import HOSTFILE
from launcher.engines.mpirun import FOLDER, KEY_VARIABLE, plan_ssh
from launcher.errors import NotReady, Problem, Unavailable
from launcher.frozen import frozen
from launcher.model import Agent, Fleet, Plan, Supervision
from launcher.mpi import reach, wire
from launcher.mpi.crew import Crew
from launcher.mpi.lead import LOST, Lead
from launcher.mpi.node import Line, Node
from launcher.process.execute import find_program
from launcher.process.signals import name_signal, signal
from launcher.process.spawn import Child
from launcher.process.watchdog import MARK, mark_of
from launcher.run.relay import Relay
from launcher.run.supervise import Node as Place
from launcher.settings import apply_settings
from launcher.ssh.account import read_account

COMMANDS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - mkdtemp makes a folder of mode 700
"""Where programs may lie, in this order: containers often have a /dev/shm that nothing may be run from."""
PDSH, MODULE = "pdsh", "deepspeed.launcher.runner"


@frozen
class Job:
    """What is known before the start: the job's name, its nodes, and how long they may take to answer."""

    name: str
    lines: tuple[Line, ...]
    timeout_s: float


class EarlyRelay(Relay):
    """Remembers a signal that arrives before there is anybody to pass it on to."""

    def pass_on(self, number: int, *, from_terminal: bool) -> None:
        """Do with a signal what its sender wants to happen to the job."""
        if hasattr(self, "_stopper"):
            super().pass_on(number, from_terminal=from_terminal)
        elif number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self.told = number


class Tuner(Lead):
    """The parent of the autotuner, and of the sessions on all nodes."""

    def __init__(
        self, child: Child, path: str, watch: Supervision, job: Job, environ: Mapping[str, str], private: str
    ) -> None:
        super().__init__(child, path, watch, Place(0, None), environ, private, job.name, job.timeout_s)
        self.lost = False
        self.crew = Crew(
            job.lines, self.welcome, self.loop, self.watched, environ, self.say, self.on_message, self.on_lost
        )

    def make_relay(self) -> Relay:
        """Signals can arrive while nodes are waited for."""
        return EarlyRelay(self.watch, shares_terminal=False, say=self.say)

    def welcome(self, index: int) -> dict[str, object]:
        """Return what a node is told: how long what runs there may take to end."""
        return {"node_rank": index, "grace_s": self.watch.grace_s}

    def start_all(self) -> None:
        """Start the command."""
        self.crew.has_begun = True
        self.loop.timers.append(self.crew)
        super().start_all()

    def on_message(self, node: Node, message: Mapping[str, object]) -> None:
        """A node was told a signal: it is for the whole job."""
        if message.get("is") == "told":
            number = wire.number(message, "number")
            self.say(f"node {node.index} ({node.host}) was told {name_signal(number)}: for the whole job")
            self.relay.pass_on(number, from_terminal=False)

    def on_lost(self, node: Node) -> None:
        """A node's session is gone: experiments there will not end."""
        self.lost = True
        self.say(f"node {node.index} ({node.host}) is lost: {node.reason}; ending the job")
        self.stopper.begin(signal.SIGTERM)

    def finish(self) -> int:
        """Say how the job ended, and return its status."""
        status = super().finish()
        return LOST if self.lost and self.relay.told is None else status


def run_tuner(
    plan: Plan,
    agent: Agent,
    fleet: Fleet,
    environ: Mapping[str, str],
    folder: str,
    lines: Sequence[Line],
    name: str,
) -> int:
    """Run the autotuner on this node until it ends; return its status.

    Args:
        plan: The plan that has this agent.
        agent: The autotuner.
        fleet: The nodes.
        environ: The environment that the launcher was started with.
        folder: A private folder, where ssh's configuration and the agent's files stand already.
        lines: How the nodes are reached.
        name: The job's.

    Raises:
        LauncherError: A program is missing, or nodes do not answer.
    """
    inherited = {key: value for key, value in environ.items() if key != KEY_VARIABLE}
    if len(fleet.hosts) > 1 and shutil.which(PDSH, path=inherited.get("PATH", os.defpath)) is None:
        raise Unavailable(_no_pdsh(agent))
    told = tuple(word.replace(HOSTFILE, f"{folder}/hostfile") for word in agent.argv)
    environment = apply_settings(inherited, agent.unset, agent.settings)
    path = find_program(agent.argv[0], environment)
    commands = make_commands()
    try:
        write_ssh(commands, folder, fleet, (MARK, mark_of(name, environ)))
        write_own(commands, (path, *told[1:]), fleet)
        environment["PATH"] = f"{commands}:{environment.get('PATH', os.defpath)}"
        child = Child(0, 0, told, environment, called=agent.engine)
        job = Job(name, tuple(lines), fleet.timeout_s)
        return Tuner(child, path, plan.supervision, job, inherited, folder).run()
    finally:
        shutil.rmtree(commands, ignore_errors=True)


def make_commands() -> str:
    """Return a new folder, ours alone, from which programs can be run.

    Raises:
        NotReady: Nowhere.
    """
    for base in COMMANDS:
        try:
            folder = tempfile.mkdtemp(prefix="launcher-", dir=base)
        except OSError:
            continue
        trial = write_program(folder, "trial", "exit 0\n")
        runs = os.access(trial, os.X_OK)  # refused where the file system is mounted without it
        os.unlink(trial)
        if runs:
            return folder
        shutil.rmtree(folder, ignore_errors=True)
    raise NotReady(
        Problem(
            "no-folder",
            f"no folder from which a program can be run: {', '.join(COMMANDS)}",
            "this node",
            "mount a tmpfs at /tmp (docker run --tmpfs /tmp:exec)",
        )
    )


def write_program(folder: str, name: str, text: str) -> str:
    """Write a shell script, and return its path."""
    path = os.path.join(folder, name)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o700)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(f"#!/bin/sh\n{text}")
    return path


def write_ssh(commands: str, folder: str, fleet: Fleet, mark: tuple[str, str]) -> None:
    """Write the ssh that the autotuner and pdsh find: see `launcher.mpi.reach`."""
    ssh, *words = (word.replace(FOLDER, folder) for word in plan_ssh(fleet))
    account = read_account()
    told = {
        "ssh": [shutil.which(ssh) or ssh, *words],
        "own": [fleet.hosts[0], fleet.address, os.uname().nodename, "localhost", "127.0.0.1"],
        "shell": account.shell if account.shell_runs else "/bin/sh",
        "mark": mark,
    }
    path = os.path.join(folder, "reach.json")
    with open(path, "x", encoding="utf-8") as file:
        json.dump(told, file)
    line = shlex.join((sys.executable, "-I", "-S", reach.__file__, path))
    write_program(commands, "ssh", f'exec {line} "$@"\n')


def write_own(commands: str, argv: Sequence[str], fleet: Fleet) -> None:
    """Write the ``deepspeed`` of the experiments: the very one that runs, and where the nodes meet.

    Its scheduler hands on neither --master_addr nor where the command was found.
    """
    call = argv[: argv.index(MODULE) + 1] if MODULE in argv else argv[:1]
    address = (
        [word for word in argv if word.startswith("--master_addr=")][-1:] if len(fleet.hosts) > 1 else []
    )
    write_program(commands, "deepspeed", f'exec {shlex.join([*call, *address])} "$@"\n')


def _no_pdsh(agent: Agent) -> Problem:
    return Problem(
        "pdsh-missing",
        f"{agent.argv[0]} --autotuning: experiments start their processes by pdsh, which is not on PATH",
        "this node",
        "apt-get install pdsh, in the image; or tune on one node",
    )
