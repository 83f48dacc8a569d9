"""Table of the frameworks, and the variables that all of them together give a process.

Every job gets the variables that are harmless to other frameworks. Misleading variables, and costly parts
(checks, servers), are only for a job of that framework: one that a flag, the command or the script names.

A framework's file returns settings for all processes of a node (``plan_common``) and for one of them
(``plan_process``). Variables that only state a fact are rows: `Case.state`. Horovod and TensorFlow have
servers, TensorFlow assigns roles, too.

Source: docs/frameworks.md has the variables, and their readers.
"""

from __future__ import annotations

from launcher.frameworks import accelerate, horovod, jax, lightning, starters, torch
from launcher.frameworks.case import Beside
from launcher.frameworks.horovod import NAME as HOROVOD
from launcher.options.flags import ROLE_FLAGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from launcher.core.model import Allocation, Place, Setting, Topology
    from launcher.frameworks.case import Case
    from launcher.options.reading import Options


def plan_common(case: Case) -> list[Setting]:
    """Return the settings that are the same for all processes of this node."""
    return [
        *accelerate.plan_common(case),
        *case.state(torch.FACTS["deepspeed"]),
        *horovod.plan_common(case),
        *jax.plan_common(case),
        *lightning.plan_common(case),
    ]


def plan_topology(options: Options, allocation: Allocation, environ: Mapping[str, str]) -> Topology | None:
    """Return the shape of a job whose framework assigns roles; None for any other."""
    tensorflow = _load_tensorflow(options, allocation)
    return tensorflow.plan_topology(options, allocation, environ) if tensorflow else None


def name_roles(options: Options) -> str:
    """Return the origins of the user's roles, which one launcher per node assigns; empty without any."""
    return ", ".join(given.origin for dest in ROLE_FLAGS if (given := options.get(dest)))


def name_origins(options: Options) -> dict[str, str]:
    """Return the origins of facts about ranks that follow from roles, by their names; empty without roles."""
    roles = name_roles(options)
    return dict.fromkeys(("world_size", "local_size", "rank", "local_rank"), roles) if roles else {}


def plan_beside(case: Case) -> Beside:
    """Return what the framework that is named needs on this node beside the ranks.

    Raises:
        LauncherError: The framework cannot work in this job.
    """
    tensorflow = _load_tensorflow(case.options, case.allocation)
    if tensorflow:
        beside: Beside = tensorflow.plan_beside(case)
        return beside
    return Beside(horovod.plan_companions(case) if case.options.framework == HOROVOD else ())


def plan_process(case: Case, place: Place) -> list[Setting]:
    """Return the settings that differ between processes."""
    asks = starters.OF_MPI if starters.ON_ITP in case.argv else ()
    settings = [
        *horovod.plan_process(case, place),
        *jax.plan_process(case, place),
        *lightning.plan_process(case, place),
        *starters.plan_missing(asks, case, place, f"{starters.ON_ITP} reads it"),
    ]
    tensorflow = _load_tensorflow(case.options, case.allocation)
    return [*settings, *tensorflow.plan_process(case, place)] if tensorflow else settings


def plan_wrapped(case: Case) -> list[Setting]:
    """Return settings for the processes of a command that is a launcher: the same for the whole node."""
    alike = [accelerate, lightning, *([jax] if jax.is_distributed(case.script) else [])]
    return [setting for framework in alike for setting in framework.plan_common(case)]


def _load_tensorflow(options: Options, allocation: Allocation) -> Any:
    """Return TensorFlow's module; it is loaded only for a job or task of TensorFlow, None for any other."""
    if not allocation.task and options.framework != "tensorflow":
        return None
    from launcher.frameworks import tensorflow

    return tensorflow
