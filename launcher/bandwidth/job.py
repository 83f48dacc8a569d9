"""The processes of a job: their ranks, the values that they exchange, and groups of them to measure.

Values go through torch's store, which is plain TCP to rank 0, and never through the backend that is measured.
A new group is made for each measurement, of its members only: one broken link must not prevent the
measurement of all others.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import time
from datetime import timedelta
from typing import Any

from launcher.core.environ import Malformed, parse_int
from launcher.core.errors import NotReady, Problem, Unavailable, UsageError
from launcher.core.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

RANK_LIMIT = 1 << 24
WHERE = "the processes of this job"
EARLIER = "check earlier messages of other processes, and the firewall"
START = "launcher run --nproc-per-node 2 -- python -m launcher.bandwidth, on every node"


@frozen
class Identity:
    """Ranks and sizes of this process, as the launcher (or torchrun) set them."""

    rank: int
    world_size: int
    local_rank: int
    local_size: int


def read_identity(environ: Mapping[str, str]) -> Identity:
    """Return the ranks and sizes of this process.

    Raises:
        UsageError: The variables are missing or malformed.
    """
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    meeting = ("MASTER_ADDR", "MASTER_PORT")
    try:
        rank, world_size, local_rank, local_size = (
            parse_int(environ.get(name, ""), 0, RANK_LIMIT) for name in names
        )
        if any(not environ.get(name) for name in meeting):
            raise Malformed("a host and a port")
    except Malformed:
        wanted = (*names, *meeting)
        found = ", ".join(f"{name}={environ[name]!r}" for name in wanted if name in environ) or "none of them"
        what = f"expected {', '.join(wanted)}, found {found}: this measures between the processes of a job"
        raise UsageError(Problem("usage", what, "environment", START)) from None
    return Identity(rank, world_size, local_rank, local_size)


def load_torch() -> Any:
    """Import torch and torch.distributed.

    Raises:
        Unavailable: This Python has no torch, or one without torch.distributed.
    """
    try:
        torch = importlib.import_module("torch")
        importlib.import_module("torch.distributed")
    except (ImportError, OSError) as error:  # OSError: a missing library of CUDA
        raise Unavailable(_no_torch(f"{sys.executable} cannot import torch: {error}")) from error
    if not torch.distributed.is_available():
        raise Unavailable(_no_torch(f"torch {torch.__version__} was built without torch.distributed"))
    return torch


def _no_torch(what: str) -> Problem:
    fix = "start it with a Python that has torch: launcher run -- /path/to/python -m launcher.bandwidth"
    return Problem("torch-missing", what, "this process", fix)


class BandwidthJob:
    """This process, and its connection to the others."""

    def __init__(self, torch: Any, identity: Identity, timeout_s: float) -> None:
        """Connect to the other processes.

        Raises:
            NotReady: They are not all there in time.
        """
        self.torch = torch
        self.identity = identity
        self.timeout = timedelta(seconds=timeout_s)
        self.device = torch.device("cpu")
        with said(_peers_missing(f"not all {identity.world_size} processes connected in time")):
            rendezvous = torch.distributed.rendezvous(
                "env://", identity.rank, identity.world_size, timeout=self.timeout
            )
            self.store = next(rendezvous)[0]

    def gather(self, name: str, value: object, timeout_s: float = 0) -> list[Any]:
        """Return the values that all processes give under a name, in order of rank; all of them wait here.

        Args:
            name: A name that the job uses only once.
            value: A value that JSON can represent.
            timeout_s: Seconds that the others may take in addition to the timeout of the start.

        Raises:
            NotReady: A process is not there in time.
        """
        rank, world_size = self.identity.rank, self.identity.world_size
        with said(_peers_missing(f"some of {world_size} processes did not reach {name!r}")):
            self.store.set_timeout(self.timeout + timedelta(seconds=timeout_s))
            self.store.set(f"bandwidth/{name}/{rank}", json.dumps(value))
            if rank == 0:
                texts = [self.store.get(f"bandwidth/{name}/{other}").decode() for other in range(world_size)]
                self.store.set(f"bandwidth/{name}", f"[{','.join(texts)}]")
            found: list[Any] = json.loads(self.store.get(f"bandwidth/{name}"))
        return found

    def leave(self) -> None:
        """Say that this process is done; rank 0, which runs the store, waits for all processes."""
        with contextlib.suppress(RuntimeError):
            self.store.set(f"bandwidth/left/{self.identity.rank}", "")
            if self.identity.rank == 0:
                for rank in range(self.identity.world_size):
                    self.store.get(f"bandwidth/left/{rank}")

    def use(self, backend: str) -> None:
        """Choose the device: with NCCL the GPU of this process."""
        if backend == "nccl":
            index = self.identity.local_rank % self.torch.cuda.device_count()
            self.device = self.torch.device("cuda", index)
            self.torch.cuda.set_device(self.device)

    def describe_library(self, backend: str) -> str:
        """Return the measured library with its version and torch's; with NCCL the GPU too."""
        torch = self.torch
        if backend != "nccl":
            return f"{backend}, torch {torch.__version__}"
        version = ".".join(map(str, torch.cuda.nccl.version()))
        return f"NCCL {version}, torch {torch.__version__}, {torch.cuda.get_device_name(self.device)}"

    @contextlib.contextmanager
    def group(self, name: str, backend: str, ranks: Sequence[int]) -> Iterator[Group]:
        """Form a group of some processes, including this one, for a ``with`` block.

        Raises:
            NotReady: They cannot reach each other, or a collective inside the block fails.
        """
        dist = self.torch.distributed
        with said(_no_collective(f"{backend} between ranks {_list(ranks)} failed")):
            dist.init_process_group(
                backend,
                store=dist.PrefixStore(f"bandwidth/{name}", self.store),
                rank=list(ranks).index(self.identity.rank),
                world_size=len(ranks),
                timeout=self.timeout,
            )
            try:
                yield Group(self.torch, self.device, len(ranks), list(ranks).index(self.identity.rank))
            finally:
                dist.destroy_process_group()


