"""When have all nodes answered? ``python -m benchmarks.status_load [NODES ...]``: 2,000 by real sockets.

The nodes of `benchmarks.peers_load`, which answer what node 0 asks: 8 ranks each, and stacks of 20 kB. Asked
is node 0's launcher, by its socket, as ``launcher status`` and ``launcher stacks`` do. The promise: node 0
keeps nothing of what passes through it, and stays below 150 MiB.
"""

from __future__ import annotations

import sys
import threading
import time

from benchmarks.machine import OtherLoad, describe_machine
from benchmarks.peers_load import Node, Nodes, allow_files, make_join, read_cpu_s, read_kib, start_hub
from benchmarks.tables import cell, markdown, promise
from launcher.control.client import Message, ask, find_launchers

HEAD = (
    "nodes",
    "status, s",
    "node 0's CPU time, s",
    "stacks, s",
    "CPU time for them, s",
    "memory of node 0, MiB",
    "CPUs used by others, %",
)
PROMISE_MIB = 150.0
RANKS, STACKS_BYTES = 8, 20_000
RANK = {
    "name": "rank 12345", "rank": 12345, "local_rank": 7, "pid": 123456, "state": "running", "silence_s": 1.2,
    "kernel_state": "S", "cpu_s": 123456.78, "memory_bytes": 12 << 30, "process_count": 9, "gpus": [7],
}  # fmt: skip
ANSWERS: dict[str, Message] = {
    "status": {"ranks": [RANK] * RANKS, "host": "gpu-0", "state": "running", "at_s": 1.0},
    "stacks": {"words": ["x" * 400] * (STACKS_BYTES // 400), "stacks": [], "processes": []},
}


class Answering(Nodes):
    """Nodes that answer."""

    def hear(self, node: Node, data: bytes) -> None:
        """Answer what node 0 asks, and forget the rest."""
        assert node.sealed is not None and node.socket is not None
        for message in node.sealed.feed(data):
            kind = str(message["is"])
            if kind not in node.heard:
                node.heard.add(kind)
                self.heard[kind] = self.heard.get(kind, 0) + 1
            if kind == "ask":
                reply = {"number": message["number"], "answer": ANSWERS[str(message["what"])]}
                node.socket.setblocking(True)
                node.socket.send(node.sealed.pack({"is": "reply", **reply}))
                node.socket.setblocking(False)


def measure(count: int) -> tuple[list[str], float]:
    """Return one row of the table, and the memory of node 0, MiB."""
    load, cells = OtherLoad(), [f"{count:,}"]
    with start_hub(count) as hub:
        nodes = Answering(count, make_join(count), hub)
        nodes.until(lambda: nodes.heard.get("start", 0) == count - 1)
        (path,) = (one.path for one in find_launchers({})[0] if one.pid == hub.pid)
        for what in ("status", "stacks"):
            cpu_s, took_s, answers = read_cpu_s(hub.pid), *time_question(nodes, path, what)
            assert len([one for one in answers if "answer" in one]) == count, answers[-3:]
            cells += [cell(took_s), cell(read_cpu_s(hub.pid) - cpu_s)]
        mib = read_kib(hub.pid, "VmHWM") / 1024
        hub.kill()
    return [*cells, cell(mib), cell(load.percent())], mib


def time_question(nodes: Nodes, path: str, what: str) -> tuple[float, list[Message]]:
    """Ask, and have the nodes answer meanwhile; return how long that took, in seconds, and the answers."""
    answers: list[list[Message]] = []
    began = time.monotonic()
    asking = threading.Thread(target=lambda: answers.append(ask(path, what)), daemon=True)
    asking.start()
    nodes.until(lambda: not asking.is_alive())
    return time.monotonic() - began, answers[0]


def main(words: list[str]) -> int:
    """Measure, and print a table; the exit status says whether the promise holds."""
    counts = [int(word) for word in words] or [2000]
    allow_files(max(counts) + 512)
    found = [measure(count) for count in counts]
    print(f"{describe_machine()}\n")
    print("\n".join(markdown(HEAD, [cells for cells, _ in found])))
    most = max(mib for _, mib in found)
    print(f"\n{promise('MiB of memory of node 0', PROMISE_MIB, most)}")
    return int(most > PROMISE_MIB)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
