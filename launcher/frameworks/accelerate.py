"""Accelerate, and the Trainer of Transformers on top of it: PyTorch's contract is all that they read.

With one exception: where they find no accelerator they join no job unless they are told that CPUs are meant,
and every process trains alone, without a word.

Source: accelerate/state.py, ``PartialState._prepare_backend`` (1.15); transformers/training_args.py (5.23).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.frameworks.case import Case

NAME = "accelerate"
USE_CPU = "ACCELERATE_USE_CPU"


def check(case: Case) -> tuple[str, ...]:
    """Return a note where the job may fall apart into jobs of one process.

    Only a note: the GPUs that we count are NVIDIA's, and another kind may be there.
    """
    named = case.options.text("framework") == NAME
    alone = case.topology.world_size == 1 or case.machine.gpu_count != 0
    if not named or alone or case.environ.get(USE_CPU):
        return ()
    return (
        f"no NVIDIA GPU: without any accelerator each process is a job of its own, unless {USE_CPU}=1 or "
        "Accelerator(cpu=True) says that CPUs are meant",
    )
