"""NCCL's RAS is asked at a stall: a TCP server of the test stands in for NCCL, which needs GPUs.

What it says is as in NCCL's user guide ("RAS") and src/ras/client.cc: a greeting, then the status.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from launcher.recorder.ras import RasQuestion, parse_address, refuse, shorten_status, warn
from tests.process.starting import ROOT, open_launcher

STATUS = b"""NCCL version 2.29.3 compiled with CUDA 13.0
Job summary
===========
  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          4            1          4        4
Communicators... (0.00s)
=============
Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         4         4         4   RUNNING  MISMATCH
Warnings
========
#0-0 (6f1b5a5c0d9e) MISMATCH
  Communicator ranks have different collective operation counts
  1 ranks have launched up to operation 1411: rank 3
"""
Talk = Callable[[socket.socket], None]


@pytest.fixture
def serve() -> Iterator[Callable[[Talk], int]]:
    """Start a server with this conversation; return its port."""
    servers: list[socket.socket] = []

    def start(talk: Talk) -> int:
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)

        def run() -> None:
            with suppress(OSError):  # closed without a caller
                connection, _ = server.accept()
                with connection:
                    talk(connection)

        threading.Thread(target=run, daemon=True).start()
        port: int = server.getsockname()[1]
        return port

    yield start
    for server in servers:
        server.close()


def answer(connection: socket.socket) -> None:
    """Talk as NCCL does, in small pieces."""
    lines = connection.makefile("rb")
    assert lines.readline() == b"CLIENT PROTOCOL 2\n"
    connection.sendall(b"SERVER ")
    time.sleep(0.02)
    connection.sendall(b"PROTOCOL 2\n")
    assert lines.readline() == b"VERBOSE STATUS\n"
    for place in range(0, len(STATUS), 50):
        connection.sendall(STATUS[place : place + 50])
        time.sleep(0.001)


def follow(question: RasQuestion, limit_s: float = 10) -> RasQuestion:
    """Take the steps of a question; none may last."""
    until = time.monotonic() + limit_s
    while not question.complete:
        started = time.monotonic()
        assert started < until
        question.go_on(started)
        assert time.monotonic() - started < 0.5
        time.sleep(0.005)
    return question


def test_the_status_is_read(serve: Callable[[Talk], int]) -> None:
    question = follow(RasQuestion({"NCCL_RAS_ADDR": f"localhost:{serve(answer)}"}))
    assert (question.problem, question.text) == ("", STATUS.decode().strip())
    shown = shorten_status(question.text)
    assert (shown[0], len(shown)) == ("Warnings", 4)
    assert shown[-1].endswith("up to operation 1411: rank 3")


def test_nothing_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    question = follow(RasQuestion({"NCCL_RAS_ADDR": f"127.0.0.1:{port}"}))
    assert (question.problem, question.text) == ("Connection refused", "")


def test_one_that_is_silent_is_not_waited_for(serve: Callable[[Talk], int]) -> None:
    port = serve(lambda connection: time.sleep(5))
    started = time.monotonic()
    question = follow(RasQuestion({"NCCL_RAS_ADDR": f"127.0.0.1:{port}"}, limit_s=0.3))
    assert question.problem == "NCCL did not answer within 0.3 s"
    assert time.monotonic() - started < 2


def test_another_service_gets_no_question(serve: Callable[[Talk], int]) -> None:
    heard: list[bytes] = []

    def other(connection: socket.socket) -> None:
        connection.sendall(b"SSH-2.0-OpenSSH\r\n")
        heard.append(connection.recv(100))
        heard.append(connection.recv(100))

    question = follow(RasQuestion({"NCCL_RAS_ADDR": f"127.0.0.1:{serve(other)}"}))
    assert question.problem == "what listens there is not NCCL's RAS"
    assert b"STATUS" not in b"".join(heard)


def test_an_endless_answer_is_cut_and_printable(serve: Callable[[Talk], int]) -> None:
    def flood(connection: socket.socket) -> None:
        connection.sendall(b"SERVER PROTOCOL 2\n")
        try:
            while True:
                connection.sendall(b"\x1b[2Jx\n" * 1000)
        except OSError:
            pass

    question = follow(RasQuestion({"NCCL_RAS_ADDR": f"127.0.0.1:{serve(flood)}"}))
    assert question.problem == ""
    assert "\x1b" not in question.text
    assert len(question.text) < 4 << 20


@pytest.mark.parametrize("text", ["node7:28028", "evil", "localhost:0", "localhost:99999", ":", "[::1:5"])
def test_a_name_is_not_looked_up(text: str) -> None:
    """A name server that is down would stop the launcher."""
    if text != "[::1:5":
        assert parse_address(text) == []
    question = RasQuestion({"NCCL_RAS_ADDR": text})
    assert follow(question).problem


def test_versions_that_crash_are_not_asked() -> None:
    for version in ("2.24.3", "2.26.2", "2.27.3", "2.27.7", "2.28.9", "2.29.1"):
        assert "NVIDIA/nccl#1762" in refuse(version, {}), version
    for version in ("2.29.2", "2.29.3", "2.30.0", "3.0.1"):
        assert refuse(version, {}) == "", version
    assert "has none" in refuse("2.21.5", {})
    assert "unknown" in refuse("", {})
    assert "NCCL_RAS_ENABLE=0" in refuse("2.30.0", {"NCCL_RAS_ENABLE": "0"})
    assert "#2346" in warn("2.29.7")
    assert warn("2.30.0") == ""


def stall(folder: Path, last: str, *flags: str, **environ: str) -> str:
    """Run a job that hangs, with an installed NCCL of this folder; return what is said up to a text."""
    script = folder / "sleeps.py"
    script.write_text("import time; time.sleep(60)\n")
    words = (
        "run",
        "--nproc-per-node",
        "2",
        "--stall-timeout",
        "1",
        *flags,
        "--",
        sys.executable,
        str(script),
    )
    process = open_launcher(*words, environ={"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", **environ})
    said: list[str] = []
    assert process.stderr is not None
    try:
        for line in process.stderr:
            said.append(line)
            if last in line:
                break
    finally:
        process.terminate()
        process.communicate(timeout=30)
    return "".join(said)


def install(folder: Path, version: str) -> None:
    """Make a folder in which NCCL seems to be installed."""
    (folder / f"nvidia_nccl_cu12-{version}.dist-info").mkdir()


def test_a_stall_report_has_what_ras_says(tmp_path: Path, serve: Callable[[Talk], int]) -> None:
    install(tmp_path, "2.29.3")
    said = stall(tmp_path, "rank 3", "--nccl-ras", NCCL_RAS_ADDR=f"127.0.0.1:{serve(answer)}")
    assert "NCCL's RAS says:" in said, said
    assert "1 ranks have launched up to operation 1411: rank 3" in said


def test_a_version_that_crashes_is_not_asked_at_a_stall(tmp_path: Path, serve: Callable[[Talk], int]) -> None:
    install(tmp_path, "2.27.5")
    asked: list[bool] = []
    port = serve(lambda connection: asked.append(True))
    said = stall(tmp_path, "not asked", "--nccl-ras", NCCL_RAS_ADDR=f"127.0.0.1:{port}")
    assert "NCCL's RAS is not asked: NCCL 2.27.5 may crash" in said, said
    assert asked == []
