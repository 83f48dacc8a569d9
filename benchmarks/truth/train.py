"""A rank of `benchmarks.truth`: ``train.py FAULT VICTIM DIRECTORY``; the fault strikes in the fourth step.

The victim writes the time of the fault into ``DIRECTORY/struck``, in seconds since 1970.
"""

from __future__ import annotations

import ctypes
import datetime
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

STEPS, AT, STEP_S = 400, 3, 0.1
GLOO_TIMEOUT_S = 20
"""When torch itself ends a collective that never completes."""


class Data(torch.utils.data.Dataset[int]):
    """Ten items, of which the sixth never comes, or kills the worker that is asked for it."""

    def __init__(self, kills: bool) -> None:
        self.kills = kills

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        if index == 5:
            if self.kills:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(3600)
        return index


def strike(fault: str, folder: Path) -> None:
    """Do what goes wrong."""
    (folder / "struck").write_text(str(time.time()))
    match fault:
        case "exit":
            sys.exit(3)
        case "message":
            sys.exit("no data in /data/train")
        case "exception":
            torch.ones(2, 3) @ torch.ones(2, 3)
        case "late":
            dist.destroy_process_group()
            time.sleep(2)  # the others fail by now: this rank has left them
            raise ValueError("the exception of the victim")
        case "thread":
            threading.excepthook = _end_all
            threading.Thread(target=_fail).start()
            time.sleep(60)
        case "two":
            _fail()
        case "segfault":
            ctypes.string_at(0)
        case "abort":
            os.abort()
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "terminated":
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        case "module":
            __import__("a_package_of_the_other_node")
        case "version":
            raise ImportError("transformers needs tokenizers>=0.21, but found tokenizers==0.19.1")
        case "file":
            (folder / "of-the-other-node.txt").read_text()
        case "port":
            holder = socket.create_server(("127.0.0.1", 0))
            socket.create_server(("127.0.0.1", holder.getsockname()[1]))
        case "name":
            socket.create_connection(("storage.invalid", 443))
        case "disk":
            with open("/dev/full", "wb", buffering=0) as file:
                torch.save({"weights": torch.zeros(1000)}, file)
        case "loader" | "batch":
            list(torch.utils.data.DataLoader(Data(fault == "loader"), num_workers=1))
        case "skipped":
            time.sleep(3600)
        case "io":
            os.mkfifo(folder / "fifo")
            (folder / "fifo").read_text()
        case "c":
            ctypes.CDLL(None).pause()
        case "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)


def _fail() -> None:
    raise ValueError("the exception of the victim")


def _end_all(told: threading.ExceptHookArgs) -> None:
    sys.excepthook(told.exc_type, told.exc_value or Exception(), told.exc_traceback)
    os._exit(1)


def main() -> None:
    """Take steps together with the others."""
    fault, victim, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=GLOO_TIMEOUT_S))
    rank, total = dist.get_rank(), torch.zeros(1000)
    for step in range(STEPS):
        if step == AT:
            (folder / f"there-{rank}").touch()
            if rank == victim:
                strike(fault, folder)
            elif fault == "two" and rank == (victim + 1) % dist.get_world_size():
                time.sleep(0.3)
                raise RuntimeError("the exception of another rank")
        time.sleep(STEP_S)
        dist.all_reduce(total)
        if rank == 0:
            print(f"step {step}", flush=True)


if __name__ == "__main__":
    main()
