"""Kernel counters, read at the start of a job and at its first failure to be compared.

Reading them must stay cheap, because every job pays for it: a few small files and one descriptor, 0.1 ms.
"""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.machine.cgroup import read_memory_events, read_node_oom_kill
from launcher.machine.kernel_log import open_kernel_log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.machine.host import Host
    from launcher.machine.xids import Xid

SHM = "/dev/shm"  # noqa: S108 - only its size is read


@frozen
class Counters:
    """Values of kernel counters at one time; None if unavailable.

    Attributes:
        oom_kill: Number of processes of our cgroup killed for lack of memory.
        limit_hits: Number of times that our cgroup's own memory limit was reached.
        events_file: File with ``oom_kill``.
        node_oom_kill: Number of processes of the whole node killed for lack of memory.
        shm: (size, free) of /dev/shm in bytes.
        kernel_log: Descriptor at our position in the kernel log; closes on exec.
        xids: Errors of the GPUs that NVML has reported since the start.
    """

    oom_kill: int | None = None
    limit_hits: int | None = None
    events_file: str = ""
    node_oom_kill: int | None = None
    shm: tuple[int, int] | None = None
    kernel_log: int | None = None
    xids: tuple[Xid, ...] = ()


def read_counters(host: Host, before: Counters | None = None) -> Counters:
    """Return the present values of the counters. Never raises.

    Args:
        host: This node.
        before: The counters at the start, if these are read at the first failure: the position in the kernel
            log is then that of the start.
    """
    events = read_memory_events(host)
    return Counters(
        events.oom_kill,
        events.limit_hits,
        events.file,
        read_node_oom_kill(host),
        host.space(SHM),
        open_kernel_log(host) if before is None else before.kernel_log,
    )
