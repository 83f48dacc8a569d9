"""Restarts on a node with a GPU: the next attempt waits for the memory of the last one.

NVML is a stand-in here (`tests.process.gpus`), in launchers of their own. One test has a real GPU.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from launcher.machine.gpus import count_gpus, list_minors
from launcher.machine.host import Host
from launcher.machine.nvml import GpuMemoryUse, read_gpu_use
from launcher.recovery.gpus import SLACK_BYTES, Before, find_held, render_held
from tests.process.gpus import HOLDS, StandIn
from tests.process.looking import wait_for
from tests.process.starting import launch, open_launcher

FLAGS = ("run", "--restarts", "1", "--nproc-per-node", "1", "--")
GIB = 1 << 30


@pytest.mark.parametrize("lists", ["listed", "hidden"])
def test_an_attempt_waits_until_the_memory_of_the_last_one_is_free(lists: str, tmp_path: Path) -> None:
    """NVML lists the rank for some time after its end, or only counts its memory."""
    gpu = StandIn(tmp_path)
    holds = (sys.executable, "-c", HOLDS, str(gpu.path), "5", lists)
    done = launch(*FLAGS, *holds, environ=gpu.environ(30))
    assert (done.returncode, done.stdout) == (0, "free\n"), done.stderr
    assert "GPU memory" not in done.stderr


def test_an_attempt_does_not_wait_for_ever(tmp_path: Path) -> None:
    """One line names the GPU, the bytes, and the process."""
    gpu = StandIn(tmp_path)
    holds = (sys.executable, "-c", HOLDS, str(gpu.path), "100000", "listed")
    done = launch(*FLAGS, *holds, environ=gpu.environ(0.5))
    pid = json.loads(gpu.path.read_text())["pids"][0]
    assert (done.returncode, done.stdout) == (0, "in use\n"), done.stderr
    said = f"the last attempt still has GPU memory after 0.5 s: GPU 0 (40 GiB in use, pid {pid}); "
    assert done.stderr.count(said) == 1, done.stderr


def test_a_signal_ends_the_wait(tmp_path: Path) -> None:
    gpu = StandIn(tmp_path)
    holds = (sys.executable, "-c", HOLDS, str(gpu.path), "100000", "listed")
    with open_launcher(*FLAGS, *holds, environ=gpu.environ(60)) as process:
        wait_for(lambda: 0 < json.loads(gpu.path.read_text())["questions"] < 99990, "the launcher waits")
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=10)
    assert process.returncode == 5
    assert "no restart: the launcher received a signal to stop" in err


def test_without_a_gpu_nvml_is_not_asked(tmp_path: Path) -> None:
    gpu = StandIn(tmp_path)
    (tmp_path / "sitecustomize.py").unlink()
    done = launch(*FLAGS, "sh", "-c", 'test "$LAUNCHER_ATTEMPT"', environ=gpu.environ(1))
    assert done.returncode == 0, done.stderr
    assert bool(count_gpus(Host())) or not (tmp_path / "asked").exists()


@pytest.mark.parametrize(
    ("pids", "used", "before", "held"),
    [
        ((7,), 40 * GIB, None, (7,)),  # it has ended, and is listed
        ((8,), 40 * GIB, Before(0), None),  # of another job that runs
        ((9,), 40 * GIB, Before(40 * GIB, (9,)), None),  # of another container
        ((3,), 40 * GIB, Before(0), (3,)),  # a survivor of SIGKILL
        ((), 40 * GIB, Before(GIB), ()),  # more memory than before, and no list
        ((8,), 40 * GIB, Before(GIB), None),  # the same, and another process explains it
        ((), GIB + SLACK_BYTES, Before(GIB), None),
        ((), 40 * GIB, None, None),  # unknown before
    ],
)
def test_whose_memory_it_is(
    pids: tuple[int, ...], used: int, before: Before | None, held: tuple[int, ...] | None
) -> None:
    known = {} if before is None else {0: before}
    found = find_held([GpuMemoryUse(0, used, 80 * GIB, pids)], known, (3,), lambda pid: pid in (3, 8))
    assert [gpu.pids for gpu in found] == ([] if held is None else [held])


def test_many_gpus_are_named_in_one_line() -> None:
    gpus = [GpuMemoryUse(index, GIB, 2 * GIB, tuple(range(20))) for index in range(20)]
    said = render_held(gpus)
    assert "GPU 7 (1 GiB in use, pids 0, 1, 2" in said and said.endswith(" and more") and len(said) < 900
    assert "pids that NVML does not list" in render_held([GpuMemoryUse(0, GIB, 2 * GIB)])


CUDA = """
import ctypes, os, signal, sys
from launcher.machine.nvml import read_gpu_use
if "LAUNCHER_ATTEMPT" in os.environ:
    print(*(gpu.used_bytes for gpu in read_gpu_use()), flush=True)
    sys.exit(0)
cuda = ctypes.CDLL("libcuda.so.1")
device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(8 << 30)) == 0
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.gpu
@pytest.mark.skipif(not list_minors(Host()), reason="no NVIDIA GPU: there is no /dev/nvidia0")
def test_the_memory_of_a_real_gpu_is_free_before_the_next_attempt() -> None:
    """8 GiB of a rank that was killed."""
    before = read_gpu_use()
    done = launch(*FLAGS, sys.executable, "-c", CUDA)
    assert done.returncode == 0, done.stderr
    after = [int(word) for word in done.stdout.split()]
    assert len(after) == len(before) and "GPU memory" not in done.stderr
    assert all(now < gpu.used_bytes + GIB for now, gpu in zip(after, before, strict=True))
