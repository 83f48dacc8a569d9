"""Hook's planner: returns the variables of a process that a platform started without the launcher.

The launcher's own Python loads it, or one of the same version. The plan is that of ``launcher run``. A script
that is one process of the job gets the variables of that process. torchrun gets those of the agent. A script
that stands for a whole node cannot become several processes, and gets only the variables of the node.
"""

from __future__ import annotations

import os

from launcher.command.request import read_request
from launcher.core.environ import is_loopback
from launcher.core.errors import LauncherError
from launcher.core.model import TORCHRUN, Plan, Scope
from launcher.inprocess.marker import TOKEN, is_worker, undo
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
"""Limit of name lookups in seconds: every Python of a job waits for them, each tool of a pipeline too."""


def answer(words: Sequence[str], own_depth: int = 0) -> dict[str, Any]:
    """Return `find_answer` for this process; with a depth of 1, for our parent, whose environment is ours."""
    return find_answer(os.environ, Host(look_up_s=LOOK_UP_S, own_depth=own_depth), words)


def find_answer(environ: Mapping[str, str], host: Host, words: Sequence[str]) -> dict[str, Any]:
    """Return what to do with a process.

    Args:
        environ: Its environment; variables that an outer hook has set are ignored.
        host: The machine.
        words: Its command line.

    Returns:
        ``scope``: ``"process"``, ``"node"`` or ``"torchrun"``; ``set``: variables; ``unset``: names;
        ``files``: words in the values that stand for files, and the text of each file; ``cpus``: CPUs to
        bind to. Or only ``refused``: one line that says why there is no plan.
    """
    platforms = undo(environ)
    try:
        scope, plan, result = _plan(platforms, host, tuple(words))
    except LauncherError as error:
        return {"refused": _explain(error)}
    if is_worker(platforms):  # only a refusal is of use: torchrun's other workers get no variables either
        return {"scope": PROCESS, "set": {}, "unset": [], "files": {}, "cpus": ()}
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
    """Return the scope of this process, the plan, and the environment that it should have.

    Raises:
        LauncherError: The job cannot be planned.
    """
    options = read_options({}, environ, host)
    if read_request(words, options, environ).own is not None:
        plan = plan_job(environ, host, options, words)
        if plan.agent is not None and plan.agent.argv == words and not plan.agent.files:
            return TORCHRUN, plan, apply_settings(environ, plan.agent.unset, plan.agent.settings)
        return _plan_node(environ, host, options)  # it takes flags, which we cannot add any more
    plan = plan_job(environ, host, options, words)
    if plan.allocation.scope is Scope.PROCESS:
        return PROCESS, plan, render_environ(plan, choose_one(plan, HERE), environ)
    if len(plan.processes) + len(plan.companions) == 1 and plan.meeting is None:
        one = choose_one(plan, HERE)
        wanted = add_missing(environ, render_environ(plan, one, environ))
        if words:  # a Python is a rank and needs no token; a shell may start a launcher, which needs it
            wanted.pop(TOKEN, None)
        return NODE, plan, wanted
    return _plan_node(environ, host, options)


def _plan_node(environ: dict[str, str], host: Host, options: Options) -> tuple[str, Plan, dict[str, str]]:
    """Return the variables that describe only the node: those for torchrun, and the master's address.

    Raises:
        LauncherError: The job cannot be planned.
    """
    plan = plan_job(environ, host, options, (TORCHRUN,))
    wanted = {setting.name: setting.value for setting in plan.agent.settings} if plan.agent else {}
    topology = plan.topology
    if topology.spans_nodes and topology.master_addr and not is_loopback(topology.master_addr):
        port = str(topology.master_port)
        wanted.update(MASTER_ADDR=topology.master_addr, MASTER_ADDRESS=topology.master_addr, MASTER_PORT=port)
    if topology.spans_nodes and topology.node_rank is not None:
        wanted["NODE_RANK"] = str(topology.node_rank)
    return NODE, plan, add_missing(environ, wanted)


def add_missing(environ: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Return an environment plus the wanted variables that it lacks or has empty."""
    return {**environ, **{name: value for name, value in wanted.items() if not environ.get(name)}}


def _choose_cpus(plan: Plan, scope: str) -> tuple[int, ...]:
    """Return the CPUs to bind the process to; empty for no change.

    They may exceed the cgroup's CPUs: the kernel ignores the others.
    """
    if plan.widen_cpus and scope != PROCESS:
        return tuple(range(CPU_LIMIT))
    return (plan.processes[0].cpus or ()) if scope == PROCESS and plan.processes else ()


def _explain(error: LauncherError) -> str:
    """Return the public part of the first problem and the number of others, as one printable line.

    What is wrong may quote a file that the environment names, which may be the secret of another user.
    """
    from launcher.core.redact import printable, redact

    first = error.problems[0]
    more = f", and {len(error.problems) - 1} more" if len(error.problems) > 1 else ""
    return printable(redact(f"[{first.code}] {first.where}{more}"))
