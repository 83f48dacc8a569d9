"""PID 1 of a simulated node: reaps orphans, and starts commands for the agent as sshd would.

Runs as ``python -I -S node_init.py HOSTNAME SOCKET HOME`` in the namespaces of its node, with the standard
library only. Standard input reaches end of file when the owner of the cluster ends for any reason. PID 1 then
exits, and the kernel kills every process of the node.

We use a pipe and not PR_SET_PDEATHSIG, whose signal is sent when the *thread* that forked ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys

ENVIRON = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
"""Environment that sshd gives a command by default, together with HOME (and our TMPDIR)."""
TMPDIR = "/run/tmp"
"""Folder that each node has of its own, see `launcher.rehearse.nodes.on_node`."""
READ_TIMEOUT_S = 5.0


def main(hostname: str, path: str, home: str) -> None:
    """Run the node: set its name, listen for the agent, print ``ready``, serve."""
    socket.sethostname(hostname)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(128)
    wake = _wake_on_child()
    os.write(1, b"ready\n")
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    serve(listener, wake, home)


def serve(listener: socket.socket, wake: int, home: str) -> None:
    """Start the requested commands and report their ends, until standard input ends."""
    sessions: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([0, listener.fileno(), wake], [], [])
        if 0 in ready and not os.read(0, 1):
            return
        if wake in ready:
            os.read(wake, 4096)
            reap(sessions)
        if listener.fileno() in ready:
            answer(listener.accept()[0], sessions, home)


def reap(sessions: dict[int, socket.socket]) -> None:
    """Reap every process that has ended, ours or orphaned, and send the agents the status of ours."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        connection = sessions.pop(pid, None)
        if connection is not None:
            code = os.waitstatus_to_exitcode(status)
            _send_status(connection, code if code >= 0 else 128 - code)


def answer(connection: socket.socket, sessions: dict[int, socket.socket], home: str) -> None:
    """Read one request (three descriptors, then the command) and start the command."""
    connection.settimeout(READ_TIMEOUT_S)
    descriptors: list[int] = []
    try:
        _, descriptors, _, _ = socket.recv_fds(connection, 1, 3)
        command = b"".join(iter(lambda: connection.recv(65536), b""))
        if len(descriptors) == 3:
            sessions[start(command, descriptors, home)] = connection
        else:
            connection.close()
    except OSError:
        connection.close()
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def start(command: bytes, descriptors: list[int], home: str) -> int:
    """Start a command by a shell, in its own process session and environment; return its PID."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        with contextlib.suppress(OSError):  # as with sshd: without a home it starts in /
            os.chdir(home)
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor, target)
        os.execve("/bin/sh", [b"sh", b"-c", command], {**ENVIRON, "HOME": home, "TMPDIR": TMPDIR})
    finally:
        os._exit(255)


def _wake_on_child() -> int:
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda signum, frame: None)
    return read


def _send_status(connection: socket.socket, status: int) -> None:
    with contextlib.suppress(OSError):  # the agent was killed; as with ssh, the command went on
        connection.sendall(bytes([status]))
    connection.close()


if __name__ == "__main__":
    os.environ.clear()
    main(sys.argv[1], sys.argv[2], sys.argv[3])
