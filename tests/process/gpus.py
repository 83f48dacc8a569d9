"""A stand-in for NVML in launchers of their own, for machines without a GPU.

It says what a file says: used bytes, PIDs, and after how many questions the memory is free.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.process.starting import ROOT

CUSTOM = """
import os
from launcher.machine.host import Host
from launcher.recovery import gpus
Host.gpu_count = lambda self: 1
gpus.LIMIT_S = float(os.environ["STAND_IN_LIMIT_S"])
"""
PYNVML = """
import json, os, socket
from types import SimpleNamespace
FOLDER = os.path.dirname(os.path.abspath(__file__))
FILE = os.path.join(FOLDER, socket.gethostname() + ".json")
if not os.path.exists(FILE):
    FILE = os.path.join(FOLDER, "gpu.json")
class NVMLError(Exception):
    pass
def read():
    with open(FILE) as file:
        return json.load(file)
def nvmlInit():
    open(os.path.join(FOLDER, "asked"), "a").close()
def nvmlShutdown():
    pass
def nvmlDeviceGetCount():
    return 1
def nvmlDeviceGetHandleByIndex(index):
    return index
def nvmlDeviceGetMemoryInfo(gpu):
    return SimpleNamespace(used=read()["used"], total=80 << 30)
def nvmlDeviceGetComputeRunningProcesses(gpu):
    found = read()
    pids = found["pids"]
    if found["used"]:
        found["questions"] -= 1
        if not found["questions"]:
            found["used"], found["pids"] = 0, []
        with open(FILE + ".new", "w") as file:
            json.dump(found, file)
        os.replace(FILE + ".new", FILE)
    return [SimpleNamespace(pid=pid) for pid in pids]
"""
HOLDS = """
import json, os, sys, time
path, questions, lists = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "listed"
if "LAUNCHER_ATTEMPT" in os.environ:
    with open(path) as file:
        print("in use" if json.load(file)["used"] else "free", flush=True)
    sys.exit(0)
asked, until = os.path.join(os.path.dirname(path), "asked"), time.monotonic() + 5
while not os.path.exists(asked) and time.monotonic() < until:
    time.sleep(0.01)  # until the use before the first attempt is read
with open(path + ".whole", "w") as file:
    json.dump({"used": 40 << 30, "pids": [os.getpid()] if lists else [], "questions": questions}, file)
os.replace(path + ".whole", path)
sys.exit(5)
"""
"""A rank that holds memory of a GPU until NVML was asked so often after it; in the next attempt it tells."""


class StandIn:
    """The file of a GPU, and the variables that make a launcher use it."""

    def __init__(self, folder: Path, host: str = "gpu") -> None:
        self.folder, self.path = folder, folder / f"{host}.json"
        (folder / "sitecustomize.py").write_text(CUSTOM)
        (folder / "pynvml.py").write_text(PYNVML)
        self.path.write_text(json.dumps({"used": 0, "pids": [], "questions": 0}))

    def environ(self, limit_s: float) -> dict[str, str]:
        """Return the variables; ``limit_s``: how long an attempt waits."""
        return {"PYTHONPATH": f"{self.folder}:{ROOT}", "STAND_IN_LIMIT_S": str(limit_s)}
