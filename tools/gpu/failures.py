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
    words: tuple[str, ...] = ()
    """Of the program, after its name."""
    flags: tuple[str, ...] = ()


ENGINE = ("--engine", "torchrun", "--init")
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
    # The kernel ends, so torch 2.11 does not abort: the process hangs at its end until the script stops it.
    "timeout": Expected(("told-to-stop", "nccl-timeout"), None, "", words=("late",)),
    "timeout-endless": Expected(
        ("nccl-timeout",),
        None,
        "launcher stacks",
        words=("endless",),
        environ=(("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "12"),),
    ),
    "interface": Expected(
        ("nccl-no-interface",), False, "NCCL_SOCKET_IFNAME", environ=(("NCCL_SOCKET_IFNAME", "nope0"),)
    ),
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


def provoke(part: Part, name: str, expected: Expected, program: str = "", limit_s: float = 45) -> list[str]:
    """Run a case, and compare its verdict; return the codes of its causes."""
    with part.step(name):
        flags = ("--nproc-per-node", str(expected.ranks), "--grace", "5", *expected.flags)
        words = part.program(program or name, *expected.words)
        done = part.job(name, flags, *words, limit_s=limit_s, environ=dict(expected.environ))
        for what, right, seen in judge(done.record, expected):
            part.check(f"{name}: {what}", right, seen)
        part.figure(name, {key: done.record.get(key) for key in FIGURES} | {"seconds": done.seconds})
        part.figure(f"{name}: stderr", done.err[-4500:])
        return [cause["code"] for cause in done.record.get("causes") or ()]
    return []


def faults(part: Part) -> None:
    """A kernel fails: the text of CUDA, the kernel's log, and NVML's events, as root and as nobody."""
    fd = open_kernel_log(Host())
    part.figure("kernel log can be read", fd is not None)
    words = (sys.executable, "-c", XID_EVENTS)
    listeners = [part.start(f"events-{user}", words, user=user) for user in (0, NOBODY)]
    began = {}
    for name in ("assert", "illegal", "misaligned"):
        began[name] = time.time()
        codes = provoke(part, name, FAULT)
        if fd is not None:
            part.check(f"{name}: the Xid follows", ["gpu-program-fault", "gpu-xid"], codes)
    for listener, who in zip(listeners, ("root", "nobody"), strict=True):
        with part.step(f"events of {who}"):
            listener.process.kill()
            done = listener.wait(5)
            events = [one for one in all_results(done.out) if "xid" in one]
            part.figure(f"events of {who}", (events, began, done.err[-500:]))
            seen = [e["xid"] for e in events if began["illegal"] < e["at"] < began["misaligned"] + 1]
            part.check(f"NVML tells {who} of Xid 31", "31 among them", seen, right=31 in seen)
    beside(part)
    elsewhere = {
        "by-torchrun": FAULT._replace(flags=ENGINE),
        "two-of-four": FAULT._replace(ranks=4, rank=None),
    }
    for name, expected in elsewhere.items():
        provoke(part, name, expected, "assert")
    with part.step("wrapped"):
        line = " ".join(part.program("assert"))
        done = part.job("wrapped", (), "sh", "-c", f"{line}; exit $?")
        part.figure("wrapped", ({key: done.record.get(key) for key in FIGURES}, done.err[-1500:]))
        part.check("wrapped: cause", "gpu-program-fault", (done.record.get("causes") or [{}])[0].get("code"))
    with part.step("kernel log"):
        part.figure(
            "dmesg", part.run("dmesg", ("sh", "-c", "dmesg | grep -i -E 'xid|nvrm' | tail -30"), 10).out
        )


def beside(part: Part) -> None:
    """A neighbor on the card causes an Xid; the job then fails for a reason of its own."""
    with part.step("beside"):
        path = os.path.join(part.logs, f"{part.name}.beside")
        job = part.start_job("beside", (), *part.program("beside", path))
        part.check("beside: it uses the card", True, job.wait_for(f"{path}.ready", 30))
        part.run("neighbor", part.program("illegal"), 30)
        open(path, "w").close()
        done = job.wait(30)
        codes = [cause["code"] for cause in done.record.get("causes") or ()]
        part.check("beside: causes", ["python-exception"], codes)
        part.figure("beside: stderr", done.err[-2500:])


def memory(part: Part) -> None:
    """The GPU's memory is full, or too small."""
    for name in ("oom", "oom-share", "oom-jax"):
        provoke(part, name, CASES[name])
    provoke(part, "oom-torchrun", MEMORY._replace(flags=ENGINE), "oom")


def full(part: Part) -> None:
    """All memory of the card is taken when cuBLAS wants some."""
    provoke(part, "cublas", CASES["cublas"])


def meeting(part: Part) -> None:
    """NCCL cannot begin: two ranks on one card, and a network interface that does not exist."""
    provoke(part, "duplicate", CASES["duplicate"])
    provoke(part, "interface", CASES["interface"], "duplicate")


def devices(part: Part) -> None:
    """A device that is not there, and CUDA in a fork of a process that uses it."""
    for name in ("ordinal", "forked"):
        provoke(part, name, CASES[name])


def numbers(part: Part) -> None:
    """A loss that becomes NaN: noted at the end of a job that goes on, the cause where it raises."""
    with part.step("nan"):
        done = part.job("nan", ("--prefix",), *part.program("diverge", "goes-on"), limit_s=45)
        part.check("nan: status", 0, done.status)
        part.holds("nan: note", "[loss-nan]", done.err)
        part.figure("nan", (done.out[-800:], done.err[-1500:]))
    provoke(part, "nan-raises", Expected(("loss-nan",), False, "--lr", words=("raises",)), "diverge")


def timeout(part: Part) -> None:
    """NCCL's watchdog notices a collective that comes late; the verdict names it, whoever ends the job."""
    codes = provoke(part, "timeout", CASES["timeout"], limit_s=40)
    part.check("timeout: the collective is among the causes", True, "nccl-timeout" in codes)


def stuck(part: Part) -> None:
    """NCCL's heartbeat monitor ends a rank whose watchdog waits for a kernel that never ends."""
    provoke(part, "timeout-endless", CASES["timeout-endless"], "timeout", limit_s=70)


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
        part.holds("no py-spy is said", "py-spy is not installed", native.out)
        done = job.wait(45)
        part.figure("seconds until it was stopped", time.monotonic() - began)
        part.holds("stacks: the line", "rank.py", stacks.out)
        part.holds("stacks: the call", "synchronize", stacks.out)
        part.holds("the stall names the GPU", "the GPUs only wait (1 of 1 in a kernel that spins", done.err)
        part.check("it was stopped", True, done.status not in (None, 0))
        part.figure("screens", json.dumps([stacks.out, status.out, native.out, native.err]))
        part.figure("stderr", done.err[-5000:])
        part.figure("verdict", {key: done.record.get(key) for key in FIGURES})
