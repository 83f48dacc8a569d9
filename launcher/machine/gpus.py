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
    count = named = 0
    for item in visible_devices.split(","):
        name = item.strip()
        is_index = name.isascii() and name.isdecimal()
        named += name.startswith("GPU-")
        beyond = exposed is not None and (named > exposed or (is_index and int(name[:9]) >= exposed))
        if beyond or not (is_index or name.startswith(("GPU-", "MIG-"))):
            break
        count += 1
    return 0 if exposed == 0 else count


def find_doubles(visible_devices: str) -> list[str]:
    """Return what CUDA_VISIBLE_DEVICES names more than once: with that CUDA finds no device at all."""
    names, twice = set[str](), set[str]()
    for item in visible_devices.split(","):
        name = item.strip()
        (twice if name in names else names).add(name)
    return sorted(twice - {""})


def name_visible_gpus(visible_devices: str | None, gpu_count: int | None) -> tuple[str, ...]:
    """Return the visible GPUs as CUDA_VISIBLE_DEVICES calls them, in the order in which CUDA counts them."""
    count = gpu_count or 0
    if visible_devices:
        return tuple(name.strip() for name in visible_devices.split(",")[:count])  # CUDA sees no more
    return tuple(str(index) for index in range(count))


def share_gpus(visible_devices: str | None, gpu_count: int | None, local_rank: int, each: int) -> str | None:
    """Return the CUDA_VISIBLE_DEVICES of one process that gets ``each`` GPUs of its own.

    None where there are not enough of them: sharing a GPU by accident is worse than a stop.
    """
    mine = name_visible_gpus(visible_devices, gpu_count)[local_rank * each : (local_rank + 1) * each]
    return ",".join(mine) if len(mine) == each else None
