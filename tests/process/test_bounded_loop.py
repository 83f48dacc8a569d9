"""What a rank or a file of outside size does to the launcher's loop: SIGTERM is answered all the same."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from launcher.hang.recorder import find_torch
from launcher.machine.azure import ask_size
from launcher.recovery.history import READ_MAX_BYTES, _read_record
from tests.process.looking import is_true_by, wait_for
from tests.process.starting import clean_environ

ANSWER_S = 10.0
"""Seconds for the end of a job with ``--grace 1``; without a bound each of these took more than 30."""
CHILDREN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
word = "key=abc;" * 15_000
for _ in range(100):
    subprocess.Popen(["sh", "-c", "sleep 600; :", *[word] * 8])
open("begun", "w").close()
time.sleep(600)
"""
MANY = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(1500):
    if not os.fork():
        time.sleep(600)
open("begun", "w").close()
time.sleep(600)
"""
OPEN = """
import os, resource, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
for _ in range(min(most - 100, 4000)):
    os.dup(0)
for _ in range(150):
    if not os.fork():
        time.sleep(600)
open("begun", "w").close()
time.sleep(600)
"""
NCCL = """
import os, time
if os.environ["RANK"] == "0":
    file = open(os.environ["NCCL_DEBUG_FILE"], "a")
    for _ in range(40):
        file.write("NCCL INFO x\\n" * 40_000)
        file.flush()
    open("begun", "w").close()
time.sleep(600)
"""
NCCL_S = 3.0
"""Seconds for the end of a job whose ranks obey; 16 MiB of short lines took 6 and more."""
NO_NEWLINE = """
import os
open("begun", "w").close()
while True:
    os.write(1, b"password=" * 8192)
"""


@pytest.mark.parametrize(
    ("program", "count"),
    [(CHILDREN, 1), (MANY, 1), (OPEN, 2), (NO_NEWLINE, 1)],
    ids=["long", "many", "open", "no-newline"],
)
def test_sigterm_is_answered_whatever_a_rank_does(program: str, count: int, tmp_path: Path) -> None:
    """Also while the job hangs, and the launcher looks at what its processes do."""
    words = ["--grace", "1", "--stall-timeout", "1", "--nproc-per-node", f"{count}", "--log-dir", "log"]
    command = [sys.executable, "-m", "launcher", "run", *words, "--", sys.executable, "-c", program]
    with (
        (tmp_path / "out").open("wb") as out,
        subprocess.Popen(
            command, cwd=tmp_path, env=clean_environ(), stdin=subprocess.DEVNULL, stdout=out, stderr=out
        ) as job,
    ):
        log = tmp_path / "out"
        wait_for((tmp_path / "begun").exists, "the rank has begun", 60)
        is_true_by(lambda: b"no output for" in log.read_bytes()[:100_000], 1.5)  # it looks at the processes
        began = time.monotonic()
        job.send_signal(signal.SIGTERM)
        try:
            job.wait(60)
        finally:
            job.kill()
    assert time.monotonic() - began < ANSWER_S
    assert b"internal launcher error" not in log.read_bytes()[-100_000:]


def test_sigterm_is_answered_while_nccls_log_is_read(tmp_path: Path) -> None:
    """A rank that writes as fast as it can."""
    words = ["--grace", "1", "--nproc-per-node", "2", "--fabric", "tcp", "--verify-fabric"]
    command = [sys.executable, "-m", "launcher", "run", *words, "--", sys.executable, "-c", NCCL]
    with subprocess.Popen(
        command, cwd=tmp_path, env=clean_environ(), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as job:
        wait_for((tmp_path / "begun").exists, "the log is written", 60)
        time.sleep(0.2)
        began = time.monotonic()
        job.send_signal(signal.SIGTERM)
        try:
            job.wait(60)
        finally:
            job.kill()
    assert time.monotonic() - began < NCCL_S


def test_files_of_another_kind_or_size_are_not_waited_for(tmp_path: Path) -> None:
    """A pipe in place of torch's version or of a record of attempts, and a huge record."""
    (tmp_path / "torch").mkdir()
    os.mkfifo(tmp_path / "torch" / "version.py")
    assert find_torch([str(tmp_path)]) is None
    os.mkfifo(tmp_path / "attempts")
    assert _read_record(str(tmp_path / "attempts")) == []
    huge = tmp_path / "huge"
    line = b'{"schema": 1, "number": 0, "status": 1, "what": "%s"}\n' % (b"x" * 10_000)
    with huge.open("wb") as file:
        for _ in range(2 * READ_MAX_BYTES // len(line)):
            file.write(line)
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match="other content"):
        _read_record(str(huge))


def test_a_metadata_server_has_a_limit_for_its_whole_answer() -> None:
    """One that sends a byte at a time keeps nobody."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def trickle() -> None:
            connected, _ = server.accept()
            with connected:
                try:
                    while True:
                        connected.sendall(b"H")
                        time.sleep(0.1)
                except OSError:
                    pass

        threading.Thread(target=trickle, daemon=True).start()
        began = time.monotonic()
        assert ask_size(f"http://127.0.0.1:{server.getsockname()[1]}", 0.5) == ""
        assert time.monotonic() - began < ANSWER_S
