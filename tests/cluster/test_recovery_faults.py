"""Random faults in the recovery of a job: no two attempts at once, one truth, nothing left, no hang.

The default suite has the first seed, the thorough one all, with more than 200 faults. To run other seeds:
``LAUNCHER_FAULT_SEEDS=100-140``.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.rehearse.cluster import Cluster
from tests.cluster.conftest import need_namespaces
from tests.cluster.faults import World, check, run

pytestmark = [pytest.mark.root]

SEEDS = 64


def find_seeds() -> range:
    """Return the seeds that run."""
    asked = os.environ.get("LAUNCHER_FAULT_SEEDS")
    if asked:
        first, _, last = asked.partition("-")
        return range(int(first), int(last or first) + 1)
    return range(SEEDS)


@pytest.mark.parametrize("seed", find_seeds())
def test_whatever_fails_while_a_job_recovers(seed: int, tmp_path: Path) -> None:
    """Three or four faults at random moments; `tests.cluster.faults.check` has what must be true."""
    need_namespaces()
    with Cluster(7) as cluster:
        world = World(cluster, tmp_path, seed)
        try:
            check(world, run(world))
        finally:
            world.close()
            print(f"seed {seed}: {world.count} faults", *world.story, sep="\n  ")
