"""Programs on another node: a hub in this process, a node in another one, and clients over real sockets."""

from __future__ import annotations

import fcntl
import json
import os
import re
import resource
import shlex
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.channel.connection import listen
from launcher.channel.frames import FRAME_LIMIT_BYTES, Answering, at_port
from launcher.channel.lines import encode
from launcher.cluster.messages import Welcome
from launcher.cluster.settings import Shape
from launcher.core.supervision import Restarts
from launcher.core.wire import pack
from launcher.machine.pythons import own_program
from launcher.mpi.lead import Lead, ServedJob
from launcher.mpi.protocol import Briefing
from launcher.process.helper import Helpers
from launcher.process.loop import Loop
from launcher.recovery.history import History
from launcher.remote import rsh
from launcher.remote.hub import Gate
from launcher.remote.protocol import (
    WINDOW_BYTES,
    AskProgram,
    RunProgram,
    StreamData,
    StreamTaken,
    decode_data,
)
from tests.process.looking import wait_for
from tests.process.starting import clean_environ
from tests.saying import keep

KEY = b"k" * 32
NODE = """
import json, os, signal, sys
from launcher.process.helper import Helpers
from launcher.process.kernel import read_signals
from launcher.process.loop import Loop
from launcher.process.signal_file import SignalFile
from launcher.cluster import client as module
from launcher.cluster.join import Join
from launcher.cluster.messages import Refuse
from launcher.cluster.settings import Shape
from launcher.core.version import __version__
from launcher.mpi.protocol import FROM_HEAD
from launcher.remote.programs import Programs
from launcher.remote.protocol import FROM_NODE, TO_NODE
told = json.loads(sys.argv[1])
def say(text, event, **_):
    print(text, file=sys.stderr, flush=True)
loop, signals = Loop(say), SignalFile()
module.read_address = lambda name: tuple(told["addresses"])
module.SAY_EVERY_S = 1.0
shape = Shape(1, 3, None, "zero", tuple(told["ports"]))
join = Join(told["index"], os.urandom(8).hex(), host="here", launcher=__version__)
def obey(message):
    if isinstance(message, TO_NODE):
        programs.obey(message)
    elif isinstance(message, Refuse):
        say(message.what, "refused")
client = module.CoordinatorClient(
    bytes.fromhex(told["key"]), shape, join, loop, Helpers(loop).ask, say, obey,
    on_lost=lambda: programs.let_go(), streams=(*FROM_NODE, *TO_NODE, *FROM_HEAD))
programs = Programs(client.send, loop, os.environ)
loop.add(signals.fd, lambda: read_signals(signals.fd))
loop.timers.append(client)
while True:
    loop.turn()
    programs.reap()
"""
MARK = "LAUNCHER_TEST_MARK=1"
PLENTY_BYTES = 8 * WINDOW_BYTES


def start_node(
    ports: tuple[int, ...],
    index: int | None = 1,
    key: bytes = KEY,
    addresses: tuple[str, ...] = ("127.0.0.1",),
) -> subprocess.Popen[str]:
    """Start another node; ``addresses``: what node 0's name resolves to."""
    told = json.dumps({"ports": ports, "key": key.hex(), "index": index, "addresses": addresses})
    line = [sys.executable, "-c", NODE, told]
    return subprocess.Popen(line, env=clean_environ(), stderr=subprocess.PIPE, text=True)


