"""A session of an mpirun job, and the launcher that serves on its node."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from pathlib import Path

from launcher.channel import lines as wire
from launcher.mpi import session

WAIT_S = 10.0


def read_line(started: subprocess.Popen[bytes]) -> dict[str, object]:
    """Return what a session says next to its head; nothing if it is silent for too long."""
    assert started.stdout is not None
    ready, _, _ = select.select([started.stdout], [], [], WAIT_S)
    return wire.parse(started.stdout.readline()) if ready else {}


def test_signals_that_come_as_one_piece_are_both_passed_on(tmp_path: Path) -> None:
    """Whoever ends a node may send two in a row, and none of them may get lost."""
    path = f"/tmp/{os.urandom(8).hex()}"  # pytest's own folders are too long for a socket
    job = os.urandom(8).hex()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        listener.settimeout(WAIT_S)
        started = subprocess.Popen(
            [sys.executable, "-I", "-S", session.__file__, job],
            env={session.SERVE_SOCKET: path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=tmp_path,
            bufsize=0,
        )
        try:
            serving, _ = listener.accept()
            with serving:
                serving.sendall(b"15\n2\n")
                assert [read_line(started).get("number") for _ in range(3)] == [None, 15, 2]
                started.communicate(wire.pack({"do": "end", "status": 0}), WAIT_S)
                assert serving.recv(8) == b"0\n"
        finally:
            started.kill()
            started.wait()
            os.unlink(path)
