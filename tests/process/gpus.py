"""A stand-in for NVML in launchers of their own, for machines without a GPU.

It is no GPU and no driver. It says what a file says: used bytes, PIDs, and after how many questions the
memory is free; and its events are the lines of a pipe.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.process.starting import ROOT

CUSTOM = """
import os
from launcher.machine import gpus as exposed
exposed.count_gpus = lambda host: 1
from launcher.recovery import gpus
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
nvmlEventTypeDoubleBitEccError, nvmlEventTypeXidCriticalError = 2, 8
EVENTS = os.path.join(FOLDER, "events")
class NVMLError_Timeout(NVMLError):
    pass
def nvmlDeviceGetMinorNumber(gpu):
    return gpu
def nvmlDeviceGetPciInfo(gpu):
    return SimpleNamespace(busId=b"00000000:3B:00.0")
def nvmlEventSetCreate():
    return []
def nvmlDeviceGetSupportedEventTypes(gpu):
    return 10
def nvmlDeviceRegisterEvents(gpu, kinds, events):
    if not os.path.exists(EVENTS):
        raise NVMLError("this stand-in has no events")
    assert kinds == 10, kinds
    events.append(gpu)
def nvmlEventSetWait_v2(events, limit_ms):
    if len(events) == 1:
        events.append(open(EVENTS))
    else:
        open(os.path.join(FOLDER, "told"), "a").close()
    kind, number = events[1].readline().split()
    return SimpleNamespace(device=0, eventType=int(kind), eventData=int(number))
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


FALLS = """
import os, sys, time
with open(sys.argv[1], "w") as events:
    print(*sys.argv[2:4], file=events)
    events.flush()
    told, until = os.path.join(os.path.dirname(sys.argv[1]), "told"), time.monotonic() + 20
    while not os.path.exists(told) and time.monotonic() < until:
        time.sleep(0.01)  # until the launcher's helper has passed the event on
    sys.exit(int(sys.argv[4]))
"""
"""A rank whose GPU has an event: the kind, its data, and the rank's exit status."""


class StandIn:
    """The file of a GPU, and the variables that make a launcher use it."""

    def __init__(self, folder: Path, host: str = "gpu") -> None:
        self.folder, self.path = folder, folder / f"{host}.json"
        (folder / "sitecustomize.py").write_text(CUSTOM)
        (folder / "pynvml.py").write_text(PYNVML)
        self.path.write_text(json.dumps({"used": 0, "pids": [], "questions": 0}))

    def has_events(self) -> Path:
        """Make the pipe whose lines are events, and return it; without it NVML refuses to register any."""
        os.mkfifo(self.folder / "events")
        return self.folder / "events"

    def environ(self, limit_s: float) -> dict[str, str]:
        """Return the variables; ``limit_s``: how long an attempt waits."""
        return {"PYTHONPATH": f"{self.folder}:{ROOT}", "STAND_IN_LIMIT_S": str(limit_s)}
