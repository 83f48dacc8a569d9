"""The version of this package, the commit it was built from, and how it was packaged.

A build writes the commit into ``launcher/commit.txt`` (setup.py). In a checkout that file is a form that git
archive fills in, and the commit is read from the checkout's ``.git``, without git. Other modules need not
import `launcher` itself for the version.
"""

from __future__ import annotations

import os
import time

from launcher.core.blocks import PACKAGE

__version__ = "0.3.0"

FILE = "commit.txt"
WHEEL, CHECKOUT = "a wheel", "a checkout"
SHOWN = 12
"""Digits of a commit."""
DIGITS = frozenset("0123456789abcdef")


def describe_version(package: str = PACKAGE) -> str:
    """Return the line of ``--version``: version, commit with its day, form.

    Args:
        package: The directory of the launcher's package.
    """
    commit, _, rest = _read(os.path.join(package, FILE)).partition(" ")
    time_s, _, form = rest.partition(" ")
    if not _is_commit(commit):  # no build has written one
        commit, time_s = read_head(os.path.join(os.path.dirname(package), ".git")), ""
        form = CHECKOUT if commit else WHEEL
    day = f" of {time.strftime('%Y-%m-%d', time.gmtime(int(time_s)))}" if time_s.isdigit() else ""
    return f"launcher {__version__} (commit {commit[:SHOWN] or 'unknown'}{day}, from {form or WHEEL})"


def read_head(git: str) -> str:
    """Return the commit of a checkout; empty if it is none, or if its files are not as expected.

    Args:
        git: ``.git`` of the checkout: a directory, or a file that names that of a linked worktree.
    """
    link = _read(git)
    if link.startswith("gitdir: "):
        git = os.path.join(os.path.dirname(git), link.removeprefix("gitdir: "))
    head = _read(os.path.join(git, "HEAD"))
    if _is_commit(head):
        return head
    name = head.removeprefix("ref: ")
    # Without this file, git's own directory
    common = os.path.join(git, _read(os.path.join(git, "commondir")))
    own = _read(os.path.join(common, name)) if name != head and ".." not in name else ""
    packed = (line.split(" ") for line in _read(os.path.join(common, "packed-refs")).splitlines())
    found = own or next((line[0] for line in packed if line[1:] == [name]), "")
    return found if _is_commit(found) else ""


def _is_commit(text: str) -> bool:
    return len(text) in (40, 64) and DIGITS.issuperset(text)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
