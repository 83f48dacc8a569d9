"""What the memory controller counts for us: cgroup v1 and v2, as folders that stand in for machines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.machine.cgroup import (
    MemoryEvents,
    cgroup_folders,
    read_memory_events,
    read_memory_limit,
    read_node_oom_kill,
)
from launcher.machine.host import Host
from tests.unit.platforms_model import deterministic
from tests.unit.test_machine import machine

ROOT = "sys/fs/cgroup"
POD = {"proc/self/cgroup": "0::/kubepods/pod1/c1\n"}
HYBRID = {"proc/self/cgroup": "4:memory:/docker/c1\n2:cpu,cpuacct:/\n0::/docker/c1\n"}
EVENTS = "low 0\nhigh 0\nmax 17\noom 2\noom_kill 1\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"
NO_LIMIT = "9223372036854771712\n"

CASES: dict[str, tuple[Mapping[str, str], MemoryEvents, int | None]] = {
    "v2: in a container that sees itself as the root":
     ({"proc/self/cgroup": "0::/\n", f"{ROOT}/memory.events": EVENTS, f"{ROOT}/memory.max": "1073741824\n"},
     MemoryEvents(1, 2, "/sys/fs/cgroup/memory.events"), 1 << 30),
    "v2: the innermost counts, the smallest limit above holds":
     ({**POD, f"{ROOT}/kubepods/pod1/c1/memory.events": EVENTS,
     f"{ROOT}/kubepods/pod1/c1/memory.max": "max\n",
     f"{ROOT}/kubepods/pod1/memory.events": "oom 9\noom_kill 9\n",
     f"{ROOT}/kubepods/pod1/memory.max": "2147483648\n", f"{ROOT}/kubepods/memory.max": "4294967296\n"},
     MemoryEvents(1, 2, "/sys/fs/cgroup/kubepods/pod1/c1/memory.events"), 2 << 30),
    "v1: mounted as the container's own root":
     ({**HYBRID, f"{ROOT}/memory/memory.oom_control": CONTROL, f"{ROOT}/memory/memory.failcnt": "41\n",
     f"{ROOT}/memory/memory.limit_in_bytes": "67108864\n"},
     MemoryEvents(3, 41, "/sys/fs/cgroup/memory/memory.oom_control"), 64 << 20),
    "v1: the limit of memory and swap together was reached first":
     ({**HYBRID, f"{ROOT}/memory/memory.oom_control": CONTROL, f"{ROOT}/memory/memory.failcnt": "1\n",
     f"{ROOT}/memory/memory.memsw.failcnt": "40\n", f"{ROOT}/memory/memory.limit_in_bytes": "67108864\n"},
     MemoryEvents(3, 41, "/sys/fs/cgroup/memory/memory.oom_control"), 64 << 20),
    "v1: the same, by a kernel that does not count it":
     ({**HYBRID, f"{ROOT}/memory/memory.oom_control": CONTROL, f"{ROOT}/memory/memory.failcnt": "0\n",
     f"{ROOT}/memory/memory.memsw.failcnt": "0\n", f"{ROOT}/memory/memory.max_usage_in_bytes": "67108864\n",
     f"{ROOT}/memory/memory.limit_in_bytes": "67108864\n"},
     MemoryEvents(3, 1, "/sys/fs/cgroup/memory/memory.oom_control"), 64 << 20),
    "v1: no limit": ({**HYBRID, f"{ROOT}/memory/docker/c1/memory.oom_control": CONTROL,
     f"{ROOT}/memory/docker/c1/memory.limit_in_bytes": NO_LIMIT},
     MemoryEvents(3, None, "/sys/fs/cgroup/memory/docker/c1/memory.oom_control"), None),
    "v1: a kernel before 4.13 does not count":
     ({**HYBRID, f"{ROOT}/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\n"},
     MemoryEvents(None, None, "/sys/fs/cgroup/memory/memory.oom_control"), None),
    "v1 and v2 side by side: v2 without the memory controller":
     ({**HYBRID, f"{ROOT}/unified/docker/c1/cgroup.procs": ""}, MemoryEvents(), None),
    "nothing to read": ({}, MemoryEvents(), None),
    "garbage": ({**POD, f"{ROOT}/memory.events": "oom_kill x\noom\n1 2 3\n"}, MemoryEvents(), None),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_memory_counters_and_limits(name: str, tmp_path: Path) -> None:
    """The file that counts is named, and what cannot be read is None."""
    files, events, limit = CASES[name]
    host = machine(tmp_path, files)
    assert read_memory_events(host) == events
    assert read_memory_limit(host) == limit


@deterministic(100)
@given(
    files=st.dictionaries(
        st.sampled_from(["proc/self/cgroup", f"{ROOT}/memory.events", f"{ROOT}/memory.max", "proc/vmstat"]),
        st.text(alphabet="0123456789:/\n max_oomkill.", max_size=60),
    )
)
def test_any_text_in_these_files_raises_nothing(
    files: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What is read is a number that is not negative, or None."""
    host = machine(tmp_path_factory.mktemp("machine"), files)
    events = read_memory_events(host)
    for number in (events.oom_kill, events.limit_hits, read_memory_limit(host), read_node_oom_kill(host)):
        assert number is None or number >= 0


def test_hierarchies_and_the_node_are_read(tmp_path: Path) -> None:
    """Folders go from the innermost to the mount; /proc/vmstat counts for the node; space as df has it."""
    # /proc/vmstat counts for the whole node, also from inside of a container.
    host = machine(tmp_path, {"proc/vmstat": "nr_free_pages 5\noom_kill 4\nswap_ra 0\n"})
    assert read_node_oom_kill(host) == 4
    assert read_node_oom_kill(Host(str(tmp_path / "none"))) is None
    # A hierarchy of v1 by both names that its mount can have; v2 beside it under /unified.
    folders = cgroup_folders(machine(tmp_path, HYBRID), "cpu")
    base = "/sys/fs/cgroup"
    expected = [f"{base}/cpu,cpuacct", f"{base}/cpu"]
    expected += [f"{base}/docker/c1", f"{base}/docker", base]
    expected += [f"{base}/unified/docker/c1", f"{base}/unified/docker", f"{base}/unified"]
    assert folders == expected
    # Bytes, as df has them; None where there is nothing.
    size, free = Host(str(tmp_path)).space("/") or (0, 0)
    assert 0 <= free <= size and size > 0
    assert Host(str(tmp_path)).space("/none") is None
    assert Host(str(tmp_path)).space("/a\0b") is None
