"""What a process must see that a platform has started without the launcher: the hook's question, answered.

Loaded by the launcher's own Python, or one of the same kind. The plan is that of ``launcher run``: of
a script it is the process that the script becomes, of torchrun the agent; of a script that stands for
a whole node, and cannot become several processes, only what describes the node.
"""

from __future__ import annotations

import os

from launcher.core.environ import is_loopback
from launcher.core.errors import LauncherError
from launcher.core.model import Plan, Scope
from launcher.engines.agents import read_request
from launcher.engines.choice import TORCHRUN
from launcher.guest.marker import TOKEN, undo
from launcher.machine.host import Host
from launcher.options.reading import Options, read_options
from launcher.planning.plan import plan_job
from launcher.planning.settings import apply_settings, choose_one, render_environ
from launcher.process.execute import CPU_LIMIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

PROCESS, NODE = Scope.PROCESS.value, Scope.NODE.value
HERE = "the environment hook"
LOOK_UP_S = 2.0
"""Every Python of a job waits for it, each of a pipeline of tools too."""


class _HostOfParent(Host):
    """This machine as our parent sees it."""

    def ancestors(self, limit: int = 4) -> tuple[tuple[str, ...], ...]:
        """Return the command lines of our parent's parent and so on, nearest first."""
        return super().ancestors(limit + 1)[1:]


def answer_here(words: Sequence[str]) -> dict[str, Any]:
    """Return `find_answer` for this process."""
    return find_answer(os.environ, Host(look_up_s=LOOK_UP_S), words)


def answer_for_parent(words: Sequence[str]) -> dict[str, Any]:
    """Return `find_answer` for the process that has started this one, in its environment."""
    return find_answer(os.environ, _HostOfParent(look_up_s=LOOK_UP_S), words)


def find_answer(environ: Mapping[str, str], host: Host, words: Sequence[str]) -> dict[str, Any]:
    """Return what to do with a process.

    Args:
        environ: Its environment; what a hook around it has set does not count.
        host: The machine.
        words: Its command line.

    Returns:
        ``scope``: ``"process"``, ``"node"`` or ``"torchrun"``; ``set``: variables; ``unset``: names;
        ``files``: words among the values, and the texts of the files that stand there; ``cpus``: those
        to keep to. Or ``refused`` alone: why nothing is known of it, in one line.
    """
    platforms = undo(environ)
    try:
        scope, plan, result = _plan(platforms, host, tuple(words))
    except LauncherError as error:
        return {"refused": _say(error)}
    files = dict(plan.network.files) if plan.network else {}
    changed = {name: value for name, value in result.items() if environ.get(name) != value}
    return {
        "scope": scope,
        "set": changed,
        "unset": [name for name in environ if name not in result],
        "files": {word: text for word, text in files.items() if word in changed.values()},
        "cpus": _choose_cpus(plan, scope),
    }


def _plan(environ: dict[str, str], host: Host, words: tuple[str, ...]) -> tuple[str, Plan, dict[str, str]]:
    """Return what kind of process this is, the plan, and the environment that it should have.

    Raises:
        LauncherError: What is wrong.
    """
    options = read_options({}, environ, host)
    if read_request(words, options).own is not None:
        plan = plan_job(environ, host, options, words)
        if plan.agent is not None and plan.agent.argv == words and not plan.agent.files:
            return TORCHRUN, plan, apply_settings(environ, plan.agent.unset, plan.agent.settings)
        return _plan_node(environ, host, options)  # told by flags, which cannot be given any more
    plan = plan_job(environ, host, options, words)
    if plan.allocation.scope is Scope.PROCESS:
        return PROCESS, plan, render_environ(plan, choose_one(plan, HERE), environ)
    if len(plan.processes) + len(plan.companions) == 1 and plan.meeting is None:
        one = choose_one(plan, HERE)
        wanted = add_missing(environ, render_environ(plan, one, environ))
        if words:  # a rank; what a shell runs may be a launcher, as what a whole node's script starts
            wanted.pop(TOKEN, None)
        return NODE, plan, wanted
    return _plan_node(environ, host, options)


def _plan_node(environ: dict[str, str], host: Host, options: Options) -> tuple[str, Plan, dict[str, str]]:
    """Return what describes the node alone: what torchrun is told, and where the master is.

    Raises:
        LauncherError: What is wrong.
    """
    plan = plan_job(environ, host, options, (TORCHRUN,))
    told = {setting.name: setting.value for setting in plan.agent.settings} if plan.agent else {}
    topology = plan.topology
    if topology.spans_nodes and topology.master_addr and not is_loopback(topology.master_addr):
        port = str(topology.master_port)
        told.update(MASTER_ADDR=topology.master_addr, MASTER_ADDRESS=topology.master_addr, MASTER_PORT=port)
    if topology.spans_nodes and topology.node_rank is not None:
        told["NODE_RANK"] = str(topology.node_rank)
    return NODE, plan, add_missing(environ, told)


def add_missing(environ: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with the variables that it lacks, or has empty."""
    return {**environ, **{name: value for name, value in wanted.items() if not environ.get(name)}}


def _choose_cpus(plan: Plan, scope: str) -> tuple[int, ...]:
    """Return the CPUs that the process keeps to (the kernel leaves the cgroup's of them); none: as it is."""
    if plan.widen_cpus and scope != PROCESS:
        return tuple(range(CPU_LIMIT))
    return (plan.processes[0].cpus or ()) if scope == PROCESS and plan.processes else ()


def _say(error: LauncherError) -> str:
    """Return the first of what is wrong, as one line that a terminal can show."""
    from launcher.core.redact import printable, redact

    first = error.problems[0]
    more = f", and {len(error.problems) - 1} more" if len(error.problems) > 1 else ""
    return printable(redact(f"[{first.code}] {first.what}{more}; fix: {first.fix}"))
