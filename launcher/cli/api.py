"""The Python API: what ``launcher run`` does before exec, for an interpreter that already runs."""

from __future__ import annotations

import os
import sys

from launcher.command.line import is_python
from launcher.machine.host import Host
from launcher.options.reading import read_options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.model import Companion, Plan, Process, Topology

_topology: Topology | None = None


def setup() -> Topology:
    """Give this interpreter the variables that a process of the job must see; return its place.

    Call it before anything reads RANK or MASTER_ADDR, e.g. at the top of a training script. A second
    call changes nothing and returns the same topology. Flags are taken from LAUNCHER_* variables.

    Raises:
        EnvironmentUntrusted: The environment is contradictory or incomplete; the message says what
            to correct. Nothing has been changed then.
        UsageError: This node should run several processes, and this interpreter is one of them at
            most: start the script with ``launcher run`` instead.
    """
    global _topology
    if _topology is None:
        from launcher.guest import arm
        from launcher.planning.plan import plan_job
        from launcher.planning.settings import choose_one

        arm()
        host, words = Host(), read_own_command()
        options = read_options({}, os.environ, host)
        plan = plan_job(os.environ, host, options, words)
        if plan.meeting is not None:
            from launcher.cluster.address_exchange import meet

            plan = plan_job(os.environ, host, options, words, met=meet(plan.meeting, os.environ))
        _apply(plan, choose_one(plan, "launcher.setup()", met=True))
        _topology = plan.topology
    return _topology


def read_own_command() -> tuple[str, ...]:
    """Return the command line of this Python, whose script tells which framework it is of; else nothing."""
    words = tuple(sys.orig_argv)
    return words if words and is_python(words[0]) else ()


def _apply(plan: Plan, one: Process | Companion) -> None:
    from launcher.planning.settings import render_environ
    from launcher.process.memory_files import name_files

    (result,) = name_files(plan, [render_environ(plan, one, os.environ)], becomes=True)
    for name in os.environ.keys() - result.keys():
        os.environ.pop(name, None)
    for name, value in result.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    cpus = plan.processes[0].cpus if plan.processes else None
    if cpus:
        from launcher.process.execute import keep_to

        keep_to(cpus)
