"""The status line: what it says, when it speaks, and where its numbers come from."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.machine.cgroup import read_memory_use
from launcher.machine.gpus import count_gpus
from launcher.machine.host import Host
from launcher.output.progress import (
    GIB,
    Gpus,
    GpuUse,
    Nvml,
    Progress,
    clock,
    describe,
    duration,
    gib,
)

BUSY = GpuUse(93, 40, 61 * GIB + GIB // 5, 80 * GIB)
SPINS = GpuUse(100, 0, 60 * GIB, 80 * GIB)
IDLE = GpuUse(0, 0, 0, 80 * GIB)


class Watch:
    """A clock that a test moves, and everything that was shown."""

    def __init__(self, enabled: bool | None, is_terminal: bool) -> None:
        self.now = 1000.0
        self.output = 1000.0
        self.shown: list[tuple[float, str]] = []
        self.said: list[tuple[float, str]] = []
        self.progress = Progress(
            enabled=enabled,
            is_terminal=is_terminal,
            started=self.now,
            count_up=lambda: 2,
            last_output=lambda: self.output,
            show=lambda text: self.shown.append((self.now - 1000, text)),
            notice=lambda text, event: self.said.append((self.now - 1000, text)),
        )

    def run_until(self, end: float, writes: Callable[[float], bool] = lambda _: False) -> None:
        """Do what a loop does, up to a second after the start."""
        while self.progress.due is not None and self.progress.due <= 1000 + end:
            self.now = self.progress.due
            if writes(self.now - 1000):
                self.output = self.now
            self.progress.fire(self.now)


def minutes(said: list[tuple[float, str]]) -> list[float]:
    """Return when something was said."""
    return [at / 60 for at, _ in said]


@pytest.mark.parametrize(
    ("gpus", "memory", "silence_s", "expected"),
    [
        (
            [BUSY],
            (41 * GIB, None),
            3,
            "8 up · 12:34 · GPU 93 % · 61.2/80 GiB · mem 41 GiB · last output 3 s ago",
        ),
        ([BUSY, IDLE], (41 * GIB, 64 * GIB), 0, "8 up · 12:34 · GPU 46 % · 61.2/160 GiB · mem 41/64 GiB"),
        ([GpuUse(None, 0, GIB, 10 * GIB)], None, 200, "8 up · 12:34 · 1/10 GiB · last output 3 min ago"),
        ([], None, 1, "8 up · 12:34"),
    ],
)
def test_the_line_says_what_is_known(
    gpus: list[GpuUse], memory: tuple[int, int | None] | None, silence_s: float, expected: str
) -> None:
    """What nobody knows is left out; a moment of silence is none."""
    assert describe(8, 754, gpus, memory, silence_s) == expected


@pytest.mark.parametrize(
    ("seconds", "as_clock", "as_duration"),
    [
        (0, "0:00", "0 s"),
        (119.9, "1:59", "119 s"),
        (3725, "1:02:05", "1 h 2 min"),
        (180000, "2 d 02:00:00", "50 h 0 min"),
    ],
)
def test_times_are_short(seconds: float, as_clock: str, as_duration: str) -> None:
    """Jobs run for seconds and for days."""
    assert (clock(seconds), duration(seconds)) == (as_clock, as_duration)


@pytest.mark.parametrize(
    ("size", "expected"), [(0, "0"), (GIB, "1"), (GIB * 3 // 2, "1.5"), (1000 * GIB, "1000")]
)
def test_sizes_are_short(size: int, expected: str) -> None:
    """One decimal, where it says something."""
    assert gib(size) == expected


def test_a_terminal_has_a_line_each_second_that_vanishes() -> None:
    """Nothing in the first second, on the second afterwards, and nothing is left at the end."""
    watch = Watch(None, True)
    watch.run_until(3.5)
    watch.progress.close()
    assert [at for at, _ in watch.shown] == [1, 2, 3, 3]
    assert watch.shown[0][1].startswith("2 up · 0:01")
    assert watch.shown[-1][1] == ""
    assert (watch.progress.due, watch.said) == (None, [])


def test_a_log_has_a_line_only_in_silence() -> None:
    """After 1 minute, then ever more rarely; output begins anew; a line a minute where asked for."""
    # After 1 minute, then 2 later, 4, 8 ... and at least once an hour.
    watch = Watch(None, False)
    watch.run_until(5 * 3600)
    assert minutes(watch.said) == [1, 3, 7, 15, 31, 63, 123, 183, 243]
    assert watch.said[1][1].endswith("last output 3 min ago")
    assert watch.shown == []
    # A job that writes gets no line; one that falls silent again gets its first after a minute.
    watch = Watch(None, False)
    watch.run_until(600, lambda _: True)
    assert watch.said == []
    watch.run_until(1200)
    assert minutes(watch.said) == [11, 13, 17]
    watch.output = 1000 + 1210
    watch.run_until(1300)
    assert watch.said[3][0] == 1270
    # --progress: silent or not.
    watch = Watch(True, False)
    watch.run_until(250, lambda _: True)
    assert minutes(watch.said) == [1, 2, 3, 4]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_no_progress_is_none(is_terminal: bool) -> None:
    """--no-progress: not even a timer."""
    assert Watch(False, is_terminal).progress.due is None


@pytest.mark.parametrize(
    ("use", "works", "spins"),
    [(BUSY, True, False), (IDLE, False, False), (SPINS, False, True), (GpuUse(None, 0, 0, 1), False, False)],
)
def test_a_kernel_that_spins_is_no_work(use: GpuUse, works: bool, spins: bool) -> None:
    """A collective that waits keeps a GPU 100 % busy and its memory at rest."""
    assert (use.works, use.spins) == (works, spins)


def make_files(root: Path, files: dict[str, str]) -> Host:
    """Return a machine with these files."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Host(str(root))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {
                "proc/self/cgroup": "0::/pod/c\n",
                "sys/fs/cgroup/pod/c/memory.current": "5000\n",
                "sys/fs/cgroup/pod/c/memory.max": "max\n",
                "sys/fs/cgroup/pod/c/memory.stat": "anon 1\ninactive_file 1000\n",
            },
            (4000, None),
        ),
        (
            {
                "proc/self/cgroup": "0::/outside/of/the/container\n",
                "sys/fs/cgroup/memory.current": "5000\n",
                "sys/fs/cgroup/memory.max": "9000\n",
            },
            (5000, 9000),
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/job\n0::/\n",
                "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "5000\n",
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/job/memory.stat": "inactive_file 1\ntotal_inactive_file 2000\n",
            },
            (3000, None),
        ),
        ({"proc/meminfo": "MemTotal: 8 kB\nMemAvailable: 3 kB\n"}, (5 << 10, 8 << 10)),
        ({}, None),
    ],
    ids=["v2", "v2 of a container", "v1", "no cgroup", "nothing"],
)
def test_memory_is_what_the_job_cannot_give_back(
    files: dict[str, str], expected: tuple[int, int | None] | None, tmp_path: Path
) -> None:
    """The cgroup's own count without the file cache, or the node's."""
    assert read_memory_use(make_files(tmp_path, files)) == expected


