"""The replacement for ssh between nodes: ``python -I -S node_agent.py FOLDER HOST WORDS...``.

FOLDER contains one socket per host name and address, on which PID 1 of that node listens (see
`launcher.rehearse.node_init`). The command gets our standard input, output and error, and we exit with its
status. As with ssh, 255 means that the node is unknown or gone.
"""

from __future__ import annotations

import os
import socket
import sys

STATUS_LOST = 255
WITH_VALUE = "BbcDEeFIiJLlmOopQRSWw"
"""Options of ssh that take a value. MPI launchers pass some; they are ignored here, as all options are."""


def main(folder: str, words: list[str]) -> int:
    """Run the command on the node that the words name, and return its status."""
    host, command = split(words)
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(os.path.join(folder, host))
            socket.send_fds(connection, [b"\0"], [0, 1, 2])
            connection.sendall(os.fsencode(" ".join(command)))
            connection.shutdown(socket.SHUT_WR)
            status = connection.recv(1)
    except OSError as error:
        print(f"agent: {host}: {error.strerror or error}", file=sys.stderr)
        return STATUS_LOST
    return status[0] if status else STATUS_LOST


def split(words: list[str]) -> tuple[str, list[str]]:
    """Return host and command of an ssh command line, without options and ``user@``."""
    rest = list(words)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if len(option) == 2 and option[1] in WITH_VALUE and rest:
            rest.pop(0)
    host, *command = rest or [""]
    return host.rpartition("@")[2], command


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
