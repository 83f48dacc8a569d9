"""The processes of a job: their ranks, the values that they exchange, and all-reduces between some of them.

Values go through torch's store, which is plain TCP to rank 0, and never through the backend that is measured.
A new group is made for each measurement, of its members only: one broken link must not prevent the
measurement of all others.

Bandwidths are those of nccl-tests (doc/PERFORMANCE.md): for an all-reduce of n processes in time t,
busbw = S/t * 2(n-1)/n, which "we can compare with the hardware peak bandwidth, independently of the number of
ranks used".
"""

from __future__ import annotations

import contextlib
import importlib
import json
import time
from datetime import timedelta
from typing import Any

from launcher.bandwidth.pairs import render_gbps
from launcher.core.errors import make_error
from launcher.core.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
TIMEOUT_S = 120.0
"""How long the processes wait for each other at the start."""
ITERATIONS, WARMUP = 20, 5
"""All-reduces per size, measured and before."""
ELEMENT_BYTES = 4
"""Size of a float32; the all-reduce sums float32 numbers."""


@frozen
class Sample:
    """Measurement of one size.

    Attributes:
        size_bytes: Bytes that each process contributes, and gets.
        time_s: Seconds of one all-reduce, as the mean over iterations and processes.
        bus_gbps: Traffic on the narrowest link in Gb/s (10^9 bits per second); 0 for one process.
        is_right: Whether the sum was correct.
    """

    size_bytes: int
    time_s: float
    bus_gbps: float
    is_right: bool = True

    def __str__(self) -> str:
        rates = f"{render_gbps(self.bus_gbps / 8):>13}{render_gbps(self.bus_gbps):>13}"
        wrong = "" if self.is_right else "  WRONG SUM: data was corrupted in transit"
        return f"{self.size_bytes:>13,}{self.time_s * 1e6:>12,.0f} µs{rates}{wrong}"


def read_ranks(environ: Mapping[str, str]) -> tuple[int, int, int]:
    """Return rank, number of processes, and local rank, as the launcher (or torchrun) set them.

    Raises:
        UsageError: The variables are missing or malformed.
    """
    try:
        rank, world_size, local_rank = (int(environ[name]) for name in RANKS)
    except (KeyError, ValueError) as error:
        found = ", ".join(f"{name}={environ[name]!r}" for name in RANKS if name in environ) or "none of them"
        raise make_error("bandwidth-ranks", found=found) from error
    return rank, world_size, local_rank


