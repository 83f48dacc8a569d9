"""JAX: what ``jax.distributed.initialize()`` reads where it is given no arguments.

Source: docs.jax.dev, "Introduction to multi-controller JAX"; jax/_src/distributed.py (0.10).
"""

from __future__ import annotations

from launcher.model import Place, Policy, Setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.frameworks.case import Case


def plan_common(case: Case) -> list[Setting]:
    """Return where process 0 listens, and how many processes there are.

    The port is the master's: of a job in JAX nothing else listens there.
    """
    job = case.topology
    if job.world_size is None or not job.master_addr:
        return []
    host = f"[{job.master_addr}]" if ":" in job.master_addr else job.master_addr
    address = f"{host}:{job.master_port}"
    return [
        Setting("JAX_COORDINATOR_ADDRESS", address, case.origin("master_addr"), Policy.IF_UNSET),
        Setting("JAX_NUM_PROCESSES", str(job.world_size), case.origin("world_size")),
    ]


def plan_process(case: Case, place: Place) -> list[Setting]:
    """Return which process this is."""
    return [Setting("JAX_PROCESS_ID", str(place.rank), case.origin("rank"))]
