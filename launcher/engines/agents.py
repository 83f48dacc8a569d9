"""From a command and the flags to the engine that starts the processes.

Only the chosen engine's modules are loaded.
"""

from __future__ import annotations

from launcher.command.line import SRUN, STARTERS, behind_front, is_python, may_be_launcher
from launcher.core.errors import Problem, UsageError
from launcher.core.frozen import frozen, replace
from launcher.engines.choice import (
    MPIRUN,
    NOT_TORCH,
    PROCESS,
    TORCHRUN,
    Choice,
    choose,
    name_starter,
)
from launcher.machine.pythons import own_python

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.command.launchers import Command
    from launcher.core.model import Allocation, Binding, Machine, NodeCommand, Topology
    from launcher.engines.wrapped import KnownJob
    from launcher.machine.host import Host
    from launcher.options.reading import Options

OF_TORCH = (TORCHRUN, "accelerate", "deepspeed", "lightning", "fabric", "composer")
"""Engines that start PyTorch processes."""


@frozen
class Request:
    """The user's request, before anything is known about the job.

    Attributes:
        argv: The whole command line of a process; empty if there is no command.
        options: The user's options, including the flags of a launcher that the command is.
        own: The launcher that the command is, if any.
        starter: Evidence that the program to run starts the processes of a node itself.
        notes: Notes about values that could not be read.
    """

    argv: tuple[str, ...]
    options: Options
    own: Command | None = None
    starter: str | None = None
    notes: tuple[str, ...] = ()

    def script_argv(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Return the command line of one process, even if the command starts several of them."""
        if self.own is None:
            return behind_front(self.argv, environ)
        from launcher.command.launchers import find_inner

        return find_inner(self.own, self.argv, own_python(environ))

    @property
    def starts_job(self) -> bool:
        """Whether the command also starts the processes of other nodes."""
        return self.own is not None and self.own.launcher.whole_job

    @property
    def leads(self) -> bool:
        """Whether one command on node 0 starts the processes of all nodes, and the other nodes serve it."""
        return self.tunes or (self.own is None and self.options.text("engine") == MPIRUN)

    @property
    def tunes(self) -> bool:
        """Whether the command is DeepSpeed's autotuner."""
        return self.own is not None and self.own.launcher.name == "deepspeed" and self.own.has("autotuning")


def read_request(argv: tuple[str, ...], options: Options, environ: Mapping[str, str]) -> Request:
    """Return the request in a command line.

    Raises:
        UsageError: torchrun or mpirun is to start a command that is a launcher, a launcher comes behind a
            program that we do not know, or the command is srun.
    """
    asked = options.text("engine", "auto")
    if asked == PROCESS:
        return Request(argv, options.without_platforms())
    own = _find_launcher(argv, environ)
    if own is None:
        return Request(argv, options, starter=name_starter(options, None))
    name = own.launcher.name
    if asked in (TORCHRUN, MPIRUN):
        raise UsageError(_two_launchers(options, name))
    from launcher.command.launchers import read_facts

    facts, notes = read_facts(own)
    merged = options.with_inner(facts)
    return Request(argv, merged, own, name_starter(merged, name), tuple(notes))


def _find_launcher(argv: tuple[str, ...], environ: Mapping[str, str]) -> Command | None:
    """Return the launcher that a command line calls, also behind fronts; None for any other."""
    behind = behind_front(argv, environ)
    if behind and behind[0].rpartition("/")[2] == SRUN:
        raise UsageError(_srun_behind(behind))
    if not may_be_launcher(behind):
        if any(word.rpartition("/")[2] in STARTERS for word in behind[1:]):
            from launcher.command.fronts import refuse_unknown

            refuse_unknown(behind)
        return None
    from launcher.command.launchers import find_launcher

    found, count = find_launcher(behind), len(argv) - len(behind)
    return found and replace(found, head=found.head + count, inner=found.inner + count)


def _srun_behind(argv: tuple[str, ...]) -> Problem:
    """Return the problem of a command that is srun: its tasks would all have one RANK, and WORLD_SIZE=1."""
    import shlex

    starts = (n for n, word in enumerate(argv) if is_python(word) or word.endswith(".py") or word in STARTERS)
    place = next((n for n in starts if n), 0)
    line = f"{shlex.join(argv[:place])} launcher run -- {shlex.join(argv[place:])}"
    return Problem(
        "job-per-node",
        "srun starts the tasks of all nodes, and each would get the RANK and WORLD_SIZE of this one launcher",
        "command line",
        line if place else "srun ... launcher run -- COMMAND",
    )


def _two_launchers(options: Options, name: str) -> Problem:
    return Problem(
        "engine-conflict",
        f"{options.origins('engine')[0]}, but the command is {name}, which starts the processes itself",
        "command line and environment",
        f"leave out one of them (--engine {PROCESS} runs {name} like any other command)",
    )


def refuse_per_process(starter: str, local_size: int | None) -> UsageError:
    """Return the error for a starter of a node's processes if the platform has started them already."""
    several = f"{local_size} processes" if local_size and local_size > 1 else "the processes"
    return UsageError(
        Problem(
            "launcher-per-process",
            f"{starter}, which starts the processes of a node, but the platform has started "
            f"{several} of this node already: each would start them again",
            "command line and environment",
            "leave it out: launcher run -- python train.py; or let the platform start one launcher per node",
        )
    )


def count_processes(request: Request, node_count: int | None) -> int | None:
    """Return the number of processes per node from a launcher's own flags; None if they do not say."""
    if request.own is None:
        return None
    from launcher.engines.wrapped import count_own

    return count_own(request.own, node_count)


def refuse_roles(engine: str, roles: str) -> UsageError:
    """Return the error for roles if an agent starts the processes."""
    what = f"{roles} assigns roles to the processes, but {engine} starts identical processes"
    fix = f"leave out one of them (--engine {PROCESS} starts them itself)"
    return UsageError(Problem("engine-conflict", what, "command line and environment", fix))


def refuse_framework(engine: str, options: Options) -> None:
    """Refuse a typed framework if the launcher of another framework starts the processes.

    A framework from a variable is accepted, because the variable may come from an image for other kinds of
    jobs.

    Raises:
        UsageError: That framework would lack its servers, or its processes their ranks.
    """
    named = options.get("framework")
    alien = NOT_TORCH if engine != TORCHRUN or options.text("engine") != TORCHRUN else ("horovod",)
    if named is None or not named.is_typed or engine not in OF_TORCH or named.value not in alien:
        return
    what = f"{named.origin}: {engine} starts the processes, and does not provide what that framework needs"
    asked = options.origins("engine") if engine == TORCHRUN else []
    other = asked[0] if asked else f"what calls for {engine}"
    fix = f"leave out {other} (the launcher starts the processes then), or {named.origin}"
    raise UsageError(Problem("engine-conflict", what, "command line and environment", fix))


def plan_engine(
    request: Request,
    allocation: Allocation,
    topology: Topology,
    machine: Machine,
    environ: Mapping[str, str],
    host: Host,
    binding: Binding,
) -> tuple[Choice, NodeCommand | None]:
    """Return the engine, and its agent unless the launcher itself starts the processes.

    Raises:
        UsageError: The flags or the command do not fit this job.
        Unavailable: torchrun is needed and torch is not installed, or mpirun is needed and missing.
    """
    if request.own is not None:
        from launcher.engines.wrapped import KnownJob

        job = KnownJob(request.own, allocation, topology, request.options, machine, environ, host)
        return _plan_own(request, job)
    choice = choose(behind_front(request.argv, environ), request.options, allocation, environ, host)
    if choice.engine == MPIRUN:
        from launcher.engines import mpirun

        return choice, mpirun.plan_agent(
            request.argv, allocation, topology, request.options, environ, host, binding.mode
        )
    if choice.engine != TORCHRUN:
        return choice, None
    from launcher.engines import torchrun

    parts = (allocation, topology, request.options, machine, environ, host, binding)
    return choice, torchrun.plan_agent(choice.python, request.argv, *parts)


def _plan_own(request: Request, job: KnownJob) -> tuple[Choice, NodeCommand]:
    """Return the launcher that the command is, and how to run it."""
    name = job.command.launcher.name
    if request.tunes:
        from launcher.engines import autotuning

        why = "the command is DeepSpeed's autotuner, run on node 0"
        return Choice(name, why), autotuning.plan_agent(job, request.argv)
    from launcher.engines import wrapped

    return Choice(name, f"the command is {name}, run once per node"), wrapped.plan_agent(job, request.argv)
