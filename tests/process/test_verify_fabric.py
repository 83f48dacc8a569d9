"""--verify-fabric: NCCL's own word, on a node whose /sys is that of an ND H200 v5.

No NCCL can use such ports here. A stand-in writes lines of real logs (tests/unit/test_spoken.py) to where
NCCL would, opened as NCCL opens it; tests/unit/test_gpu.py has the real one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.test_made_up_sys import DRESS
from tests.golden.fabrics import read_fabric, write_fabric
from tests.mpis import find_mpi
from tests.process.starting import launch
from tests.unit.test_spoken import IB8, LOGS, listed

pytestmark = pytest.mark.root

TWO_NODES = ("--nnodes", "2", "--node-rank", "0", "--master-addr", "10.77.0.10", "--nproc-per-node", "2")
OURS = (*TWO_NODES, "--engine", "process", "--no-peers", "--verify-fabric")
STAND_IN = """
import os, signal, sys
path = os.environ.get("NCCL_DEBUG_FILE")
assert (path is not None) == (os.environ["RANK"] == "0"), path
if path:
    assert (os.environ["NCCL_DEBUG"], os.environ["NCCL_DEBUG_SUBSYS"]) == ("INFO", "INIT,NET,ENV")
    with open(path, "w", buffering=1) as file:
        file.write(sys.argv[1])
        if sys.argv[2] == "wait":
            signal.pause()
elif sys.argv[2] == "wait":
    signal.pause()
