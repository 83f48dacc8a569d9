"""Our user as an sshd sees it, and the reasons why it would refuse a login as that user."""

from __future__ import annotations

import os
import pwd

from launcher.core.errors import NotReady, Problem
from launcher.core.frozen import frozen
from launcher.ssh.files import name_user

NO_SHELLS = ("nologin", "false")
LOCKED = "!"
"""Start of a locked account's password field: sshd on Linux refuses the account, whatever the key."""
CAPABILITIES = {"SETGID": 6, "SETUID": 7, "SYS_CHROOT": 18}
"""Capabilities that sshd needs as root, with their numbers in linux/capability.h."""


@frozen
class Account:
    """Our user as an sshd sees it.

    Attributes:
        uid: Our effective user id.
        name: Our user name; None without an entry in /etc/passwd.
        shell: The shell in that entry, which runs every command.
        shell_runs: Whether that shell can be executed and runs commands, unlike `NO_SHELLS`.
        locked: Whether the password is marked as locked.
        capabilities: The effective capabilities, one bit each.
    """

    uid: int
    name: str | None
    shell: str
    shell_runs: bool
    locked: bool
    capabilities: int


def read_account() -> Account:
    """Return our user; never raises."""
    uid = os.geteuid()
    capabilities = 0
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            lines = [line.split() for line in file]
        capabilities = int(next(words[1] for words in lines if words[:1] == ["CapEff:"]), 16)
        entry = pwd.getpwuid(uid)
    except (KeyError, OSError, StopIteration):
        return Account(uid, None, "", False, False, capabilities)
    shell = entry.pw_shell or "/bin/sh"
    runs = os.access(shell, os.X_OK) and os.path.basename(shell) not in NO_SHELLS
    locked = _read_password(entry).startswith(LOCKED)
    return Account(uid, entry.pw_name, shell, runs, locked, capabilities)


def read_served() -> Account:
    """Return our user.

    Raises:
        NotReady: An sshd would refuse this user.
    """
    account = read_account()
    problems = find_problems(account)
    if problems:
        raise NotReady(*problems)
    return account


def _read_password(entry: pwd.struct_passwd) -> str:
    """Return the password field that sshd will see: that of /etc/shadow if we may read it."""
    try:
        with open("/etc/shadow", encoding="utf-8", errors="replace") as file:
            fields = (line.split(":") for line in file)
            return next((words[1] for words in fields if words[0] == entry.pw_name and words[1:]), "")
    except OSError:
        return entry.pw_passwd


def find_problems(account: Account) -> tuple[Problem, ...]:
    """Return the reasons why an sshd would refuse this user, which sshd itself would only log."""
    if account.name is None:
        what = f"user id {account.uid} has no entry in /etc/passwd, which OpenSSH needs"
        return (cannot_serve(what, name_user(account.uid)),)
    found = []
    if not account.name.replace("-", "").replace(".", "").replace("_", "").isalnum():
        what = f"user {account.name!r}: sshd takes characters of this name for a pattern"
        found.append(cannot_serve(what, "use a user whose name has letters, digits, dots, - and _"))
    if not account.shell_runs:
        what = f"user {account.name}: its shell {account.shell} runs no commands"
        found.append(cannot_serve(what, f"usermod --shell /bin/sh {account.name}, in the image"))
    if account.locked:
        what = f"user {account.name} is locked in /etc/shadow, and sshd refuses such a user"
        found.append(cannot_serve(what, f"usermod --password '*' {account.name}, in the image"))
    lacks = [name for name, bit in CAPABILITIES.items() if not account.capabilities >> bit & 1]
    if account.uid == 0 and lacks:
        what = f"root lacks the capabilities {', '.join(lacks)}, and its sshd would drop every connection"
        fix = f"--cap-add {','.join(lacks)} (securityContext.capabilities.add), or run as another user"
        found.append(cannot_serve(what, fix))
    return tuple(found)


def cannot_serve(what: str, fix: str) -> Problem:
    """Return the problem that an sshd of ours would not serve here, with its fix."""
    return Problem("sshd-refuses", what, "this node", fix)
