"""Counts the CPUs that the cgroup grants, independently of the affinity mask that we inherited.

mpirun binds each process that it starts to one core if it starts one or two. The cgroup's cpuset is what the
container really has, and a quota (Docker's ``--cpus``) limits it further.

Source: Linux Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/cpusets.rst.
"""

from __future__ import annotations

from launcher.core.ranks import parse_cpu_list, render_ranges
from launcher.machine.cgroup import cgroup_folders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from launcher.machine.host import Host

ONLINE = "/sys/devices/system/cpu/online"


def read_granted_cpus(host: Host) -> int | None:
    """Return the number of CPUs that this container may use, at least 1; None if unreadable."""
    folders = cgroup_folders(host, "cpu", "cpuset")
    cpus = _first_cpu_list(host, folders)
    if not cpus:
        return None
    quota = _smallest_quota(host, folders)
    return max(1, min(len(cpus), quota)) if quota else len(cpus)


def read_cpuset(host: Host) -> frozenset[int]:
    """Return the CPUs of the cgroup, independently of our own affinity mask; empty if unreadable."""
    return _first_cpu_list(host, cgroup_folders(host, "cpuset"))


def _first_cpu_list(host: Host, folders: list[str]) -> frozenset[int]:
    names = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")
    for path in [f"{folder}/{name}" for folder in folders for name in names] + [ONLINE]:
        cpus = parse_cpu_list(host.read_text(path) or "")
        if cpus:
            return cpus
    return frozenset()


def render_cpu_list(cpus: Iterable[int]) -> str:
    """Return CPUs as the kernel and taskset write them: ``0-3,8,10-11``."""
    return render_ranges(cpus).replace(" ", "")


def _smallest_quota(host: Host, folders: list[str]) -> int | None:
    quotas = [quota for folder in folders for quota in [_quota(host, folder)] if quota]
    return min(quotas, default=None)


def _quota(host: Host, folder: str) -> int | None:
    text = host.read_text(f"{folder}/cpu.max")
    if text is None:
        quota = host.read_text(f"{folder}/cpu.cfs_quota_us")
        text = f"{quota} {host.read_text(f'{folder}/cpu.cfs_period_us')}" if quota else ""
    words = text.split()
    if len(words) != 2 or not all(word.isdecimal() and len(word) < 20 for word in words):
        return None
    if not int(words[1]):
        return None
    return -(-int(words[0]) // int(words[1]))  # rounded up: half a CPU still runs one thread
