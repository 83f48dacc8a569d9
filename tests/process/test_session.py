"""A session of an mpirun job, and the launcher that serves on its node."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.channel import lines as wire
from launcher.mpi import rank, session
from launcher.mpi.session_folder import find_session
from launcher.process.descendants import find_children
from tests.process.looking import wait_for
from tests.process.starting import clean_environ

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


@contextlib.contextmanager
def started_session(job: str) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a session that is ready, at the end of two pipes."""
    line = [sys.executable, "-I", "-S", session.__file__, job]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as started:
        try:
            assert read_line(started)["is"] == "ready"
            yield started
        finally:
            started.send_signal(signal.SIGCONT)
            started.communicate(timeout=WAIT_S)


def test_a_head_that_does_not_read_does_not_stop_the_session() -> None:
    """A rank is welcomed while a report that no pipe can hold waits for the head, which gets all of it."""
    job = os.urandom(8).hex()
    with started_session(job) as started, socket.socket(socket.AF_UNIX) as first:
        assert started.stdin is not None and started.stdout is not None
        started.stdin.write(wire.pack({"do": "welcome"}))
        path = find_session(job) or ""
        first.connect(path)
        report = {"is": "ended", "rank": 0, "why": "x" * 900_000}
        first.sendall(wire.pack(report))
        with socket.socket(socket.AF_UNIX) as second:
            second.connect(path)
            second.settimeout(WAIT_S)
            second.sendall(wire.pack({"is": "hello"}))
            assert wire.parse(second.recv(wire.READ_BYTES)) == {"do": "welcome"}
        lines = wire.Lines()
        found: list[dict[str, object]] = []
        while not found:
            found = lines.feed(os.read(started.stdout.fileno(), wire.READ_BYTES))
        assert found[0] == {**report, "pid": os.getpid()}


@pytest.mark.parametrize("part", ["wrapper", "placeholder"])
def test_a_rank_whose_session_does_not_answer_can_be_ended(part: str) -> None:
    """SIGTERM ends it long before it gives up: the session is stopped."""
    job = os.urandom(8).hex()
    line = [sys.executable, "-I", rank.__file__, job, "--", "true"]
    with started_session(job) as started:
        started.send_signal(signal.SIGSTOP)
        with subprocess.Popen(line, env=clean_environ()) as placeholder:
            wait_for(lambda: find_children(placeholder.pid), "the wrapper is there")
            (wrapper,) = find_children(placeholder.pid)
            os.kill({"wrapper": wrapper, "placeholder": placeholder.pid}[part], signal.SIGTERM)
            assert placeholder.wait(WAIT_S) == 128 + signal.SIGTERM
