"""Horovod's rendezvous as we serve it: whoever else comes to its port disturbs no rank."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from socket import create_connection

import pytest

from launcher.frameworks import horovod_server
from launcher.frameworks.horovod_wait import ask
from launcher.host import Host
from tests.process.looking import wait_for

pytestmark = pytest.mark.torch
SLOTS = "node0:2"
STRANGE = (
    b"",
    b"\x00\xff\x1b[31m\r\n\r\n",
    b"GET /\x1b[31m\r\n\r\n",
    b"GET /a/b/c/d\x1b[31m\r\n\r\n",
    b"GET /" + b"a" * 70_000 + b" HTTP/1.0\r\n\r\n",
    b"PUT /a/b HTTP/1.0\r\n\r\n",
    b"PUT /a/b HTTP/1.0\r\nContent-Length: x\x1b\r\n\r\n",
    b"PUT /a/b HTTP/1.0\r\nContent-Length: -1\r\n\r\n",
    b"PUT /a/b HTTP/1.0\r\nContent-Length: 99999999999\r\n\r\n",
    b"PUT /launcher/job HTTP/1.0\r\nContent-Length: 3\r\n\r\nxyz",
    b"DELETE /launcher/job HTTP/1.0\r\n\r\n",
)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """Start a server; return its port, and the file of what it says."""
    port, said = Host().free_port(), tmp_path / "said"
    with said.open("w") as file:
        line = [sys.executable, horovod_server.__file__, str(port), SLOTS]
        process = subprocess.Popen(line, stdout=file, stderr=file)
    try:
        wait_for(lambda: ask(f"127.0.0.1:{port}") == SLOTS, "the server answers", deadline_s=60.0)
        yield port, said
    finally:
        process.terminate()
        process.wait(10)


def test_strangers_are_turned_away_in_silence(served: tuple[int, Path]) -> None:
    """Whatever they say, ranks still hear whose server this is, and nothing of it is written anywhere."""
    port, said = served
    for text in STRANGE:
        with create_connection(("127.0.0.1", port), 10) as guest, suppress(ConnectionError, TimeoutError):
            guest.sendall(text)
            guest.settimeout(0.5)
            guest.recv(100)
        assert ask(f"127.0.0.1:{port}") == SLOTS, text
    assert said.read_text() == ""


def test_what_ranks_say_is_kept(served: tuple[int, Path]) -> None:
    """A value comes back as it was put."""
    port, _ = served
    for text, answer in (
        (b"PUT /global/0 HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello", b""),
        (b"GET /global/0 HTTP/1.0\r\n\r\n", b"hello"),
    ):
        with create_connection(("127.0.0.1", port), 10) as guest:
            guest.sendall(text)
            assert guest.makefile("rb").read().partition(b"\r\n\r\n")[2] == answer
