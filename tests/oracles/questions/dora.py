"""Dora: ``get_distrib_spec`` of distrib.py, loaded alone. Stood in for: submitit and its experiments."""

from __future__ import annotations

from typing import Any

from tests.oracles.questions import meeting
from tests.oracles.questions.alone import load_alone, stand_in

stand_in("submitit.slurm.slurm", "dora.xp")
distrib: Any = load_alone("dora/distrib.py", "dora.distrib")


def answer() -> dict[str, Any]:
    """Then the group as its ``init`` makes it."""
    meeting.begin()
    spec = distrib.get_distrib_spec()
    distrib.set_distrib_env()
    meeting.dist.init_process_group("gloo", "env://", world_size=spec.world_size, rank=spec.rank)
    return {**meeting.result(), "local_rank": spec.local_rank}
