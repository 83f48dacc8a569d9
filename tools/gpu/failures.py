"""Failures of CUDA and NCCL, for real: which rank, cause, fix and retry the launcher finds.

What is expected is what an operator should be told, also where the launcher does not know the text yet.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, NamedTuple

from part import LAUNCHER, Part, all_results

from launcher.machine.host import Host
from launcher.machine.kernel_log import open_kernel_log

NOBODY = 65533
XID_EVENTS = """
import json, sys, time, pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
events = pynvml.nvmlEventSetCreate()
try:
    kinds = pynvml.nvmlDeviceGetSupportedEventTypes(handle)
    pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
except pynvml.NVMLError as error:
    sys.exit(f"no events: {error}")
print(json.dumps({"kinds": kinds, "listens": True}), flush=True)
while True:
    try:
        found = pynvml.nvmlEventSetWait_v2(events, 1000)
        print(json.dumps({"xid": found.eventData, "kind": found.eventType, "at": time.time()}), flush=True)
    except pynvml.NVMLError_Timeout:
        pass
"""


class Expected(NamedTuple):
    """What the verdict should be: first causes that are right, retry, a word of the fix, and the rank."""

    codes: tuple[str, ...]
    retry: bool | None
    fix: str
    rank: int | None = 0
    ranks: int = 1
    """Number of processes."""
    environ: tuple[tuple[str, str], ...] = ()


FAULT = Expected(("gpu-program-fault",), False, "compute-sanitizer")
MEMORY = Expected(("cuda-out-of-memory",), False, "a smaller batch")
CASES = {
    "assert": FAULT,
    "illegal": FAULT,
    "misaligned": FAULT,
    "oom": MEMORY,
    "oom-share": MEMORY,
    "oom-jax": MEMORY._replace(environ=(("XLA_PYTHON_CLIENT_PREALLOCATE", "false"),)),
    "cublas": MEMORY,
    "duplicate": Expected(("gpu-shared-by-ranks",), False, "LOCAL_RANK", None, 2),
    "ordinal": Expected(("gpu-missing",), False, "CUDA_VISIBLE_DEVICES", 1, 2),
    "forked": Expected(("cuda-after-fork",), False, "spawn"),
    "timeout": Expected(("nccl-timeout",), None, "launcher stacks"),
}
FIGURES = ("verdict", "retryable", "rank", "exit_status", "signal", "exception", "causes")


def judge(record: dict[str, Any], expected: Expected) -> list[tuple[str, Any, Any]]:
    """Return (what, expected, seen) of a failure record."""
    causes = record.get("causes") or [{}]
    first = causes[0]
    code = first.get("code")
    rank = record.get("rank")
    fix = str(first.get("fix", ""))
    return [
        ("cause", expected.codes[0], expected.codes[0] if code in expected.codes else code),
        ("retry", expected.retry, record.get("retryable", "no record")),
        ("fix", expected.fix, expected.fix if expected.fix in fix else fix),
        ("rank", expected.rank, None if expected.rank is None and rank is not None else rank),
    ]


def provoke(
    part: Part, name: str, expected: Expected | None = None, *words: str, limit_s: float = 45
) -> None:
    """Run a case, and compare its verdict."""
    with part.step(name):
        expected = expected or CASES[name]
        flags = ("--nproc-per-node", str(expected.ranks), "--grace", "5")
        done = part.job(
            name, flags, *part.program(name, *words), limit_s=limit_s, environ=dict(expected.environ)
        )
        for what, right, seen in judge(done.record, expected):
            part.check(f"{name}: {what}", right, seen)
        part.figure(name, {key: done.record.get(key) for key in FIGURES} | {"seconds": done.seconds})
        part.figure(f"{name}: stderr", done.err[-3500:])


def faults(part: Part) -> None:
    """A kernel fails: the text of CUDA, the kernel's log, and NVML's events, as root and as nobody."""
    fd = open_kernel_log(Host())
    part.figure("kernel log can be read", fd is not None)
    words = (sys.executable, "-c", XID_EVENTS)
    listeners = [part.start(f"events-{user}", words, user=user) for user in (0, NOBODY)]
    began = {}
    for name in ("assert", "illegal", "misaligned"):
        began[name] = time.time()
        # where the kernel's log can be read, the Xid is the first cause, and the text of CUDA the second
        xid = CASES[name]._replace(codes=("gpu-program-fault", *(("gpu-xid",) if fd is not None else ())))
        provoke(part, name, xid)
    for listener, who in zip(listeners, ("root", "nobody"), strict=True):
        with part.step(f"events of {who}"):
            listener.process.kill()
            done = listener.wait(5)
            events = [one for one in all_results(done.out) if "xid" in one]
            part.figure(f"events of {who}", (events, began, done.err[-500:]))
            seen = [e["xid"] for e in events if began["illegal"] < e["at"] < began["misaligned"] + 1]
            part.check(f"NVML tells {who} of Xid 31", "31 among them", seen, right=31 in seen)
    with part.step("kernel log"):
        part.figure(
            "dmesg", part.run("dmesg", ("sh", "-c", "dmesg | grep -i -E 'xid|nvrm' | tail -30"), 10).out
        )


def memory(part: Part) -> None:
    """The GPU's memory is full, or too small."""
    for name in ("oom", "oom-share", "oom-jax"):
        provoke(part, name)


