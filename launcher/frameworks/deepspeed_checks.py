"""Checks of a DeepSpeed job that find errors before its models are loaded.

Loaded for ``--framework deepspeed``, or if the command is DeepSpeed's own.

Source: deepspeed/launcher/runner.py (fetch_hostfile), torch/utils/
cpp_extension.py (_get_build_directory), torch/utils/file_baton.py.
"""

from __future__ import annotations

import os
from contextlib import suppress

from launcher.core.environ import Malformed, parse_int
from launcher.core.errors import NotReady, Problem, UsageError
from launcher.core.frozen import frozen
from launcher.machine.own_names import own_places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.command.launchers import Command
    from launcher.frameworks.case import Case
    from launcher.machine.host import Host

DEFAULT_HOSTFILE = "/job/hostfile"
FILTERS = ("include", "i", "exclude", "e", "num_nodes", "num_gpus", "num_accelerators")
"""Its flags that choose among the nodes and GPUs of the hostfile."""
BUILD_S = 1800.0
"""Seconds after which a build must have been killed: no operation of DeepSpeed takes as long to compile."""
LOCAL = {"btrfs", "ext2", "ext3", "ext4", "overlay", "tmpfs", "xfs", "zfs"}
"""File systems that no other node writes to."""


@frozen
class Entry:
    """A line of a hostfile: a node, and the number of processes there."""

    host: str
    slots: int


def check(case: Case, own: Command | None, host: Host) -> tuple[str, ...]:
    """Return the notes on a DeepSpeed job.

    Args:
        case: The job.
        own: DeepSpeed's command, if the command line is one.
        host: This node.

    Raises:
        UsageError: It would run on other nodes or processes than intended.
        NotReady: It would wait for a build that was killed.
    """
    notes: list[str] = []
    if own is not None:
        notes += check_hostfile(case, own, host)
    lock = find_stale_lock(case, host)
    if lock is not None:
        raise NotReady(_locked(*lock))
    return tuple(notes)


def check_hostfile(case: Case, own: Command, host: Host) -> list[str]:
    """Return the notes on the hostfile that DeepSpeed will read, its default one or the user's.

    Raises:
        UsageError: It names other nodes than the job has, or more processes than this node has GPUs.
    """
    path = own.value("hostfile") or own.value("H")
    nodes = case.allocation.node_count or 1
    if path is None:
        entries = read_hostfile(host.read_text(DEFAULT_HOSTFILE) or "") if nodes == 1 else []
        foreign = [
            entry.host
            for entry in entries
            if entry.host != "localhost" and not own_places(host, (entry.host,))
        ]
        if foreign:
            raise UsageError(_default_hostfile(foreign))
        return []
    if nodes == 1:
        return []  # from here DeepSpeed itself starts the nodes of the file
    text = host.read_text(os.path.abspath(path))
    if text is None and host.is_recorded():
        return []
    entries = read_hostfile(text or "")
    if len(entries) != nodes and not own.has(*FILTERS):
        raise UsageError(_wrong_nodes(path, len(entries), nodes))
    if own.has(*FILTERS) or case.topology.node_rank is None:
        return []
    return check_slots(path, entries[case.topology.node_rank], case.machine.gpu_count or 0)


def check_slots(path: str, entry: Entry, gpu_count: int) -> list[str]:
    """Return a note if the number of processes on this node differs from that of its GPUs.

    Raises:
        UsageError: There are fewer GPUs.
    """
    if not gpu_count or entry.slots == gpu_count:
        return []
    if entry.slots > gpu_count:
        raise UsageError(_too_many_slots(path, entry, gpu_count))
    return [
        f"{path}: {entry.host} slots={entry.slots}, and this node has {gpu_count} GPUs: the others are idle"
    ]


def read_hostfile(text: str) -> list[Entry]:
    """Return the hostfile lines that DeepSpeed understands; it stops by itself at any other."""
    entries = []
    for words in (line.split() for line in text.splitlines()):
        slots = words[1].removeprefix("slots=") if len(words) > 1 else ""
        if not words[:1] or words[0].startswith("#"):
            continue
        with suppress(Malformed):
            entries.append(Entry(words[0], parse_int(slots)))
    return entries


