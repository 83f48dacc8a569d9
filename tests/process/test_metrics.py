"""``--metrics-port``: what is served, to whom, and that nobody who reaches the port can do more than read."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.machine.host import Host
from launcher.machine.process import find_children
from tests.process.asking import Asked, read_all
from tests.process.looking import is_gone, wait_for
from tests.process.starting import clean_environ, launch

pytest.importorskip("prometheus_client")

pytestmark = pytest.mark.xdist_group("status")

OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


class Served(Asked):
    """A job whose metrics are served."""

    def __init__(self, folder: Path) -> None:
        self.port = Host().free_port()
        super().__init__(folder, "--metrics-port", str(self.port), expected=2)
        wait_for(self.exporter, "the exporter is there")
        wait_for(self.listens, "it listens")

    def exporter(self) -> int | None:
        """Return its pid, once it is what it is to be."""
        pids = find_children(self.launcher.pid)
        return next(
            (pid for pid in pids if Path(f"/proc/{pid}/comm").read_text() == "launcher-metric\n"), None
        )

    def listens(self) -> bool:
        """Whether somebody who comes gets in."""
        with contextlib.suppress(ConnectionRefusedError), self.open():
            return True
        return False

    def read(self, path: str = "/metrics", accept: str = OPEN_METRICS) -> str:
        """Return what is served."""
        url = f"http://127.0.0.1:{self.port}{path}"
        with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": accept})) as answer:
            text: str = answer.read().decode()
            return text

    def open(self) -> socket.socket:
        """Return a connection to it."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Served]:
    """Return a job of two ranks."""
    one = Served(tmp_path)
    yield one
    one.end()


def test_each_rank_is_there_and_nothing_else(job: Served) -> None:
    """As OpenMetrics that prometheus-client's own parser takes; no other page, no other method."""
    # As OpenMetrics that prometheus-client's own parser takes.
    parser: Any = importlib.import_module("prometheus_client.openmetrics.parser")
    text = job.read()
    found = {family.name: family.samples for family in parser.text_string_to_metric_families(text)}
    assert [sample.value for sample in found["launcher_rank_running"]] == [1, 1]
    assert {sample.labels["rank"] for sample in found["launcher_rank_cpu_seconds"]} == {"0", "1"}
    assert found["launcher_up"][0].value == 1 and found["launcher"][0].labels["host"]
    assert found["launcher_rank_memory_bytes"][0].value > 1 << 20
    assert text.endswith("# EOF\n")
    assert "launcher_up 1.0" in job.read(accept="text/plain")
    # No other page, no other method.
    with pytest.raises(urllib.error.HTTPError, match="404"):
        job.read("/../../etc/passwd")
    with job.open() as connected:
        connected.sendall(b"POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nstop!")
        assert b" 501 " in read_all(connected)
    assert "launcher_up 1.0" in job.read()


FAILS_ONCE = """
import os, pathlib, sys, time
if "LAUNCHER_ATTEMPT" not in os.environ:
    raise ValueError("the first attempt")
pathlib.Path(sys.argv[1]).write_text("saved")
time.sleep(60)
"""


def test_failed_attempts_are_counted_by_cause_and_progress_is_timed(tmp_path: Path) -> None:
    port, saved = Host().free_port(), tmp_path / "saved"
    flags = ("--restarts", "2", "--restart-on", "any", "--restart-delay", "0", "--progress-file", str(saved))
    words = ("run", "--metrics-port", str(port), *flags, "--", sys.executable, "-c", FAILS_ONCE, str(saved))
    line = [sys.executable, "-m", "launcher", *words]
    with subprocess.Popen(line, env=clean_environ(), stderr=subprocess.DEVNULL) as job:
        url = f"http://127.0.0.1:{port}/metrics"

        def read() -> str:
            with contextlib.suppress(OSError), urllib.request.urlopen(url) as answer:
                return str(answer.read().decode())
            return ""

        wait_for(lambda: "launcher_last_progress_seconds " in read(), "the second attempt has saved")
        assert 'launcher_failed_attempts_total{cause="python-exception"} 1.0' in read()
        job.terminate()


