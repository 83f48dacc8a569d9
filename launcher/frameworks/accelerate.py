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
STATE = "PartialState("
"""Call of the class with a process's place in the job.

`Accelerator` passes the variable's value to it; by itself it reads no variable.
"""


def plan_common(case: Case) -> list[Setting]:
    """Return the setting for CPUs, for a job of several processes without any accelerator."""
    if not _may_fall_apart(case) or case.machine.has_others:
        return []
    return [
        Setting(USE_CPU, "true", "no accelerator: each process would be a job of its own", Policy.IF_UNSET)
    ]


def warn(case: Case) -> tuple[str, ...]:
    """Return a note if the job may fall apart into jobs of one process.

    It is only a note. We count only NVIDIA GPUs, and there may be another kind; and a script that creates a
    ``PartialState`` may have created an ``Accelerator`` before.
    """
    if not _may_fall_apart(case):
        return ()
    text = case.script.text
    if not case.machine.has_others and text.count(STATE) > text.count(f"{STATE}cpu=True"):
        return (
            f"{case.script.path} makes a PartialState, which joins a job on CPUs only if it is told to, "
            f"whatever {USE_CPU} says: PartialState(cpu=True), or Accelerator() before it; otherwise each "
            "process runs a job of its own",
        )
    if not case.machine.has_others or case.environ.get(USE_CPU):
        return ()
    return (
        f"no NVIDIA GPU: without any accelerator each process is a job of its own, unless {USE_CPU}=1 or "
        "Accelerator(cpu=True) selects CPUs",
    )


def _may_fall_apart(case: Case) -> bool:
    """Whether it is a job of theirs, by name or by its script, with several processes and no NVIDIA GPUs."""
    asked = case.options.framework
    shown = asked == NAME or (not asked and any(case.script.imports(package) for package in PACKAGES))
    return shown and case.topology.world_size != 1 and case.machine.gpu_count == 0
