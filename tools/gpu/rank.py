"""What ranks of the proof run: ``python rank.py CASE [WORD ...]``. What they find is a line of JSON."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from typing import Any

STARTED = time.time()
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.global .align 8 .b8 memory[64];
.visible .entry illegal() {
  .reg .u64 %a; .reg .u32 %v;
  mov.u64 %a, 16; mov.u32 %v, 1; st.global.u32 [%a], %v; ret;
}
.visible .entry misaligned() {
  .reg .u64 %a; .reg .u32 %v;
  mov.u64 %a, memory; add.u64 %a, %a, 1; mov.u32 %v, 1; st.global.u32 [%a], %v; ret;
}
.visible .entry endless() {
  .reg .u64 %a; .reg .u32 %v; .reg .pred %p;
  mov.u64 %a, memory;
again:
  ld.volatile.global.u32 %v, [%a]; setp.eq.u32 %p, %v, 0; @%p bra again;
  ret;
}
.visible .entry late() {
  .reg .u64 %a, %b; .reg .pred %p;
  mov.u64 %a, %globaltimer; add.u64 %a, %a, 16000000000;
again:
  mov.u64 %b, %globaltimer; setp.lt.u64 %p, %b, %a; @%p bra again;
  ret;
}
"""
"""Kernels that misbehave, for the driver's own compiler."""


def say(**found: object) -> None:
    """Print what was found."""
    print(json.dumps({"rank": os.environ.get("RANK"), **found}), flush=True)


def note(path: str) -> None:
    """Make a file, which others wait for."""
    with open(path, "w") as file:
        file.write(str(time.time()))


def join(backend: str = "nccl", device: int = 0, **options: Any) -> Any:
    """Meet the other ranks on a GPU (a CPU, where there is none); return the device."""
    import torch
    import torch.distributed as dist

    has_gpu = torch.cuda.is_available()
    if has_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(backend if has_gpu else "gloo", **options)
    return torch.device("cuda", device) if has_gpu else torch.device("cpu")


def launch(name: str) -> None:
    """Start a kernel of `PTX` on one thread, on torch's default stream."""
    import torch

    torch.zeros(1, device="cuda")
    cuda, module, kernel = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
    status = cuda.cuModuleLoadData(ctypes.byref(module), PTX)
    if status:  # no compiler in the driver: CUDA's
        import subprocess
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/a.ptx", "wb") as file:
                file.write(PTX)
            subprocess.run(["ptxas", "-arch=sm_90", f"{folder}/a.ptx", "-o", f"{folder}/a"], check=True)
            with open(f"{folder}/a", "rb") as file:
                status = cuda.cuModuleLoadData(ctypes.byref(module), file.read())
    found = cuda.cuModuleGetFunction(ctypes.byref(kernel), module, name.encode())
    began = cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None)
    if status or found or began:
        raise SystemExit(f"the kernel was not started: CUDA errors {status}, {found}, {began}")


def fault(name: str) -> None:
    """Have a kernel of ours fail, and ask for its result."""
    import torch

    launch(name)
    torch.cuda.synchronize()


def device_assert() -> None:
    """Ask for a row that a table does not have."""
    import torch

    table = torch.nn.Embedding(10, 4).cuda()
    print(table(torch.tensor([3, 12], device="cuda")).sum().item())


def endless(marker: str) -> None:
    """Wait for a kernel that never ends."""
    import torch

    launch("endless")
    note(marker)
    torch.cuda.synchronize()


def oom() -> None:
    """Ask for more than any GPU has."""
    import torch

    torch.empty(1 << 42, dtype=torch.uint8, device="cuda")


def oom_driver() -> None:
    """The same within a share of the memory, in small pieces, as a training does."""
    import torch

    torch.cuda.set_per_process_memory_fraction(0.02)
    kept = []
    while True:
        kept.append(torch.ones(64 << 20, dtype=torch.uint8, device="cuda"))


def oom_jax() -> None:
    """The same with JAX."""
    import jax.numpy as jnp

    print(jnp.ones((1 << 38,)).sum())


def fill_card() -> None:
    """Take all memory from the driver, to the last MiB."""
    import torch

    torch.zeros(1, device="cuda")
    cuda, memory = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
    for power in range(36, 19, -1):
        while cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << power)) == 0:
            pass


def cublas() -> None:
    """Multiply while all memory is taken: cuBLAS wants some for itself."""
    import torch

    one, other = torch.ones(64, 64, device="cuda"), torch.empty(64, 64, device="cuda")
    torch.cuda.synchronize()
    fill_card()
    torch.mm(one, one, out=other)
    print(other.sum().item())


def duplicate() -> None:
    """Two ranks on one GPU."""
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(1, device=join()))
    torch.cuda.synchronize()


def ordinal() -> None:
    """Each rank takes the GPU of its local rank, of which there is none for the second."""
    import torch

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.ones(1, device="cuda")
    time.sleep(30)