def full(part: Part) -> None:
    """All memory of the card is taken when cuBLAS wants some."""
    provoke(part, "cublas")


def meeting(part: Part) -> None:
    """NCCL cannot begin: two ranks on one card, and a network interface that does not exist."""
    provoke(part, "duplicate")
    with part.step("interface"):
        environ = {"NCCL_SOCKET_IFNAME": "nope0"}
        done = part.job("interface", (), *part.program("duplicate"), limit_s=45, environ=environ)
        codes = ("nccl-system-error", "nccl-internal-error", "nccl-misused")
        for what, right, seen in judge(done.record, Expected(codes, False, "NCCL_SOCKET_IFNAME")):
            part.check(f"interface: {what}", right, seen)
        part.figure("interface", {key: done.record.get(key) for key in FIGURES})
        part.figure("interface: stderr", done.err[-3500:])


def devices(part: Part) -> None:
    """A device that is not there, and CUDA in a fork of a process that uses it."""
    provoke(part, "ordinal")
    provoke(part, "forked")


def numbers(part: Part) -> None:
    """A loss that becomes NaN: noted at the end of a job that goes on, the cause where it raises."""
    with part.step("nan"):
        done = part.job("nan", ("--prefix",), *part.program("diverge", "goes-on"), limit_s=45)
        part.check("nan: status", 0, done.status)
        part.holds("nan: note", "[loss-nan]", done.err)
        part.figure("nan", (done.out[-800:], done.err[-1500:]))
    with part.step("nan-raises"):
        done = part.job("nan-raises", (), *part.program("diverge", "raises"), limit_s=45)
        for what, right, seen in judge(done.record, Expected(("loss-nan",), False, "--lr")):
            part.check(f"nan-raises: {what}", right, seen)
        part.figure("nan-raises", {key: done.record.get(key) for key in FIGURES})


def timeout(part: Part) -> None:
    """NCCL's watchdog ends a rank whose collective cannot end."""
    provoke(part, "timeout", limit_s=58)


def endless(part: Part) -> None:
    """A kernel that never ends is a stall; the stacks name the line that waits for it."""
    with part.step("endless"):
        marker = os.path.join(part.logs, f"{part.name}.marker")
        flags = ("--init", "--stall-timeout", "20", "--on-stall", "stop", "--grace", "3")
        job = part.start_job("endless", flags, *part.program("endless", marker))
        part.check("the kernel has begun", True, job.wait_for(marker, 30))
        began = time.monotonic()
        which = ("--job", str(job.process.pid))
        stacks = part.run("stacks", (*LAUNCHER, "stacks", *which), 15)
        status = part.run("status", (*LAUNCHER, "status", *which), 15)
        native = part.run("native", (*LAUNCHER, "stacks", "--native", *which), 15)
        uses = [part.run(f"use-{n}", ("nvidia-smi", "dmon", "-c", "3", "-s", "um"), 10).out for n in range(1)]
        done = job.wait(45)
        part.figure("seconds until it was stopped", time.monotonic() - began)
        part.holds("stacks: the line", "rank.py", stacks.out)
        part.holds("stacks: the call", "synchronize", stacks.out)
        part.holds("the stall names the GPU", "the GPUs only wait (1 of 1 in a kernel that spins", done.err)
        part.check("it was stopped", True, done.status not in (None, 0))
        part.figure("screens", json.dumps([stacks.out, status.out, native.out, native.err, *uses]))
        part.figure("stderr", done.err[-5000:])
        part.figure("verdict", {key: done.record.get(key) for key in FIGURES})
