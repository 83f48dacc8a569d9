"""Checks of the user's account, disks and the clock."""

from __future__ import annotations

import os
import time

from launcher.checks.case import CheckedNode
from launcher.checks.finding import Findings, fail, ok, warn
from launcher.core.errors import say_size
from launcher.machine.host import Host

USER_NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")
"""Variables that Python's getpass.getuser reads before the accounts."""
TEMPORARY = ("/tmp", "/var/tmp", "/usr/tmp")  # noqa: S108 - only looked at
WRITABLE = "a writable directory"
LITTLE_BYTES = 1 << 30
NOTHING_BYTES = 100 << 20
CLOCK = "clock"
YEARS = (2025, 2100)
"""Plausible years: this code is newer than the first; a clock without a battery begins in 1970 or 2000."""
TIMESYNC = "/run/systemd/timesync"
MARK = "synchronized"
TIME_ERROR = 5
STRUCT_BYTES = 512
"""Larger than struct timex on any platform. A buffer of zeros is a query that changes nothing."""


def check_account(case: CheckedNode) -> Findings:
    """Check the user's account and directories: an arbitrary uid (``docker run --user``, OpenShift) has none.

    Check the account's name, the home directory and the directories for temporary files.

    Source:
        getpass.getuser, os.path.expanduser and tempfile.gettempdir of Python; torch's compiler names its
        cache directory by getpass.getuser.
    """
    if not case.host.home() and not any(case.environ.get(name) for name in USER_NAMES):
        found = "none: getpass.getuser() and torch.compile fail"
        fix = "set USER to any name: -e USER=trainer; or add the uid to /etc/passwd in the image"
        yield warn("user name", "an entry in /etc/passwd, or USER", found, fix)
    home = case.environ.get("HOME") or case.host.home()
    if home and _can_write(home):
        yield ok("home directory", home)
    else:
        found = f"{home} cannot be written" if home else "none"
        caches = "caches of Hugging Face, torch and pip are below it"
        fix = f"set HOME to a writable directory: -e HOME=/tmp/home; {caches}"
        yield warn("home directory", WRITABLE, found, fix)
    asked = case.environ.get("TMPDIR")
    if asked and not _can_write(asked):
        fix = f"mkdir -p {asked}, or unset TMPDIR"
        yield warn("temporary directory", WRITABLE, f"TMPDIR={asked} cannot be written", fix)
    elif not asked and not any(map(_can_write, TEMPORARY)):
        fix = "set TMPDIR to a writable directory, or mount one: --tmpfs /tmp"
        yield fail("temporary directory", WRITABLE, f"none of {', '.join(TEMPORARY)}", fix)


def _can_write(path: str) -> bool:
    """Whether a directory exists and we can make files in it."""
    return os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK)


def check_disk(case: CheckedNode) -> Findings:
    """Check disk space: if a log cannot be written, the last output of a job is lost.

    Check the directories of log files, if any, and of temporary files.

    Source:
        statvfs(3).
    """
    temporary = case.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - only its space is read
    places = (("log files", case.log_dir, "--log-dir DIR"), ("temporary files", temporary, "TMPDIR"))
    for files, folder, setting in places:
        space = _space(case.host, folder) if folder else None
        if space is None:
            continue
        free = space[1]
        what, found = f"space for {files}", f"{say_size(free)} free in {folder}"
        if free >= LITTLE_BYTES:
            yield ok(what, found)
            continue
        report = fail if free < NOTHING_BYTES else warn
        fix = f"free the disk, or name another one with {setting}"
        yield report(what, f"{say_size(LITTLE_BYTES)} or more", found, fix)


def _space(host: Host, folder: str) -> tuple[int, int] | None:
    """Return (size, free) in bytes for a directory; if it does not exist yet, for its nearest parent."""
    path = os.path.abspath(folder)
    while True:
        space, above = host.space(path), os.path.dirname(path)
        if space is not None or above == path:  # "/", or "//", which is a different root in POSIX
            return space
        path = above


def read_clock(host: Host) -> tuple[float, bool | None]:
    """Return the seconds since 1970, and whether this node's clock is synchronized (None if unknown)."""
    if MARK in host.list_folder(TIMESYNC):
        return time.time(), True
    import ctypes

    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(STRUCT_BYTES))
    except (OSError, AttributeError):
        return time.time(), None
    return time.time(), None if state < 0 else state != TIME_ERROR


def check_clock(case: CheckedNode) -> Findings:
    """Check the clock: if it is wrong, certificates and tokens are refused, and logs mislead.

    Check the year and, for several nodes, whether the kernel reports the clock as synchronized.

    Source:
        adjtimex(2); systemd-timesyncd.service(8) (/run/systemd/timesync/synchronized); RFC 5280 (validity
        of certificates).
    """
    now_s, is_synchronized = read_clock(case.host)
    fix = "start chronyd or systemd-timesyncd on the machine (chronyc makestep)"
    try:
        year = time.gmtime(now_s).tm_year
    except (OverflowError, OSError, ValueError):
        year = 0
    if not YEARS[0] <= year <= YEARS[1]:
        yield fail(CLOCK, f"a year from {YEARS[0]} on", f"the year {year}", fix)
        return
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_s))
    if is_synchronized is False and case.spans_nodes:
        found = f"{now}, not synchronized, according to the kernel"
        yield warn(CLOCK, "a clock that is synchronized on all nodes", found, fix)
    else:
        yield ok(CLOCK, f"{now}{', synchronized' if is_synchronized else ''}")