class Group:
    """A group of processes, and what can be done between them on this process's device."""

    def __init__(self, torch: Any, device: Any, size: int, index: int) -> None:
        self._torch = torch
        self._device = device
        self.size = size
        self._index = index

    def is_sum_right(self, count: int) -> bool:
        """Whether an all-reduce of ``count`` elements gives the correct sum on all processes."""
        data = self.full(count, self._index + 1)
        self._reduce(data)
        expected = self.size * (self.size + 1) / 2
        wrong = float(data.min()) != expected or float(data.max()) != expected
        return self.mean(float(wrong)) == 0

    def time(self, count: int, iterations: int) -> float:
        """Return the seconds of one all-reduce, as the mean over iterations and processes."""
        data = self.full(count, 0)  # zeros: the sums of any other value would overflow a float
        self._reduce(self.full(1, 0))  # so that all begin at once
        self._wait()
        begin = time.perf_counter()
        for _ in range(iterations):
            self._reduce(data)
        self._wait()
        return self.mean((time.perf_counter() - begin) / iterations)

    def full(self, count: int, value: float) -> Any:
        """Return ``count`` elements with the same value."""
        return self._torch.full((count,), value, dtype=self._torch.float32, device=self._device)

    def mean(self, value: float) -> float:
        """Return the mean of this value over all processes; all of them get the same number."""
        data = self._torch.tensor([value], dtype=self._torch.float64, device=self._device)
        self._reduce(data)
        return float(data) / self.size

    def _reduce(self, data: Any) -> None:
        self._torch.distributed.all_reduce(data)

    def _wait(self) -> None:
        if self._device.type == "cuda":
            self._torch.cuda.synchronize(self._device)


@contextlib.contextmanager
def said(describe: Callable[[str], Problem]) -> Iterator[None]:
    """Turn an error of torch into a problem.

    Raises:
        NotReady: torch raised; the problem is what ``describe`` makes of the first line of its message.
    """
    try:
        yield
    except RuntimeError as error:  # all of torch's own errors derive from it
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise NotReady(describe(reason[0])) from error


def _peers_missing(what: str) -> Callable[[str], Problem]:
    return lambda reason: Problem("peers-missing", f"{what}: {reason}", WHERE, EARLIER)


def _no_collective(what: str) -> Callable[[str], Problem]:
    return lambda reason: Problem("no-collective", f"{what}: {reason}", WHERE, EARLIER)


def _list(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return shown if len(ranks) <= 8 else f"{shown}, ... ({len(ranks)})"
