"""What a node has: CPUs that the cgroup grants, GPUs that a process sees, read from folders."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.core.ranks import parse_cpu_list, render_cpu_list
from launcher.machine import read_machine
from launcher.machine.cgroup import read_granted_cpus
from launcher.machine.gpus import count_gpus, count_visible_gpus, find_doubles, share_gpus
from launcher.machine.host import Host
from launcher.planning.recorded import replay
from tests.unit.machines import recorded_gpus, write_gpus
from tests.unit.platforms_model import deterministic

ROOT = "sys/fs/cgroup"
ONLINE = {"sys/devices/system/cpu/online": "0-95\n"}
V2 = {"proc/self/cgroup": "0::/\n", **ONLINE}
POD = {"proc/self/cgroup": "0::/kubepods/pod1/c1\n", **ONLINE}
V1 = {"proc/self/cgroup": "5:cpu,cpuacct:/docker/c1\n3:cpuset:/docker/c1\n1:name=systemd:/\n", **ONLINE}


def machine(folder: Path, files: Mapping[str, str]) -> Host:
    """Return a machine that has these files."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return Host(str(folder))


CASES: dict[str, tuple[dict[str, str], int | None]] = {
    "v2: the cpuset of a container": ({**V2, f"{ROOT}/cpuset.cpus.effective": "0-3,8\n"}, 5),
    "v2: a quota below the cpuset":
     ({**V2, f"{ROOT}/cpuset.cpus.effective": "0-7\n", f"{ROOT}/cpu.max": "250000 100000\n"}, 3),
    "v2: a quota above the cpuset":
     ({**V2, f"{ROOT}/cpuset.cpus.effective": "0-1\n", f"{ROOT}/cpu.max": "800000 100000\n"}, 2),
    "v2: no limit": ({**V2, f"{ROOT}/cpuset.cpus.effective": "0-7\n", f"{ROOT}/cpu.max": "max 100000\n"}, 8),
    "v2: less than one CPU is one": ({**V2, f"{ROOT}/cpu.max": "1000 100000\n"}, 1),
    "v2: the innermost cpuset, the smallest quota of all above":
     ({**POD, f"{ROOT}/kubepods/pod1/c1/cpuset.cpus.effective": "0-15\n",
     f"{ROOT}/kubepods/pod1/c1/cpu.max": "max 100000\n", f"{ROOT}/kubepods/pod1/cpu.max": "600000 100000\n",
     f"{ROOT}/kubepods/cpu.max": "2000000 100000\n", f"{ROOT}/cpuset.cpus.effective": "0-95\n"}, 6),
    "v2: no controllers in the container's own folder":
     ({**POD, f"{ROOT}/cpuset.cpus.effective": "0-11\n"}, 12),
    "v2: an empty cpuset means that of the folder above":
     ({**POD, f"{ROOT}/kubepods/pod1/c1/cpuset.cpus": "\n",
     f"{ROOT}/kubepods/cpuset.cpus.effective": "0-2\n"}, 3),
    "v1: the cpuset and the quota":
     ({**V1, f"{ROOT}/cpuset/docker/c1/cpuset.effective_cpus": "0-9\n",
     f"{ROOT}/cpu,cpuacct/docker/c1/cpu.cfs_quota_us": "400000\n",
     f"{ROOT}/cpu,cpuacct/docker/c1/cpu.cfs_period_us": "100000\n"}, 4),
    "v1: no quota is -1": ({**V1, f"{ROOT}/cpuset/docker/c1/cpuset.cpus": "2-3\n",
     f"{ROOT}/cpu/docker/c1/cpu.cfs_quota_us": "-1\n", f"{ROOT}/cpu/docker/c1/cpu.cfs_period_us": "100000\n"},
     2),
    "v1: mounted as the container's own root": ({**V1, f"{ROOT}/cpuset/cpuset.cpus": "0-5\n"}, 6),
    "no cgroup files: all that are online": (ONLINE, 96),
    "numbers that no kernel writes":
     ({f"{ROOT}/cpuset.cpus.effective": "0-3\n", f"{ROOT}/cpu.max": f"{'9' * 5000} {'9' * 5000}\n"}, 4),
    "nothing to read": ({}, None),
    "garbage": ({"proc/self/cgroup": "\n:::\n0\nx:y:z:w\n", f"{ROOT}/cpuset.cpus.effective": "a-b\n",
     f"{ROOT}/cpu.max": "1 0\n"}, None),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_granted_cpus(name: str, tmp_path: Path) -> None:
    """cgroup v2 and v1, nested and flat, as the kernel and container runtimes write them."""
    files, expected = CASES[name]
    assert read_granted_cpus(machine(tmp_path, files)) == expected


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        *(("0", [0]), ("0-3", [0, 1, 2, 3])),
        ("0-3,8,10-11\n", [0, 1, 2, 3, 8, 10, 11]),
        *(("2,0-1,1", [0, 1, 2]), ("", []), ("0-", []), ("-3", []), ("3-1", []), ("x", []), ("0,,1", [])),
        *(("0-3,", []), ("\u0663", [])),
        ("0-65535", list(range(65536))),
        ("0-65536", []),
        ("0-65535," * 9 + "0", []),
        ("9" * 5000, []),
    ],
)
def test_a_kernel_list_of_cpus(text: str, cpus: list[int]) -> None:
    """Nothing for what is not one, so that the next file is asked; no list fills the memory."""
    assert sorted(parse_cpu_list(text)) == cpus


