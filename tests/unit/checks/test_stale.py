"""Stale processes on GPUs. NVML is stood in for: what it would say is given."""

from __future__ import annotations

from pathlib import Path

from launcher.checks.finding import OK, PROBLEM, WARNING
from launcher.checks.stale import look
from launcher.machine.gpu_use import GpuUse
from tests.unit.checks.cases import Machine, case, levels

GIB = 1 << 30
FREE, HELD = GpuUse(0, GIB // 2, 80 * GIB), GpuUse(1, 40 * GIB, 80 * GIB, (1234,))
SMALL, UNSEEN = GpuUse(2, GIB, 80 * GIB, (77,)), GpuUse(3, 30 * GIB, 80 * GIB)


def test_who_holds_memory_is_named(tmp_path: Path) -> None:
    """Whoever has it; what the driver itself has is nobody's."""
    # Much memory is a problem, whoever has it; one that we can see can be ended.
    host = Machine(tmp_path, {"proc/1234/comm": "python\n"}, gpus=4, use=(FREE, HELD, SMALL, UNSEEN))
    found = look(case(host))
    assert levels(found) == [PROBLEM, WARNING, PROBLEM]
    assert found[0].found == "40 GiB of 80 GiB taken by process 1234 (python)"
    assert found[0].fix == "kill 1234, if it belongs to no job that runs"
    assert "77 (not of this container)" in found[1].found and "nvidia-smi" in found[1].fix
    assert found[2].found.endswith("taken by processes that this user may not see")
    # What the driver itself has is nobody's.
    assert levels(look(case(Machine(tmp_path, gpus=1, use=(FREE,))))) == [OK]
    # Without GPUs NVML is not asked; without an answer nothing is said.
    assert look(case(Machine(tmp_path / "a", use=(HELD,)))) == []
    assert look(case(Machine(tmp_path / "b", gpus=1))) == []
