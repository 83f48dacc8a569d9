"""Horovod's rendezvous as we serve it: whoever else comes to its port disturbs no rank."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from signal import SIGABRT, SIGCONT, SIGSTOP
from socket import create_connection, socket
from time import monotonic

import pytest

from launcher.machine.host import Host
from launcher.servers import horovod_server
from launcher.servers.horovod_wait import ask
from tests.process.looking import wait_for
from tests.process.starting import launch

pytestmark = [pytest.mark.torch, pytest.mark.horovod]
Served = tuple[int, Path, int]
SLOTS = "node0:2"
ADDRESSES = "127.0.0.1,127.0.1.1"
STRANGE = (
    b"",
    b"\x00\xff\x1b[31m\r\n\r\n",
    b"GET /\x1b[31m\r\n\r\n",
    b"GET /a/b/c/d\x1b[31m\r\n\r\n",
    b"GET /" + b"a" * 70_000 + b" HTTP/1.0\r\n\r\n",
    b"GET / HTTP/1.0\r\n" + (b"X: " + b"x" * 60_000 + b"\r\n") * 90,
    b"PUT /a/b HTTP/1.0\r\n\r\n",
    b"PUT /a/b HTTP/1.0\r\nContent-Length: x\x1b\r\n\r\n",
    b"PUT /a/b HTTP/1.0\r\nContent-Length: -1\r\n\r\n",
    b"PUT /a/b HTTP/1.0\r\nContent-Length: 99999999999\r\n\r\n",
    b"PUT /launcher/job HTTP/1.0\r\nContent-Length: 3\r\n\r\nxyz",
    b"DELETE /launcher/job HTTP/1.0\r\n\r\n",
)


def answers(port: int) -> bool:
    """Whether there is a server, and of this job."""
    try:
        return ask(f"127.0.0.1:{port}") == SLOTS
    except OSError:
        return False


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """Start a server; return its port, the file of what it says, and its PID."""
    port, said = Host().free_port(), tmp_path / "said"
    with said.open("w") as file:
        line = [sys.executable, horovod_server.__file__, str(port), SLOTS, ADDRESSES]
        process = subprocess.Popen(line, stdout=file, stderr=file)
    try:
        wait_for(lambda: answers(port), "the server answers", deadline_s=60.0)
        yield port, said, process.pid
    finally:
        process.terminate()
        process.wait(10)


@pytest.mark.parametrize("path", ["/README.md", "/tests", "/"])
@pytest.mark.parametrize("method", ["HEAD", "POST", "OPTIONS"])
def test_no_file_of_the_working_directory_is_told_of(served: Served, method: str, path: str) -> None:
    """The class below Horovod's answers HEAD with the size and the time of a file."""
    assert Path(f".{path}").exists()
    with create_connection(("127.0.0.1", served[0]), 10) as stranger:
        stranger.sendall(f"{method} {path} HTTP/1.0\r\n\r\n".encode())
        head = stranger.makefile("rb").read()
    assert head.startswith(b"HTTP/1.0 501 ") and b"Last-Modified" not in head


def test_strangers_are_turned_away_in_silence(served: Served) -> None:
    """Whatever they say, ranks still hear whose server this is, and nothing of it is written anywhere."""
    port, said, _ = served
    for text in STRANGE:
        with create_connection(("127.0.0.1", port), 10) as peer, suppress(ConnectionError, TimeoutError):
            peer.sendall(text)
            peer.settimeout(0.5)
            peer.recv(100)
        assert ask(f"127.0.0.1:{port}") == SLOTS, text
    assert said.read_text() == ""


def test_it_listens_at_its_addresses_alone(served: Served) -> None:
    """At both it is the same server: what is put at one is there at the other."""
    port, *_ = served
    assert put(port, "key", 3) == 200
    assert [ask(f"{address}:{port}") for address in ADDRESSES.split(",")] == [SLOTS, SLOTS]
    with create_connection(("127.0.1.1", port), 10) as peer:
        peer.sendall(b"GET /s/key HTTP/1.0\r\n\r\n")
        assert peer.makefile("rb").read().endswith(b"\r\n\r\nxxx")
    with pytest.raises(ConnectionRefusedError):
        ask(f"127.0.2.1:{port}")


