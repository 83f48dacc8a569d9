"""The agent that starts a node's processes as our child: torchrun, or the launcher that the command is."""

from __future__ import annotations

import signal

from launcher.core.log import say
from launcher.core.model import TORCHRUN, NodeCommand, Plan
from launcher.planning.settings import apply_settings
from launcher.process.memory_files import name_files, write_file
from launcher.process.spawn import Child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

DEEPSPEED = "deepspeed"
ENDING_SIGNALS = (4, 6, 7, 8, 9, 11, 15)
"""Signal numbers: ILL, ABRT, BUS, FPE, KILL, SEGV, TERM."""


def read_status(status: int, engine: str) -> int:
    """Return the status of the rank behind the status of an engine's agent.

    DeepSpeed's launcher exits with the rank's code: -9 after SIGKILL, so 247. Statuses that programs use too,
    such as 255, stay as they are.
    """
    number = 256 - status
    if engine != DEEPSPEED or number not in ENDING_SIGNALS:
        return status
    say(f"deepspeed exited with {status}: signal {number} ended a rank", "starter-status")
    return 128 + number


def make_agent(plan: Plan, agent: NodeCommand, environ: Mapping[str, str]) -> Child:
    """Return the plan's agent as our child; print a line if it is torchrun's, and why."""
    argv, environment = prepare(agent, environ)
    (environment,) = name_files(plan, [environment], becomes=False)
    if agent.engine == TORCHRUN:
        note = next((note for note in plan.notes if note.startswith("engine ")), "")
        say(f"torchrun's agent starts the processes ({note.partition(': ')[2]})", "starter")
    return Child(0, 0, argv, environment, called=agent.engine)


def prepare(agent: NodeCommand, environ: Mapping[str, str]) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """Return the agent's command line and whole environment; write the files that it reads to memory.

    Each file is named by its descriptor: no file is left behind, and no directory has to be writable.

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
