"""Survivors are asked what they do before they are stopped: real processes, real signals, within a limit."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from launcher.hang.limits import BEFORE_STOP_S
from launcher.inprocess.site.sitecustomize import STACK_SIGNAL
from tests.process.looking import wait_for
from tests.process.starting import clean_environ, launch, open_launcher

FAILS = """
import os, signal, sys, threading, time
rank, job = os.environ["RANK"], os.environ["JOB"]
if os.environ.get("BLOCKS"):
    signal.pthread_sigmask(signal.SIG_BLOCK, [{signal}])
open(job + "/up-" + rank, "w").close()
def work():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
if rank != "1":
    work()
while len([name for name in os.listdir(job) if name.startswith("up-")]) < 3:
    time.sleep(0.01)
time.sleep(0.2)
sys.exit(7)
"""


def run(folder: Path, *flags: str, **variables: str) -> tuple[int, str, dict[str, Any]]:
    """Run three ranks of which one fails; return status, log and record."""
    (folder / "train.py").write_text(FAILS.replace("{signal}", str(int(STACK_SIGNAL))))
    record = folder / "failure.json"
    words = ("run", "--nproc-per-node", "3", "--failure-file", str(record), *flags, str(folder / "train.py"))
    done = launch(*words, environ=clean_environ(JOB=str(folder), **variables))
    return done.returncode, done.stderr, json.loads(record.read_text())


def test_survivors_say_where_they_were(tmp_path: Path) -> None:
    """In the report as one line, in the record with the stack; the record's path is the last line."""
    status, log, record = run(tmp_path)
    assert status == 7, log
    (group,) = record["evidence"]
    assert group["ranks"] == "0, 2" and not group["differs"]
    assert f"{tmp_path}/train.py:10 work" in group["stack"]
    report = [line for line in log.splitlines() if line.startswith("launcher: ")]
    assert any("  stacks: ranks 0, 2 wait for a lock or a thread" in line for line in report), log
    assert report[-1] == f"launcher: the failure record: {tmp_path}/failure.json"
    assert len(report) < 25


@pytest.mark.parametrize(("grace", "limit_s"), [("30", BEFORE_STOP_S), ("0.2", 0.2)])
def test_processes_that_do_not_answer_are_stopped_all_the_same(
    tmp_path: Path, grace: str, limit_s: float
) -> None:
    """After the limit, which is never longer than the grace; what the kernel knows is in the record."""
    status, log, record = run(tmp_path, "--grace", grace, BLOCKS="1")
    assert status == 7, log
    (other, *_) = record["others"]
    assert other["seconds_after"] < limit_s + 1.0, log
    assert [group["ranks"] for group in record["evidence"]] == ["0, 2"]


def test_a_signal_meanwhile_is_passed_on_at_once(tmp_path: Path) -> None:
    """The platform's SIGTERM does not wait for answers."""
    script = tmp_path / "train.py"
    script.write_text(FAILS.replace("{signal}", str(int(STACK_SIGNAL))))
    words = ("run", "--nproc-per-node", "3", str(script))
    process = open_launcher(*words, environ=clean_environ(JOB=str(tmp_path), BLOCKS="1"))
    wait_for(lambda: len(list(tmp_path.glob("up-*"))) == 3, "all ranks are up")
    assert process.stderr is not None
    while "stopping the other 2" not in process.stderr.readline():
        assert process.poll() is None
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 7 and time.monotonic() - began < BEFORE_STOP_S + 1


def test_a_failure_elsewhere_while_they_are_asked_is_not_reported_twice(tmp_path: Path) -> None:
    """Ranks that fail meanwhile are part of the report: the first one is named once."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys, time\n"
        "rank = int(os.environ['RANK'])\n"
        "open(os.environ['JOB'] + '/up-' + str(rank), 'w').close()\n"
        "while len(os.listdir(os.environ['JOB'])) < 5:\n    time.sleep(0.01)\n"
        "time.sleep(0.05 * rank)\n"
        "sys.exit(3 + rank)\n"
    )
    done = launch("run", "--nproc-per-node", "4", str(script), environ=clean_environ(JOB=str(tmp_path)))
    assert done.returncode == 3, done.stderr
    assert done.stderr.count("stopping the other") == 1
    assert "rank 0 of 4 failed first" in done.stderr


def test_what_has_no_stack_is_in_the_record_only(tmp_path: Path) -> None:
    """Shells are not noise in the report, and without a survivor nothing is asked."""
    # What has no stack is in the record only.
    record = tmp_path / "failure.json"
    words = ("run", "--nproc-per-node", "3", "--failure-file", str(record), "--", "sh", "-c")
    done = launch(*words, "test $RANK = 1 && sleep 0.3 && exit 5; sleep 1000")
    assert done.returncode == 5 and "stacks:" not in done.stderr
    (group,) = json.loads(record.read_text())["evidence"]
    assert group["ranks"] == "0, 2" and "no Python stack" in group["doing"]
    # A single rank that fails is reported as fast as before.
    record = tmp_path / "failure.json"
    done = launch("run", "--failure-file", str(record), "--", sys.executable, "-c", "raise ValueError")
    assert done.returncode == 1 and json.loads(record.read_text())["evidence"] == []
    assert not os.path.exists(tmp_path / "stall-1.txt")
