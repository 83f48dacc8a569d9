"""The frameworks, and what all of them together have a process see.

Their variables do not conflict, so every job gets those that cost nothing; ``--framework`` names one
whose own work is to be done as well (its checks, its servers). A framework's file has the functions
``plan_common(case)`` and ``plan_process(case, place)``, which return settings; one with servers has
``plan_companions(case)``, which returns the processes that run beside the ranks; one with checks has
``check(case)``, which returns what is worth a word, and raises what cannot work.

Source: docs/frameworks.md has the variables, and who reads them.
"""

from __future__ import annotations

from launcher.frameworks import accelerate, deepspeed, horovod, jax, lightning, open_mpi
from launcher.frameworks.case import Case
from launcher.model import Companion, Place, Setting

ALWAYS = (deepspeed, horovod, jax, lightning, open_mpi)
"""Those whose variables are in every job, besides the contract of PyTorch."""
NAMED = (horovod.NAME,)
"""Those with servers: a module that is loaded where they are named, with ``plan_companions(case)``."""
CHECKED = (accelerate, lightning)
"""Those that look at the job before it starts."""


def plan_common(case: Case) -> list[Setting]:
    """Return what is the same for all processes of this node."""
    return [setting for framework in ALWAYS for setting in framework.plan_common(case)]


def plan_companions(case: Case) -> list[Companion]:
    """Return what runs on this node beside the ranks: the servers of the framework that is named."""
    name = case.options.text("framework")
    if name not in NAMED:
        return []
    from importlib import import_module

    companions: list[Companion] = import_module(f"launcher.frameworks.{name}").plan_companions(case)
    return companions


def plan_process(case: Case, place: Place) -> list[Setting]:
    """Return what differs from process to process."""
    return [setting for framework in ALWAYS for setting in framework.plan_process(case, place)]


def plan_argv(case: Case) -> tuple[str, ...]:
    """Return the command line of a process, as it is to be started."""
    return horovod.plan_argv(case)


def check(case: Case) -> tuple[str, ...]:
    """Return what is worth a word about the job's framework.

    Raises:
        UsageError: The job is of a framework that cannot work so.
    """
    return tuple(note for framework in CHECKED for note in framework.check(case))
