"""Waits between two attempts until this node's GPU memory is free again.

The driver frees the memory of a process that has ended, but it may need seconds for that. NVML lists the
processes that hold memory. Where it cannot, as in some containers, the used memory is compared with that
before the first attempt. NVML is asked in a fork: it may have to wake GPUs up, which takes seconds.

Source: NVML API reference, nvmlDeviceGetComputeRunningProcesses, nvmlDeviceGetMemoryInfo.
"""

from __future__ import annotations

import os
import time

from launcher.core.errors import say_size
from launcher.core.frozen import frozen
from launcher.machine.nvml import GpuMemoryUse, read_gpu_use
from launcher.process.loop import Later

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from launcher.core.log import Say
    from launcher.process.helper import Helpers
    from launcher.process.loop import Loop

LIMIT_S = 30.0
"""Seconds that an attempt waits for the memory of the one before."""
EVERY_S = 0.1
MARGIN_S = 5.0
SLACK_BYTES = 128 << 20
"""Less than a CUDA context has; the driver's own use varies by less."""
FREE = "free"
SHOWN_MAX = 8


@frozen
class Before:
    """A GPU before the first attempt: used bytes, and the listed PIDs that are not of this PID namespace."""

    used_bytes: int
    foreign: tuple[int, ...] = ()


class GpuGate:
    """Waits for the GPU memory of the last attempt on this node."""

    def __init__(self, helpers: Helpers, loop: Loop, say: Say) -> None:
        self._helpers, self._loop, self._say = helpers, loop, say
        self._before: dict[int, Before] = {}

    def note_start(self) -> None:
        """Read the use of the GPUs while the first processes start: to reach a GPU takes them longer."""
        self._ask(_describe_all, self._take)

    def _take(self, lines: Sequence[str]) -> None:
        for line in lines:
            index, used_bytes, *foreign = map(int, line.split())
            self._before[index] = Before(used_bytes, tuple(foreign))

    def wait(self, survivors: Collection[int], then: Callable[[], None]) -> None:
        """Call ``then`` once the memory of the last attempt is free, or after `LIMIT_S` with a message.

        Args:
            survivors: PIDs of the last attempt that still exist.
            then: Called once, now or in a later turn of the loop.
        """
        is_waiting = True

        def end(lines: Sequence[str]) -> None:
            nonlocal is_waiting
            if is_waiting:
                is_waiting = False
                if FREE not in lines:
                    what = lines[0] if lines else "NVML does not show whether the last attempt has GPU memory"
                    self._say(f"{what}; the next attempt does not wait longer", "gpus-in-use")
                then()

        before = dict(self._before)
        if self._ask(lambda: _wait(before, survivors), end):
            # the kernel may hold the fork, whose pipe then stays open
            self._loop.timers.append(Later(time.monotonic() + LIMIT_S + 2 * MARGIN_S, lambda: end(())))
        else:
            is_waiting = False
            then()

    def _ask(self, work: Callable[[], Iterator[str]], take: Callable[[Sequence[str]], None]) -> bool:
        try:
            self._helpers.ask(work, take, LIMIT_S + MARGIN_S, name="launcher-gpus")
        except OSError:  # no process is left for it
            return False
        return True


def _describe_all() -> Iterator[str]:
    for gpu in read_gpu_use():
        foreign = (pid for pid in gpu.pids if not _exists(pid))
        yield " ".join(map(str, (gpu.index, gpu.used_bytes, *foreign)))


def _wait(before: Mapping[int, Before], survivors: Collection[int]) -> Iterator[str]:
    """Yield `FREE` once no memory of the last attempt is in use, or what is in use at the limit."""
    until = time.monotonic() + LIMIT_S
    held = find_held(read_gpu_use(), before, survivors)
    while held and time.monotonic() < until:
        time.sleep(EVERY_S)  # NVML reports no event for this
        held = find_held(read_gpu_use(), before, survivors)
    yield render_held(held) if held else FREE


def find_held(
    gpus: Sequence[GpuMemoryUse],
    before: Mapping[int, Before],
    survivors: Collection[int],
    exists: Callable[[int], bool] | None = None,
) -> list[GpuMemoryUse]:
    """Return the GPUs where the last attempt still holds memory, with that attempt's PIDs only.

    A PID that NVML lists and that does not exist is one of the attempt, unless it was listed before: then it
    belongs to another PID namespace. If NVML lists no process at all, the used memory decides.
    """
    exists = exists or _exists
    found = []
    for gpu in gpus:
        was = before.get(gpu.index)
        foreign = () if was is None else was.foreign
        pids = tuple(pid for pid in gpu.pids if pid in survivors or (pid not in foreign and not exists(pid)))
        grew = was is not None and gpu.used_bytes > was.used_bytes + SLACK_BYTES
        if pids or (grew and not gpu.pids):
            found.append(GpuMemoryUse(gpu.index, gpu.used_bytes, gpu.total_bytes, pids))
    return found


def render_held(gpus: Sequence[GpuMemoryUse]) -> str:
    """Return the message that the memory is not free after `LIMIT_S`: which GPUs, bytes and PIDs."""
    names = ", ".join(map(_name, gpus[:SHOWN_MAX])) + (" and more" if len(gpus) > SHOWN_MAX else "")
    return f"the last attempt still has GPU memory after {LIMIT_S:g} s: {names}"


def _name(gpu: GpuMemoryUse) -> str:
    pids = ", ".join(map(str, gpu.pids[:SHOWN_MAX])) + (" and more" if len(gpu.pids) > SHOWN_MAX else "")
    by = f"pid{'s' if len(gpu.pids) > 1 else ''} {pids}" if gpu.pids else "by pids that NVML does not list"
    return f"GPU {gpu.index} ({say_size(gpu.used_bytes)} in use, {by})"


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # of another user
    return True
