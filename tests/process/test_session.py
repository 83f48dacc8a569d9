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
from launcher.core.frozen import replace
from launcher.core.messages import pack, unpack
from launcher.mpi import rank, session
from launcher.mpi.messages import Briefing, JobOver, NodeTold, RankEnded
from launcher.mpi.session_folder import SERVE_SOCKET, find_session
from launcher.process.descendants import find_children
from tests.process.looking import wait_for
from tests.process.starting import clean_environ
from tests.unit.test_verdict import dead, judge

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
            env={SERVE_SOCKET: path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=tmp_path,
            bufsize=0,
        )
        try:
            serving, _ = listener.accept()
            with serving:
                serving.sendall(wire.pack(pack(NodeTold(15))) + wire.pack(pack(NodeTold(2))))
                assert [read_line(started).get("number") for _ in range(3)] == [None, 15, 2]
                started.communicate(wire.pack(pack(JobOver(0))), WAIT_S)
                assert wire.parse(serving.recv(100)) == {"is": "jobover", "status": 0}
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
            assert read_line(started)["is"] == "sessionready"
            yield started
        finally:
            started.send_signal(signal.SIGCONT)
            started.communicate(timeout=WAIT_S)


def test_a_head_that_does_not_read_does_not_stop_the_session() -> None:
    """A rank is welcomed while a report that no pipe can hold waits for the head, which gets all of it."""
    job = os.urandom(8).hex()
    with started_session(job) as started, socket.socket(socket.AF_UNIX) as first:
        assert started.stdin is not None and started.stdout is not None
        started.stdin.write(wire.pack({"is": "briefing"}))
        path = find_session(job) or ""
        first.connect(path)
        report = RankEnded(0, 0, 1, 1, verdict=replace(judge(dead(0, 1)), stderr=("x" * 50,) * 2000))
        first.sendall(wire.pack(pack(report)))
        with socket.socket(socket.AF_UNIX) as second:
            second.connect(path)
            second.settimeout(WAIT_S)
            second.sendall(wire.pack({"is": "attached"}))
            assert wire.parse(second.recv(wire.READ_BYTES)) == pack(Briefing())
        lines = wire.Lines()
        found: list[dict[str, object]] = []
        while not found:
            found = list(lines.feed(os.read(started.stdout.fileno(), wire.READ_BYTES)))
        assert unpack(found[0], (RankEnded,)) == replace(report, pid=os.getpid())


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


WRONG: tuple[dict[str, object], ...] = (
    {"is": "jobover", "status": 256},
    {"is": "jobover", "status": "0"},
    {"is": "passon", "number": -9},
    {"is": "passon", "number": 10**30},
    {"is": "passon"},
    {"is": "briefing", "grace_s": "soon"},
    {"is": "welcome"},
    {},
)


@pytest.mark.parametrize("message", WRONG, ids=range(len(WRONG)))
def test_a_head_that_says_what_is_none_leads_the_job_no_more(message: dict[str, object]) -> None:
    """As one that is gone: what runs there has its grace; no traceback, and status 0."""
    job = os.urandom(8).hex()
    line = [sys.executable, "-I", "-S", session.__file__, job]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(line, bufsize=0, **pipes) as started:  # type: ignore[call-overload]
        assert read_line(started)["is"] == "sessionready"
        started.stdin.write(wire.pack(message))
        assert (started.wait(WAIT_S), started.stderr.read()) == (0, b"")
    assert find_session(job) is None


def test_a_rank_that_says_what_is_none_is_hung_up_on() -> None:
    """Its node and the others go on; the head hears that it has gone."""
    job = os.urandom(8).hex()
    with started_session(job) as started:
        path = find_session(job) or ""
        wrongs: list[dict[str, object]] = [{"is": "started", "rank": -2}, {"is": 7}]
        for message in (*wrongs, {**pack(RankEnded(0, 0, 1, 1)), "status": 256}):
            with socket.socket(socket.AF_UNIX) as wrong:
                wrong.settimeout(WAIT_S)
                wrong.connect(path)
                wrong.sendall(wire.pack(message))
                assert wrong.recv(1) == b""
            assert read_line(started) == {"is": "gone", "pid": os.getpid()}
