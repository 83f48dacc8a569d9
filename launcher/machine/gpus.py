"""Reads CUDA_VISIBLE_DEVICES: the number and names of the visible GPUs, and each process's share."""

from __future__ import annotations


def count_visible_gpus(exposed: int | None, visible_devices: str | None) -> int | None:
    """Return the number of GPUs that CUDA would find, None if unknown.

    Args:
        exposed: Number of GPUs whose device files we have; None if unknown (a replay without GPUs).
        visible_devices: Value of CUDA_VISIBLE_DEVICES: indices, UUIDs or MIG names. The first invalid entry
            ends the list, and an empty value hides all GPUs. None if unset.

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
    """Return the entries that CUDA_VISIBLE_DEVICES repeats: with one, CUDA finds no device at all."""
    names, twice = set[str](), set[str]()
    for item in visible_devices.split(","):
        name = item.strip()
        (twice if name in names else names).add(name)
    return sorted(twice - {""})


def name_visible_gpus(visible_devices: str | None, gpu_count: int | None) -> tuple[str, ...]:
    """Return the visible GPUs as CUDA_VISIBLE_DEVICES names them, in CUDA's order."""
    count = gpu_count or 0
    if visible_devices:
        return tuple(name.strip() for name in visible_devices.split(",")[:count])  # CUDA sees only these
    return tuple(str(index) for index in range(count))


def share_gpus(visible_devices: str | None, gpu_count: int | None, local_rank: int, each: int) -> str | None:
    """Return the CUDA_VISIBLE_DEVICES of one process that gets ``each`` GPUs of its own.

    None if there are not enough GPUs: an error is better than two processes that share a GPU by accident.
    """
    mine = name_visible_gpus(visible_devices, gpu_count)[local_rank * each : (local_rank + 1) * each]
    return ",".join(mine) if len(mine) == each else None
