"""Waits until the rendezvous server of this job answers, then becomes the command.

Every rank of a Horovod job without mpirun starts as this file, isolated (``python -I -S horovod_wait.py
ADDRESS:PORT SLOTS COMMAND...``). It waits as long as ranks wait for each other, HOROVOD_GLOO_TIMEOUT_SECONDS,
and checks that the server is that of this job.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

DEFAULT_S = 600.0
RETRY_S = 0.05
ANSWER_S = 3.0
PATIENCE_S = 10.0
"""Seconds after which a message on standard error says, once, what we wait for."""
ANSWER_LIMIT = 1 << 16
SHOWN_LENGTH = 60
"""Characters of an answer that a message shows."""


def main(words: Sequence[str]) -> int:
    """Wait, then become the command; return an exit status if that fails."""
    where, slots, *argv = words

    def find_command() -> Sequence[str]:
        wait(where, slots, read_timeout_s(os.environ))
        return argv

    return become(find_command)


def become(find_command: Callable[[], Sequence[str]]) -> int:
    """Become the command that is returned; print a problem and return an exit status if that fails."""
    from launcher.core.errors import LauncherError, print_problems
    from launcher.process.execute import execute

    try:
        execute(find_command(), os.environ)
    except LauncherError as error:
        print_problems(error)
        return error.exit_status
    except KeyboardInterrupt:
        return 130
    return 0


def read_timeout_s(environ: Mapping[str, str]) -> float:
    """Return the seconds to wait: as long as ranks do, by the user's or the launcher's setting."""
    text = environ.get("HOROVOD_GLOO_TIMEOUT_SECONDS", "")
    return float(text) if text.isascii() and text.isdecimal() else DEFAULT_S


def wait(where: str, slots: str, timeout_s: float) -> None:
    """Wait until the server of this job answers.

    Args:
        where: ``ADDRESS:PORT`` of the server.
        slots: The server's answer if it is that of this job.
        timeout_s: Seconds to wait.

    Raises:
        NotReady: It has not answered in that time; the message says what was found instead.
    """
    from launcher.core.errors import NotReady, Problem

    began = time.monotonic()
    said = False
    while True:
        left_s = began + timeout_s - time.monotonic()
        reason = _find_exclusion(where, slots, min(ANSWER_S, max(left_s, RETRY_S)))
        if not reason:
            return
        waited_s = time.monotonic() - began
        if waited_s >= timeout_s:
            port = where.rpartition(":")[2]
            what = f"no rendezvous of this Horovod job at {where} within {timeout_s:.0f} s: {reason}"
            origin = "HOROVOD_GLOO_RENDEZVOUS_ADDR and _PORT (by default the port above MASTER_PORT)"
            fix = (
                f"is node 0 running, and its port {port} open to this node? another port: --master-port N "
                "on every node; more time: HOROVOD_GLOO_TIMEOUT_SECONDS"
            )
            raise NotReady(Problem("horovod-rendezvous", what, origin, fix))
        if waited_s >= PATIENCE_S and not said:
            print(f"launcher: waiting for Horovod's rendezvous at {where}: {reason}", file=sys.stderr)
            said = True
        time.sleep(RETRY_S)


def _find_exclusion(where: str, slots: str, within_s: float) -> str:
    """Return why the server of this job does not answer, safe for a terminal; empty if it does."""
    try:
        found = ask(where, within_s)
    except OSError as error:
        return f"it cannot be reached ({error.strerror or error})"
    if found == slots:
        return ""
    from launcher.core.redact import quote

    return f"another program or job answers there: '{quote(found, SHOWN_LENGTH)}'"


def ask(where: str, within_s: float = ANSWER_S) -> str:
    """Return the answer of a server: its job's slots, or the start of something else.

    Raises:
        OSError: It cannot be reached, or has not completed its answer within ``within_s``.
    """
    import socket

    host, _, port = where.rpartition(":")
    request = f"GET /launcher/job HTTP/1.0\r\nHost: {host}\r\n\r\n".encode()
    deadline = time.monotonic() + within_s
    answer = b""
    try:
        connection = socket.create_connection((host, int(port)), within_s)
    except UnicodeError as error:  # an invalid name, which is not even looked up
        raise OSError(str(error)) from error
    with connection:
        connection.sendall(request)
        while len(answer) < ANSWER_LIMIT:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("timed out")
            connection.settimeout(left_s)
            part = connection.recv(4096)
            if not part:
                break
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    return (body if b" 200 " in head.partition(b"\r\n")[0] else head).decode("ascii", "replace")


if __name__ == "__main__":
    # With -I, neither this directory nor that of the package is on the path
    sys.path[0:0] = [os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))]
    sys.exit(main(sys.argv[1:]))
