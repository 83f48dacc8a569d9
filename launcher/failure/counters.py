"""What the kernel counts: read at the start of a job and at its first failure, and compared.

Stays cheap, since every job pays for it: a few small files and one descriptor, 0.1 ms.
"""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.machine.cgroup import read_memory_events, read_node_oom_kill
from launcher.machine.kernel_log import open_kernel_log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.machine.host import Host

SHM = "/dev/shm"  # noqa: S108 - only its size is read


@frozen
class Counters:
    """What the kernel has counted up to a moment; None where it does not say.

    Attributes:
        oom_kill: Processes of our cgroup that were killed for lack of memory.
        limit_hits: How often our cgroup's own memory limit was reached.
        events_file: Where ``oom_kill`` stands.
        node_oom_kill: Processes of the whole node that were killed for lack of memory.
        shm: (size, free) of /dev/shm in bytes.
        kernel_log: Descriptor at our place in the kernel's log; closes on exec.
    """

    oom_kill: int | None = None
    limit_hits: int | None = None
    events_file: str = ""
    node_oom_kill: int | None = None
    shm: tuple[int, int] | None = None
    kernel_log: int | None = None


def read_counters(host: Host, before: Counters | None = None) -> Counters:
    """Return what the kernel has counted so far. Never raises.

    Args:
        host: The machine.
        before: The counters of the start, when these are read at the first failure: our place in the
            kernel's log is that of the start then.
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
