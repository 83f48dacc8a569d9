"""For `benchmarks.restarts`: a restart of 2,000 nodes, of which this process plays all but node 0.

As in `benchmarks.peers_load`: real connections over the loopback, and a real ``launcher run`` as node 0. Each
played node answers at once: to the order to stop, that its processes have ended; to the news of the next
attempt, that it is ready. Node 0 stops and starts a process of its own meanwhile.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Mapping
from typing import NamedTuple

from benchmarks.peers_load import Node, Nodes, allow_files, make_join, start_hub
from launcher.cluster.messages import Again, Start
from launcher.core.wire import name_of, pack, parse
from launcher.failure.arbiter import RANK, Event
from launcher.job.commands import Stop
from launcher.job.events import Exited, Failed, Ready

STARTED, STOPPED, FOLLOWS = name_of(Start), name_of(Stop), name_of(Again)
DEATH_STATUS, TOLD_STATUS = 137, 143
VICTIM = 7
END_LIMIT_S = 20.0


class Restart(NamedTuple):
    """Milliseconds of one restart.

    Attributes:
        stop_ms: From the report of the failure until the last node was told to stop.
        decide_ms: From the last node's end until the first node was told of the next attempt.
        again_ms: From then until the last node was told.
        start_ms: From the first node's news of the next attempt until the last node's start.
        whole_ms: From the report of the failure until the last node's start.
        cpu_ms: The CPU time of node 0 meanwhile, which other load on the machine changes little.
    """

    stop_ms: float
    decide_ms: float
    again_ms: float
    start_ms: float
    whole_ms: float
    cpu_ms: float


class RestartingNodes(Nodes):
    """All nodes but the first, which take part in restarts.

    Attributes:
        attempt: The attempt that runs.
        times: When each kind of message has arrived in this attempt, in order.
        ended_ns: When the last node said that its processes have ended.
    """

    def __init__(self, count: int, hello: Mapping[str, object], hub: subprocess.Popen[bytes]) -> None:
        super().__init__(count, hello, hub)
        self.attempt, self.ended_ns = 0, 0
        self.times: dict[str, list[int]] = {STARTED: [], STOPPED: [], FOLLOWS: []}

    def hear(self, node: Node, data: bytes) -> None:
        """Answer as a node would."""
        assert node.sealed is not None
        for message in node.sealed.feed(data):
            kind = str(message["is"])
            if kind in self.times:
                self.times[kind].append(time.monotonic_ns())
            if kind == STOPPED:
                self._answer(node, Exited(node.rank, TOLD_STATUS, self.attempt))
                self.ended_ns = time.monotonic_ns()
            elif kind == FOLLOWS:
                self._answer(node, Ready(node.rank, parse(Again, message).attempt))

    def _answer(self, node: Node, message: object) -> None:
        assert node.sealed is not None and node.socket is not None
        node.socket.send(node.sealed.pack(pack(message)))

    def has_all(self, kind: str) -> bool:
        """Whether a message has arrived at all nodes."""
        return len(self.times[kind]) >= self.count - 1

    def fail(self) -> Restart:
        """Have a rank of one node fail; return once all nodes have started again."""
        for times in self.times.values():
            times.clear()
        cpu_ms, failed_ns = self._read_cpu_ms(), time.monotonic_ns()
        event = Event(VICTIM, RANK, failed_ns, DEATH_STATUS, what=f"rank {VICTIM} was killed")
        self.tell(pack(Failed(VICTIM, event, self.attempt)), only=VICTIM)
        self.until(lambda: self.has_all(STARTED))
        self.attempt += 1
        stop, again, start = (self.times[kind] for kind in (STOPPED, FOLLOWS, STARTED))
        used_ms = self._read_cpu_ms() - cpu_ms
        spans = (
            (failed_ns, stop[-1]),
            (self.ended_ns, again[0]),
            (again[0], again[-1]),
            (again[0], start[-1]),
            (failed_ns, start[-1]),
        )
        stop_ms, decide_ms, again_ms, start_ms, whole_ms = (
            (until_ns - since_ns) / 1e6 for since_ns, until_ns in spans
        )
        return Restart(stop_ms, decide_ms, again_ms, start_ms, whole_ms, used_ms)

    def _read_cpu_ms(self) -> float:
        with open(f"/proc/{self.hub.pid}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[0]) / 1e6


def measure_load(count: int, failures: int) -> list[Restart]:
    """Return the restarts of a job of so many nodes, one after the other."""
    allow_files(count + 512)
    flags = ("--restarts", str(failures), "--restart-delay", "0", "--restart-on", "any")
    found = []
    with start_hub(count, *flags) as hub:
        nodes = RestartingNodes(count, make_join(count), hub)
        try:
            nodes.until(lambda: nodes.has_all(STARTED))
            for _ in range(failures):
                settled = time.monotonic() + 1.0
                nodes.until(lambda until=settled: time.monotonic() > until)  # type: ignore[misc]
                found.append(nodes.fail())
        finally:
            hub.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + END_LIMIT_S
            while hub.poll() is None and time.monotonic() < deadline:
                nodes.turn(0.05)
            hub.kill()
    return found
