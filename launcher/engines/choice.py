"""Chooses the engine that starts the processes, from the command and the flags.

The command line and the platform decide, so that all nodes decide alike. Only two things depend on this node:
the Python that runs torchrun, if torchrun is chosen, and whether we are process 1. Only the chosen engine's
modules are loaded.
"""

from __future__ import annotations

from launcher.command.words import is_python
from launcher.core.errors import LauncherError, make_error
from launcher.core.frozen import frozen
from launcher.core.model import MPIRUN, PROCESS, TORCHRUN, Scope
from launcher.options.flags import ONLY_TORCHRUN, ROLE_FLAGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.model import Allocation, NodeCommand
    from launcher.frameworks.case import Case
    from launcher.options.reading import Options

OF_MPI = (MPIRUN, "serve", "horovodrun")
"""Engines with which every framework finds its job; all others start PyTorch processes."""
NOT_TORCH = ("tensorflow", "horovod", "jax")
"""Frameworks for which torchrun sets no variables."""


@frozen
class Choice:
    """An engine, the reason for it, and the Python that runs it if it is torchrun."""

    engine: str
    why: str
    python: str = ""


def plan_engine(job: Case) -> tuple[Choice, NodeCommand | None]:
    """Return the engine, and its agent unless the launcher itself starts the processes.

    Raises:
        UsageError: The flags or the command do not fit this job.
        Unavailable: torchrun is needed and torch is not installed, or mpirun is needed and missing.
    """
    own = job.request.own
    if own is not None and job.request.tunes:
        from launcher.engines import deepspeed

        why = "the command is DeepSpeed's autotuner, run on node 0"
        return Choice(own.name, why), deepspeed.plan_tuner(job, own)
    if own is not None:
        from launcher.engines import wrapped

        return Choice(own.name, f"the command is {own.name}, run once per node"), wrapped.plan_agent(job, own)
    choice = choose(job)
    if choice.engine == MPIRUN:
        from launcher.engines import mpirun

        return choice, mpirun.plan_agent(job)
    if choice.engine != TORCHRUN:
        return choice, None
    from launcher.engines import torchrun

    return choice, torchrun.plan_agent(job, choice.python)


def choose(job: Case) -> Choice:
    """Return the engine of a job whose command is not a launcher itself.

    Raises:
        UsageError: No engine can honour the flags together.
        Unavailable: torchrun is needed, and torch is not installed.
    """
    options, allocation = job.options, job.allocation
    asked, needs = options.text("engine", "auto"), _needs(options, allocation)
    if allocation.scope is Scope.PROCESS:
        how = "stays as its parent" if job.stays else "becomes it"
        return Choice(PROCESS, f"this is one process of the job: the launcher {how}")
    if asked in (PROCESS, MPIRUN):
        if needs:
            raise make_error("engine-and-needs", asked=options.origins("engine")[0], needs=", ".join(needs))
        return Choice(asked, f"{options.origins('engine')[0]}")
    if asked == TORCHRUN or needs:
        why = ", ".join(options.origins("engine") if asked == TORCHRUN else needs)
        python = _find_python(job, why)
        if asked != TORCHRUN and needs == options.origins("max_restarts"):
            count = f"{options.number('max_restarts', 0):g}"
            why += f"; --restarts {count} would report each failure and restart all nodes together"
        return Choice(TORCHRUN, why, python)
    nodes = "one node" if allocation.node_count == 1 else f"{allocation.node_count} nodes, a fixed number"
    return Choice(PROCESS, f"{nodes}; for torchrun's agent: --engine {TORCHRUN}")


def _needs(options: Options, allocation: Allocation) -> list[str]:
    """Return the origins of requests that only torchrun can honour."""
    needs = options.origins(*ONLY_TORCHRUN)
    if allocation.node_range is not None:
        least, most = allocation.node_range
        needs.append(f"{least} to {most} nodes")
    elif allocation.ranks_at_start:
        needs += options.origins("rdzv_backend")
    return needs


def _find_python(job: Case, why: str) -> str:
    """Return the Python that runs torchrun: the command's, or else our own (empty).

    If it is unknown whether either has torch (in a replay), torchrun will report it itself.
    """
    pythons = [job.command[0], ""] if job.command and is_python(job.command[0]) else [""]
    versions = {python: job.host.find_version(python or None, job.environ, "torch") for python in pythons}
    found = [one for one in pythons if versions[one]] + [one for one in pythons if versions[one] is None]
    if found:
        return found[0]
    where = f"{pythons[0]} and the launcher's own Python have" if pythons[0] else "the launcher's Python has"
    otherwise = "fix the job: --nnodes N --node-rank R without --max-restarts and --rdzv-*"
    if "ENGINE" in why.upper():
        otherwise = f"leave out {why}: the launcher starts the processes then"
    raise make_error("torch-missing", why=why, where=where, otherwise=otherwise)


def refuse_per_process(starter: str, local_size: int | None) -> LauncherError:
    """Return the error for a starter of a node's processes if the platform has started them already."""
    several = f"{local_size} processes" if local_size and local_size > 1 else "the processes"
    who = "it" if starter.startswith("the command") else "the launcher"
    return make_error("launcher-per-process", starter=starter, program=who, several=several)


def refuse_framework(engine: str, options: Options, *, is_command: bool) -> None:
    """Refuse roles and a typed framework if an agent starts the processes that does not serve them.

    A framework from a variable is accepted, because the variable may come from an image for other kinds of
    jobs.

    Raises:
        UsageError: That framework would lack its servers, or its processes their ranks or roles.
    """
    named = options.get("framework")
    alien = ("horovod",) if options.text("engine") == engine == TORCHRUN else NOT_TORCH
    is_alien = named is not None and named.is_typed and named.value in alien and engine not in OF_MPI
    refused = options.origins(*ROLE_FLAGS, *(["framework"] if is_alien else []))
    if not refused:
        return
    asked = options.origins("engine") if engine == TORCHRUN else []
    other = asked[0] if asked else f"what calls for {engine}"
    more = f"; --engine {PROCESS} starts {engine} instead of each process" if is_command else ""
    raise make_error("engine-and-framework", refused=refused[0], engine=engine, other=other, more=more)
