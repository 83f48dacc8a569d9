"""Checks the limit of locked memory: RDMA devices need memory pages that are never moved.

With a limit, ``ibv_reg_mr`` fails ("Cannot allocate memory"). NCCL then exits, and other libraries may fall
back to TCP silently. The capability IPC_LOCK lifts the limit.

Source: getrlimit(2), RLIMIT_MEMLOCK; Linux drivers/infiniband/core/umem.c (ib_umem_get: the capability
counts in the first user namespace only); NCCL user guide, "Troubleshooting".
"""

from __future__ import annotations

from launcher.checks.case import CheckedNode
from launcher.checks.finding import PROBLEM, WARNING, Finding, ok
from launcher.checks.nofile import read_limit
from launcher.checks.runtime import option
from launcher.core.errors import say_size
from launcher.machine.host import Host
from launcher.machine.infiniband import is_usable

WHAT = "locked memory (ulimit -l)"
LOCKED = "Max locked memory"
IPC_LOCK = 14
ALL_USERS = ["0", "0", "4294967295"]
"""The only line of /proc/self/uid_map in the first user namespace."""


def look(case: CheckedNode) -> list[Finding]:
    """Check that there is no limit, as RDMA needs."""
    limit = read_limit(case.host, LOCKED)
    if limit is None:
        return []
    if limit.soft is None:
        return [ok("memlock", WHAT, "unlimited")]
    found = say_size(limit.soft)
    if _is_exempt(case.host):
        return [ok("memlock", WHAT, f"{found}, lifted by the capability IPC_LOCK")]
    active = [port for port in case.ports if port.state == "ACTIVE"]
    if not active:
        return [ok("memlock", WHAT, f"{found}, and no RDMA device that needs more")]
    level = PROBLEM if any(is_usable(port) or port.driver == "efa" for port in active) else WARNING
    devices = ", ".join(dict.fromkeys(port.device for port in active))
    can_raise = limit.hard is None
    fix = option(
        case.runtime,
        "--ulimit memlock=-1 --cap-add IPC_LOCK",
        kubernetes="securityContext: {capabilities: {add: [IPC_LOCK]}} for the container",
        machine="ulimit -l unlimited, before the launcher"
        if can_raise
        else "memlock unlimited in /etc/security/limits.conf, or LimitMEMLOCK=infinity for the service",
    )
    return [Finding("memlock", level, WHAT, f"unlimited, for RDMA by {devices}", found, fix)]


def _is_exempt(host: Host) -> bool:
    """Whether we have IPC_LOCK in the initial user namespace, the only one where it counts."""
    lines = (host.read_text("/proc/self/status") or "").splitlines()
    masks = [line.split()[1:] for line in lines if line.startswith("CapEff:")]
    if (host.read_text("/proc/self/uid_map") or "").split() != ALL_USERS or not masks or not masks[0]:
        return False
    try:
        return bool(int(masks[0][0], 16) >> IPC_LOCK & 1)
    except ValueError:
        return False