def forked() -> None:
    """Workers of a DataLoader that are forked after CUDA was initialised, and use it."""
    import torch

    class Rows(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> object:
            return torch.ones(2, device="cuda") * index

    torch.ones(1, device="cuda")
    print(list(torch.utils.data.DataLoader(Rows(), num_workers=1, multiprocessing_context="fork")))


def diverge(how: str) -> None:
    """Train in half precision with a rate that is far too high."""
    import torch

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Linear(64, 64, device=device, dtype=torch.bfloat16)
    data = torch.randn(32, 64, device=device, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e30)
    torch.autograd.set_detect_anomaly(how == "raises")
    for step in range(8):
        loss = (model(data) ** 2).mean()
        print(f"step {step} loss {loss.item():.3f}", flush=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def timeout(name: str) -> None:
    """An all_reduce behind a kernel that ends after 16 s, or never: NCCL's watchdog ends the process."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    device = join(timeout=timedelta(seconds=8))
    dist.all_reduce(torch.ones(1, device=device))
    torch.cuda.synchronize()
    launch(name)
    dist.all_reduce(torch.ones(1, device=device))
    torch.cuda.synchronize()


def beside(path: str) -> None:
    """Use the card, wait until a neighbor has failed on it, and fail for another reason."""
    import torch

    torch.ones(1, device="cuda")
    note(f"{path}.ready")
    while not os.path.exists(path):
        time.sleep(0.05)
    torch.ones(1, device="cuda").sum().item()
    raise ValueError("a mistake that has nothing to do with a GPU")


def hang(marker: str) -> None:
    """Three collectives, and a fourth that cannot begin; tell what the recorder was given."""
    import torch
    import torch.distributed as dist

    device = join()
    for _ in range(3):
        dist.all_reduce(torch.ones(1000, device=device))
    variables = {key: value for key, value in os.environ.items() if key.startswith(("TORCH_", "NCCL_"))}
    folder = os.path.dirname(variables.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", ""))
    time.sleep(2)  # the thread that makes the pipe has begun
    names = os.listdir(folder) if folder else []
    version = torch.cuda.nccl.version() if torch.cuda.is_available() else None
    say(variables=variables, folder=names, torch=torch.__version__, nccl=version)
    if torch.cuda.is_available():
        launch("endless")
    dist.all_reduce(torch.ones(1000, device=device))
    note(marker)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    time.sleep(600)


def first(backend: str) -> None:
    """Take a first step, and tell when, and what a fork has left."""
    import torch

    imported = time.time()
    files = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_link(fd)]
    inherited = {
        "initialized": torch.cuda.is_initialized(),
        "bad_fork": torch.cuda._is_in_bad_fork(),
        "gpu_files": sorted(name for name in files if name.startswith("/dev/nvidia")),
        "threads": len(os.listdir("/proc/self/task")),
    }
    device = join(backend)
    joined = time.time()
    import torch.distributed as dist

    model = torch.nn.Linear(256, 256).to(device)
    model(torch.ones(8, 256, device=device)).sum().backward()
    gradient: Any = model.weight.grad
    dist.all_reduce(gradient)
    value = float(gradient[0, 0])
    say(started=STARTED, imported=imported, joined=joined, stepped=time.time(), value=value, **inherited)
    dist.destroy_process_group()


def _is_link(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


def hold(gib: str, path: str) -> None:
    """Hold memory and die of SIGKILL; the next attempt tells what is in use, and takes as much."""
    import pynvml
    import torch

    pynvml.nvmlInit()
    used = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used
    began = time.time()
    size = int(gib) << 30
    memory = torch.empty(size, dtype=torch.uint8, device="cuda").fill_(1)
    torch.cuda.synchronize()
    attempt = os.environ.get("LAUNCHER_ATTEMPT") or os.environ.get("TORCHELASTIC_RESTART_COUNT") or "0"
    if attempt == "0":
        note(path)
        os.kill(os.getpid(), signal.SIGKILL)
    with open(path) as file:
        died = float(file.read())
    say(started_s=STARTED - died, step_s=time.time() - died, used_gib=used / 2**30, looked_s=began - died)
    del memory


def steps(seconds: str, marker: str) -> None:
    """Multiply and reduce for some seconds; tell how long a step took."""
    import statistics

    import torch
    import torch.distributed as dist

    device = join()
    matrix = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)
    taken: list[float] = []
    until = time.perf_counter() + float(seconds) + 1
    while time.perf_counter() < until:
        began = time.perf_counter()
        dist.all_reduce(matrix @ matrix)
        if device.type == "cuda":
            torch.cuda.synchronize()
        if time.perf_counter() > until - float(seconds):
            if not taken:
                note(marker)
            taken.append(1e3 * (time.perf_counter() - began))
    tenths = statistics.quantiles(taken, n=10)
    say(steps=len(taken), quick_ms=tenths[0], median_ms=tenths[4], slow_ms=tenths[8])
    time.sleep(1.5)  # the launcher's processor time is read once more
    dist.destroy_process_group()


CASES = {
    "illegal": lambda: fault("illegal"), "misaligned": lambda: fault("misaligned"), "assert": device_assert,
    "endless": endless, "oom": oom, "oom-share": oom_driver, "oom-jax": oom_jax, "cublas": cublas,
    "duplicate": duplicate, "ordinal": ordinal, "forked": forked, "diverge": diverge, "timeout": timeout,
    "beside": beside,
    "hang": hang, "first": first, "hold": hold, "steps": steps,
}  # fmt: skip

if __name__ == "__main__":
    CASES[sys.argv[1]](*sys.argv[2:])  # type: ignore[operator]
