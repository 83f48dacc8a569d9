"""Device files, NVML, torch and CUDA itself agree about the GPUs, whatever CUDA_VISIBLE_DEVICES says."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from part import Part, find_result

from launcher.machine import count_visible
from launcher.machine.gpus import VISIBLE, find_doubles, list_minors, name_visible_gpus
from launcher.machine.host import Host
from launcher.machine.numa import read_gpus, read_layout
from launcher.machine.nvml import describe_gpu, find_gpu, read_gpu_facts, read_gpu_use
from launcher.output.progress import LIBRARY, Nvml

TORCH = """
import time; began = time.time()
import json, torch; imported = time.time()
count = torch.cuda.device_count(); counted = time.time()
found = {"available": torch.cuda.is_available(), "count": count, "gpus": []}
if count:
    torch.cuda.init()
    found["real"] = torch._C._cuda_getDeviceCount()
for index in range(found.get("real", 0)):
    one = torch.cuda.get_device_properties(index)
    names = ("name", "total_memory", "major", "minor", "pci_domain_id", "pci_bus_id", "pci_device_id")
    found["gpus"].append({name: getattr(one, name, None) for name in names})
    found["gpus"][-1]["uuid"] = str(getattr(one, "uuid", ""))
found |= {"import_s": imported - began, "count_s": counted - imported, "init_s": time.time() - counted}
found |= {"torch": torch.__version__, "cuda": torch.version.cuda}
print(json.dumps(found))
"""
CUDA = """
import ctypes, json, uuid
cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(0)
status = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
uuids = []
for index in range(0 if status else count.value):
    device, raw = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    cuda.cuDeviceGet(ctypes.byref(device), index)
    get = getattr(cuda, "cuDeviceGetUuid_v2", cuda.cuDeviceGetUuid)
    get(raw, device)
    uuids.append("GPU-" + str(uuid.UUID(bytes=bytes(raw))))
print(json.dumps({"status": status, "count": len(uuids), "uuids": uuids}))
"""


ASKED_OF_TORCH = ("unset", "uuid", "prefix", "empty", "beyond", "twice", "both kinds")


def visible_cases(uuid: str) -> dict[str, str | None]:
    """Return values of CUDA_VISIBLE_DEVICES by name; None: unset."""
    return {
        "unset": None, "index": "0", "uuid": uuid, "prefix": uuid[:12], "short prefix": uuid[:5], "empty": "",
        "upper case": "GPU-" + uuid[4:].upper(), "none": "-1", "NoDevFiles": "NoDevFiles", "beyond": "7",
        "one, then beyond": "0,7", "beyond, then one": "7,0", "twice": "0,0", "spaces": " 0 ",
        "another's uuid": "GPU-ffffffff-0000-0000-0000-000000000000", "both kinds": f"0,{uuid}",
        "a word": "all", "a comma more": "0,", "without GPU-": uuid[4:], "zeros": "00", "plus": "+0",
    }  # fmt: skip


def timed(part: Part, name: str, read: Callable[[], Any]) -> Any:
    """Return what a reader finds; keep its time, the first and the second."""
    began = time.perf_counter()
    found = read()
    middle = time.perf_counter()
    read()
    figures = [round(1e3 * (middle - began), 3), round(1e3 * (time.perf_counter() - middle), 3)]
    part.figure(f"{name}: ms, first and second", figures)
    return found


def compare(part: Part) -> None:
    """Read in each way, and compare."""
    with part.step("torch, cold"):
        torch = find_result(part.run("torch", (sys.executable, "-c", TORCH), 60).out)
        part.figure("torch", torch)
    host = Host()
    with part.step("readers"):
        minors = timed(part, "device files", lambda: list_minors(host))
        facts = timed(part, "NVML facts", lambda: read_gpu_facts(host))
        timed(part, "NVML use", read_gpu_use)
        driver = timed(part, "driver's files", lambda: read_gpus(host, name_gpus=False))
        timed(part, "layout", lambda: read_layout(host))
        if shutil.which("nvidia-smi"):
            timed(part, "nvidia-smi", lambda: subprocess.run(("nvidia-smi", "-L"), check=False))
        part.figure("facts", [describe_gpu(gpu) for gpu in facts])
        part.figure("driver's files", driver)
        part.check("device files and NVML", len(minors), len(facts))
        part.check(
            "NVML and torch: names", [gpu.name for gpu in facts], [gpu["name"] for gpu in torch["gpus"]]
        )
        uuids = [f"GPU-{gpu['uuid'].removeprefix('GPU-')}" for gpu in torch["gpus"]]
        part.check("NVML and torch: UUIDs", [gpu.uuid for gpu in facts], uuids)
        places = [
            f"{gpu['pci_domain_id']:04x}:{gpu['pci_bus_id']:02x}:{gpu['pci_device_id']:02x}.0"
            for gpu in torch["gpus"]
        ]
        part.check("NVML and torch: addresses", [gpu.address for gpu in facts], places)
        part.check("driver's files and torch: addresses", places, [gpu.address for gpu in driver])
        for ours, theirs in zip(facts, torch["gpus"], strict=False):
            share = theirs["total_memory"] / (ours.memory_bytes or 1)
            part.check("torch's memory is 90 to 100 % of NVML's", "0.9 to 1", share, right=0.9 < share <= 1)
        unknown = [name for name in ("numa_node", "links", "has_ecc") if getattr(facts[0], name) is None]
        part.figure("not known", unknown)
    with part.step("the launcher's own NVML"):
        gauge = timed(part, "own NVML, made", lambda: Nvml(LIBRARY))
        part.figure("use", timed(part, "own NVML, read", gauge.read))
    with part.step("CUDA_VISIBLE_DEVICES"):
        compare_visible(part, facts)


def compare_visible(part: Part, facts: tuple[Any, ...]) -> None:
    """Count and name the visible GPUs as CUDA does."""
    cases = visible_cases(facts[0].uuid or "GPU-unknown")

    def ask(item: tuple[str, str | None], script: str, kind: str) -> dict[str, Any]:
        name, value = item
        environ = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
        words = (sys.executable, "-c", script)
        return find_result(part.run(f"{kind}-{name.replace(' ', '_')}", words, 40, environ=environ).out)

    with ThreadPoolExecutor(8) as pool:
        real = list(pool.map(lambda item: ask(item, CUDA, "cuda"), cases.items()))
        torch = list(pool.map(lambda name: ask((name, cases[name]), TORCH, "torch"), ASKED_OF_TORCH))
    for name, found in zip(ASKED_OF_TORCH, torch, strict=True):
        part.figure(f"torch's count, {name}", {key: found.get(key) for key in ("available", "count", "real")})
    for (name, value), cuda in zip(cases.items(), real, strict=True):
        ours = (
            0
            if value and find_doubles(value)
            else count_visible(Host(), {} if value is None else {VISIBLE: value})
        )
        part.check(f"count, {name}: {value!r}", cuda.get("count"), ours)
        if cuda.get("count") == ours == 1:
            named = find_gpu(facts, name_visible_gpus(value, ours)[0])
            part.check(f"GPU, {name}", cuda["uuids"], [named and named.uuid])
