"""The memory limit, for each process."""

from __future__ import annotations

from pathlib import Path

from launcher.checks.finding import OK, WARNING
from launcher.checks.memory import look
from tests.unit.checks.cases import DOCKER, Machine, case, only

TOTAL = {"proc/meminfo": "MemTotal:       16777216 kB\nMemFree: 1 kB\n"}
LIMITED = {**TOTAL, **DOCKER, "sys/fs/cgroup/memory.max": f"{4 << 30}\n"}


def test_memory_is_that_of_the_limit_or_the_machine(tmp_path: Path) -> None:
    """A limit counts; a small machine is nobody's limit."""
    # 16 GiB are enough for 8 processes of 2.
    found = only(look(case(Machine(tmp_path, TOTAL), process_count=8)))
    assert (found.level, found.found) == (OK, "16 GiB")
    # 4 GiB are not.
    found = only(look(case(Machine(tmp_path, LIMITED), process_count=8)))
    assert (found.level, found.found) == (WARNING, "4 GiB by the limit of our cgroup")
    assert found.expected == "16 GiB or more, 2 GiB for each of 8 processes"
    assert found.fix == "docker run --memory=16g"
    # Fewer processes is all that helps.
    found = only(look(case(Machine(tmp_path, TOTAL), process_count=16)))
    assert found.level == WARNING and "--nproc-per-node" in found.fix
