"""Checks of limits of this process: locked memory and open files."""

from __future__ import annotations

from launcher.checks.case import CheckedNode
from launcher.checks.finding import Findings, fail, ok, warn
from launcher.core.errors import say_size
from launcher.core.frozen import frozen
from launcher.core.ranks import is_number
from launcher.machine.host import Host
from launcher.machine.infiniband import is_usable

LOCKED_MEMORY = "locked memory (ulimit -l)"
LOCKED_LIMIT = "Max locked memory"
IPC_LOCK = 14
ALL_USERS = ["0", "0", "4294967295"]
"""The only line of /proc/self/uid_map in the first user namespace."""
FILES = "open files (ulimit -n)"
ENOUGH = 4096
ADVICE = 65535
LIMITS = "/proc/self/limits"
FILES_LIMIT = "Max open files"


@frozen
class Limit:
    """A soft limit and its hard limit; None means unlimited."""

    soft: int | None
    hard: int | None


def read_limit(host: Host, name: str) -> Limit | None:
    """Return one of our limits, in bytes or as a count; None if it cannot be read."""
    for line in (host.read_text(LIMITS) or "").splitlines():
        words = line[len(name) :].split() if line.startswith(name + " ") else []
        if len(words) >= 2 and all(word == "unlimited" or is_number(word, 20) for word in words[:2]):
            soft, hard = (None if word == "unlimited" else int(word) for word in words[:2])
            return Limit(soft, hard)
    return None


def check_memlock(case: CheckedNode) -> Findings:
    """Check the limit of locked memory: RDMA devices need memory pages that are never moved.

    With a limit, ``ibv_reg_mr`` fails ("Cannot allocate memory"). NCCL then exits, and other libraries may
    fall back to TCP silently. The capability IPC_LOCK lifts the limit. Check that there is no limit, as RDMA
    needs.

    Source:
        getrlimit(2), RLIMIT_MEMLOCK; Linux drivers/infiniband/core/umem.c (ib_umem_get: the capability
        counts in the first user namespace only); NCCL user guide, "Troubleshooting".
    """
    limit = read_limit(case.host, LOCKED_LIMIT)
    if limit is None:
        return
    active = [port for port in case.ports if port.state == "ACTIVE"]
    if limit.soft is None:
        yield ok(LOCKED_MEMORY, "unlimited")
    elif _is_exempt(case.host):
        yield ok(LOCKED_MEMORY, f"{say_size(limit.soft)}, lifted by the capability IPC_LOCK")
    elif not active:
        yield ok(LOCKED_MEMORY, f"{say_size(limit.soft)}, and no RDMA device that needs more")
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
        yield report(LOCKED_MEMORY, f"unlimited, for RDMA by {devices}", say_size(limit.soft), fix)


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


def check_nofile(case: CheckedNode) -> Findings:
    """Check the limit of open files: DataLoader workers, connections to ranks and shared tensors need some.

    Compare the limit with the number of files that a job with many workers opens.

    Source:
        getrlimit(2), RLIMIT_NOFILE; proc(5), /proc/PID/limits (a name of fixed width, soft limit, hard
        limit, unit); PyTorch "Multiprocessing package", "Sharing strategies" (one file descriptor per
        shared tensor); Azure's HPC images set 65535.
    """
    limit = read_limit(case.host, FILES_LIMIT)
    if limit is None:
        return
    if limit.soft is None or limit.soft >= ENOUGH:
        yield ok(FILES, "unlimited" if limit.soft is None else str(limit.soft))
        return
    reachable = ADVICE if limit.hard is None else min(ADVICE, limit.hard)
    fix = f"ulimit -n {reachable}, before the launcher"
    if reachable < ENOUGH:
        fix = case.option(
            f"--ulimit nofile={ADVICE}:{ADVICE}",
            kubernetes=f"LimitNOFILE={ADVICE} for containerd on the node: a pod cannot ask for it",
            machine=f"nofile {ADVICE} in /etc/security/limits.conf, or LimitNOFILE={ADVICE} for the service",
        )
    yield warn(FILES, f"{ENOUGH} or more", str(limit.soft), fix)
