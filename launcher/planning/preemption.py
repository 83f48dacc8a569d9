"""Choice of the metadata service that reports preemption of this machine, if any. Pure."""

from __future__ import annotations

from launcher.core.environ import shorten
from launcher.core.supervision import Preemption
from launcher.machine.azure import CONTEXT, read_context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.options.reading import Options

AUTO, OFF = "auto", "off"
AZURE, AWS, GCP = "azure", "aws", "gcp"
BATCH_DEDICATED = "AZ_BATCH_NODE_IS_DEDICATED"  # "false" for a spot or low-priority node
CHEAP = ("lowpriority", "spot")
"""Azure's names for preemptible machines, in lower case and without separators."""


def plan_preemption(options: Options, environ: Mapping[str, str]) -> Preemption | None:
    """Return the service to ask, and why; None for none.

    Args:
        options: The user's options.
        environ: The environment of the launcher.
    """
    asked = options.text("preemption", AUTO)
    if asked == AUTO:
        return find_evidence(environ)
    return None if asked == OFF else Preemption(asked, options.origins("preemption")[0], is_asked=True)


def find_evidence(environ: Mapping[str, str]) -> Preemption | None:
    """Return the service if the platform's variables mark this machine as preemptible; else None.

    Azure Batch and Azure ML set such variables. SageMaker's managed spot training, SkyPilot, Slurm and
    Kubernetes do not: there the user must pass the flag.
    """
    dedicated = environ.get(BATCH_DEDICATED, "")
    if dedicated.strip().lower() == "false":
        return Preemption(AZURE, f"{BATCH_DEDICATED}={shorten(dedicated)!r}")
    priority = read_context(environ, "vm_priority")
    if (
        isinstance(priority, str)
        and priority.lower().replace("_", "").replace("-", "").replace(" ", "") in CHEAP
    ):
        return Preemption(AZURE, f"{CONTEXT}: vm_priority {shorten(priority)!r}")
    return None
