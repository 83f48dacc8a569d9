"""Waits for errors of the exposed GPUs as NVML's events: no privilege is needed, unlike for the kernel's log.

Source: NVIDIA NVML API reference, "Event Handling Methods" (nvmlEventSetCreate, nvmlDeviceRegisterEvents,
nvmlEventSetWait_v2) and "Event Types".
"""

from __future__ import annotations

from launcher.machine.gpu_use import open_nvml
from launcher.machine.gpus import list_minors
from launcher.machine.numa import parse_pci_address, render_pci_address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType
    from typing import Any

    from launcher.machine.host import Host

WAIT_MS = 60_000
"""Milliseconds of one wait; an event ends it at once."""
XID = "nvmlEventTypeXidCriticalError"
NUMBERS = {"nvmlEventTypeDoubleBitEccError": 48, "nvmlEventTypeDramRetirementFailure": 64}
"""Kinds of events without an Xid of their own, and the Xid that says the same."""


def wait_for_errors(host: Host) -> Iterator[str]:
    """Yield ``ADDRESS XID`` for each error of an exposed GPU, e.g. ``0000:3b:00 79``.

    Runs in a fork, and blocks: NVML may take seconds to wake GPUs up. It ends where there is no NVML, if no
    GPU has events, and if NVML fails.
    """
    nvml = open_nvml()
    if nvml is None:
        return
    try:
        events = nvml.nvmlEventSetCreate()
    except nvml.NVMLError:
        return
    kinds = {getattr(nvml, name, 0): number for name, number in {XID: 0, **NUMBERS}.items()}
    kinds.pop(0, None)  # not known to this version
    if sum(_register(nvml, gpu, sum(kinds), events) for gpu in _list_gpus(nvml, host)):
        yield from _wait(nvml, events, kinds)


def _list_gpus(nvml: ModuleType, host: Host) -> Iterator[Any]:
    minors = list_minors(host)
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            if not minors or str(nvml.nvmlDeviceGetMinorNumber(gpu)) in minors:
                yield gpu
        except nvml.NVMLError:
            continue


def _register(nvml: ModuleType, gpu: Any, kinds: int, events: Any) -> bool:
    try:
        supported = nvml.nvmlDeviceGetSupportedEventTypes(gpu) & kinds
        if supported:
            nvml.nvmlDeviceRegisterEvents(gpu, supported, events)
    except nvml.NVMLError:
        return False
    return bool(supported)


def _wait(nvml: ModuleType, events: Any, kinds: dict[int, int]) -> Iterator[str]:
    wait = getattr(nvml, "nvmlEventSetWait_v2", None) or nvml.nvmlEventSetWait
    while True:
        try:
            event = wait(events, WAIT_MS)
            bus = nvml.nvmlDeviceGetPciInfo(event.device).busId
        except nvml.NVMLError_Timeout:
            continue
        except nvml.NVMLError:
            return
        number = kinds.get(event.eventType) or event.eventData
        address = parse_pci_address(bus.decode("ascii", "replace") if isinstance(bus, bytes) else bus)
        if event.eventType in kinds and address is not None:
            yield f"{render_pci_address(address).rpartition('.')[0]} {number}"
