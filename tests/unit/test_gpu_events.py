"""NVML's events of GPUs, from a module that answers as NVML does, and what a launcher keeps of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.machine.host import Host
from launcher.machine.nvml import wait_for_errors


class Error(Exception):
    """NVML's error."""


class Timeout(Error):
    """No event within the time."""


class Nvml:
    """Two GPUs, of which one has no events; its events are a list."""

    NVMLError, NVMLError_Timeout = Error, Timeout
    nvmlEventTypeDoubleBitEccError, nvmlEventTypeXidCriticalError = 2, 8  # noqa: N815

    def __init__(self, *events: tuple[int, int] | Error) -> None:
        self.events: Iterator[Any] = iter(events)
        self.registered: list[tuple[int, int]] = []

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's names
        pass

    def nvmlEventSetCreate(self) -> str:  # noqa: N802
        return "set"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 3

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetMinorNumber(self, gpu: int) -> int:  # noqa: N802
        return gpu

    def nvmlDeviceGetSupportedEventTypes(self, gpu: int) -> int:  # noqa: N802
        if gpu == 1:
            raise Error("not supported")
        return 1 | 8

    def nvmlDeviceRegisterEvents(self, gpu: int, kinds: int, events: str) -> None:  # noqa: N802
        self.registered.append((gpu, kinds))

    def nvmlEventSetWait(self, events: str, limit_ms: int) -> SimpleNamespace:  # noqa: N802
        event = next(self.events)
        if isinstance(event, Error):
            raise event
        return SimpleNamespace(device=0, eventType=event[0], eventData=event[1])

    def nvmlDeviceGetPciInfo(self, gpu: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(busId="00000001:3B:00.0")


def wait(nvml: object, monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[str]:
    """Return all lines for a node with the GPUs 0 and 1 of three."""
    for name in ("nvidia0", "nvidia1"):
        (folder / "dev").mkdir(exist_ok=True)
        (folder / "dev" / name).touch()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return list(wait_for_errors(Host(str(folder))))


def test_events_until_nvml_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A wait without an event goes on; other kinds are left out; a GPU that is lost ends the watch."""
    nvml = Nvml(Timeout(), (8, 79), (2, 0), (16, 5), Timeout(), (8, 31), Error("GPU is lost"))
    assert wait(nvml, monkeypatch, tmp_path) == ["0001:3b:00 79", "0001:3b:00 48", "0001:3b:00 31"]
    assert nvml.registered == [(0, 8)]  # not the GPU without events, nor the one that is not ours


def test_without_nvml_there_are_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No module; a driver that is gone; no GPU that has events."""
    assert wait(None, monkeypatch, tmp_path) == []

    class Gone(Nvml):
        def nvmlInit(self) -> None:  # noqa: N802
            raise Error("no driver")

    class Silent(Nvml):
        def nvmlDeviceGetSupportedEventTypes(self, gpu: int) -> int:  # noqa: N802
            return 0

    assert wait(Gone(), monkeypatch, tmp_path) == []
    assert wait(Silent((8, 79)), monkeypatch, tmp_path) == []
