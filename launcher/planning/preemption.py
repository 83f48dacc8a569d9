"""Finds the metadata service that reports preemption of this machine, if any. Pure."""

from __future__ import annotations

from launcher.core.environ import shorten
from launcher.core.supervision import Preemption
from launcher.machine.azure import CONTEXT, read_context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

AZURE, AWS, GCP = "azure", "aws", "gcp"
BATCH_DEDICATED = "AZ_BATCH_NODE_IS_DEDICATED"  # "false" for a spot or low-priority node
CHEAP = ("lowpriority", "spot")
"""Azure's names for preemptible machines, in lower case and without separators."""


def find_evidence(environ: Mapping[str, str]) -> Preemption | None:
    """Return the service if the platform's variables mark this machine as preemptible; else None.

    Azure Batch and Azure ML set such variables. SageMaker's managed spot training, SkyPilot, Slurm and
    Kubernetes do not: there the user must pass the flag.
    """
    dedicated = environ.get(BATCH_DEDICATED, "")
    if dedicated.strip().lower() == "false":
        return Preemption(AZURE, f"{BATCH_DEDICATED}={shorten(dedicated)!r}")
    priority = read_context(environ, "vm_priority")
    kind = str(priority).lower().replace("_", "").replace("-", "").replace(" ", "")
    if isinstance(priority, str) and kind in CHEAP:
        return Preemption(AZURE, f"{CONTEXT}: vm_priority {shorten(priority)!r}")
    return None
