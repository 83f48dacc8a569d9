"""/dev/shm: too small for the processes, full, or not there; the fix in the words of where we run."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.checks.finding import OK, PROBLEM, WARNING
from tests.unit.checks.cases import DOCKER, Machine, case, looker, only

look = looker("shm")

MIB, GIB = 1 << 20, 1 << 30
FIXES = {
    "container": ({}, "docker run --shm-size=8g"),
    "Azure ML": ({"AZUREML_RUN_ID": "r"}, "resources: {shm_size: 8g} in the YAML of the job"),
    "Kubernetes": (
        {"KUBERNETES_SERVICE_HOST": "10.0.0.1"},
        "a volume at /dev/shm: emptyDir: {medium: Memory, sizeLimit: 8Gi}",
    ),
    "Azure Batch": (
        {"AZ_BATCH_TASK_ID": "t"},
        'containerRunOptions: "--shm-size=8g" in the containerSettings of the task',
    ),
}


def host(root: Path, size: int, free: int | None = None, gpus: int = 0) -> Machine:
    return Machine(root, DOCKER, gpus=gpus, spaces={"/dev/shm": (size, size if free is None else free)})


@pytest.mark.parametrize("runtime", FIXES)
def test_the_fix_is_in_the_words_of_where_we_run(tmp_path: Path, runtime: str) -> None:
    """Nobody on Azure ML can type docker run."""
    environ, fix = FIXES[runtime]
    seen = case(host(tmp_path, 64 * MIB, gpus=1), environ)
    found = only(look(seen))
    assert (seen.runtime, found.level, found.found, found.fix) == (runtime, PROBLEM, "64 MiB", fix)


@pytest.mark.parametrize(
    ("size", "gpus", "processes", "level"),
    [
        (64 * MIB, 0, 1, WARNING),
        (64 * MIB, 0, 2, PROBLEM),
        (64 * MIB, 1, 1, PROBLEM),
        (2 * GIB, 8, 8, WARNING),
        (8 * GIB, 8, 8, OK),
        (GIB, 0, 1, OK),
    ],
)
def test_size_by_processes_and_gpus(tmp_path: Path, size: int, gpus: int, processes: int, level: str) -> None:
    """Docker's 64 MiB break jobs with GPUs or several processes; 1 GiB for each process is enough."""
    assert only(look(case(host(tmp_path, size, gpus=gpus), process_count=processes))).level == level


def test_full(tmp_path: Path) -> None:
    """What dead processes left there takes the space of those to come."""
    found = only(look(case(host(tmp_path, 8 * GIB, MIB))))
    assert (found.level, found.found) == (PROBLEM, "1 MiB free of 8 GiB") and "rm /dev/shm/" in found.fix


def test_not_there(tmp_path: Path) -> None:
    """No /dev/shm at all."""
    found = only(look(case(Machine(tmp_path))))
    assert (found.level, found.found) == (PROBLEM, "no such directory")
    assert found.fix == "mkdir -p /dev/shm && mount -t tmpfs -o size=8g tmpfs /dev/shm"
