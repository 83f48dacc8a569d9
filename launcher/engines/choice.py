"""Chooses the engine: the launcher, torchrun's agent, or a launcher that the command is.

The command line and the platform decide, so that all nodes decide alike. Only two things depend on this node:
the Python that runs torchrun, if torchrun is chosen, and whether we are process 1.
"""

from __future__ import annotations

from launcher.command.line import is_python
from launcher.core.errors import Problem, Unavailable, UsageError
from launcher.core.frozen import frozen
from launcher.core.model import Allocation, Scope
from launcher.identity.rendezvous import STATIC
from launcher.options.flags import ONLY_TORCHRUN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.machine.host import Host
    from launcher.options.reading import Given, Options

PROCESS, TORCHRUN, MPIRUN = "process", "torchrun", "mpirun"
WITH_WORKERS = (TORCHRUN, "accelerate", "deepspeed")
"""Engines whose processes we can identify: each has its own RANK in its environment."""
NOT_TORCH = ("tensorflow", "horovod", "jax")
"""Frameworks for which torchrun sets no variables."""


@frozen
class Choice:
    """An engine, the reason for it, and the Python that runs it if it is torchrun."""

    engine: str
    why: str
    python: str = ""


def name_starter(options: Options, own_launcher: str | None) -> str | None:
    """Return the evidence that the program to run starts the processes of a node itself; None without any.

    Only the user's options count: a platform's PET_* tell how torchrun would be started, not how often.

    Args:
        options: The user's options.
        own_launcher: Name of the launcher that the command is.
    """
    if own_launcher is not None:
        return f"the command is {own_launcher}"
    if options.text("engine") == PROCESS:
        return None
    asked = _users(options, "engine")
    if asked is not None and asked.value in (TORCHRUN, MPIRUN):
        return asked.origin
    return next(iter(_torchruns(options)), None)


def _users(options: Options, dest: str) -> Given | None:
    given = options.get(dest)
    return None if given is None or given.is_platforms else given


def _torchruns(options: Options) -> list[str]:
    """Return the user's flags, as given, that only torchrun can honour with any number of nodes."""
    found = [(dest, _users(options, dest)) for dest in (*ONLY_TORCHRUN, "nnodes", "rdzv_backend")]
    return [
        given.origin
        for dest, given in found
        if given is not None
        and given.value
        and (dest != "nnodes" or isinstance(given.value, str))
        and (dest != "rdzv_backend" or given.value != STATIC)
    ]


def choose(
    argv: tuple[str, ...],
    options: Options,
    allocation: Allocation,
    environ: Mapping[str, str],
    host: Host,
) -> Choice:
    """Return the engine of a job whose command is not a launcher itself.

    Raises:
        UsageError: No engine can honour the flags together.
        Unavailable: torchrun is needed, and torch is not installed.
    """
    asked = options.text("engine", "auto")
    needs = _needs(options, allocation)
    if allocation.scope is Scope.PROCESS and options.switch("stay"):
        return Choice(PROCESS, "this is one process of the job: the launcher stays as its parent")
    if allocation.scope is Scope.PROCESS:
        return Choice(PROCESS, "this is one process of the job: the launcher becomes it")
    if asked in (PROCESS, MPIRUN):
        if needs:
            raise UsageError(_conflict(options, needs))
        return Choice(asked, f"{options.origins('engine')[0]}")
    if asked == TORCHRUN or needs:
        why = ", ".join(options.origins("engine") if asked == TORCHRUN else needs)
        return Choice(TORCHRUN, why, _find_python(argv, environ, host, why))
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


def _find_python(argv: tuple[str, ...], environ: Mapping[str, str], host: Host, why: str) -> str:
    """Return the Python that runs torchrun: the command's, or else our own (empty).

    If it is unknown whether either has torch (in a replay), torchrun will report it itself.
    """
    pythons = [argv[0], ""] if argv and is_python(argv[0]) else [""]
    versions = {python: host.find_version(python or None, environ, "torch") for python in pythons}
    for known in (True, False):
        for python, version in versions.items():
            if version if known else version is None:
                return python
    raise Unavailable(_no_torch(pythons[0], why))


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
    asked = options.origins("engine")[0]
    return Problem(
        "engine-conflict",
        f"{asked} but {', '.join(needs)}: only torchrun's agent can do that",
        "command line and environment",
        f"leave out one of them (on one node --restarts N needs no agent), or pass --engine {TORCHRUN}",
    )
