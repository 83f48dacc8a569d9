"""From a command and the flags to the engine that starts the processes.

The command line and the platform decide, so that all nodes decide alike. Only two things depend on this node:
the Python that runs torchrun, if torchrun is chosen, and whether we are process 1. Only the chosen engine's
modules are loaded.
"""

from __future__ import annotations

from launcher.command.fronts import look_behind
from launcher.command.launchers import SRUN, find_inner, find_launcher, list_names, read_facts, refuse_unknown
from launcher.command.words import is_python, name_program
from launcher.core.errors import Problem, Unavailable, UsageError
from launcher.core.frozen import frozen, replace
from launcher.core.model import Scope
from launcher.engines import MPIRUN, PROCESS, TORCHRUN
from launcher.identity.rendezvous import STATIC
from launcher.machine.pythons import own_python
from launcher.options.flags import ONLY_TORCHRUN, ROLE_FLAGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from launcher.command.launchers import Command
    from launcher.core.model import Allocation, NodeCommand
    from launcher.frameworks.case import Case
    from launcher.options.reading import Options

OF_MPI = (MPIRUN, "serve", "horovodrun")
"""Engines with which every framework finds its job; all others start PyTorch processes."""
NOT_TORCH = ("tensorflow", "horovod", "jax")
"""Frameworks for which torchrun sets no variables."""


@frozen
class Request:
    """The user's request.

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
            return look_behind(self.argv, environ)
        return find_inner(self.own, self.argv, own_python(environ))

    @property
    def starts_job(self) -> bool:
        """Whether the command also starts the processes of other nodes."""
        return self.own is not None and self.own.starts_job

    @property
    def leads(self) -> bool:
        """Whether one command on node 0 starts the processes of all nodes, and the other nodes serve it."""
        return self.tunes or (self.own is None and self.options.text("engine") == MPIRUN)

    @property
    def tunes(self) -> bool:
        """Whether the command is DeepSpeed's autotuner."""
        return self.own is not None and self.own.name == "deepspeed" and self.own.has("autotuning")


@frozen
class Choice:
    """An engine, the reason for it, and the Python that runs it if it is torchrun."""

    engine: str
    why: str
    python: str = ""


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
        return Request(argv, options, starter=_name_starter(options))
    if asked in (TORCHRUN, MPIRUN):
        raise UsageError(_two_launchers(options, own.name))
    facts, notes = read_facts(own)
    return Request(argv, options.with_inner(facts), own, f"the command is {own.name}", tuple(notes))


def _find_launcher(argv: tuple[str, ...], environ: Mapping[str, str]) -> Command | None:
    """Return the launcher that a command line calls, also behind fronts; None for any other."""
    behind = look_behind(argv, environ)
    if behind and name_program(behind[0]) == SRUN:
        raise UsageError(_srun_behind(behind))
    found, count = find_launcher(behind), len(argv) - len(behind)
    if behind and found is None:
        refuse_unknown(behind)
    return found and replace(found, head=found.head + count, inner=found.inner + count)


def _srun_behind(argv: tuple[str, ...]) -> Problem:
    """Return the problem of a command that is srun: its tasks would all have one RANK, and WORLD_SIZE=1."""
    import shlex

    names = list_names()
    starts = (n for n, word in enumerate(argv) if is_python(word) or word.endswith(".py") or word in names)
    place = next((n for n in starts if n), 0)
    line = f"{shlex.join(argv[:place])} launcher run -- {shlex.join(argv[place:])}"
    return Problem(
        "job-per-node",
        "srun starts the tasks of all nodes, and each would get the RANK and WORLD_SIZE of this one launcher",
        "command line",
        line if place else "srun ... launcher run -- COMMAND",
    )


def _two_launchers(options: Options, name: str) -> Problem:
    asked = options.origins("engine")[0]
    what = f"{asked}, but the command is {name}, which starts the processes itself"
    fix = f"leave out one of them (--engine {PROCESS} runs {name} like any other command)"
    return Problem("engine-conflict", what, "command line and environment", fix)


def _name_starter(options: Options) -> str | None:
    """Return the user's flag for which a program starts the processes of a node itself; None without one.

    A platform's PET_* do not count: they tell how torchrun would be started, not how often.
    """
    calls: dict[str, Callable[[object], bool]] = {
        "engine": lambda value: value in (TORCHRUN, MPIRUN),
        "nnodes": lambda value: isinstance(value, str),  # a range
        "rdzv_backend": lambda value: value not in ("", STATIC),
    }
    for dest in ("engine", *ONLY_TORCHRUN, "nnodes", "rdzv_backend"):
        given = options.get(dest)
        if given is not None and not given.is_platforms and calls.get(dest, bool)(given.value):
            return given.origin
    return None


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
        how = "stays as its parent" if options.switch("stay") else "becomes it"
        return Choice(PROCESS, f"this is one process of the job: the launcher {how}")
    if asked in (PROCESS, MPIRUN):
        if needs:
            raise UsageError(_conflict(options, needs))
        return Choice(asked, f"{options.origins('engine')[0]}")
    if asked == TORCHRUN or needs:
        why = ", ".join(options.origins("engine") if asked == TORCHRUN else needs)
        return Choice(TORCHRUN, why, _find_python(job, why))
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
    argv = look_behind(job.argv, job.environ)
    pythons = [argv[0], ""] if argv and is_python(argv[0]) else [""]
    versions = {python: job.host.find_version(python or None, job.environ, "torch") for python in pythons}
    for known in (True, False):
        for python, version in versions.items():
            if version if known else version is None:
                return python
    raise Unavailable(_no_torch(pythons[0], why))


def refuse_per_process(starter: str, local_size: int | None) -> UsageError:
    """Return the error for a starter of a node's processes if the platform has started them already."""
    several = f"{local_size} processes" if local_size and local_size > 1 else "the processes"
    started = f"the platform has started {several} of this node already: each would start them again"
    what = f"{starter}, which starts the processes of a node, but {started}"
    fix = "leave it out: launcher run -- python train.py; or let the platform start one launcher per node"
    return UsageError(Problem("launcher-per-process", what, "command line and environment", fix))


def refuse_framework(engine: str, options: Options) -> None:
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
    what = f"{refused[0]}: {engine} starts the processes, and does not provide what that needs"
    asked = options.origins("engine") if engine == TORCHRUN else []
    other = asked[0] if asked else f"what calls for {engine}"
    fix = f"leave out {other} (the launcher starts the processes then), or {refused[0]}"
    raise UsageError(Problem("engine-conflict", what, "command line and environment", fix))


def _no_torch(python: str, why: str) -> Problem:
    fix = "fix the job: --nnodes N --node-rank R without --max-restarts and --rdzv-*"
    if "ENGINE" in why.upper():
        fix = f"leave out {why}: the launcher starts the processes then"
    where = f"{python} and the launcher's own Python have" if python else "the launcher's Python has"
    return Problem(
        "torch-missing",
        f"{why}: torchrun has to start this job, and {where} no torch",
        "command line and environment",
        f"install torch there, or {fix}",
    )


def _conflict(options: Options, needs: list[str]) -> Problem:
    what = f"{options.origins('engine')[0]} but {', '.join(needs)}: only torchrun's agent can do that"
    other = f"leave out one of them (on one node --restarts N needs no agent), or pass --engine {TORCHRUN}"
    return Problem("engine-conflict", what, "command line and environment", other)
