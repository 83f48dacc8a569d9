"""Processes with a flight recorder: one that stands in for NCCL's, and real ones with gloo."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from launcher.hang.ask import Inquiry
from launcher.hang.model import RankRecord
from launcher.hang.recorder import Places

STAND_IN = """
import os, sys, time
stem, rank, source, how = sys.argv[1:]
pipe, dump = f"{stem}{rank}.pipe", f"{stem}{rank}"
os.mkfifo(pipe, 0o666)
fd = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
print("ready", flush=True)
data = open(source, "rb").read()
while True:
    try:
        asked = os.read(fd, 128)
    except BlockingIOError:
        asked = b""
    if asked and how == "slow":
        with open(dump, "wb") as file:
            for place in range(0, len(data), 100):
                file.write(data[place:place + 100])
                file.flush()
                time.sleep(0.02)
    elif asked and how == "half":
        open(dump, "wb").write(data[:-1])
    elif asked and how != "silent":
        open(dump, "wb").write(data)
    time.sleep(0.02)
"""
"""Does what the monitor thread of NCCL's process group does with its pipe."""

GLOO = """
import datetime, os, sys, threading, time
import torch, torch.distributed as dist
how, stem = sys.argv[1], os.environ["TORCH_FR_DUMP_TEMP_FILE"]
rank = int(os.environ["RANK"])
def answer():
    # gloo makes no pipe: this thread of the test does for gloo what NCCL's monitor does
    pipe = f"{os.environ['TORCH_NCCL_DEBUG_INFO_PIPE_FILE']}{rank}.pipe"
    os.mkfifo(pipe)
    fd = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    while True:
        try:
            if os.read(fd, 128):
                with open(f"{stem}{rank}", "wb") as file:
                    file.write(torch._C._distributed_c10d._dump_fr_trace())
        except BlockingIOError:
            pass
        time.sleep(0.05)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
pair = dist.new_group([0, 1])
for _ in range(3):
    dist.all_reduce(torch.ones(1000))
threading.Thread(target=answer, daemon=True).start()
def step():
    if how == "skips" and rank == 1:
        time.sleep(60)
    elif how == "other" and rank == 1:
        dist.broadcast(torch.ones(1000), 0)
    elif how == "group" and rank == 0:
        dist.all_reduce(torch.ones(8), group=pair)
    else:
        dist.all_reduce(torch.ones(1000))
open(f"{stem}up-{rank}", "w").close()
step()
time.sleep(60)
"""
"""Two ranks that hang in the way that is named; only with a torch whose gloo has a recorder."""


def start_stand_in(stem: Path, rank: int, source: Path, how: str = "at once") -> subprocess.Popen[str]:
    """Start a process with a pipe and a dump, and wait until it has both."""
    argv = [sys.executable, "-c", STAND_IN, str(stem), str(rank), str(source), how]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def ask_dumps(ranks: Iterable[int], places: Sequence[Places], **more: Any) -> Inquiry:
    """Ask ranks to dump; ``more``: of `Inquiry.want_dumps`."""
    inquiry = Inquiry((), None)
    inquiry.want_dumps(ranks, places, **more)
    return inquiry


def follow(request: Inquiry, limit_s: float = 30.0) -> list[RankRecord]:
    """Take the steps of a request until it is complete; no step may last."""
    until = time.monotonic() + limit_s
    while not request.complete:
        started = time.monotonic()
        assert started < until
        request.go_on(started)
        assert time.monotonic() - started < 0.5
        time.sleep(0.01)
    return [request.records[rank] for rank in sorted(request.records)]


def end(processes: Sequence[subprocess.Popen[Any]]) -> None:
    """End processes of a test."""
    for process in processes:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
