"""``launcher stacks --native``: the C functions below the Python line, by py-spy, in real processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from launcher.hang.ask import find_py_spy
from launcher.machine.gpus import list_minors
from launcher.machine.host import Host
from tests.process.asking import Asked
from tests.process.looking import wait_for
from tests.process.test_armed import FIFO, IN_A_CALL, LOCKED, ask_plain

pytestmark = [
    pytest.mark.xdist_group("status"),
    pytest.mark.skipif(find_py_spy() is None, reason="py-spy is not installed"),
]
UP = 'open(sys.argv[1] + "/up-" + os.environ["RANK"], "w").close()'
SKIPS = f"""
import os, sys, time, torch, torch.distributed
torch.distributed.init_process_group("BACKEND")
device = "cpu" if "BACKEND" == "gloo" else torch.device("cuda", int(os.environ["LOCAL_RANK"]))
def step():
    {UP}
    if os.environ["RANK"] == "1":
        time.sleep(3600)
    sum = torch.ones(1, device=device)
    torch.distributed.all_reduce(sum)
    sum.item()
step()
"""


@contextmanager
def running(folder: Path, script: str, count: int = 1) -> Iterator[Asked]:
    """Run a script that waits; yield the job."""
    job = Asked(folder, script=script.replace('"/up"', '"/up-0"'), count=count)
    try:
        yield job
    finally:
        job.end()


@pytest.mark.parametrize(
    ("script", "line", "function"),
    [
        (IN_A_CALL, "line 5, in receive", "read"),
        (FIFO, "line 6, in load", "open"),
        (LOCKED, "line 7, in take", "lock_"),
    ],
    ids=["in-a-call", "fifo", "lock"],
)
def test_the_c_function_stands_above_the_python_line(
    tmp_path: Path, script: str, line: str, function: str
) -> None:
    """The place in the summary is the same as without C functions."""
    with running(tmp_path, script) as job:
        plain, native = job.run("stacks").stdout, job.run("stacks", "--native").stdout
    assert native.splitlines()[0] == plain.splitlines()[0]
    assert "innermost first (py-spy):" in native
    shown = native.partition("innermost first")[2]
    inner = shown[: shown.index("File ")]
    assert function in inner and ".so" in inner
    assert line in shown
    assert "0x" not in shown


def test_a_stopped_process_stays_stopped(tmp_path: Path) -> None:
    """It cannot be stopped for C functions, and gives its Python stack."""
    with running(tmp_path, LOCKED) as job:
        pid = job.status()["nodes"][0]["ranks"][0]["pid"]
        os.kill(pid, signal.SIGSTOP)
        state = Path(f"/proc/{pid}/stat")
        wait_for(lambda: state.read_text().rpartition(")")[2].split()[0] == "T", "it is stopped")
        text = job.run("stacks", "--native").stdout
        assert state.read_text().rpartition(")")[2].split()[0] == "T"
        os.kill(pid, signal.SIGCONT)
    assert "line 7, in take" in text


def test_without_py_spy_the_python_stack_is_there_and_the_reason(tmp_path: Path) -> None:
    text = ask_plain(tmp_path, LOCKED, stacks=("--native",))
    assert "no C functions: py-spy is not installed (pip install cluster-launcher[observe])" in text
    assert "line 7, in take" in text


@pytest.mark.torch
def test_the_wait_of_gloo(tmp_path: Path) -> None:
    """A rank skips the collective: the line of each is named, and what the other waits in."""
    with running(tmp_path, SKIPS.replace("BACKEND", "gloo"), count=2) as job:
        wait_for(
            lambda: "c10d::Work::wait (libtorch_cpu.so)" in job.run("stacks", "--native").stdout, "it waits"
        )
        text = job.run("stacks", "--native").stdout
    assert "rank 0 waits in all_reduce (torch/distributed/distributed_c10d.py:" in text
    assert "train.py:10\n" in text
    assert "train.py:8 in step): probably the one that the others wait for" in text


@pytest.mark.torch
@pytest.mark.gpu
@pytest.mark.skipif(len(list_minors(Host())) < 2, reason="fewer than two NVIDIA GPUs")
def test_the_wait_of_nccl(tmp_path: Path) -> None:
    """With two GPUs. The script waits where it asks for the result, in CUDA's synchronisation."""
    with running(tmp_path, SKIPS.replace("BACKEND", "nccl"), count=2) as job:
        wait_for(lambda: "libcuda" in job.run("stacks", "--native").stdout, "it waits", deadline_s=120.0)
        text = job.run("stacks", "--native").stdout
    assert "train.py:11" in text and "(train.py:8 in step)" in text
