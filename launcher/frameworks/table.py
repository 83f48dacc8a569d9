"""Table of the frameworks, and the variables that all of them together give a process.

Every job gets the variables that are harmless to other frameworks. Misleading variables, and costly parts
(checks, servers), are only for a job of that framework: one that a flag, the command or the script names.

A framework's file returns settings for all processes of a node (``plan_common``) and for one of them
(``plan_process``), and warns if its processes may become jobs of their own (``warn``). Variables that only
state a fact are rows: `Case.state`. Horovod and TensorFlow have servers, TensorFlow assigns roles, too.

Source: docs/frameworks.md has the variables, and their readers.
"""

from __future__ import annotations

from launcher.frameworks import accelerate, horovod, jax, lightning, starters, torch
from launcher.frameworks.horovod import NAME as HOROVOD
from launcher.options.flags import ROLE_FLAGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from launcher.core.model import Allocation, Companion, Meeting, Place, Setting, Topology
    from launcher.frameworks.case import Case
    from launcher.machine.host import Host
    from launcher.options.reading import Options


def plan_common(case: Case) -> list[Setting]:
    """Return the settings that are the same for all processes of this node."""
    return [
        *accelerate.plan_common(case),
        *case.state(torch.OF_DEEPSPEED),
        *horovod.plan_common(case),
        *jax.plan_common(case),
        *lightning.plan_common(case),
    ]


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
    named = _find_tensorflow(case.options, case.allocation)
    asks = starters.OF_MPI if starters.ON_ITP in case.argv else ()
    return [
        *horovod.plan_process(case, place),
        *jax.plan_process(case, place),
        *lightning.plan_process(case, place),
        *starters.plan_missing(asks, case, place, f"{starters.ON_ITP} reads it"),
        *(named.plan_process(case, place) if named else []),
    ]


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
    notes: tuple[str, ...] = named.check(case) if named else ()
    return notes


def warn(case: Case, host: Host) -> tuple[str, ...]:
    """Return the warnings for the start about problems that would go unnoticed later.

    Raises:
        UsageError: Each process would certainly be a job of its own.
    """
    alone: tuple[str, ...] = ()
    if case.topology.world_size != 1 and case.script.modules:
        from launcher.frameworks.worlds import check_worlds

        alone = check_worlds(case, host)
    return (*alone, *accelerate.warn(case), *jax.warn(case))


def _find_tensorflow(options: Options, allocation: Allocation) -> Any:
    """Return TensorFlow's module for a TensorFlow job or task; loaded only for these."""
    if not allocation.task and options.framework != "tensorflow":
        return None
    from launcher.frameworks import tensorflow

    return tensorflow
