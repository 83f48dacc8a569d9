"""Starters of processes beside those of `tests.unit.platforms_model`, in its terms.

`EVERY` holds the platforms of both; a row there of the same name stands in place of one here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.unit.platforms_model import PLATFORMS, Job, Node, Platform, Start


def _start(job: Job, environ: Callable[[Node, int, int], Mapping[str, str]]) -> list[Start]:
    return [
        Start(node, rank, local, environ(node, rank, local))
        for node, ranks in zip(job.nodes, job.ranks(), strict=True)
        for local, rank in enumerate(ranks)
    ]


def jax_job(job: Job) -> list[Start]:
    """Kubeflow's JAXJob: one process per pod, which has all GPUs of it."""
    return _start(
        job,
        lambda node, rank, local: {
            "PROCESS_ID": str(rank),
            "NUM_PROCESSES": str(job.world),
            "COORDINATOR_ADDRESS": job.nodes[0].hostname,
            "COORDINATOR_PORT": "6666",
            "KUBERNETES_SERVICE_HOST": "10.96.0.1",
        },
    )


ONE_EACH = ("jax-job",)
"""They never start several processes on one node."""
EVERY: dict[str, Platform] = {"jax-job": Platform(jax_job), **PLATFORMS}
