"""Makes the child processes of a plan: its companions and ranks, or the agent that starts them."""

from __future__ import annotations

from launcher.planning.settings import render_environ
from launcher.process.memory_files import name_files
from launcher.process.spawn import Child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.core.model import Companion, Plan, PlannedProcess

NO_RANK = -1


def make_children(plan: Plan, environ: Mapping[str, str]) -> list[Child]:
    """Return the processes that this node starts, in order.

    Args:
        plan: A plan in which the launcher stays as the parent.
        environ: The environment that the launcher was started with.
    """
    if plan.agent is not None:
        from launcher.agent.starter import make_agent

        return [make_agent(plan, plan.agent, environ)]
    all_of_them: list[Companion | PlannedProcess] = [*plan.companions, *plan.processes]
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
            serves=one.serves,
        )
        for index, (one, own) in enumerate(zip(plan.companions, environments[:split], strict=True))
    ]
    ranks = [
        Child(one.rank, one.local_rank, one.argv, own, route, one.cpus)
        for one, own, route in zip(plan.processes, environments[split:], plan.supervision.routes, strict=True)
    ]
    return [*companions, *ranks]
