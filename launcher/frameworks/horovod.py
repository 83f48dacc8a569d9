"""Horovod without MPI: where each process stands. With MPI it asks MPI, and reads none of this.

Source: horovod/runner/gloo_run.py, horovod/common/gloo/gloo_context.cc (0.28).
"""

from __future__ import annotations

from launcher.model import Place, Setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.frameworks.case import Case


def plan_common(case: Case) -> list[Setting]:
    """Return the size of the job, and of this node."""
    values = [
        ("HOROVOD_SIZE", case.topology.world_size, "world_size"),
        ("HOROVOD_LOCAL_SIZE", case.topology.local_size, "local_size"),
    ]
    return [Setting(name, str(value), case.origin(fact)) for name, value, fact in values if value is not None]


def plan_process(case: Case, place: Place) -> list[Setting]:
    """Return where one process stands, in the job and on its node."""
    return [
        Setting("HOROVOD_RANK", str(place.rank), case.origin("rank")),
        Setting("HOROVOD_LOCAL_RANK", str(place.local_rank), case.origin("local_rank")),
    ]