class Pair:
    """Node 0's hub, and the programs that other nodes run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, str(folder / "rsh")
        listening, self.port = listen("127.0.0.1", (0,))
        self.port = listening.getsockname()[1]
        self.loop = Loop(lambda *_, **__: None)
        gate = Gate(
            ("zero", "one", "two"), ("zero", "127.0.0.1", "two"), ("localhost",), self.path, KEY, listening,
            f"export {MARK}; ",
        )  # fmt: skip
        self.said: list[str] = []
        job = ServedJob(Shape(0, 3, 3, "zero", (), gate.hosts, serves=True), Briefing(os.urandom(8).hex()))
        self.hub = Lead(job, None, gate)  # type: ignore[arg-type]
        self.hub.attach(
            SimpleNamespace(  # type: ignore[arg-type]
                loop=self.loop,
                say=keep(self.said),
                group=SimpleNamespace(helpers=Helpers(self.loop)),
                watch=SimpleNamespace(restarts=Restarts()),
            )
        )
        history = History("", keep(self.said))
        self.hub.parts = SimpleNamespace(  # type: ignore[assignment]
            outcomes=SimpleNamespace(history=history, exit_status=lambda status, verdict: status)
        )
        self.hub.deliver = lambda message: None  # type: ignore[method-assign]
        self.loop.timers += self.hub.timers
        self.nodes: list[subprocess.Popen[str]] = []
        self._is_over = False
        self._thread = threading.Thread(target=self._turn)
        self._thread.start()

    def _turn(self) -> None:
        while not self._is_over:
            self.loop.turn_until(lambda: self._is_over, 0.05)

    def start_node(self, index: int | None = 1, key: bytes = KEY) -> subprocess.Popen[str]:
        """Start the program of another node."""
        self.nodes.append(start_node((self.port,), index, key))
        return self.nodes[-1]

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a client."""
        pipe = subprocess.PIPE
        line = own_program(rsh.__file__, self.path, *words)
        return subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=pipe, env=clean_environ())

    def run(self, *words: str, data: bytes = b"") -> tuple[int, bytes, bytes]:
        """Run a client; return its status, its output and its errors."""
        client = self.start(*words)
        out, err = client.communicate(data, timeout=30)
        return client.returncode, out, err

    def close(self) -> None:
        """End everything."""
        for node in self.nodes:
            node.kill()
            node.communicate()
        self._is_over = True
        self._thread.join()
        self.hub.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Return a hub that node 1 has joined."""
    one = Pair(tmp_path)
    one.start_node()
    wait_for(lambda: one.hub.channel.members.is_there(1), "node 1 has joined")
    yield one
    one.close()


def test_streams_and_statuses_pass(pair: Pair) -> None:
    """Both outputs, the input to its end, every kind of end; ssh's options are ignored."""
    big = bytes(range(256)) * 20_000
    status, out, err = pair.run("one", "cat; echo done >&2", data=big)
    assert (status, len(out), out == big, err) == (0, len(big), True, b"done\n")  # no diff of megabytes
    assert pair.run("-x", "-o", "A=b", "-lroot", "root@one", "echo", "$LAUNCHER_TEST_MARK;", "exit 7") == (
        7, b"1\n", b"",
    )  # fmt: skip
    assert pair.run("-n", "one", "cat; kill -9 $$") == (137, b"", b"")
    assert pair.run("one", "no-such-program")[0] == 127


def test_signals_have_their_default_action(pair: Pair) -> None:
    """A loop that prints ends when nobody reads it any more."""
    assert pair.run("one", "kill -PIPE $$") == (128 + signal.SIGPIPE, b"", b"")
    assert pair.run("one", "kill -XFSZ $$") == (128 + signal.SIGXFSZ, b"", b"")


def test_input_waits_for_a_program_that_does_not_read(pair: Pair, tmp_path: Path) -> None:
    """However much there is; the node's other programs do not notice."""
    client = pair.start("one", f"until [ -e {tmp_path}/go ]; do sleep 0.05; done; wc -c")
    assert client.stdin is not None
    fd, seen = client.stdin.fileno(), [0]
    os.set_blocking(fd, False)

    def is_held_up() -> bool:
        try:
            seen.append(seen[-1] + os.write(fd, bytes(1 << 16)))
        except BlockingIOError:
            seen.append(seen[-1])
        is_steady = len(seen) > 30 and WINDOW_BYTES < seen[-1] == seen[-30]
        return is_steady or seen[-1] > PLENTY_BYTES

    wait_for(is_held_up, "nothing more is taken")
    assert seen[-1] < PLENTY_BYTES
    assert pair.run("one", "echo hi") == (0, b"hi\n", b"")
    (tmp_path / "go").touch()
    os.set_blocking(fd, True)
    assert client.communicate(bytes(PLENTY_BYTES), timeout=30)[0] == b"%d\n" % (seen[-1] + PLENTY_BYTES)


def test_output_waits_for_a_client_that_does_not_read(pair: Pair, tmp_path: Path) -> None:
    """The program waits, as with ssh, and loses nothing."""
    client = pair.start("one", f"echo $$ > {tmp_path}/pid; exec head -c {4 * PLENTY_BYTES} /dev/zero")
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the program runs")
    path, seen = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/io"), [0]

    def is_held_up() -> bool:
        seen.append(int(re.findall("wchar: ([0-9]+)", path.read_text())[0]))
        return len(seen) > 30 and WINDOW_BYTES < seen[-1] == seen[-30]

    wait_for(is_held_up, "it writes no more")
    assert seen[-1] < PLENTY_BYTES
    assert len(client.communicate(timeout=30)[0]) == 4 * PLENTY_BYTES and client.returncode == 0


