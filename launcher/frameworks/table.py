"""The frameworks, and what all of them together have a process see.

Every job gets the variables that do no harm to others. What would mislead them, and what is not free (checks,
servers), is for a job of that framework: one that a flag, the command or the script names.

A framework's file has the functions
``plan_common(case)`` and ``plan_process(case, place)``, which return settings; one with servers has
``plan_companions(case)``, which returns the processes that run beside the ranks; one with checks has
``check(case)``, which returns what is worth a word, and may raise what cannot work; one whose processes may
be jobs of their own has ``warn(case)``. TensorFlow, which gives out roles, has more: see what is called
``plan_*`` here.

Source: docs/frameworks.md has the variables, and their readers.
"""

from __future__ import annotations

from launcher.command.line import may_be_shell
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
"""Those whose variables are in every job, besides the contract of PyTorch."""
CHECKED = (lightning,)
"""Those that look at the job before it starts."""
WARNING = (accelerate, jax, lightning)
"""Those whose processes can be jobs of their own, without a word and with success."""


def plan_common(case: Case) -> list[Setting]:
    """Return what is the same for all processes of this node."""
    return [setting for framework in _list_all(case) for setting in framework.plan_common(case)]


def plan_topology(options: Options, allocation: Allocation, environ: Mapping[str, str]) -> Topology | None:
    """Return the shape of a job in which a framework gives out the roles; None for any other."""
    named = _find_tensorflow(options, allocation)
    shape: Topology | None = named and named.plan_topology(options, allocation, environ)
    return shape


def name_roles(options: Options) -> str | None:
    """Return what shows that the user asks for roles, which one launcher per node gives out."""
    given = [options.get(dest) for dest in ROLE_FLAGS]
    return next((flag.origin for flag in given if flag is not None), None)


def name_origins(options: Options) -> dict[str, str]:
    """Return where the facts about ranks come from that roles give, by their names; empty without roles."""
    given = ", ".join(options.origins(*ROLE_FLAGS))
    return dict.fromkeys(("world_size", "local_size", "rank", "local_rank"), given) if given else {}


def plan_companions(case: Case) -> list[Companion]:
    """Return what runs on this node beside the ranks: the servers of the framework that is named."""
    named = _find_tensorflow(case.options, case.allocation)
    if named is None and case.options.framework == HOROVOD:
        return horovod.plan_companions(case)
    companions: list[Companion] = named.plan_companions(case) if named else []
    return companions


def plan_ports(case: Case) -> tuple[tuple[int, str], ...]:
    """Return the ports that processes of this node will listen on, and what they are called."""
    named = _find_tensorflow(case.options, case.allocation)
    ports: tuple[tuple[int, str], ...] = named.plan_ports(case) if named else ()
    return ports


def plan_meeting(case: Case) -> Meeting | None:
    """Return how the nodes tell each other what the framework must know of all; None if it knows already."""
    named = _find_tensorflow(case.options, case.allocation)
    meeting: Meeting | None = named and named.plan_meeting(case)
    return meeting


def bears_losses(case: Case) -> bool:
    """Whether a framework goes on without a process that is lost, and decides itself how the job ends."""
    named = _find_tensorflow(case.options, case.allocation)
    return bool(named and named.bears_losses(case))


def plan_process(case: Case, place: Place) -> list[Setting]:
    """Return what differs from process to process."""
    return [setting for framework in _list_all(case) for setting in framework.plan_process(case, place)]


def plan_wrapped(case: Case) -> list[Setting]:
    """Return what reaches the processes of a command that is a launcher: the same for all of the node."""
    alike = [accelerate, lightning, *([jax] if jax.is_distributed(case.script) else [])]
    return [setting for framework in alike for setting in framework.plan_common(case)]


def plan_argv(case: Case) -> tuple[str, ...]:
    """Return the command line of a process, as it is to be started."""
    return horovod.plan_argv(case)


def check(case: Case) -> tuple[str, ...]:
    """Return what is worth a word about the job's framework.

    Raises:
        UsageError: The job is of a framework that cannot work so.
    """
    named = _find_tensorflow(case.options, case.allocation)
    checked = [*CHECKED, named] if named else [*CHECKED]
    return tuple(note for framework in checked for note in framework.check(case))


def warn(case: Case, host: Host) -> tuple[str, ...]:
    """Return what must be said at the start, because it would not be noticed later.

    Raises:
        UsageError: Each process would certainly be a job of its own.
    """
    alone: tuple[str, ...] = ()
    has_script = case.script.text or case.script.modules or may_be_shell(case.argv)
    if case.topology.world_size != 1 and has_script:
        from launcher.frameworks.worlds import check_worlds

        alone = check_worlds(case, host)
    return (*alone, *(note for framework in WARNING for note in framework.warn(case)))


def _list_all(case: Case) -> list[Any]:
    roles = _find_tensorflow(case.options, case.allocation)
    return [*ALWAYS, roles] if roles else [*ALWAYS]


def _find_tensorflow(options: Options, allocation: Allocation) -> Any:
    """Return TensorFlow's module for a job, or a task, of it: loaded for nothing else."""
    if not allocation.task and options.framework != "tensorflow":
        return None
    from launcher.frameworks import tensorflow

    return tensorflow
