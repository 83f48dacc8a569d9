"""The Python API: what ``launcher run`` does before exec, for an interpreter that already runs."""

from __future__ import annotations

import os

from launcher.errors import Problem, UsageError
from launcher.host import Host
from launcher.model import Plan, Topology
from launcher.options import read_options

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
        from launcher.hook import arm
        from launcher.plan import plan_job

        arm()
        options = read_options({}, os.environ)
        plan = plan_job(os.environ, Host(), options, ())
        if plan.meeting is not None:
            from launcher.run.meeting import meet

            plan = plan_job(os.environ, Host(), options, (), met=meet(plan.meeting))
        if len(plan.processes) + len(plan.companions) != 1:
            raise UsageError(_too_many(plan))
        _apply(plan)
        _topology = plan.topology
    return _topology


def _apply(plan: Plan) -> None:
    from launcher.run.memory import name_files
    from launcher.settings import render_environ

    (one,) = plan.companions or plan.processes
    (result,) = name_files(plan, [render_environ(plan, one, os.environ)], becomes=True)
    for name in os.environ.keys() - result.keys():
        os.environ.pop(name, None)
    for name, value in result.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    cpus = plan.processes[0].cpus if plan.processes else None
    if cpus:
        from launcher.run.execute import keep_to

        keep_to(cpus)


def _too_many(plan: Plan) -> Problem:
    return Problem(
        "one-process",
        f"launcher.setup() runs in one process, but this node should run {plan.topology.local_size}",
        "launcher.setup()",
        "launcher run -- python SCRIPT, or LAUNCHER_NPROC_PER_NODE=1 for one process",
    )
