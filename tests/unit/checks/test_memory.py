"""The memory limit, for each process."""

from __future__ import annotations

from pathlib import Path

from launcher.checks.finding import OK, WARNING
from tests.unit.checks.cases import DOCKER, Machine, case, looker, only

look = looker("memory")

TOTAL = {"proc/meminfo": "MemTotal:       16777216 kB\nMemFree: 1 kB\n"}
LIMITED = {**TOTAL, **DOCKER, "sys/fs/cgroup/memory.max": f"{4 << 30}\n"}


def test_the_machine_counts_where_there_is_no_limit(tmp_path: Path) -> None:
    """16 GiB are enough for 8 processes of 2."""
    found = only(look(case(Machine(tmp_path, TOTAL), process_count=8)))
    assert (found.level, found.found) == (OK, "16 GiB")


def test_a_limit_counts(tmp_path: Path) -> None:
    """4 GiB are not."""
    found = only(look(case(Machine(tmp_path, LIMITED), process_count=8)))
    assert (found.level, found.found) == (WARNING, "4 GiB by the limit of our cgroup")
    assert found.expected == "16 GiB or more, 2 GiB for each of 8 processes"
    assert found.fix == "docker run --memory=16g"


def test_a_small_machine_is_nobodys_limit(tmp_path: Path) -> None:
    """Fewer processes is all that helps."""
    found = only(look(case(Machine(tmp_path, TOTAL), process_count=16)))
    assert found.level == WARNING and "--nproc-per-node" in found.fix
