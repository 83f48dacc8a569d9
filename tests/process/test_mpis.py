"""The MPI families that other tests rely on are there, and start processes."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.mpis import FAMILIES, find_mpi

pytestmark = pytest.mark.mpi

RANK = {
    "openmpi4": "OMPI_COMM_WORLD_RANK",
    "openmpi5": "OMPI_COMM_WORLD_RANK",
    "mpich": "PMI_RANK",
    "impi": "PMI_RANK",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_each_mpi_starts_two_processes_with_their_ranks(family: str) -> None:
    """Each family starts two processes, and tells each its rank in the variable we read."""
    mpi = find_mpi(family)
    done = subprocess.run(
        [mpi.mpirun, "-n", "2", "sh", "-c", f'echo "rank ${RANK[family]}"'],
        env={"HOME": os.environ.get("HOME", "/"), **mpi.environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")) == ["", "rank 0", "rank 1"]


def test_a_missing_mpi_fails_and_says_what_to_run(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """Absent is a failure with a way out, never a skip."""
    monkeypatch.setenv("LAUNCHER_TEST_MPIS", str(tmp_path))
    with pytest.raises(pytest.fail.Exception, match="run bash tools/test"):
        find_mpi("mpich")
