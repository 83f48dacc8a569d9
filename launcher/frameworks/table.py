"""The frameworks, and what all of them together have a process see.

Their variables do not conflict, so every job gets those that cost nothing; ``--framework`` names one
whose own work is to be done as well (its checks, its servers). A framework's file has the functions
``plan_common(case)`` and ``plan_process(case, place)``, which return settings.

Source: docs/frameworks.md has the variables, and who reads them.
"""

from __future__ import annotations

from launcher.frameworks import horovod, jax, open_mpi
from launcher.frameworks.case import Case
from launcher.model import Place, Setting

ALWAYS = (horovod, jax, open_mpi)
"""Those whose variables are in every job, besides the contract of PyTorch."""


def plan_common(case: Case) -> list[Setting]:
    """Return what is the same for all processes of this node."""
    return [setting for framework in ALWAYS for setting in framework.plan_common(case)]


def plan_process(case: Case, place: Place) -> list[Setting]:
    """Return what differs from process to process."""
    return [setting for framework in ALWAYS for setting in framework.plan_process(case, place)]
