"""Readers of this node's hardware and system state, one file per subject.

A value counts only in the kernel's own form, and a snapshot may contain anything: each reader checks what it
reads. Four sources know GPUs: device files, the driver's files, NVML and a snapshot.
"""

from __future__ import annotations

from launcher.core.errors import make_error
from launcher.core.model import Machine
from launcher.machine.cgroup import read_granted_cpus
from launcher.machine.gpus import VISIBLE, count_gpus, count_visible_gpus, find_doubles

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.machine.host import Host


OTHERS = ("kfd", "accel", "hl", "davinci", "neuron", "cambricon_dev", "mtgpu", "renderD")
"""Device file prefixes of AMD, Gaudi, TPUs, Ascend, Trainium and others; Intel's are in /dev/dri."""


def read_machine(host: Host, environ: Mapping[str, str], *, counts: bool = False) -> Machine:
    """Return the devices and CPUs that planning needs; a value that cannot be read is None.

    Args:
        host: The node.
        environ: The environment of the launcher.
        counts: Whether a word (``auto``, ``xpu``) sets the process count, so that all kinds of accelerators
            must be counted.

    Raises:
        EnvironmentUntrusted: CUDA_VISIBLE_DEVICES lists a GPU twice.
    """
    devices = (*host.list_folder("/dev"), *host.list_folder("/dev/dri"))
    bound, exposed, listed = host.affinity(), count_gpus(host), environ.get(VISIBLE)
    doubles = find_doubles(listed) if listed and exposed else []
    if doubles:
        raise make_error("gpu-listed-twice", listed=listed, doubles=", ".join(doubles), count=exposed)
    accelerators: tuple[tuple[str, int | None], ...] = ()
    if counts:
        from launcher.machine.accelerators import count_accelerators

        accelerators = count_accelerators(host, environ)
    return Machine(
        gpu_count=count_visible(host, environ),
        cpu_count=read_granted_cpus(host),
        bound_cpu_count=None if bound is None else len(bound),
        has_others=any(name.startswith(OTHERS) for name in devices),
        accelerators=accelerators,
    )


def count_visible(host: Host, environ: Mapping[str, str]) -> int | None:
    """Return the number of GPUs that CUDA would find. Reads UUIDs only if CUDA_VISIBLE_DEVICES has some."""
    listed, uuids = environ.get(VISIBLE), list[str | None]()
    if "GPU-" in (listed or ""):
        from launcher.machine.numa import read_gpus

        uuids = [gpu.uuid for gpu in read_gpus(host)]
    return count_visible_gpus(count_gpus(host), listed, uuids)
