"""Runs the agent that starts a node's processes: torchrun, or the launcher that the command is."""

from __future__ import annotations

import signal

from launcher.core.log import say
from launcher.core.model import TORCHRUN, NodeCommand, Plan
from launcher.planning.settings import apply_settings
from launcher.process.memory_files import name_files, write_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.agent.agent import Serve
    from launcher.agent.observers import Checks

DEEPSPEED = "deepspeed"
ENDING_SIGNALS = (4, 6, 7, 8, 9, 11, 15)
"""Signal numbers: ILL, ABRT, BUS, FPE, KILL, SEGV, TERM."""


def run_agent(
    plan: Plan,
    agent: NodeCommand,
    environ: Mapping[str, str],
    checks: Checks | None = None,
    serve: Serve | None = None,
) -> int:
    """Run the agent that starts the processes of this node, and return its status.

    Args:
        plan: The plan with this agent.
        agent: The agent.
        environ: The environment that the launcher was started with.
        checks: Checks to run beside the agent; see `launcher.agent.agent.Agent`.
        serve: Makes the server that answers questions about the job.

    Raises:
        LauncherError: The agent cannot be started (126, 127).
    """
    argv, environment = prepare(agent, environ)
    (environment,) = name_files(plan, [environment], becomes=False)
    say_agent(plan, agent)
    from launcher.agent.lone import run_processes
    from launcher.agent.runtime import NodePlace
    from launcher.process.spawn import Child

    place = NodePlace(plan.topology.node_rank, plan.topology.world_size)
    child = Child(0, 0, argv, environment, called=agent.engine)
    status = run_processes(
        [child], plan.supervision, place, environ, widen=plan.widen_cpus, checks=checks, serve=serve
    )
    return read_status(status) if agent.engine == DEEPSPEED else status


def read_status(status: int) -> int:
    """Return the status of the rank behind the status of DeepSpeed's launcher.

    That launcher exits with the rank's code: -9 after SIGKILL, so 247. Statuses that programs use too, such
    as 255, stay as they are.
    """
    number = 256 - status
    if number not in ENDING_SIGNALS:
        return status
    say(f"deepspeed exited with {status}: signal {number} ended a rank", "starter-status")
    return 128 + number


def say_agent(plan: Plan, agent: NodeCommand) -> None:
    """Print that torchrun's agent starts the processes, and why."""
    if agent.engine == TORCHRUN:
        note = next((note for note in plan.notes if note.startswith("engine ")), "")
        say(f"torchrun's agent starts the processes ({note.partition(': ')[2]})", "starter")


def prepare(agent: NodeCommand, environ: Mapping[str, str]) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """Return the agent's command line and whole environment; write the files that it reads to memory.

    Each file is named by its descriptor: no file is left behind, and no folder has to be writable.

    Args:
        agent: The agent that starts the processes.
        environ: The environment that the launcher was started with.
    """
    argv = agent.argv
    for word, text in agent.files:
        path = f"/proc/self/fd/{write_file(text, inherited=True)}"
        argv = tuple(item.replace(word, path) for item in argv)
    environment = {**apply_settings(environ, agent.unset, agent.settings)}
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup: torchrun's agent would end at a hangup
        environment.setdefault("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGQUIT")
        environment.setdefault("PET_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGQUIT")
    return argv, environment
