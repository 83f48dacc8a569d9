"""Accelerate, and the Trainer of Transformers, which is based on it: both read only PyTorch's contract.

There is one exception: without an accelerator they join no job unless they are told to use CPUs, and every
process silently trains alone. So they are told if there is no accelerator.

Source: accelerate/state.py, ``PartialState._prepare_backend`` and ``AcceleratorState`` (1.15);
transformers/training_args.py (5.23).
"""

from __future__ import annotations

from launcher.core.model import Policy, Setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.frameworks.case import Case

NAME = "accelerate"
USE_CPU = "ACCELERATE_USE_CPU"
PACKAGES = (NAME, "transformers")
LAUNCHERS = (NAME, "trl")
"""Commands that start Accelerate's processes, whatever can be read of their script."""


def plan_common(case: Case) -> list[Setting]:
    """Return the setting for CPUs, for a job of theirs with several processes and without any accelerator."""
    asked, own = case.options.framework, case.request.own
    is_shown = (own is not None and own.name in LAUNCHERS) or any(map(case.script.imports, PACKAGES))
    is_theirs = asked == NAME or (not asked and is_shown)
    has_accelerator = case.machine.gpu_count != 0 or case.machine.has_others
    if not is_theirs or has_accelerator or case.topology.world_size == 1:
        return []
    why = "no accelerator: each process would be a separate job"
    return [Setting(USE_CPU, "true", why, Policy.IF_UNSET)]
