"""What is in this node: one file per kind of part."""

from __future__ import annotations

from launcher.host import Host
from launcher.machine.gpus import count_visible_gpus
from launcher.model import Machine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def read_machine(host: Host, environ: Mapping[str, str]) -> Machine:
    """Read what planning needs of a node; what cannot be read is None."""
    bound = host.affinity()
    return Machine(
        gpu_count=count_visible_gpus(host.gpu_count(), environ.get("CUDA_VISIBLE_DEVICES")),
        cpu_count=host.granted_cpus(),
        bound_cpu_count=None if bound is None else len(bound),
    )
