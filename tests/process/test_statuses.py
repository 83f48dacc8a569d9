"""The exit code tells a platform what to do next: a stopped job, one that no retry helps, one that hung."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.process.faults import Job
from tests.process.looking import wait_for

TWO = ("--nproc-per-node", "2")
SAVES = 'trap "exit 0" TERM; echo ready; while :; do sleep 0.02; done'
IGNORES = 'trap "" TERM; echo ready; while :; do sleep 0.02; done'
FAILS = 'trap "exit 3" TERM; echo ready; while :; do sleep 0.02; done'


@pytest.mark.rows(5)
@pytest.mark.parametrize(
    ("asked", "script", "status"),
    [
        *(("75", SAVES, 75), ("143", IGNORES, 143), ("own", SAVES, 0), ("75", FAILS, 75)),
        ("75", "echo ready; exec sleep 600", 75),
    ],
    ids=["saves", "ignores", "own", "fails", "ends"],
)
def test_a_job_that_was_told_to_stop_ends_as_asked(
    asked: str, script: str, status: int, tmp_path: Path
) -> None:
    """--stopped-status, however the processes ended: to Kubernetes a job that saved is not complete."""
    flags = (*TWO, "--grace", "0.4", "--stopped-status", asked)
    job = Job(tmp_path, *flags, "--", "sh", "-c", script)
    job.wait_until_ready(2)
    job.kill(job.launcher.pid, signal.SIGTERM)
    assert job.end().status == status


def test_a_job_that_failed_before_it_was_told_to_stop_keeps_its_status(tmp_path: Path) -> None:
    """What failed first counts, as in the report."""
    script = 'test $RANK = 1 && exit 3; trap "kill -TERM $PPID; exit 0" TERM; while :; do sleep 0.02; done'
    flags = (*TWO, "--stopped-status", "75")
    assert Job(tmp_path, *flags, "--", "sh", "-c", script).end().status == 3


@pytest.mark.parametrize(("asked", "status"), [("75", 75), ("143", 143), ("own", 3)])
def test_a_job_that_was_told_to_stop_before_a_restart_ends_as_asked(
    asked: str, status: int, tmp_path: Path
) -> None:
    """It had gone on: to the platform it was stopped, and has not failed."""
    flags = (*TWO, "--stopped-status", asked, "--restarts", "9", "--restart-delay", "50")
    job = Job(tmp_path, *flags, "--", "sh", "-c", f"echo >> {tmp_path}/begun; exit 3")
    begun = tmp_path / "begun"
    wait_for(lambda: begun.exists() and len(begun.read_text()) == 4, "the second attempt")  # the next waits
    job.ranks(0)
    job.kill(job.launcher.pid, signal.SIGTERM)
    assert job.end().status == status


@pytest.mark.rows(4)
@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("raise ValueError('no such column')", 65),
        ("raise SystemExit(3)", 3),
        ("import os; os.kill(os.getpid(), 9)", 137),
        ("", 0),
    ],
    ids=["hopeless", "unknown", "killed", "success"],
)
def test_a_failure_that_no_retry_helps_has_a_status(script: str, status: int, tmp_path: Path) -> None:
    """--fatal-status where the report says that a retry does not help, and only there."""
    flags = (*TWO, "--fatal-status", "65")
    assert Job(tmp_path, *flags, "--", sys.executable, "-c", script).end().status == status


def test_a_job_that_hung_ends_with_75(tmp_path: Path) -> None:
    """Even if its processes had to be killed: 137 would look like a lack of memory."""
    flags = (*TWO, "--grace", "0.4", "--stall-timeout", "1", "--on-stall", "stop")
    assert Job(tmp_path, *flags, "--", "sh", "-c", IGNORES).end().status == 75