"""
USES_IB = (
    f"h:1:2 [0] NCCL INFO NET/IB : Using {listed(IB8, 'IB')} [RO]; OOB eth0:10.0.0.4<0>\n"
    "h:1:2 [0] NCCL INFO Using network IB\n"
)
USES_SOCKETS = LOGS["2.11.4 sockets"] + "\n"


@pytest.fixture
def node(tmp_path: Path) -> tuple[str, ...]:
    """Return an interpreter on an ND H200 v5, as far as /sys and /dev/infiniband go."""
    write_fabric(tmp_path / "machine", read_fabric("nd96isr_h200_v5"))
    return ("unshare", "--mount", "sh", "-c", DRESS, str(tmp_path / "machine"), sys.executable)


def verify(
    node: tuple[str, ...], tmp_path: Path, log: str, *flags: str, then: str = "end"
) -> subprocess.CompletedProcess[str]:
    """Run the stand-in as both processes of this node; nothing may be left behind."""
    private = tmp_path / "tmp"
    private.mkdir()
    command = (sys.executable, "-c", STAND_IN, log, then)
    done = launch("run", *OURS, *flags, "--", *command, environ={"TMPDIR": str(private)}, interpreter=node)
    assert [*private.iterdir()] == []
    assert "NCCL INFO" not in done.stdout + done.stderr
    return done


def said(done: subprocess.CompletedProcess[str], word: str) -> str:
    """Return the only line of the launcher with a word in it."""
    (line,) = [line for line in done.stderr.splitlines() if word in line]
    return line


def test_what_holds_is_said_once(node: tuple[str, ...], tmp_path: Path) -> None:
    """All eight ports."""
    done = verify(node, tmp_path, USES_IB)
    assert done.returncode == 0, done.stderr
    assert said(done, "fabric") == (
        "launcher: fabric ib verified: NCCL uses NET/IB (8 InfiniBand ports), as planned"
    )


def test_what_does_not_hold_is_a_warning_with_the_fix(node: tuple[str, ...], tmp_path: Path) -> None:
    """The job goes on, and ends as it would have."""
    done = verify(node, tmp_path, USES_SOCKETS)
    assert done.returncode == 0, done.stderr
    assert said(done, "fabric").startswith(
        "launcher: warning: not the planned fabric: "
        "expected 8 InfiniBand ports, NCCL uses NET/Socket (enp225s0f1); fix: "
    )


def test_what_is_required_and_does_not_hold_ends_the_job(node: tuple[str, ...], tmp_path: Path) -> None:
    """Status 69, a named cause, and a record: the processes would have waited forever."""
    record = tmp_path / "failure.json"
    flags = ("--require-fabric", "ib", "--failure-file", str(record))
    done = verify(node, tmp_path, USES_SOCKETS, *flags, then="wait")
    assert done.returncode == 69, done.stderr
    assert "[other-fabric] the launcher ended the job (--verify-fabric, --require-fabric): " in done.stderr
    (cause, *_) = json.loads(record.read_text())["causes"]
    assert cause["code"] == "other-fabric"
    assert "expected 8 InfiniBand ports, NCCL uses NET/Socket" in cause["what"]
    assert cause["retryable"] is False


def test_a_job_that_is_over_before_is_a_failure_too(node: tuple[str, ...], tmp_path: Path) -> None:
    """All processes say 0, and what they computed went over sockets."""
    record = tmp_path / "failure.json"
    done = verify(node, tmp_path, USES_SOCKETS, "--require-fabric", "ib", "--failure-file", str(record))
    assert done.returncode == 69, done.stderr
    assert "expected 8 InfiniBand ports, NCCL uses NET/Socket (enp225s0f1)" in done.stderr
    assert json.loads(record.read_text())["causes"][0]["code"] == "other-fabric"


def test_a_job_without_nccl_is_not_verified_and_says_so(node: tuple[str, ...], tmp_path: Path) -> None:
    """Once, at the end."""
    done = verify(node, tmp_path, "")
    assert done.returncode == 0, done.stderr
    assert said(done, "fabric") == (
        "launcher: the fabric is not verified: NCCL on rank 0 did not report its network"
    )


@pytest.mark.parametrize(
    "variable", ["NCCL_DEBUG=WARN", "NCCL_DEBUG_FILE=/dev/null", "NCCL_DEBUG_SUBSYS=COLL"]
)
def test_what_the_user_has_set_stays(variable: str, node: tuple[str, ...]) -> None:
    """Their output is theirs: the launcher says that it hears nothing."""
    name, _, value = variable.partition("=")
    command = (*OURS, "--", sys.executable, "-c", f"import os; print(os.environ[{name!r}])")
    done = launch("run", *command, environ={name: value}, interpreter=node)
    assert sorted(done.stdout.splitlines()) == [f"[rank 0] {value}", f"[rank 1] {value}"]
    done = launch("plan", *command, environ={name: value}, interpreter=node)
    assert f"note: --verify-fabric: keeping {variable}: ib is not verified" in done.stdout


@pytest.mark.parametrize(("rank", "mode"), [("0", "supervise"), ("1", "exec")])
def test_where_one_process_is_started_the_launcher_of_rank_0_stays(
    rank: str, mode: str, node: tuple[str, ...]
) -> None:
    """Only somebody who is there can read; the others become the command as ever."""
    environ = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    flags = ("--master-addr", "10.77.0.10", "--scope", "process", "--verify-fabric", "--format", "json")
    done = launch("plan", *flags, "--", "true", environ=environ, interpreter=node)
    plan = json.loads(done.stdout)
    assert plan["mode"] == mode
    assert plan["fabric"]["port_count"] == 8
    assert (plan["supervision"] or {}).get("verify_fabric", False) is (rank == "0")


def test_the_plan_says_what_will_be_compared(node: tuple[str, ...]) -> None:
    """One line, and no second one that says the same."""
    done = launch("plan", *OURS, "--require-fabric", "ib", "--", "true", interpreter=node)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith(("fabric:", "note: fabric"))]
    assert line == (
        "fabric: ib (8 active InfiniBand ports of 400 Gb/s); to be verified by rank 0's NCCL log, "
        "or the job ends (--require-fabric ib)"
    )


@pytest.mark.parametrize("family", ["openmpi4", "mpich"])
def test_a_rank_that_mpirun_starts_is_heard(family: str, node: tuple[str, ...]) -> None:
    """By its own parent, to which the flags have gone along."""
    mpi = find_mpi(family)
    environ = {**mpi.environ, "PATH": f"{os.path.dirname(mpi.mpirun)}:{os.environ['PATH']}"}
    flags = ("--engine", "mpirun", "--nnodes", "1", "--node-rank", "0", "--nproc-per-node", "2")
    command = (sys.executable, "-c", STAND_IN, USES_IB, "end")
    done = launch("run", *flags, "--verify-fabric", "--", *command, environ=environ, interpreter=node)
    assert done.returncode == 0, done.stdout + done.stderr
    heard = "fabric ib verified: NCCL uses NET/IB (8 InfiniBand ports), as planned"
    assert (done.stdout + done.stderr).count(heard) == 1
