"""Checks the limit of open files: each DataLoader worker, connection to a rank and shared tensor needs some.

Source: getrlimit(2), RLIMIT_NOFILE; proc(5), /proc/PID/limits (a name of fixed width, soft limit, hard limit,
unit); PyTorch "Multiprocessing package", "Sharing strategies" (one file
descriptor per shared tensor); Azure's HPC images set 65535.
"""

from __future__ import annotations

from launcher.checks.case import CheckedNode
from launcher.checks.finding import Findings, ok, warn
from launcher.core.frozen import frozen
from launcher.core.ranks import is_number
from launcher.machine.host import Host

WHAT = "open files (ulimit -n)"
ENOUGH = 4096
ADVICE = 65535
LIMITS = "/proc/self/limits"
OPEN_FILES = "Max open files"


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


def look(case: CheckedNode) -> Findings:
    """Compare the limit with the number of files that a job with many workers opens."""
    limit = read_limit(case.host, OPEN_FILES)
    if limit is None:
        return
    if limit.soft is None or limit.soft >= ENOUGH:
        yield ok(WHAT, "unlimited" if limit.soft is None else str(limit.soft))
        return
    reachable = ADVICE if limit.hard is None else min(ADVICE, limit.hard)
    fix = f"ulimit -n {reachable}, before the launcher"
    if reachable < ENOUGH:
        fix = case.option(
            f"--ulimit nofile={ADVICE}:{ADVICE}",
            kubernetes=f"LimitNOFILE={ADVICE} for containerd on the node: a pod cannot ask for it",
            machine=f"nofile {ADVICE} in /etc/security/limits.conf, or LimitNOFILE={ADVICE} for the service",
        )
    yield warn(WHAT, f"{ENOUGH} or more", str(limit.soft), fix)