def test_slow_and_silent_ones_make_room(job: Served) -> None:
    """A client that comes after twelve that say nothing is answered, and the job does not notice."""
    silent = [job.open() for _ in range(12)]
    for one in silent[:4]:
        one.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
    for one in silent[4:]:  # 2 MiB of a head that does not end
        with contextlib.suppress(OSError):
            for _ in range(32):
                one.sendall(b"X: " + b"x" * 65_000 + b"\r\n")
    exporter = job.exporter()
    status = Path(f"/proc/{exporter}/status").read_text()
    assert int(status.partition("VmHWM:")[2].split()[0]) < 100 << 10, status
    wait_for(lambda: reads(job), "somebody gets in")
    for one in silent:
        one.close()
    assert job.launcher.poll() is None


def test_a_caller_keeps_its_place_while_another_one_floods(job: Served) -> None:
    """One address that holds all places yields them, however late the other one asks."""
    job.read()  # the exporter has loaded all that it needs: a request has 5 s
    with socket.create_connection(("127.0.0.1", job.port), 30, ("127.0.0.2", 0)) as other:
        silent = [job.open() for _ in range(40)]
        wait_for(lambda: is_closed(silent[8]), "the flood yields its own places")
        other.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert other.recv(4096).startswith(b"HTTP/1.0 200")
    for one in silent:
        one.close()


def test_a_thread_that_cannot_be_started_keeps_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the kernel has no more threads, connections end; afterwards there is as much room as before."""
    from launcher.control.exporter import REQUESTS_MAX, serve

    listener, start, refused = socket.create_server(("127.0.0.1", 0)), threading.Thread.start, [True]

    def start_or_fail(thread: threading.Thread) -> None:
        if refused[0]:
            raise RuntimeError("can't start new thread")
        start(thread)

    address = listener.getsockname()
    threading.Thread(target=serve, args=(listener, "/nonexistent"), daemon=True).start()
    monkeypatch.setattr(threading.Thread, "start", start_or_fail)
    for _ in range(REQUESTS_MAX + 1):
        with socket.create_connection(address, 30) as one:
            assert one.recv(1) == b""
    refused[0] = False
    with socket.create_connection(address, 30) as one:
        one.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert one.recv(4096).startswith(b"HTTP/1.0 200")


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has ended a connection on which nothing was asked."""
    connection.settimeout(0.1)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def reads(job: Served) -> bool:
    """Whether the metrics can be read now."""
    try:
        return "launcher_up 1.0" in job.read()
    except OSError:
        return False


@pytest.mark.thorough
def test_a_launcher_that_is_stopped_is_down(job: Served) -> None:
    """The exporter answers; the launcher does not."""
    os.kill(job.launcher.pid, signal.SIGSTOP)
    try:
        text = job.read()
    finally:
        os.kill(job.launcher.pid, signal.SIGCONT)
    assert "launcher_up 0.0" in text and "launcher_rank" not in text


def test_who_kills_the_exporter_does_the_job_no_harm(job: Served) -> None:
    """It is said, and that is all."""
    pid = job.exporter()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: any("metrics" in event for event in events(job)), "the launcher has noticed")
    assert job.status()["nodes"][0]["state"] == "running"
    _, err = job.end()
    assert "the metrics process was killed" in err


def events(job: Served) -> list[str]:
    """Return what the launcher has said about its exporter's end."""
    (node,) = job.status()["nodes"]
    return [event["what"] for event in node["events"] if "killed" in event["what"]]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_the_launcher(job: Served, number: int) -> None:
    """Also when that is killed."""
    pid = job.exporter()
    assert pid is not None
    os.kill(job.launcher.pid, number)
    job.launcher.communicate(timeout=40)
    wait_for(lambda: is_gone(pid), "the exporter is gone")


def test_a_port_that_is_taken_is_said_and_the_job_runs(tmp_path: Path) -> None:
    """Metrics are worth less than the job."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = launch("run", "--metrics-port", str(port), "--", "sh", "-c", "sleep 1; exit 7")
    assert done.returncode == 7
    assert re.search(rf"no metrics at http://127.0.0.1:{port}/metrics: Address already in use", done.stderr)
