"""NVIDIA's GPUs: those exposed to us, those that CUDA_VISIBLE_DEVICES leaves, and each process's share."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.machine.host import Host

VISIBLE = "CUDA_VISIBLE_DEVICES"
DRIVER = "/proc/driver/nvidia/version"
DEVICE_LIMIT = 256
"""More GPUs than any node has: a snapshot with more is not trusted."""


def count_gpus(host: Host) -> int | None:
    """Return the number of NVIDIA GPUs exposed to us, by their device files; None if unknown.

    The container runtime grants the device files. /proc/driver/nvidia lists all GPUs of the node, and NVML
    needs tens of milliseconds for the same answer. A snapshot without them may have a number.
    """
    if not host.is_recorded() or host.list_folder("/dev"):
        count: object = len(list_minors(host))
    else:
        gpus = host.recorded("gpus")
        count = len(gpus) if isinstance(gpus, list) else gpus
    return count if type(count) is int and 0 <= count <= DEVICE_LIMIT else None


def list_minors(host: Host) -> frozenset[str]:
    """Return the numbers N of the device files /dev/nvidiaN."""
    names = host.list_folder("/dev")
    return frozenset(name[6:] for name in names if name[:6] == "nvidia" and name[6:].isdigit())


def count_visible_gpus(
    exposed: int | None, visible_devices: str | None, uuids: Sequence[str | None] = ()
) -> int | None:
    """Return the number of GPUs that CUDA would find, None if unknown.

    Args:
        exposed: Number of GPUs whose device files we have; None if unknown (a replay without GPUs).
        visible_devices: Value of CUDA_VISIBLE_DEVICES: indices, or UUIDs and MIG names, as the first is. The
            first invalid entry ends the list, and an empty value hides all GPUs. None if unset.
        uuids: UUIDs of the exposed GPUs, as far as they are known.

    Source:
        CUDA C++ Programming Guide, "CUDA Environment Variables"; the kinds and "+0": driver 580 on an H200.
    """
    if visible_devices is None:
        return exposed
    known = [uuid.lower() for uuid in uuids if uuid]
    count = named = 0
    by_index = True
    for item in visible_devices.split(","):
        name = item.strip()
        index = _index(name)
        if not count:
            by_index = index is not None
        if index is not None:
            is_valid = exposed is None or int(index[:9]) < exposed
        elif name.startswith("GPU-"):
            named += 1
            is_valid = exposed is None or named <= exposed
            if len(known) == exposed:
                is_valid = is_valid and sum(uuid.startswith(name.lower()) for uuid in known) == 1
        else:
            is_valid = name.startswith("MIG-")
        if not is_valid or by_index is (index is None):
            break
        count += 1
    return 0 if exposed == 0 else count


def _index(name: str) -> str | None:
    """Return an index without its sign and leading zeros; None if it is none."""
    digits = name.removeprefix("+")
    return digits.lstrip("0") or "0" if digits.isascii() and digits.isdecimal() else None


def find_doubles(visible_devices: str) -> list[str]:
    """Return the entries that CUDA_VISIBLE_DEVICES repeats: with one, CUDA finds no device at all."""
    names, twice = set[str](), set[str]()
    for item in visible_devices.split(","):
        name = _index(item.strip()) or item.strip()
        (twice if name in names else names).add(name)
    return sorted(twice - {""})


def name_visible_gpus(visible_devices: str | None, gpu_count: int | None) -> tuple[str, ...]:
    """Return the visible GPUs as CUDA_VISIBLE_DEVICES names them, in CUDA's order."""
    count = gpu_count or 0
    if visible_devices:
        return tuple(
            name.strip().removeprefix("+") for name in visible_devices.split(",")[:count]
        )  # CUDA sees only these
    return tuple(str(index) for index in range(count))


def share_gpus(visible_devices: str | None, gpu_count: int | None, local_rank: int, each: int) -> str | None:
    """Return the CUDA_VISIBLE_DEVICES of one process that gets ``each`` GPUs of its own.

    None if there are not enough GPUs: an error is better than two processes that share a GPU by accident.
    """
    mine = name_visible_gpus(visible_devices, gpu_count)[local_rank * each : (local_rank + 1) * each]
    return ",".join(mine) if len(mine) == each else None


def read_driver_version(host: Host) -> str | None:
    """Return the version of NVIDIA's loaded driver, e.g. ``"550.54.14"``; None without a driver."""
    import re

    wanted = r"Kernel Module\s+(?:for \S+\s+)?([0-9]{2,4}(?:\.[0-9]+)+)"
    match = re.search(wanted, host.read_text(DRIVER) or "")
    return match[1] if match else None
