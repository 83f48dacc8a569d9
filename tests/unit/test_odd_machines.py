"""Machines that no vendor ships: numbers, names and files that somebody has made up."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from launcher.core.errors import EnvironmentUntrusted, UsageError
from launcher.core.files import replace_file
from launcher.core.model import Machine, Topology
from launcher.core.ranks import natural_order
from launcher.fabrics.facts import Facts, Found
from launcher.fabrics.settings import plan_settings
from launcher.fabrics.spoken import Spoken, hear
from launcher.frameworks.torch import plan_threads
from launcher.machine import read_machine
from launcher.machine.cgroup import cgroup_folders
from launcher.machine.host import Host
from launcher.machine.numa import read_layout
from launcher.machine.pythons import find_version
from launcher.options.reading import read_options
from launcher.planning.plan import plan_job
from launcher.planning.recorded import read_snapshot, replay
from tests.unit.machines import recorded_cpus
from tests.unit.test_machine import machine

SOON_S = 2.0
"""Far above what these take, far below what they took."""


def test_a_gpu_that_is_listed_twice_stops_the_job() -> None:
    """CUDA would find none, and two processes would share one by accident."""
    host = replay({"environ": {}, "gpus": 8})
    with pytest.raises(EnvironmentUntrusted, match="gpu-listed-twice"):
        read_machine(host, {"CUDA_VISIBLE_DEVICES": "0,0"})
    without = replay({"environ": {}, "gpus": 0})
    assert read_machine(without, {"CUDA_VISIBLE_DEVICES": "0,0"}).gpu_count == 0


def test_a_pipe_that_nobody_writes_to_is_not_waited_for(tmp_path: Path) -> None:
    """NCCL_CONF_FILE, or whatever is read by the way, may be one."""
    os.mkfifo(tmp_path / "pipe")
    assert Host(str(tmp_path)).read_text("/pipe") in (None, "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of others")
def test_a_pipe_of_another_user_is_not_written_to(tmp_path: Path) -> None:
    """In a folder that everybody may write to, it may be a trap: its owner reads, or nobody ever does."""
    path = tmp_path / "node.json"
    os.mkfifo(path, 0o666)
    os.chown(path, 65534, 65534)
    with pytest.raises(PermissionError, match="a pipe of another user"):
        replace_file("text", str(path))
    assert stat.S_ISFIFO(path.stat().st_mode)


@pytest.mark.parametrize("folder", ["lib/python3.11/site-packages", "lib"])
def test_a_folder_that_cannot_be_listed_has_no_packages(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python does without it, too."""
    (tmp_path / "lib/python3.11/site-packages").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python3.11"
    python.symlink_to("/bin/true")
    real = os.listdir

    def refuse(path: str) -> list[str]:
        if str(path).startswith(str(tmp_path)):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "listdir", refuse)
    assert find_version(str(python), {}, "torch") in ("", None)


def test_numbers_of_any_length_in_names(tmp_path: Path) -> None:
    """Python refuses to read a number of 5,000 digits."""
    names = ["mlx5_10", "mlx5_2", "mlx5_" + "9" * 5000, "mlx5_02"]
    assert sorted(names, key=natural_order)[0] in ("mlx5_2", "mlx5_02")
    assert sorted(names[:2], key=natural_order) == ["mlx5_2", "mlx5_10"]
    files = {**recorded_cpus("0-1"), f"/sys/devices/system/node/node{'9' * 5000}/cpulist": "0-1"}
    assert {core.node for core in read_layout(replay({"files": files})).cores} == {None}


@pytest.mark.parametrize("number", ["9" * 400, "1" * 5000])
def test_a_snapshot_with_numbers_of_no_machine_is_refused(number: str, tmp_path: Path) -> None:
    """No memory has as many bytes."""
    path = tmp_path / "node.json"
    path.write_text('{"environ": {}, "gpus": [{"index": 0, "memory_bytes": N}]}'.replace("N", number))
    with pytest.raises(UsageError, match=f"a number of {len(number)} digits"):
        read_snapshot(str(path))


def test_long_texts_take_no_longer_than_they_are(tmp_path: Path) -> None:
    """Whatever is quadratic in what somebody else wrote is a way to stop us."""
    started = time.monotonic()
    files = {"proc/self/cgroup": "0::" + "/a" * 100_000 + "\n"}
    assert cgroup_folders(machine(tmp_path, files)) == ["/sys/fs/cgroup"]
    hear(Spoken(), "node0:1:2 [0] NCCL INFO NET/IB : Using " + "a" * 60_000 + "\n")
    assert time.monotonic() - started < SOON_S


@pytest.mark.parametrize("name", ["eth0,eth1", "^eth0", "=eth0"])
def test_a_name_that_means_something_else_is_not_written_down(name: str) -> None:
    """The kernel takes such names; NCCL and gloo would read a list, or an exception."""
    facts = Facts(ports=(), interface=name, why_interface="")
    assert list(plan_settings(facts, "tcp", Found(True, "TCP"), "")) == []


@pytest.mark.parametrize(
    ("bound", "environ", "forks", "threads"),
    [
        (4, {}, True, "1"),  # taskset, or Slurm's cores of a task: ours to divide
        (4, {"OMPI_COMM_WORLD_RANK": "0"}, True, "24"),  # mpirun binds to one core whatever it starts
        (4, {"OMPI_COMM_WORLD_RANK": "0"}, False, "4"),
        (96, {}, True, "24"),
    ],
)
def test_threads_fit_the_cpus_that_processes_really_have(
    bound: int, environ: dict[str, str], forks: bool, threads: str
) -> None:
    """96 threads on 4 CPUs are slower than 4."""
    options = read_options({"nproc_per_node": "4"}, {})
    topology: Topology = plan_job({}, replay({"environ": {}, "gpus": 0}), options, ["true"]).topology
    found = Machine(gpu_count=0, cpu_count=96, bound_cpu_count=bound)
    (setting,) = plan_threads(topology, found, forks, environ)
    assert setting.value == threads
