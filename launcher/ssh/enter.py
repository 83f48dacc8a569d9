"""What every session of the job's sshd begins with: give the command the environment of the node.

Runs as ``python -I -S enter.py FILE``, forced by sshd, standard library only. FILE holds the variables as
/proc/PID/environ does. sshd would give a command next to none, and its SetEnv holds no newline, and before
OpenSSH 8.7 no quote: no JSON. Of what sshd sets, the user and the shell stay.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal  # without the enums around it, which are 5 ms of every session

FROM_SSHD = (b"USER", b"LOGNAME", b"HOME", b"SHELL", b"PATH")
REFUSED = "launcher: this sshd is a training job's: it runs the job's commands and nothing else"


def main(path: str) -> None:
    """Become the command that the client asked for, through the user's shell, as sshd would."""
    command = os.environb.get(b"SSH_ORIGINAL_COMMAND")
    if not command:
        sys.exit(REFUSED)
    with open(path, "rb") as file:
        pairs = dict(entry.split(b"=", 1) for entry in file.read().split(b"\0") if entry)
    given = {name: os.environb[name] for name in FROM_SSHD if name in os.environb}
    shell = given.get(b"SHELL", b"/bin/sh")
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores these two, and exec would hand that down
    os.execve(shell, [os.path.basename(shell), b"-c", command], given | pairs)


if __name__ == "__main__":
    main(sys.argv[1])
