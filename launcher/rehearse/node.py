"""PID 1 of a simulated node, and the replacement for ssh between nodes; both with the standard library only.

``python -I -S node.py init HOSTNAME SOCKET HOME TMPDIR`` runs in the namespaces of its node, and starts
commands for the agent as sshd would. Standard input reaches end of file when the owner of the cluster ends
for any reason. PID 1 then exits, and the kernel kills every process of the node. We use a pipe and not
PR_SET_PDEATHSIG, whose signal is sent when the *thread* that forked ends.

``python -I -S node.py agent FOLDER HOST WORDS...``: FOLDER contains one socket per host name and address. The
command gets our standard input, output and error, and we exit with its status. As with ssh, 255 means that
the node is unknown or gone.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys

ENVIRON = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
"""Environment that sshd gives a command by default, together with HOME (and our TMPDIR)."""
STATUS_LOST = 255
WITH_VALUE = "BbcDEeFIiJLlmOopQRSWw"
"""Options of ssh that take a value. MPI launchers pass some; they are ignored here, as all options are."""
READ_TIMEOUT_S = 5.0


def init(hostname: str, path: str, home: str, tmpdir: str) -> int:
    """Run the node: set its name, listen for agents, print ``ready``, end with standard input."""
    if hostname:
        socket.sethostname(hostname)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(128)
    os.write(1, b"ready\n")
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps all children, ours and orphans
    while True:
        ready, _, _ = select.select([0, listener.fileno()], [], [])
        if 0 in ready and not os.read(0, 1):
            return 0
        if listener.fileno() in ready:
            connection, _ = listener.accept()
            if not os.fork():
                try:
                    answer(connection, {**ENVIRON, "HOME": home, "TMPDIR": tmpdir})
                finally:
                    os._exit(0)
            connection.close()


def answer(connection: socket.socket, environ: dict[str, str]) -> None:
    """Read one request (three descriptors, then the command), run it by a shell, and send its status."""
    import subprocess

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    connection.settimeout(READ_TIMEOUT_S)
    _, (stdin, stdout, stderr), _, _ = socket.recv_fds(connection, 1, 3)
    command = b"".join(iter(lambda: connection.recv(65536), b""))
    done = subprocess.run(
        [b"/bin/sh", b"-c", command],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=environ,
        cwd=environ["HOME"] if os.path.isdir(environ["HOME"]) else "/",  # as with sshd
        start_new_session=True,
        check=False,
    )
    connection.sendall(bytes([done.returncode if done.returncode >= 0 else 128 - done.returncode]))


def agent(folder: str, words: list[str]) -> int:
    """Run the command on the node that the words name, and return its status."""
    while words and words[0].startswith("-"):
        option = words.pop(0)
        del words[: len(option) == 2 and option[1] in WITH_VALUE]
    host, *command = words or [""]
    host = host.rpartition("@")[2]
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


if __name__ == "__main__":
    _, role, first, *rest = sys.argv
    if role == "init":
        os.environ.clear()
    sys.exit(init(first, *rest) if role == "init" else agent(first, rest))
