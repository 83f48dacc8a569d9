"""Table of the frameworks, and the variables that all of them together give a process.

Every job gets the variables that are harmless to other frameworks. Misleading variables, and costly parts
(checks, servers), are only for a job of that framework: one that a flag, the command or the script names.

A framework's file has the functions ``plan_common(case)`` and ``plan_process(case, place)``, which return
settings. A framework with servers has ``plan_companions(case)``, which returns the processes beside the
ranks. One with checks has ``check(case)``, which returns notes and may raise errors. One whose processes may
become jobs of their own has ``warn(case)``. TensorFlow, which assigns roles, has more: see the calls of
``plan_*`` here.

Source: docs/frameworks.md has the variables, and their readers.
"""

from __future__ import annotations

from launcher.frameworks import accelerate, deepspeed, horovod, jax, lightning, open_mpi
from launcher.frameworks.horovod_meeting import NAME as HOROVOD
from launcher.options.flags import ROLE_FLAGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from launcher.core.model import Allocation, Companion, Meeting, Place, Setting, Topology
    from launcher.frameworks.case import Case
    from launcher.machine.host import Host
    from launcher.options.reading import Options

ALWAYS = (accelerate, deepspeed, horovod, jax, lightning, open_mpi)
"""Frameworks with variables in every job, besides PyTorch's contract."""
CHECKED = (lightning,)
"""Frameworks with checks before the start."""
WARNING = (accelerate, jax)
"""Frameworks whose processes can silently become jobs of their own, which succeed."""


def plan_common(case: Case) -> list[Setting]:
    """Return the settings that are the same for all processes of this node."""
    return [setting for framework in _list_all(case) for setting in framework.plan_common(case)]


def plan_topology(options: Options, allocation: Allocation, environ: Mapping[str, str]) -> Topology | None:
    """Return the shape of a job whose framework assigns roles; None for any other."""
    named = _find_tensorflow(options, allocation)
    shape: Topology | None = named and named.plan_topology(options, allocation, environ)
    return shape


def name_roles(options: Options) -> str | None:
    """Return the origin of the user's request for roles; None without one.

    One launcher per node assigns them.
    """
    given = [options.get(dest) for dest in ROLE_FLAGS]
    return next((flag.origin for flag in given if flag is not None), None)


def name_origins(options: Options) -> dict[str, str]:
    """Return the origins of facts about ranks that follow from roles, by their names; empty without roles."""
    given = ", ".join(options.origins(*ROLE_FLAGS))
    return dict.fromkeys(("world_size", "local_size", "rank", "local_rank"), given) if given else {}


def plan_companions(case: Case) -> list[Companion]:
    """Return the processes beside the ranks of this node: the servers of the framework that is named."""
    named = _find_tensorflow(case.options, case.allocation)
    if named is None and case.options.framework == HOROVOD:
        return horovod.plan_companions(case)
    companions: list[Companion] = named.plan_companions(case) if named else []
    return companions


def plan_ports(case: Case) -> tuple[tuple[int, str], ...]:
    """Return the ports that processes of this node will listen on, with the names of the processes."""
    named = _find_tensorflow(case.options, case.allocation)
    ports: tuple[tuple[int, str], ...] = named.plan_ports(case) if named else ()
    return ports


def plan_meeting(case: Case) -> Meeting | None:
    """Return the address exchange for a framework that needs all nodes' addresses; None if not needed."""
    named = _find_tensorflow(case.options, case.allocation)
    meeting: Meeting | None = named and named.plan_meeting(case)
    return meeting


def bears_losses(case: Case) -> bool:
    """Whether the framework continues without a lost process, and decides itself how the job ends."""
    named = _find_tensorflow(case.options, case.allocation)
    return bool(named and named.bears_losses(case))


def plan_process(case: Case, place: Place) -> list[Setting]:
    """Return the settings that differ between processes."""
    return [setting for framework in _list_all(case) for setting in framework.plan_process(case, place)]


def plan_wrapped(case: Case) -> list[Setting]:
    """Return settings for the processes of a command that is a launcher: the same for the whole node."""
    alike = [accelerate, lightning, *([jax] if jax.is_distributed(case.script) else [])]
    return [setting for framework in alike for setting in framework.plan_common(case)]


def plan_argv(case: Case) -> tuple[str, ...]:
    """Return the command line with which a process is started."""
    return horovod.plan_argv(case)


def check(case: Case) -> tuple[str, ...]:
    """Return the notes on the job's framework.

    Raises:
        UsageError: The framework cannot work in this job.
    """
    named = _find_tensorflow(case.options, case.allocation)
    checked = [*CHECKED, named] if named else [*CHECKED]
    return tuple(note for framework in checked for note in framework.check(case))


def warn(case: Case, host: Host) -> tuple[str, ...]:
    """Return the warnings for the start about problems that would go unnoticed later.

    Raises:
        UsageError: Each process would certainly be a job of its own.
    """
    alone: tuple[str, ...] = ()
    if case.topology.world_size != 1 and case.script.modules:
        from launcher.frameworks.worlds import check_worlds

        alone = check_worlds(case, host)
    return (*alone, *(note for framework in WARNING for note in framework.warn(case)))


def _list_all(case: Case) -> list[Any]:
    roles = _find_tensorflow(case.options, case.allocation)
    return [*ALWAYS, roles] if roles else [*ALWAYS]


def _find_tensorflow(options: Options, allocation: Allocation) -> Any:
    """Return TensorFlow's module for a TensorFlow job or task; loaded only for these."""
    if not allocation.task and options.framework != "tensorflow":
        return None
    from launcher.frameworks import tensorflow

    return tensorflow
