"""Checks the user's account and directories: an arbitrary uid (``docker run --user``, OpenShift) has none.

Source: getpass.getuser, os.path.expanduser and tempfile.gettempdir of Python; torch's compiler names its
cache directory by getpass.getuser.
"""

from __future__ import annotations

import os

from launcher.checks.case import CheckedNode
from launcher.checks.finding import Findings, fail, ok, warn

NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")
"""Variables that Python's getpass.getuser reads before the accounts."""
TEMPORARY = ("/tmp", "/var/tmp", "/usr/tmp")  # noqa: S108 - only looked at
WRITABLE = "a writable directory"


def look(case: CheckedNode) -> Findings:
    """Check the account's name, the home directory and the directories for temporary files."""
    if not case.host.home() and not any(case.environ.get(name) for name in NAMES):
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
