"""The forced command of every session of the job's sshd: runs the client's command in the node's environment.

Runs as ``python -I -S enter.py FILE``, with the standard library only. FILE contains the variables in the
format of /proc/PID/environ. sshd itself would give a command almost no variables. Its SetEnv accepts no
newline and, before OpenSSH 8.7, no quote, and so no JSON. Of the variables that sshd sets, those in
`FROM_SSHD` stay, unless FILE has them as well.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal  # without its enums, which take 5 ms of every session

FROM_SSHD = (b"USER", b"LOGNAME", b"HOME", b"SHELL", b"PATH")
REFUSED = "launcher: this sshd belongs to a training job and only runs its commands"


def main(path: str) -> None:
    """Become the command that the client asked for, run by the user's shell as sshd would."""
    command = os.environb.get(b"SSH_ORIGINAL_COMMAND")
    if not command:
        sys.exit(REFUSED)
    with open(path, "rb") as file:
        pairs = dict(entry.split(b"=", 1) for entry in file.read().split(b"\0") if entry)
    given = {name: os.environb[name] for name in FROM_SSHD if name in os.environb}
    shell = given.get(b"SHELL", b"/bin/sh")
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores these two, and exec keeps that
    os.execve(shell, [os.path.basename(shell), b"-c", command], given | pairs)


if __name__ == "__main__":
    main(sys.argv[1])
