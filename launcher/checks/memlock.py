"""Checks the limit of locked memory: RDMA devices need memory pages that are never moved.

With a limit, ``ibv_reg_mr`` fails ("Cannot allocate memory"). NCCL then exits, and other libraries may fall
back to TCP silently. The capability IPC_LOCK lifts the limit.

Source: getrlimit(2), RLIMIT_MEMLOCK; Linux drivers/infiniband/core/umem.c (ib_umem_get: the capability
counts in the first user namespace only); NCCL user guide, "Troubleshooting".
"""

from __future__ import annotations

from launcher.checks.case import CheckedNode
from launcher.checks.finding import Findings, fail, ok, warn
from launcher.checks.nofile import read_limit
from launcher.core.errors import say_size
from launcher.machine.host import Host
from launcher.machine.infiniband import is_usable

WHAT = "locked memory (ulimit -l)"
LOCKED = "Max locked memory"
IPC_LOCK = 14
ALL_USERS = ["0", "0", "4294967295"]
"""The only line of /proc/self/uid_map in the first user namespace."""


def look(case: CheckedNode) -> Findings:
    """Check that there is no limit, as RDMA needs."""
    limit = read_limit(case.host, LOCKED)
    if limit is None:
        return
    active = [port for port in case.ports if port.state == "ACTIVE"]
    if limit.soft is None:
        yield ok(WHAT, "unlimited")
    elif _is_exempt(case.host):
        yield ok(WHAT, f"{say_size(limit.soft)}, lifted by the capability IPC_LOCK")
    elif not active:
        yield ok(WHAT, f"{say_size(limit.soft)}, and no RDMA device that needs more")
    else:
        report = fail if any(is_usable(port) or port.driver == "efa" for port in active) else warn
        devices = ", ".join(dict.fromkeys(port.device for port in active))
        raised = "ulimit -l unlimited, before the launcher"
        lasting = "memlock unlimited in /etc/security/limits.conf, or LimitMEMLOCK=infinity for the service"
        fix = case.option(
            "--ulimit memlock=-1 --cap-add IPC_LOCK",
            kubernetes="securityContext: {capabilities: {add: [IPC_LOCK]}} for the container",
            machine=raised if limit.hard is None else lasting,
        )
        yield report(WHAT, f"unlimited, for RDMA by {devices}", say_size(limit.soft), fix)


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
