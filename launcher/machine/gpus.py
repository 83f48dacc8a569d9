"""How many GPUs a process here can see."""

from __future__ import annotations


def count_visible_gpus(exposed: int | None, visible_devices: str | None) -> int | None:
    """Return the number of GPUs that CUDA would find, None if unknown.

    Args:
        exposed: GPUs whose device files we have; None in a replay without them.
        visible_devices: CUDA_VISIBLE_DEVICES: indices, UUIDs or MIG names; the first invalid entry
            ends the list, and an empty text hides all. None if unset.

    Source:
        CUDA C++ Programming Guide, "CUDA Environment Variables".
    """
    if visible_devices is None:
        return exposed
    return 0 if exposed == 0 else len(visible_gpu_names(exposed, visible_devices))


def visible_gpu_names(exposed: int | None, visible_devices: str | None) -> tuple[str, ...]:
    """Return the entries of CUDA_VISIBLE_DEVICES that CUDA accepts; all indices where it is unset."""
    if visible_devices is None:
        return tuple(str(index) for index in range(exposed or 0))
    names = []
    for item in visible_devices.split(","):
        name = item.strip()
        is_index = name.isascii() and name.isdecimal()
        beyond = is_index and exposed is not None and int(name[:9]) >= exposed
        if beyond or not (is_index or name.startswith(("GPU-", "MIG-"))):
            break
        names.append(name)
    return tuple(names)


def share_gpus(visible_devices: str | None, gpu_count: int | None, local_rank: int, each: int) -> str | None:
    """Return the CUDA_VISIBLE_DEVICES of one process that gets ``each`` GPUs of its own.

    None where there are not enough of them: sharing a GPU by accident is worse than a stop.
    """
    count = gpu_count or 0
    names = [str(index) for index in range(count)]
    if visible_devices:
        names = [name.strip() for name in visible_devices.split(",")[:count]]  # CUDA sees no more of them
    mine = names[local_rank * each : (local_rank + 1) * each]
    return ",".join(mine) if len(mine) == each else None


def list_gpus() -> list[dict[str, object]]:
    """Return the GPUs that NVML shows us; empty without a driver. For snapshots: NVML is slow."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        return [_describe_gpu(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


def _describe_gpu(index: int) -> dict[str, object]:
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    return {
        "index": index,
        "name": pynvml.nvmlDeviceGetName(handle),
        "uuid": pynvml.nvmlDeviceGetUUID(handle),
        "pci_bus_id": pynvml.nvmlDeviceGetPciInfo(handle).busId,
    }
