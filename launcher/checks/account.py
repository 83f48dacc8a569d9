"""Checks the user's account and directories: an arbitrary uid (``docker run --user``, OpenShift) has none.

Source: getpass.getuser, os.path.expanduser and tempfile.gettempdir of Python; torch's compiler names its
cache directory by getpass.getuser.
"""

from __future__ import annotations

import os

from launcher.checks.case import CheckedNode
from launcher.checks.finding import PROBLEM, WARNING, Finding, ok

NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")
"""Variables that Python's getpass.getuser reads before the accounts."""
TEMPORARY = ("/tmp", "/var/tmp", "/usr/tmp")  # noqa: S108 - only looked at
WRITABLE = "a writable directory"


def look(case: CheckedNode) -> list[Finding]:
    """Check the account's name, the home directory and the directories for temporary files."""
    named = case.host.home() or any(case.environ.get(name) for name in NAMES)
    found = "none: getpass.getuser() and torch.compile fail"
    fix = "set USER to any name: -e USER=trainer; or add the uid to /etc/passwd in the image"
    nameless = Finding("account", WARNING, "user name", "an entry in /etc/passwd, or USER", found, fix)
    return [*([] if named else [nameless]), *_check_home(case), *_check_temporary(case)]


def _check_home(case: CheckedNode) -> list[Finding]:
    home = case.environ.get("HOME") or case.host.home()
    if home and _can_write(home):
        return [ok("account", "home directory", home)]
    found = f"{home} cannot be written" if home else "none"
    fix = (
        "set HOME to a writable directory: -e HOME=/tmp/home; caches of Hugging Face, torch and pip "
        "are below it"
    )
    return [Finding("account", WARNING, "home directory", WRITABLE, found, fix)]


def _check_temporary(case: CheckedNode) -> list[Finding]:
    asked = case.environ.get("TMPDIR")
    if asked and not _can_write(asked):
        fix = f"mkdir -p {asked}, or unset TMPDIR"
        found = f"TMPDIR={asked} cannot be written"
        return [Finding("account", WARNING, "temporary directory", WRITABLE, found, fix)]
    if asked or any(map(_can_write, TEMPORARY)):
        return []
    fix = "set TMPDIR to a writable directory, or mount one: --tmpfs /tmp"
    return [
        Finding("account", PROBLEM, "temporary directory", WRITABLE, f"none of {', '.join(TEMPORARY)}", fix)
    ]


def _can_write(path: str) -> bool:
    """Whether a directory exists and we can make files in it."""
    return os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK)
