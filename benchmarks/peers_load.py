"""How many nodes can node 0 hear? ``python -m benchmarks.peers_load [NODES ...]``: 2,000 by real sockets.

One process stands for all nodes but the first: real connections over the loopback, real handshakes,
sealed frames, heartbeats every 2 s. Node 0 is a real ``launcher run`` whose process sleeps. The promises
for 2,000 nodes: a roll call of less than 10 s, less than 150 MiB, heartbeats for less than 5 % of a core,
a failure told to all within 1 s, and less than 1 kB/s for each node.
"""

from __future__ import annotations

import os
import resource
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

from benchmarks.machine import OtherLoad, describe_machine
from benchmarks.tables import cell, markdown, promise
from launcher import __version__
from launcher.channel.frames import Calling, Sealed, make_key
from launcher.cluster.facts import describe_command
from launcher.job.settings import BEAT_S

ADDRESS, PORT, MASTER_PORT = "127.0.77.10", 7206, 7205
COMMAND = ("sleep", "600")
WATCHED_S = 20.0
SETTLE_S = 2.0
DEADLINE_S = 120.0
CONNECTED_AT_ONCE = 512
"""Calls that wait for an answer: nodes that start at different moments are not all in the same one."""
IP_BIND_ADDRESS_NO_PORT = 24
"""Option of a socket (linux/in.h): the port is chosen at the connection. Python has no name for it."""
TICKS = os.sysconf("SC_CLK_TCK")
HEAD = (
    "nodes",
    "roll call, s",
    "memory of node 0, MiB",
    "its CPU for heartbeats, %",
    "each node sends and hears, B/s",
    "a failure told to all, ms",
    "all know the end, s",
    "CPUs used by others, %",
)
PROMISED, PROMISES = 2000, (10.0, 150.0, 5.0, 1000.0, 1000.0)
"""For so many nodes, the limits of the columns after the first."""
HEADERS_BYTES = 66
"""Ethernet, IPv4 and TCP with timestamps, once for a packet and once for its acknowledgement."""


def address_of(rank: int) -> str:
    """Return a node's own address. From a single one the kernel would search long for each free port."""
    return f"127.{100 + (rank >> 16)}.{rank >> 8 & 255}.{rank & 255}"


class Node:
    """One simulated node."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.socket: socket.socket | None = None
        self.calling: Calling | None = None
        self.sealed: Sealed | None = None
        self.heard: set[str] = set()


class Nodes:
    """All nodes but the first."""

    def __init__(self, count: int, hello: Mapping[str, object], hub: subprocess.Popen[bytes]) -> None:
        self.count, self.hello, self.hub = count, hello, hub
        self.key = make_key(None, str(MASTER_PORT))
        self.epoll = select.epoll()
        self.nodes: dict[int, Node] = {}
        self.waiting = [Node(rank) for rank in range(count - 1, 0, -1)]
        self.pending = 0
        self.heard: dict[str, int] = {}
        self.bytes = self.packets = 0
        self.beat_at = time.monotonic()

    def connect(self) -> None:
        """Call node 0 for more of them."""
        while self.waiting and self.pending < CONNECTED_AT_ONCE:
            node = self.waiting.pop()
            node.calling, node.sealed = Calling(self.key), None
            node.socket = socket.socket()
            node.socket.setblocking(False)
            node.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            node.socket.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
            node.socket.bind((address_of(node.rank), 0))
            node.socket.connect_ex((ADDRESS, PORT))
            self.nodes[node.socket.fileno()] = node
            self.epoll.register(node.socket, select.EPOLLOUT)
            self.pending += 1

    def turn(self, timeout_s: float) -> None:
        """Handle what there is to be read, and say that all are there when it is time."""
        for fd, event in self.epoll.poll(timeout_s, 256):
            node = self.nodes[fd]
            assert node.socket is not None and node.calling is not None
            if node.sealed is None and event & select.EPOLLOUT and not event & select.EPOLLERR:
                node.socket.send(node.calling.call)
                self.epoll.modify(fd, select.EPOLLIN)
                continue
            try:
                data = node.socket.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                self.drop(fd, node)
            elif node.sealed is None:
                self.shake(node, data)
            else:
                self.bytes += len(data)
                self.packets += 1
                self.hear(node, data)
        self.connect()
        if time.monotonic() >= self.beat_at:
            self.beat_at = time.monotonic() + BEAT_S
            self.tell({"is": "beat", "sent": time.monotonic()})

    def drop(self, fd: int, node: Node) -> None:
        """A connection has ended: call again, unless the job has."""
        assert node.socket is not None
        self.epoll.unregister(fd)
        node.socket.close()
        del self.nodes[fd]
        if node.sealed is None:
            self.pending -= 1
        if "over" not in node.heard:
            self.waiting.append(node)

    def shake(self, node: Node, data: bytes) -> None:
        """Prove that we have the key; node 0 then does the same."""
        assert node.socket is not None and node.calling is not None
        node.socket.send(node.calling.feed(data))
        node.sealed = node.calling.sealed
        if node.sealed is None:
            return
        self.pending -= 1
        hello = {"is": "join", **self.hello, "rank": node.rank, "session": f"s{node.rank}"}
        hello |= {"mono_ns": time.monotonic_ns(), "wall_ns": time.time_ns(), "host": f"gpu-{node.rank}"}
        node.socket.send(node.sealed.pack(hello))
        self.hear(node, node.calling.rest)

    def hear(self, node: Node, data: bytes) -> None:
        """Count what node 0 says, by its kind."""
        assert node.sealed is not None
        for message in node.sealed.feed(data):
            kind = str(message["is"])
            if kind not in node.heard:
                node.heard.add(kind)
                self.heard[kind] = self.heard.get(kind, 0) + 1

    def tell(self, message: Mapping[str, object], only: int | None = None) -> None:
        """Say something for all of them, or for one."""
        for node in self.nodes.values():
            if node.sealed is not None and node.socket is not None and only in (None, node.rank):
                data = node.sealed.pack(message)
                self.bytes += len(data)
                self.packets += 1
                node.socket.send(data)

    def until(self, is_true: Callable[[], bool], wait_s: float = DEADLINE_S) -> float:
        """Turn until something is true; return how long that took, in seconds."""
        began = time.monotonic()
        while not is_true():
            if time.monotonic() - began > wait_s:
                self.hub.kill()
                raise SystemExit(f"not within {wait_s:g} s; heard so far: {self.heard}")
            self.turn(0.05)
        return time.monotonic() - began


def start_hub(count: int, *more: str) -> subprocess.Popen[bytes]:
    """Start node 0; ``more``: further flags."""
    flags = f"--nnodes {count} --node-rank 0 --nproc-per-node 1 --master-addr {ADDRESS} --engine process"
    flags += f" --master-port {MASTER_PORT} --control-port {PORT} --grace 5"
    environ = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ}
    line = [sys.executable, "-m", "launcher", "run", *flags.split(), *more, "--", *COMMAND]
    return subprocess.Popen(line, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def read_kib(pid: int, name: str) -> int:
    """Return a line of a process's status in KiB."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name))