def test_clients_that_come_while_there_is_no_descriptor(pair: Pair) -> None:
    """They wait until there is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            client.connect(pair.path)
            wait_for(lambda: pair.said, "no descriptor was left")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        client.sendall(encode(pack(AskProgram("zero", "true"))) + b"\n")
        assert json.loads(client.recv(4096)) == {"is": "runhere"}


@pytest.mark.parametrize("data", ["no base64", "A" * FRAME_LIMIT_BYTES], ids=["no base64", "too long"])
def test_a_client_of_another_make_disturbs_no_other(pair: Pair, data: str) -> None:
    """Its connection ends, not that of the node."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20)
        client.connect(pair.path)
        for said in (AskProgram("one", "cat"), StreamData(0, 0, data)):
            client.sendall(encode(pack(said)) + b"\n")
        while client.recv(4096):
            pass
    assert pair.run("one", "echo hi") == (0, b"hi\n", b"")


def test_programs_that_start_while_output_waits(tmp_path: Path) -> None:
    """Node 0 takes nothing: a flood waits, what starts meanwhile loses nothing, no fault is printed."""
    listening, _ = listen("127.0.0.1", (0,))
    stays = f"until [ -e {tmp_path}/over ]; do sleep 0.05; done; echo hi"
    port, flood_bytes = listening.getsockname()[1], 8_000_000
    with start_node((port,)) as node:
        listening.setblocking(True)
        listening.settimeout(20)
        connected, _ = listening.accept()
        connected.settimeout(20)
        answering = Answering(at_port(KEY, port))
        while answering.sealed is None:
            connected.sendall(answering.feed(connected.recv(4096)))
        sealed = answering.sealed
        connected.sendall(sealed.pack(pack(Welcome(0, 0, 0))))
        connected.sendall(
            sealed.pack(pack(RunProgram(1, f"head -c {flood_bytes} /dev/zero; touch {tmp_path}/over")))
        )
        connected.sendall(sealed.pack(pack(RunProgram(2, f"echo hi; touch {tmp_path}/runs"))))
        wait_for((tmp_path / "runs").exists, "the second one has run")
        seen: list[int] = []

        def is_held_up() -> bool:
            seen.append(struct.unpack("i", fcntl.ioctl(connected, termios.FIONREAD, b"0000"))[0])
            return len(seen) > 20 and seen[-20] == seen[-1]  # nothing more has come for some time

        wait_for(is_held_up, "the buffers are full")
        connected.sendall(sealed.pack(pack(RunProgram(3, stays))))
        sizes, ended = {1: 0, 2: 0, 3: 0}, set[object]()
        messages = list(sealed.feed(answering.rest))
        while len(ended) < len(sizes):
            messages = messages or list(sealed.feed(connected.recv(65536)))
            for said in messages:
                if said["is"] == "streamdata":
                    number, size = int(str(said["number"])), len(decode_data(str(said["data"])))
                    sizes[number] += size
                    connected.sendall(sealed.pack(pack(StreamTaken(number, 1, size))))
                elif said["is"] == "programended":
                    ended.add(said["number"])
            messages.clear()
        connected.close()
        node.kill()
        assert (sizes, node.communicate()[1]) == ({1: flood_bytes, 2: 3, 3: 3}, "")


def test_a_client_without_standard_streams(pair: Pair) -> None:
    """A daemon has none: its command gets an empty input, and has its status."""
    line = shlex.join(own_program(rsh.__file__, pair.path, "one", "cat; exit 4"))
    done = subprocess.run(["sh", "-c", f"{line} <&- >&- 2>&-"], env=clean_environ(), timeout=30, check=False)
    assert done.returncode == 4


def test_a_program_that_leaves_another_behind_ends_all_the_same(pair: Pair) -> None:
    """As MPI's daemons do, which keep none of the streams; one that keeps them is not waited for."""
    status, out, _ = pair.run("one", "sleep 600 & echo $!")
    os.kill(int(out), signal.SIGKILL)
    assert status == 0


def test_this_node_runs_its_own_programs(pair: Pair) -> None:
    """By all of its names, with standard input untouched."""
    for name in ("zero", "localhost"):
        assert pair.run(name, "cat; exit 3", data=b"x") == (3, b"x", b"")


def test_what_cannot_run_has_a_reason(pair: Pair) -> None:
    """Status 255, as ssh's."""
    for host, line, why in (
        ("two", "true", b"node 2 (two): it has not joined yet"),
        ("three", "true", b"no node of this job is called three: zero, one, two"),
        ("one", "x" * 100_000, b"a command line of "),
        ("one", "é" * 50_000, b"a command line of "),
    ):
        many = 1 if len(line) < 1000 else 1 + FRAME_LIMIT_BYTES // 100_000  # the kernel limits each word
        status, _, err = pair.run(host, *[line] * many)
        assert status == 255 and why in err, err