class BandwidthJob:
    """This process, and its connection to the others."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Connect to the other processes, or raise torch's error if they are not all there in time."""
        self.rank, self.world_size, self.local_rank = read_ranks(environ)
        self.torch = importlib.import_module("torch")
        importlib.import_module("torch.distributed")
        self.timeout = timedelta(seconds=TIMEOUT_S)
        self.backend, self.device = "", self.torch.device("cpu")
        self.store = next(self.torch.distributed.rendezvous("env://", timeout=self.timeout))[0]

    def gather(self, name: str, value: object, timeout_s: float = 0) -> list[Any]:
        """Return the values that all processes give under a name, in order of rank; all of them wait here.

        Args:
            name: A name that the job uses only once.
            value: A value that JSON can represent.
            timeout_s: Seconds that the others may take in addition to the timeout of the start.
        """
        self.store.set_timeout(self.timeout + timedelta(seconds=timeout_s))
        self.store.set(f"bandwidth/{name}/{self.rank}", json.dumps(value))
        if self.rank == 0:
            texts = [self.store.get(f"bandwidth/{name}/{rank}").decode() for rank in range(self.world_size)]
            self.store.set(f"bandwidth/{name}", f"[{','.join(texts)}]")
        found: list[Any] = json.loads(self.store.get(f"bandwidth/{name}"))
        return found

    def leave(self) -> None:
        """Say that this process is done; rank 0, which runs the store, waits for all processes."""
        with contextlib.suppress(RuntimeError):
            self.store.set(f"bandwidth/left/{self.rank}", "")
            if self.rank == 0:
                for rank in range(self.world_size):
                    self.store.get(f"bandwidth/left/{rank}")

    def use(self, backend: str) -> str:
        """Use a backend, with NCCL the GPU of this process; return the library's name with versions."""
        torch, self.backend = self.torch, backend
        if backend != "nccl":
            return f"{backend}, torch {torch.__version__}"
        self.device = torch.device("cuda", self.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(self.device)
        version = ".".join(map(str, torch.cuda.nccl.version()))
        return f"NCCL {version}, torch {torch.__version__}, {torch.cuda.get_device_name(self.device)}"

    def measure_pair(
        self, name: str, ranks: Sequence[int], sizes: Sequence[int], limit_s: float
    ) -> dict[str, object]:
        """Return latency and bandwidth between two units, or why the measurement failed."""
        try:
            samples = self.sweep(name, ranks, sizes, limit_s)
        except RuntimeError as error:  # all of torch's own errors derive from it
            return {"failure": str(error).strip().partition("\n")[0] or type(error).__name__}
        is_right = all(sample.is_right for sample in samples)
        return {
            "latency_s": samples[0].time_s,
            "bus_gbps": max(sample.bus_gbps for sample in samples),
            "failure": "" if is_right else "wrong sums",
        }

    def sweep(self, name: str, ranks: Sequence[int], sizes: Sequence[int], limit_s: float) -> list[Sample]:
        """Measure all-reduces of some processes, size by size, while one is quick enough.

        All processes make the same decisions, because each decision rests on a mean over all of them.
        """
        dist, index = self.torch.distributed, list(ranks).index(self.rank)
        store = dist.PrefixStore(f"bandwidth/{name}", self.store)
        dist.init_process_group(
            self.backend, store=store, rank=index, world_size=len(ranks), timeout=self.timeout
        )
        samples: list[Sample] = []
        try:
            for size_bytes in sizes:
                if foresee_s(samples, size_bytes) > limit_s:
                    break
                samples.append(self._measure(size_bytes, len(ranks), index, limit_s))
        finally:
            dist.destroy_process_group()
        return samples

    def _measure(self, size_bytes: int, process_count: int, index: int, limit_s: float) -> Sample:
        shape, kind = (size_bytes // ELEMENT_BYTES,), self.torch.float32
        data = self.torch.full(shape, index + 1, dtype=kind, device=self.device)
        self.torch.distributed.all_reduce(data)
        expected = process_count * (process_count + 1) / 2
        is_wrong = float(data.min()) != expected or float(data.max()) != expected
        wrong_count = self._sum(float(is_wrong))
        data.zero_()  # the sums of any other value would overflow a float
        once_s = self._time(data, 1) / process_count
        iterations = max(1, min(ITERATIONS, int(limit_s / once_s)))
        self._time(data, min(WARMUP, iterations))
        time_s = self._time(data, iterations) / process_count
        return Sample(size_bytes, time_s, bus_gbps(size_bytes, time_s, process_count), wrong_count == 0)

    def _time(self, data: Any, iterations: int) -> float:
        """Return the seconds of one all-reduce, summed over all processes."""
        self._sum(0)  # so that all begin at once
        begin = time.perf_counter()
        for _ in range(iterations):
            self.torch.distributed.all_reduce(data)
        if self.device.type == "cuda":
            self.torch.cuda.synchronize(self.device)
        return self._sum((time.perf_counter() - begin) / iterations)

    def _sum(self, value: float) -> float:
        """Return the sum of this value over all processes; all of them get the same number."""
        data = self.torch.tensor([value], dtype=self.torch.float64, device=self.device)
        self.torch.distributed.all_reduce(data)
        return float(data)


def bus_gbps(size_bytes: int, time_s: float, process_count: int) -> float:
    """Return the traffic on the narrowest link in Gb/s, comparable with the link's rate."""
    return size_bytes / time_s * 8e-9 * 2 * (process_count - 1) / process_count


def foresee_s(samples: Sequence[Sample], size_bytes: int) -> float:
    """Return the seconds that a larger size will take, estimated from the last two; 0 before there are two.

    The estimate is a line through both: the time of a small message is latency, and says nothing about a
    large one.
    """
    if len(samples) < 2:
        return 0.0
    before, last = samples[-2:]
    slope_s = max(0.0, last.time_s - before.time_s) / (last.size_bytes - before.size_bytes)
    return last.time_s + slope_s * (size_bytes - last.size_bytes)