def test_what_ranks_say_is_kept(served: Served) -> None:
    """A value comes back as it was put."""
    port, *_ = served
    for text, answer in (
        (b"PUT /global/0 HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello", b""),
        (b"GET /global/0 HTTP/1.0\r\n\r\n", b"hello"),
    ):
        with create_connection(("127.0.0.1", port), 10) as peer:
            peer.sendall(text)
            assert peer.makefile("rb").read().partition(b"\r\n\r\n")[2] == answer


def put(port: int, key: str, size: int) -> int:
    """Put a value of some bytes; return the status."""
    with create_connection(("127.0.0.1", port), 20) as peer:
        peer.sendall(f"PUT /s/{key} HTTP/1.0\r\nContent-Length: {size}\r\n\r\n".encode())
        with suppress(ConnectionError):
            peer.sendall(b"x" * size)
        return int(peer.makefile("rb").readline().split()[1])


@pytest.mark.thorough
def test_strangers_cannot_fill_it(served: Served) -> None:
    """Neither with one value, nor with many; whose server it is, it still says."""
    port, *_ = served
    assert put(port, "large", 1 << 20) == 413
    assert put(port, "rank", 1 << 12) == 200
    statuses = [put(port, str(number), 1 << 16) for number in range(300)]
    assert statuses == sorted(statuses) and set(statuses) == {200, 413}
    assert sum(status == 200 for status in statuses) << 16 <= 16 << 20
    assert ask(f"127.0.0.1:{port}") == SLOTS
    silent = [create_connection(("127.0.0.1", port), 20) for _ in range(300)]
    silent[0].settimeout(20)
    assert silent[0].recv(1) == b"", "the oldest had to go"
    assert ask(f"127.0.0.1:{port}") == SLOTS
    for one in silent:
        one.close()


def test_a_rank_does_not_wait_behind_strangers(served: Served) -> None:
    """A short queue in the kernel drops its call, which comes again after a second at the earliest."""
    port, _, pid = served
    os.kill(pid, SIGSTOP)
    strangers = []
    for number in range(100):
        strangers.append(socket())
        strangers[-1].setblocking(False)
        strangers[-1].bind((f"127.0.0.{1 + number % 9}", 0))
        strangers[-1].connect_ex(("127.0.0.1", port))
        with suppress(OSError):
            strangers[-1].send(b"GET /a/b HTTP/1.0\r\nX: ")
    with ThreadPoolExecutor(1) as pool:
        rank = pool.submit(ask, f"127.0.0.1:{port}")
        wait_for(lambda: calls_of(port) > len(strangers), "the rank has called")
        began = monotonic()
        os.kill(pid, SIGCONT)
        assert rank.result(20) == SLOTS
    assert monotonic() - began < 0.9
    for one in strangers:
        one.close()


def calls_of(port: int) -> int:
    """Return the number of sockets that have called a port, answered or not."""
    lines = Path("/proc/net/tcp").read_text().splitlines()
    return sum(line.split()[2].endswith(f":{port:04X}") and line.split()[3] in ("01", "02") for line in lines)


def test_horovod_behind_a_shell_is_not_a_job_of_one(tmp_path: Path) -> None:
    """Its processes would be a world each, and all end well: `hvd.init()` fails, and the fix is named."""
    script = tmp_path / "train.py"
    script.write_text("import torch, horovod.torch as hvd\nhvd.init()\nprint('size', hvd.size())\n")
    line = f"true; exec {sys.executable} {script}"
    done = launch("run", "--nproc-per-node", "2", "--", "bash", "-c", line)
    assert done.returncode == 128 + SIGABRT and "size" not in done.stdout, done.stderr
    assert "--framework horovod" in done.stderr