def test_a_client_that_dies_closes_the_streams_of_its_program(pair: Pair, tmp_path: Path) -> None:
    """Even of one that is stopped."""
    client = pair.start("one", f"echo $$ > {tmp_path}/pid; kill -STOP $$; cat; touch {tmp_path}/over")
    wait_for((tmp_path / "pid").exists, "the program runs")
    client.kill()
    client.communicate()
    wait_for((tmp_path / "over").exists, "its input has ended")


def test_a_node_that_is_gone_ends_its_programs_clients(pair: Pair, tmp_path: Path) -> None:
    """At once, with its name; the node can come back."""
    client = pair.start("one", f"touch {tmp_path}/runs; cat")
    wait_for((tmp_path / "runs").exists, "the program runs")
    pair.nodes[0].kill()
    _, err = client.communicate(timeout=10)
    assert client.returncode == 255 and b"is lost" in err
    pair.start_node()
    wait_for(lambda: pair.hub.channel.members.is_there(1), "node 1 is back")
    assert pair.run("one", "echo again") == (0, b"again\n", b"")


def test_a_stranger_at_the_first_port_does_not_keep_a_node(tmp_path: Path) -> None:
    """One that accepts and does not answer: after a few seconds the next port is called."""
    stranger, first = listen("127.0.0.1", (0,))
    first = stranger.getsockname()[1]
    pair = Pair(tmp_path)
    try:
        pair.nodes.append(start_node((first, pair.port)))
        wait_for(lambda: pair.hub.channel.members.is_there(1), "node 1 has joined")
    finally:
        pair.close()
        stranger.close()


def test_a_stranger_at_another_address_of_node_0_does_not_keep_a_node(pair: Pair) -> None:
    """Node 0 listens at one of them only; something else may have its port at the other one."""
    with socket.create_server(("127.0.0.2", pair.port)):
        pair.nodes.append(start_node((pair.port,), 2, addresses=("127.0.0.2", "127.0.0.1")))
        wait_for(lambda: pair.hub.channel.members.is_there(2), "node 2 has joined")


def test_only_nodes_of_the_job_join(pair: Pair) -> None:
    """Another key is turned away, and a second launcher with a rank ends the roll call."""
    other = pair.start_node(2, key=b"x" * 32)
    assert other.stderr is not None and "another token" in other.stderr.readline()
    nameless = pair.start_node(None)  # found by its address: node 1, which is there already
    assert nameless.stderr is not None and "two nodes claim to be node 1" in nameless.stderr.readline()
    assert not pair.hub.channel.members.is_there(2)


def test_a_node_that_does_not_know_its_rank_is_found_by_its_address(tmp_path: Path) -> None:
    """As the host list resolves on node 0."""
    pair = Pair(tmp_path)
    try:
        pair.start_node(None)
        wait_for(lambda: pair.hub.channel.members.is_there(1), "node 1 has joined")
    finally:
        pair.close()


def test_an_ssh_that_reads_nothing_delays_nobody(tmp_path: Path) -> None:
    """However long the variables are: ``--ssh`` reaches the other hosts, and hears signals."""
    program = tmp_path / "ssh"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/called-$$\nexec sleep 600\n")
    program.chmod(0o700)
    hosts = f"{socket.gethostname()},192.0.2.7,192.0.2.8"
    environ = clean_environ(PATH=f"{tmp_path}:{os.environ['PATH']}", LONG="x" * 100_000)
    line = [sys.executable, "-m", "launcher", "run", "--ssh", "--hosts", hosts, "--", "true"]
    with subprocess.Popen(line, env=environ, stderr=subprocess.PIPE, text=True) as launcher:
        try:
            wait_for(lambda: len(list(tmp_path.glob("called-*"))) == 2, "ssh was called for both")
        finally:
            launcher.kill()
            assert launcher.stderr is not None
            assert "error" not in launcher.stderr.read()


@pytest.mark.parametrize("flag", ["--ssh", "--ss"])
def test_the_launchers_that_ssh_starts_start_no_others(tmp_path: Path, flag: str) -> None:
    """However the flag is spelled: each host is called once."""
    program = tmp_path / "ssh"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/called-$$\nexec sleep 600\n")
    program.chmod(0o700)
    environ = clean_environ(PATH=f"{tmp_path}:{os.environ['PATH']}")
    hosts = f"{socket.gethostname()},192.0.2.7"
    line = [sys.executable, "-m", "launcher", "run", flag, "--hosts", hosts, "--", "true"]
    with subprocess.Popen(line, env=environ, stderr=subprocess.PIPE, text=True) as launcher:
        assert launcher.stderr is not None
        try:
            while "control channel" not in (text := launcher.stderr.readline()):
                assert text and len(list(tmp_path.glob("called-*"))) < 2, text
        finally:
            launcher.kill()
    assert len(list(tmp_path.glob("called-*"))) == 1
