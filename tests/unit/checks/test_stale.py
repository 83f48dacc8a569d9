"""Stale processes on GPUs. NVML is stood in for: what it would say is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.checks.finding import OK, PROBLEM, WARNING, Finding
from launcher.machine.nvml import GpuMemoryUse
from tests.unit.checks.cases import Machine, case, levels, looker

look = looker("stale")

GIB = 1 << 30
FREE, HELD = GpuMemoryUse(0, GIB // 2, 80 * GIB), GpuMemoryUse(1, 40 * GIB, 80 * GIB, (1234,))
SMALL, UNSEEN = GpuMemoryUse(2, GIB, 80 * GIB, (77,)), GpuMemoryUse(3, 30 * GIB, 80 * GIB)


def look_at(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *use: GpuMemoryUse, gpus: int = 1, **files: str
) -> list[Finding]:
    """Return what is found on a node with so many GPUs, of which NVML gives this use."""
    monkeypatch.setattr("launcher.checks.gpus.read_gpu_use", lambda: use)
    return look(case(Machine(folder, files, gpus=gpus)))


def test_who_holds_memory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has it; what the driver itself has is nobody's."""
    # Much memory is a problem, whoever has it; one that we can see can be ended.
    comm = {"proc/1234/comm": "python\n"}
    found = look_at(tmp_path, monkeypatch, FREE, HELD, SMALL, UNSEEN, gpus=4, **comm)
    assert levels(found) == [PROBLEM, WARNING, PROBLEM]
    assert found[0].found == "40 GiB of 80 GiB taken by process 1234 (python)"
    assert found[0].fix == "kill 1234, if it does not belong to a running job"
    assert "77 (not of this container)" in found[1].found and "nvidia-smi" in found[1].fix
    assert found[2].found.endswith("taken by processes that this user may not see")
    # What the driver itself has is nobody's.
    assert levels(look_at(tmp_path / "free", monkeypatch, FREE)) == [OK]
    # Without GPUs NVML is not asked; without an answer nothing is said.
    assert look_at(tmp_path / "a", monkeypatch, HELD, gpus=0) == []
    assert look_at(tmp_path / "b", monkeypatch) == []