def read_cpu_s(pid: int) -> float:
    """Return how long a process has computed."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        words = file.read().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / TICKS


def make_join(count: int) -> dict[str, object]:
    """Return what each node says of itself, as long as on a real machine."""
    return {
        "launcher": __version__,
        "python": "3.12.3",
        "driver": "580.65.06",
        "torch": "2.13.0+cu130",
        "nccl": "2.27.7",
        "mpi": "Open MPI, libmpi.so.40 40.30.4",
        "fabric": "ib",
        "engine": "process",
        "gpu_count": 8,
        "gpu_kind": "8 x NVIDIA H200",
        "command": describe_command(COMMAND),
        "node_count": count,
        "local_size": 1,
        "world_size": count,
        "addresses": ["10.0.0.4"],
        "settings": {f"SETTING_{index}": f"value {index}" for index in range(12)},
    }


def measure(count: int) -> tuple[float, ...]:
    """Return one row of the table after its first cell, in the units of `HEAD`."""
    load = OtherLoad()
    with start_hub(count) as hub:
        nodes = Nodes(count, make_join(count), hub)
        others = count - 1
        roll_s = nodes.until(lambda: nodes.heard.get("start", 0) == others)
        resident = read_kib(hub.pid, "VmHWM")
        settled = time.monotonic() + SETTLE_S
        nodes.until(lambda: time.monotonic() > settled)
        cpu_s, began, nodes.bytes, nodes.packets = read_cpu_s(hub.pid), time.monotonic(), 0, 0
        nodes.until(lambda: time.monotonic() - began > WATCHED_S)
        lasted = time.monotonic() - began
        percent = 100 * (read_cpu_s(hub.pid) - cpu_s) / lasted
        rate = (nodes.bytes + 2 * HEADERS_BYTES * nodes.packets) / lasted / others
        failure = {
            "is": "failed",
            "kind": "rank",
            "at_ns": time.monotonic_ns(),
            "status": 9,
            "what": "rank 7",
        }
        nodes.tell({**failure, "rank": 7, "local_rank": 0, "pid": 1, "code": 9, "asked": False}, only=7)
        told_s = nodes.until(lambda: nodes.heard.get("stop", 0) == others)
        for node in list(nodes.nodes.values()):
            assert node.sealed is not None and node.socket is not None
            node.socket.send(node.sealed.pack({"is": "ended", "status": 143, "record": None}))
        over_s = nodes.until(lambda: nodes.heard.get("over", 0) == others)
        nodes.tell({"is": "bye"})
        status = hub.wait(60)
        assert status == 9, (status, hub.stderr.read() if hub.stderr else b"")
    return (roll_s, resident / 1024, percent, rate, told_s * 1e3, over_s, load.percent())


def allow_files(count: int) -> None:
    """Raise the limit of open files to that many, as far as the hard one goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, count)), hard))


def main(words: list[str]) -> int:
    """Measure, and print a table."""
    counts = [int(word) for word in words] or [2000]
    allow_files(max(counts) + 512)
    found = {count: measure(count) for count in counts}
    rows = [(f"{count:,}", *map(cell, values)) for count, values in found.items()]
    print(f"{describe_machine()}; one run each.\n")
    print("\n".join(markdown(HEAD, rows)))
    print(f"\nNodes speak every {BEAT_S:g} s, node 0 to each of them, too.\n")
    promised = list(zip(HEAD[1:], PROMISES, found.get(PROMISED, ()), strict=False))
    for name, limit, value in promised:
        print(promise(f"for {PROMISED:,} nodes: {name}", limit, value))
    return int(any(value > limit for _, limit, value in promised))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