NVML = r"""
#include <string.h>
static int fails(const char *what);
int nvmlInit_v2(void) { return fails("init") ? 9 : 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (index > 1) return 2;
    *device = (void *)(0x7000000000000 + index);
    return 0;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    if (strcmp(uuid, "GPU-1")) return 6;
    *device = (void *)0x7000000000001;
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *device, unsigned *rates) {
    if (fails("rates")) return 3;
    rates[0] = 90 + ((long)device & 1);
    rates[1] = 40;
    return fails("lost") ? 15 : 0;
}
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *sizes) {
    sizes[0] = 80; sizes[1] = 50; sizes[2] = 30;
    return 0;
}
static int fails(const char *what) { return strstr(FAILS, what) != 0; }
"""
"""A stand-in with NVML's ABI, for machines without its driver."""


def build_nvml(folder: Path, fails: str = "") -> str:
    """Compile the stand-in; ``fails`` names what it refuses."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    source, library = folder / "nvml.c", folder / f"libnvml_{fails}.so"
    source.write_text(NVML)
    subprocess.run(
        [compiler, "-w", "-shared", "-fPIC", f'-DFAILS="{fails}"', "-o", str(library), str(source)],
        check=True,
    )
    return str(library)


@pytest.mark.parametrize(
    ("visible", "busy"), [(None, [90, 91]), ("1", [91]), ("GPU-1, 0", [91, 90]), ("", []), ("7,GPU-x", [])]
)
def test_the_gpus_that_the_job_sees_are_read(visible: str | None, busy: list[int], tmp_path: Path) -> None:
    """CUDA_VISIBLE_DEVICES by index and by UUID; handles are whole pointers."""
    uses = Nvml(build_nvml(tmp_path), visible).read()
    assert [use.busy_percent for use in uses] == busy
    assert all((use.memory_percent, use.used_bytes, use.total_bytes) == (40, 30, 80) for use in uses)


def test_memory_and_gpus_are_read_here(tmp_path: Path) -> None:
    """Some memory is in use; a MIG instance has memory without utilization."""
    # Whatever cgroup this is: some memory is in use, and not more than there is.
    found = read_memory_use(Host())
    assert found is not None
    assert 0 < found[0] < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    # A MIG instance has no utilization.
    uses = Nvml(build_nvml(tmp_path, "rates")).read()
    assert [(use.busy_percent, use.used_bytes) for use in uses] == [(None, 30), (None, 30)]


@pytest.mark.parametrize("fails", ["init", "lost", "no library"])
def test_nvml_that_fails_is_silent_for_good(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One failure, and it is not asked again; nobody's job ends for a number."""
    library = "libnot-there.so.1" if fails == "no library" else build_nvml(tmp_path, fails)
    monkeypatch.setattr("launcher.output.progress.LIBRARY", library)
    monkeypatch.setattr("launcher.output.progress._is_in_use", lambda: True)
    monkeypatch.setattr("launcher.output.progress.count_gpus", lambda host: 2)
    gpus = Gpus()
    assert gpus.read(time.monotonic()) == ()
    monkeypatch.setattr("launcher.output.progress.LIBRARY", build_nvml(tmp_path))
    assert gpus.read(time.monotonic() + 1000) == ()


def test_nvml_is_not_asked_before_the_job_uses_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waking a GPU takes seconds; and the look for it becomes rare in a job without one."""
    monkeypatch.setattr("launcher.output.progress.LIBRARY", build_nvml(tmp_path))
    monkeypatch.setattr("launcher.output.progress.count_gpus", lambda host: 2)
    looks: list[int] = []
    uses_one = False

    def look() -> bool:
        looks.append(second)
        return uses_one

    monkeypatch.setattr("launcher.output.progress._is_in_use", look)
    gpus = Gpus()
    for second in range(200):
        assert gpus.read(second) == ()
    assert looks == [0, 5, 15, 35, 75, 135, 195]
    uses_one = True
    assert [len(gpus.read(second)) for second in (200, 254, 255, 256)] == [0, 0, 2, 2]


@pytest.mark.gpu
@pytest.mark.skipif(not count_gpus(Host()), reason="no NVIDIA GPU")
def test_a_real_gpu_is_read() -> None:
    """NVML of this machine, through our own binding."""
    uses = Nvml("libnvidia-ml.so.1").read()
    assert uses
    assert all(0 <= (use.busy_percent or 0) <= 100 and 0 < use.used_bytes < use.total_bytes for use in uses)