@deterministic(100)
@given(cpus=st.frozensets(st.integers(0, 300)))
def test_a_list_of_cpus_is_written_as_the_kernel_does(cpus: frozenset[int]) -> None:
    """It reads back as the same set, and no two neighbours stand apart."""
    text = render_cpu_list(cpus)
    assert parse_cpu_list(text) == cpus
    assert text.count(",") < max(1, sum(cpu + 1 not in cpus for cpu in cpus))


@deterministic(200)
@given(
    files=st.dictionaries(st.sampled_from(sorted(CASES["v1: no quota is -1"][0] | V2)), st.text(max_size=40))
)
def test_any_text_in_these_files_gives_a_positive_number_or_none(
    files: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No kernel writes it, but a file of a container may."""
    files = {name: text.encode("utf-8", "replace").decode() for name, text in files.items()}
    granted = read_granted_cpus(machine(tmp_path_factory.mktemp("machine"), files))
    assert granted is None or granted > 0


@pytest.mark.parametrize(
    ("exposed", "visible", "count"),
    [
        (8, None, 8),
        (8, "", 0),
        (8, "0,1", 2),
        (8, " 3 , 5 ", 2),
        (8, "0,1,9,2", 2),  # CUDA stops at the first that is not there
        (8, "-1", 0),
        (8, "0,-1,1", 1),
        (8, "NoDevFiles", 0),
        (8, "GPU-8932f937,GPU-1", 2),
        (8, "MIG-1,MIG-2,MIG-3", 3),
        (2, "MIG-1,MIG-2,MIG-3", 3),  # parts of GPUs: more than there are GPUs
        (0, "0,1", 0),
        (0, None, 0),
        (None, None, None),
        (None, "0,1,2,3", 4),  # a recording without GPUs: the list is all there is
        (8, "\u0663", 0),
        (8, "9" * 5000, 0),
        (2, "GPU-a,GPU-b,GPU-c", 2),  # there cannot be a third
        (8, "0,GPU-8932f937", 1),  # the first entry decides whether they are numbers: seen on an H200
        (8, "GPU-8932f937,0", 1),
        (8, "MIG-1,0", 1),
        (8, "+0, +3", 2),  # seen on an H200
        (8, "++0", 0),
        (8, "+", 0),
    ],
)
def test_visible_gpus_are_counted_as_cuda_counts_them(
    exposed: int | None, visible: str | None, count: int | None
) -> None:
    """CUDA C++ Programming Guide, "CUDA Environment Variables"."""
    assert count_visible_gpus(exposed, visible) == count


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        ("GPU-ffffffff-0000-0000-0000-000000000000", 0),  # another machine's: seen on an H200
        ("GPU-0001-A", 1),  # in any case
        ("GPU-0001-a,GPU-ffff,GPU-0002", 1),
        ("GPU-000", 0),  # two begin so
        ("GPU-0002-b,GPU-0001-a", 2),
    ],
)
def test_uuids_are_those_of_this_machine(tmp_path: Path, visible: str, count: int) -> None:
    """Where the driver's files name the GPUs; where they do not, each entry counts."""
    write_gpus(tmp_path, [("0001:00:00.0", 0), ("0002:00:00.0", 0)], uuids=("GPU-0001-a", "GPU-0002-b"))
    environ = {"CUDA_VISIBLE_DEVICES": visible}
    assert read_machine(Host(str(tmp_path)), environ).gpu_count == count
    files = recorded_gpus([("0001:00:00.0", 0, "GPU-0001-a"), ("0002:00:00.0", 0, "GPU-0002-b")])
    assert read_machine(replay({"files": files}), environ).gpu_count == count
    write_gpus(tmp_path, [("0001:00:00.0", 0), ("0002:00:00.0", 0)], uuids=("GPU-????", "GPU-????"))
    assert read_machine(Host(str(tmp_path)), environ).gpu_count == len(visible.split(",")[:2])


def test_gpus_are_the_device_files_that_we_were_given(tmp_path: Path) -> None:
    """nvidiactl, nvidia-uvm and the capabilities folder are no GPUs."""
    names = ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia-caps", "nvidia", "null")
    host = machine(tmp_path, {f"dev/{name}": "" for name in names})
    assert count_gpus(host) == 3
    assert read_machine(host, {}).gpu_count == 3
    assert read_machine(host, {"CUDA_VISIBLE_DEVICES": "1"}).gpu_count == 1
    assert count_gpus(Host(str(tmp_path / "nowhere"))) == 0


@pytest.mark.parametrize(
    ("visible", "count", "each", "shares"),
    [
        (None, 4, 1, ["0", "1", "2", "3", None]),
        (None, 4, 2, ["0,1", "2,3", None]),
        (None, 3, 2, ["0,1", None]),
        ("4,5,6,7", 4, 2, ["4,5", "6,7", None]),
        ("GPU-a,GPU-b", 2, 1, ["GPU-a", "GPU-b", None]),
        (None, 0, 1, [None]),
        (None, None, 1, [None]),
        ("", 0, 1, [None]),
        ("-1", 0, 1, [None]),
        ("+2,+3", 2, 1, ["2", "3", None]),
        ("0,9,1", 1, 1, ["0", None]),  # what CUDA does not see is nobody's
        (" 2 , 3 ", 2, 1, ["2", "3", None]),
    ],
)
def test_gpus_are_shared_in_order_and_never_twice(
    visible: str | None, count: int | None, each: int, shares: list[str | None]
) -> None:
    """Local rank 0 gets the first ones; where there are not enough, none, and that is an error."""
    assert [share_gpus(visible, count, local_rank, each) for local_rank in range(len(shares))] == shares


def test_gpus_that_are_listed_twice_are_found_in_linear_time() -> None:
    """A variable may have 128 KB."""
    began = time.process_time()
    assert find_doubles("".join(f"{number}," for number in range(20_000)) + "7, 9,,") == ["7", "9"]
    assert find_doubles("+0,00,GPU-a") == ["0"]
    assert time.process_time() - began < 1


def test_a_machine_that_cannot_be_read_is_unknown_not_empty(tmp_path: Path) -> None:
    """No method of Host raises: what cannot be read is None or nothing."""
    host = Host(str(tmp_path))
    assert host.read_text("/proc/self/cgroup") is None
    assert host.read_text("/a\0b") is None
    assert host.read_link("/sys/x") is None
    assert host.list_folder("/sys") == ()
    assert read_granted_cpus(host) is None


@pytest.mark.parametrize("stat", ["", "1", "1 (a) S", "1 (a) S x 1", f"1 (a) S {'9' * 5000}", "1 (a) S -1"])
def test_a_parent_that_vanishes_while_it_is_looked_at(stat: str, tmp_path: Path) -> None:
    """What is known by then stays: its own command line, and nobody above it."""
    parent = f"proc/{os.getppid()}"
    host = machine(tmp_path, {f"{parent}/cmdline": "mpirun\0-n\0", f"{parent}/stat": stat})
    assert host.ancestors() == (("mpirun", "-n"),)


@pytest.mark.parametrize(
    ("link", "path"),
    [
        ("/secret", "/etc/launcher.conf"),
        ("../../../../secret", "/etc/launcher.conf"),
        ("/etc", "/etc/launcher.conf/../../../secret"),
        ("launcher.conf", "/etc/launcher.conf"),
    ],
)
def test_a_folder_of_files_has_no_way_out(tmp_path: Path, link: str, path: str) -> None:
    """Links and dots lead to places below it: `launcher.plan` promises that nothing else is read."""
    (tmp_path / "secret").write_text("outside")
    (tmp_path / "root" / "etc").mkdir(parents=True)
    (tmp_path / "root" / "etc" / "launcher.conf").symlink_to(link)
    host = Host(str(tmp_path / "root"))
    assert host.read_text(path) is None
    assert host.read_link("/etc/launcher.conf") == link and host.has_file("/etc/launcher.conf")
    with pytest.raises(OSError):
        host.read_guarded(path, 100, of_system=False)
    (tmp_path / "root" / "secret").write_text("inside")
    assert host.read_text(path) == (None if link == "launcher.conf" else "inside")