def find_stale_lock(case: Case, host: Host) -> tuple[str, float] | None:
    """Return the lock of a killed build, for which every process would wait, and its age in seconds."""
    for folder in list_build_folders(case, host):
        for name in host.list_folder(folder):
            lock = f"{folder}/{name}/lock"
            age_s = host.age_s(lock)
            if age_s is not None and (age_s > BUILD_S or is_abandoned(lock, host)):
                return lock, age_s
    return None


def is_abandoned(lock: str, host: Host) -> bool:
    """Whether no process has a lock open any more, as the one does that compiles; False if we cannot see all.

    Another node may hold a lock in a network file system, another container one outside of our own root, and
    another user's processes cannot be looked at.
    """
    try:
        found, root = os.stat(host.path(lock)), os.stat(host.path("/"))
    except (OSError, ValueError):
        return False
    sees_all = found.st_dev == root.st_dev or (host.read_text("/proc/2/comm") or "").strip() == "kthreadd"
    mounts = [line.split() for line in (host.read_text("/proc/self/mountinfo") or "").splitlines()]
    device = f"{os.major(found.st_dev)}:{os.minor(found.st_dev)}"
    kinds = {words[words.index("-") + 1] for words in mounts if words[2] == device and "-" in words}
    if not (sees_all and kinds & LOCAL) or os.geteuid() not in (0, found.st_uid):
        return False
    for pid in filter(str.isdecimal, host.list_folder("/proc")):
        for fd in host.list_folder(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if os.path.samestat(os.stat(host.path(f"/proc/{pid}/fd/{fd}")), found):
                    return False
    return host.age_s(lock) is not None  # it was not released meanwhile


def list_build_folders(case: Case, host: Host) -> list[str]:
    """Return the folders in which torch compiles operations: one folder, or one for each Python and CUDA."""
    environ = case.environ
    if environ.get("TORCH_EXTENSIONS_DIR"):
        return [os.path.abspath(environ["TORCH_EXTENSIONS_DIR"])]
    cache = environ.get("XDG_CACHE_HOME") or f"{environ.get('HOME') or host.home()}/.cache"
    root = f"{cache}/torch_extensions"
    return [f"{root}/{name}" for name in host.list_folder(root)]


def _default_hostfile(foreign: list[str]) -> Problem:
    return Problem(
        "default-hostfile",
        f"{DEFAULT_HOSTFILE} exists, and deepspeed reads it by default: it would start processes on "
        f"{', '.join(foreign[:4])}, by ssh, in a job of one node",
        "this node",
        f"for a job of these nodes start the launcher on each with --hostfile {DEFAULT_HOSTFILE}; for this "
        "node alone pass deepspeed a hostfile of its own, or none: deepspeed --hostfile=none ...",
    )


def _wrong_nodes(path: str, found: int, nodes: int) -> Problem:
    return Problem(
        "hostfile-mismatch",
        f"deepspeed --hostfile {path}: {found} nodes that DeepSpeed can read, and the job has {nodes}",
        "command line and environment",
        "one line NAME slots=N for each node, node 0 first; or leave it out: the launcher writes one",
    )


def _too_many_slots(path: str, entry: Entry, gpu_count: int) -> Problem:
    return Problem(
        "hostfile-mismatch",
        f"deepspeed --hostfile {path}: {entry.host} slots={entry.slots}, and this node has {gpu_count} GPUs",
        "command line and this node",
        f"slots={gpu_count}; or leave it out: the launcher writes one",
    )


def _locked(lock: str, age_s: float) -> Problem:
    return Problem(
        "build-locked",
        f"{lock} is {age_s / 60:.0f} minutes old, and what compiled there was killed: every process would "
        "wait for it forever",
        "this node",
        f"rm {lock}",
    )
