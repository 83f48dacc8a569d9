"""A plan's processes as they are started: its companions, then its ranks."""

from __future__ import annotations

from launcher.plan import render_environ
from launcher.run.spawn import Child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.model import Plan

NO_RANK = -1


def make_children(plan: Plan, environ: Mapping[str, str]) -> list[Child]:
    """Return what is started on this node, in that order.

    Args:
        plan: A plan in which the launcher starts the processes itself.
        environ: The environment that it was started with.
    """
    companions = [
        Child(
            NO_RANK - index,
            NO_RANK,
            one.argv,
            render_environ(plan, one, environ),
            one.route,
            called=one.name,
            companion=True,
            finishes=one.finishes,
        )
        for index, one in enumerate(plan.companions)
    ]
    ranks = [
        Child(one.rank, one.local_rank, one.argv, render_environ(plan, one, environ), route, one.cpus)
        for one, route in zip(plan.processes, plan.supervision.routes, strict=True)
    ]
    return [*companions, *ranks]
