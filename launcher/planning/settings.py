"""Environment of each process: adds the variables for its frameworks, removes others. Pure."""

from __future__ import annotations

from launcher.core.environ import OWN_JOB_ID
from launcher.core.errors import make_error
from launcher.core.frozen import replace
from launcher.core.model import TORCHRUN, Companion, Place, Plan, PlannedProcess, Policy, Setting
from launcher.core.version import __version__
from launcher.frameworks import starters, table, torch
from launcher.machine.gpus import VISIBLE, name_visible_gpus, share_gpus
from launcher.options.flags import FLAGS
from launcher.sources.launched import MARKER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.core.supervision import Route
    from launcher.frameworks.case import Case

CONSUMED = (
    *(flag.variable for flag in FLAGS),
    *("LAUNCHER_DRY_RUN", "LAUNCHER_REPLAY", "LAUNCHER_CONFIG", "LAUNCHER_TOKEN", "LAUNCHER_HOOKED"),
    *("LAUNCHER_REHEARSED", OWN_JOB_ID, torch.ATTEMPT),
)
"""LAUNCHER_* variables for this launcher only, and not for a launcher inside its processes."""
MARK = Setting(MARKER, __version__, "marks processes of this launcher")
PER_PROCESS = ("expand_args", "local_rank_arg")
"""Flags that give each process its own arguments."""
LOCAL_RANK = "local_rank"
"""An argument that contains this may contain torchrun's macro."""
EMPTY_IS_FATAL = ("TF_CONFIG",)
"""TensorFlow crashes on an empty TF_CONFIG, but works without the variable."""


def plan_settings(case: Case) -> tuple[Setting, ...]:
    """Return the variables that all processes of this node share."""
    threads: list[Setting] = []
    if not case.binding.shares:
        threads = torch.plan_threads(case.topology, case.machine, case.forks, case.environ)
    elastic = [] if case.agent == TORCHRUN else torch.plan_elastic(case)
    return (*torch.plan_common(case), *elastic, *threads, *table.plan_common(case), MARK)


def plan_process(case: Case, place: Place) -> tuple[Setting, ...]:
    """Return the variables of one process."""
    return (
        *case.state(torch.FACTS["torch process"], place),
        *starters.plan_process(case, place),
        *table.plan_process(case, place),
        *_plan_gpus(place, case),
        *torch.plan_bound_threads(case, place),
    )


def plan_one(case: Case, argv: tuple[str, ...], place: Place, common: tuple[Setting, ...]) -> PlannedProcess:
    """Return one process with its own arguments; ``common``: settings that all processes share."""
    own = plan_process(case, place)
    if argv and case.options.origins(*PER_PROCESS):
        from launcher.command.arguments import plan_words

        settings = (*common, *own)
        seen = apply_settings(case.environ, (), settings)
        variables = {setting.name: seen[setting.name] for setting in settings}
        argv = plan_words(argv, place.local_rank, variables, case.options)
    if any(LOCAL_RANK in word for word in argv):
        from launcher.command.arguments import expand_local_rank

        argv = (*argv[:1], *(expand_local_rank(word, place.local_rank) for word in argv[1:]))
    return PlannedProcess(place.rank, place.local_rank, argv, own, case.binding.cpus(place.local_rank))


def _plan_gpus(place: Place, case: Case) -> tuple[Setting, ...]:
    machine, given = case.machine, case.options.get("gpus_per_process")
    visible = case.environ.get(VISIBLE)
    if given is None or not isinstance(given.value, int):
        several = (case.topology.local_size or 1) > 1 and (visible or "").startswith("MIG-")
        names = name_visible_gpus(visible, machine.gpu_count) if several else ()
        if not 0 <= place.local_rank < len(names) > 1:
            return ()
        why = "a process sees only the first instance of a list"
        return (Setting(VISIBLE, names[place.local_rank], why),)
    mine = share_gpus(visible, machine.gpu_count, place.local_rank, given.value)
    if mine is None:
        numbers = {"local_rank": place.local_rank, "each": given.value, "count": machine.gpu_count or 0}
        where = given.origin.partition(" ")[0]
        raise make_error("too-few-gpus", where=where, asked=given.origin, **numbers)
    return (Setting(VISIBLE, mine, given.origin),)


def plan_companions(
    beside: Sequence[Companion], settings: Sequence[Setting], route: Route, environ: Mapping[str, str]
) -> tuple[Companion, ...]:
    """Return a framework's companions with our variables, but none of the ranks'."""
    if not beside:
        return ()
    unset = starters.plan_agent_unset(environ, torch=False, rewritten=False)
    return tuple(
        replace(
            one,
            settings=(*settings, MARK, *one.settings),
            unset=tuple(sorted({*one.unset, *unset})),
            route=route,
        )
        for one in beside
    )


def plan_unset(case: Case) -> tuple[str, ...]:
    """Return the names that no process inherits. At PROCESS scope MPI's own variables are inherited."""
    environ, names = case.environ, [*CONSUMED, *torch.plan_unknown(case.topology)]
    dropped = starters.plan_unset(environ) if case.forks else []
    empty = [name for name in EMPTY_IS_FATAL if environ.get(name) == ""]
    return tuple(sorted({*dropped, *empty, *(name for name in names if name in environ)}))


def render_environ(
    plan: Plan, process: PlannedProcess | Companion, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the whole environment of one process: the inherited one without unset names, plus settings."""
    return apply_settings(environ, *list_changes(plan, process))


def list_changes(
    plan: Plan, process: PlannedProcess | Companion
) -> tuple[tuple[str, ...], tuple[Setting, ...]]:
    """Return the names that one process does not inherit, and all variables that it gets.

    A companion has no rank: it gets neither the ranks' common variables nor those that describe a rank.
    """
    if isinstance(process, Companion):
        return (*plan.unset, *process.unset), process.settings
    return plan.unset, (*plan.settings, *process.settings)


def apply_settings(
    environ: Mapping[str, str], unset: Sequence[str], settings: Sequence[Setting]
) -> dict[str, str]:
    """Return an environment without some names, plus settings."""
    dropped = set(unset)
    result = {name: value for name, value in environ.items() if name not in dropped}
    for setting in settings:
        if setting.policy is Policy.ALWAYS or not result.get(setting.name):
            result[setting.name] = setting.value
    return result


def choose_one(plan: Plan, caller: str, *, met: bool = False) -> PlannedProcess | Companion:
    """Return the only process of a plan, for the running interpreter.

    Args:
        plan: The plan.
        caller: Name of the calling function or program, for messages.
        met: Whether the nodes have exchanged their addresses, if the plan needs that.

    Raises:
        UsageError: The plan has several processes or none, or needs an address exchange first.
    """
    if len(plan.processes) + len(plan.companions) != 1:
        beside = " and ".join(one.name for one in plan.companions)
        more = f" and {beside} beside them" if beside else ""
        raise make_error("one-process", caller=caller, count=plan.topology.local_size, more=more)
    if plan.meeting is not None and not met:
        raise make_error("addresses-not-met", caller=caller)
    (one,) = plan.companions or plan.processes
    return one
