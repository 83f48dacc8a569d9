"""How many CPUs the cgroup grants, whatever the affinity mask that somebody left us says.

mpirun binds each process it starts to one core when there are one or two of them; the cgroup's
cpuset is what the container really has, and a quota (Docker's ``--cpus``) bounds it further.

Source: Linux Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/cpusets.rst.
"""

from __future__ import annotations

from launcher.host import Host
from launcher.machine.cgroup import cgroup_folders

ONLINE = "/sys/devices/system/cpu/online"


def read_granted_cpus(host: Host) -> int | None:
    """Return the number of CPUs that this container may use, at least 1; None if unreadable."""
    folders = cgroup_folders(host, "cpu", "cpuset")
    cpus = _first_cpu_list(host, folders)
    if cpus is None:
        return None
    quota = _smallest_quota(host, folders)
    return max(1, min(cpus, quota)) if quota else cpus


def _first_cpu_list(host: Host, folders: list[str]) -> int | None:
    names = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")
    for path in [f"{folder}/{name}" for folder in folders for name in names] + [ONLINE]:
        count = count_cpu_list(host.read_text(path) or "")
        if count:
            return count
    return None


def count_cpu_list(text: str) -> int:
    """Return how many CPUs a kernel list such as ``0-3,8,10-11`` names; 0 if it is not one."""
    count = 0
    for part in text.strip().split(","):
        low, dash, high = part.partition("-")
        if not (low.isdecimal() and (not dash or high.isdecimal()) and len(part) < 16):
            return 0
        size = int(high or low) - int(low) + 1
        if size < 1:
            return 0
        count += size
    return count


def _smallest_quota(host: Host, folders: list[str]) -> int | None:
    quotas = [quota for folder in folders for quota in [_quota(host, folder)] if quota]
    return min(quotas, default=None)


def _quota(host: Host, folder: str) -> int | None:
    text = host.read_text(f"{folder}/cpu.max")
    if text is None:
        quota = host.read_text(f"{folder}/cpu.cfs_quota_us")
        text = f"{quota} {host.read_text(f'{folder}/cpu.cfs_period_us')}" if quota else ""
    words = text.split()
    if len(words) != 2 or not all(word.isdecimal() for word in words) or words[1] == "0":
        return None
    return -(-int(words[0]) // int(words[1]))  # half a CPU still runs one thread
