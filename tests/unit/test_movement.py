"""What counts as movement of the ranks, and when the stall report without a flag comes."""

from __future__ import annotations

import os
import socket
import time

import pytest

from launcher.machine.host import Host
from launcher.observers import traffic
from launcher.observers.movement import Movement, Reading, find_busy, has_traffic
from launcher.observers.stall import StallDetector, describe_busy
from launcher.observers.traffic import list_counters, read_connections, read_counters
from launcher.output.progress import GpuUse

SPINS, IDLE, WORKS = GpuUse(100, 0, 1, 2), GpuUse(0, 0, 1, 2), GpuUse(60, 20, 1, 2)


def read(at_s: float, *cpu_s: float, **others: object) -> Reading:
    """Return a reading of ranks 0, 1, ... with these CPU times."""
    chosen = {"connections": {}, "other_bytes": 0, "members": [], **others}
    return Reading(at_s, {(rank, 100 + rank): used for rank, used in enumerate(cpu_s)}, **chosen)  # type: ignore[arg-type]


def test_traffic_counts_on_connections_of_the_ranks_only() -> None:
    """Heartbeats do not, other programs' do not, a new connection does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        inode = str(os.fstat(server.fileno()).st_ino).encode()
    with socket.socket() as own:
        inode = str(os.fstat(own.fileno()).st_ino).encode()
        ours = [os.getpid()]
        before = read(0, connections={inode: 1000}, members=ours)
        assert not has_traffic(before, read(60, connections={inode: 4000, b"1": 10**9}, members=ours))
        assert has_traffic(before, read(60, connections={inode: 250_000}, members=ours))
        assert has_traffic(read(0), read(60, connections={inode: 250_000}, members=ours))
        assert not has_traffic(before, read(60, connections=None, members=ours))


def test_the_noise_of_a_rank_that_waits_is_no_work() -> None:
    """Up to 0.16 s of CPU time per minute; a rank that is new, or lost a child, is busy."""
    # Measured: up to 0.16 s per minute; work begins at 1.2 s.
    before = read(0, 10.0, 10.0, 10.0, 10.0)
    assert find_busy(before, read(60, 10.16, 11.1, 11.3, 70.0)) == (2, 3)
    # Its total is no sum of the same processes.
    assert find_busy(read(0, 10.0), read(60, 3.0)) == (0,)
    assert find_busy(read(0, 10.0), read(60, 10.0, 0.0)) == (1,)
    # A program that is loaded from a slow disk uses little else.
    assert has_traffic(read(0), read(60, other_bytes=4_000_000))
    assert not has_traffic(read(0), read(60, other_bytes=3_000_000))


def test_the_kernel_counts_the_bytes_of_a_connection() -> None:
    """Both ends of one within the node, also over IPv6."""
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            server = socket.create_server((host, 0), family=family)
        except OSError:
            continue  # a node without IPv6
        with server, socket.create_connection(server.getsockname()[:2]) as one, server.accept()[0] as two:
            one.sendall(bytes(100_000))
            left = 100_000
            while left:
                left -= len(two.recv(left))
            deadline = time.monotonic() + 5
            while True:
                seen = read_connections()
                if seen is None:
                    pytest.skip("the kernel does not tell")
                sizes = [seen.get(str(os.fstat(end.fileno()).st_ino).encode(), 0) for end in (one, two)]
                if min(sizes) >= 100_000:
                    break
                assert time.monotonic() < deadline, sizes


def test_connections_of_others_take_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user may have a million of them, and the loop has signals to answer."""
    monkeypatch.setattr(traffic, "LOOK_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        assert read_connections() is None


def test_counters_of_infiniband_and_efa_ports(tmp_path: object) -> None:
    """InfiniBand counts words of four bytes; Ethernet ports carry the traffic of the whole node."""
    root = str(tmp_path)
    for device, layer, name in (
        ("mlx5_0", "InfiniBand", "counters/port_xmit_data"),
        ("mlx5_1", "Ethernet", "counters/port_xmit_data"),
        ("rdmap0", "Unknown", "hw_counters/tx_bytes"),
    ):
        port = f"{root}/sys/class/infiniband/{device}/ports/1"
        os.makedirs(os.path.dirname(f"{port}/{name}"))
        for path, text in (("link_layer", layer), ("state", "4: ACTIVE"), (name, "1000")):
            with open(f"{port}/{path}", "w") as file:
                file.write(text + "\n")
    host = Host(root)
    assert read_counters(host, list_counters(host)) == 5000


class Clock:
    """A stall detector without processes, with a clock and readings that the test moves."""

    def __init__(self, *uses: GpuUse) -> None:
        self.now = self.output = 0.0
        self.stalls: list[float] = []
        self.said: list[str] = []
        self.readings = 0
        self.rates = [0.0, 0.0, 0.0, 0.0]
        movement = Movement(lambda _: [], 60)
        movement._read = self.read_all  # type: ignore[method-assign]
        self.uses = uses
        self.stall = StallDetector(
            600, lambda: self.output, self.note, lambda: None, started=0.0, gpus=self, movement=movement
        )  # fmt: skip

    def note(self, what: str) -> None:
        """Note a stall."""
        self.stalls.append(self.now)
        self.said.append(what)

    def read(self, now: float) -> tuple[GpuUse, ...]:
        """Return the use of the GPUs."""
        return self.uses

    def read_all(self, now: float) -> Reading:
        """Return the CPU times of four ranks."""
        self.readings += 1
        return read(now, *(rate * now for rate in self.rates))

    def run_until(self, end: float, every_s: float | None = None) -> None:
        """Fire whenever it is due; a rank writes every ``every_s`` seconds."""
        while self.stall.due is not None and self.stall.due <= end and not self.stalls:
            self.now = self.stall.due
            if every_s:
                self.output = self.now - self.now % every_s
            self.stall.fire(self.now)


def test_reports_come_after_ten_minutes_and_ever_more_rarely() -> None:
    """The next takes twice the longest quiet time, up to an hour; a job that writes is not read at all."""
    # One report, read once a minute.
    clock = Clock()
    clock.run_until(3000)
    assert len(clock.stalls) == 1 and 600 <= clock.stalls[0] <= 660
    assert clock.readings <= 12
    # A server that is idle now and then is not reported all the time.
    clock = Clock()
    told = []
    for _ in range(6):
        clock.stalls.clear()
        clock.output = clock.now + 1
        clock.run_until(1e6)
        told.append(round((clock.stalls[0] - clock.output) / 60))
    assert told == [10, 21, 41, 60, 60, 60]
    assert "longest" not in clock.said[0]
    assert clock.said[1].endswith("for 20 min (the longest quiet time so far was 10 min)")
    # The watch of a healthy job reads nothing at all.
    clock = Clock()
    clock.run_until(3000, every_s=10)
    assert (clock.stalls, clock.readings) == ([], 0)


@pytest.mark.parametrize(
    ("rates", "uses", "stalls"),
    [
        ((1, 1, 1, 1), (), False),  # all compute
        ((0.002, 0.002, 0.002, 0.002), (), True),  # all wait
        ((1, 0, 0, 0), (), True),  # one runs in circles, and the others wait
        ((1, 1, 1, 0), (), False),
        ((1, 1, 1, 1), (SPINS, SPINS, SPINS, SPINS), True),  # cores that wait for GPUs that wait
        ((1, 1, 1, 1), (SPINS, SPINS, SPINS, IDLE), True),
        ((1, 1, 1, 1), (IDLE, IDLE), False),  # they prepare data
        ((0, 0, 0, 0), (SPINS, WORKS), False),
    ],
)
def test_what_hangs_and_what_does_not(
    rates: tuple[float, ...], uses: tuple[GpuUse, ...], stalls: bool
) -> None:
    """By the CPU time of four ranks, in cores, and by the GPUs."""
    clock = Clock(*uses)
    clock.rates = list(rates)
    clock.run_until(3000)
    assert bool(clock.stalls) is stalls


def test_the_ranks_that_run_alone_are_named() -> None:
    """At most eight of them."""
    assert describe_busy(()) == ""
    assert describe_busy((3,)) == "; only rank 3 uses CPU time"
    assert describe_busy((1, 3)) == "; only ranks 1, 3 use CPU time"
    assert describe_busy(range(9)).endswith("6, 7, ... use CPU time")
