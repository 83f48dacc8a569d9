"""Accelerate, and the Trainer of Transformers on top of it: PyTorch's contract is all that they read.

With one exception: where they find no accelerator they join no job unless they are told that CPUs are meant,
and every process trains alone, without a word. So they are told where there is none.

Source: accelerate/state.py, ``PartialState._prepare_backend`` and ``AcceleratorState`` (1.15);
transformers/training_args.py (5.23).
"""

from __future__ import annotations

from launcher.core.model import Place, Policy, Setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.frameworks.case import Case

NAME = "accelerate"
USE_CPU = "ACCELERATE_USE_CPU"
PACKAGES = (NAME, "transformers")
STATE = "PartialState("
"""What holds the place in the job. `Accelerator` tells it of the variable; by itself it reads none."""


def plan_common(case: Case) -> list[Setting]:
    """Return that CPUs are meant, for a job of several processes where there is nothing else."""
    if not _may_fall_apart(case) or case.machine.has_others:
        return []
    return [
        Setting(USE_CPU, "true", "no accelerator: each process would be a job of its own", Policy.IF_UNSET)
    ]


def plan_process(case: Case, place: Place) -> list[Setting]:
    """Return nothing: PyTorch's contract is all that they read."""
    return []


def warn(case: Case) -> tuple[str, ...]:
    """Return a note where the job may fall apart into jobs of one process.

    Only a note: the GPUs that we count are NVIDIA's, and another kind may be there; and a script that makes a
    ``PartialState`` may have made an ``Accelerator`` before.
    """
    if not _may_fall_apart(case):
        return ()
    text = case.script.text
    if not case.machine.has_others and text.count(STATE) > text.count(f"{STATE}cpu=True"):
        return (
            f"{case.script.path} makes a PartialState, which joins no job on CPUs unless it is told so, "
            f"whatever {USE_CPU} says: PartialState(cpu=True), or Accelerator() before it; else each "
            "process is a job of its own",
        )
    if not case.machine.has_others or case.environ.get(USE_CPU):
        return ()
    return (
        f"no NVIDIA GPU: without any accelerator each process is a job of its own, unless {USE_CPU}=1 or "
        "Accelerator(cpu=True) says that CPUs are meant",
    )


def _may_fall_apart(case: Case) -> bool:
    """Whether it is a job of theirs, by name or by its script, on several processes without NVIDIA's GPUs."""
    asked = case.options.framework
    shown = asked == NAME or (not asked and any(case.script.imports(package) for package in PACKAGES))
    return shown and case.topology.world_size != 1 and case.machine.gpu_count == 0
