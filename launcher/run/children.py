"""A plan's processes as they are started: its companions, then its ranks."""

from __future__ import annotations

from launcher.run.memory import name_files
from launcher.run.spawn import Child
from launcher.settings import render_environ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.model import Companion, Plan, Process

NO_RANK = -1


def make_children(plan: Plan, environ: Mapping[str, str]) -> list[Child]:
    """Return what is started on this node, in that order.

    Args:
        plan: A plan in which the launcher starts the processes itself.
        environ: The environment that it was started with.
    """
    all_of_them: list[Companion | Process] = [*plan.companions, *plan.processes]
    rendered = [render_environ(plan, one, environ) for one in all_of_them]
    environments = name_files(plan, rendered, becomes=False)
    split = len(plan.companions)
    companions = [
        Child(
            NO_RANK - index,
            NO_RANK,
            one.argv,
            own,
            one.route,
            called=one.name,
            companion=True,
            finishes=one.finishes,
        )
        for index, (one, own) in enumerate(zip(plan.companions, environments[:split], strict=True))
    ]
    ranks = [
        Child(one.rank, one.local_rank, one.argv, own, route, one.cpus)
        for one, own, route in zip(plan.processes, environments[split:], plan.supervision.routes, strict=True)
    ]
    return [*companions, *ranks]
