"""Xids and ECC errors that NVML reports while a job runs. NVML is a stand-in here (`tests.process.gpus`)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from launcher.machine.gpus import count_gpus
from launcher.machine.host import Host
from tests.process.gpus import FALLS, StandIn
from tests.process.starting import launch

LASTS = """
import os, pathlib, time
until = time.monotonic() + 1
while time.monotonic() < until:
    for pid in pathlib.Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read_text().split():
        name = pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
        if name == "launcher-xids":
            print(name)
            raise SystemExit
    time.sleep(0.01)
"""
"""A rank that looks for the launcher's helper among its siblings, for as long as five times its delay."""
RUN = ("run", "--nproc-per-node", "1")
LOST = "GPU 0000:3b:00: Xid 79, the GPU has fallen off the bus: it no longer answers over PCIe"
ECC = "GPU 0000:3b:00: Xid 48, an uncorrectable memory error (double bit ECC)"


@pytest.mark.parametrize(("kind", "number", "said"), [(8, 79, LOST), (2, 0, ECC)])
def test_an_event_is_evidence_of_a_bad_node(kind: int, number: int, said: str, tmp_path: Path) -> None:
    """At once while the job runs, then as the cause, whatever the program says; a retry helps elsewhere."""
    gpu = StandIn(tmp_path)
    falls = (sys.executable, "-c", FALLS, str(gpu.has_events()), str(kind), str(number), "3")
    record = tmp_path / "failure.json"
    done = launch(*RUN, "--failure-file", str(record), "--", *falls, environ=gpu.environ(1))
    assert done.returncode == 3
    assert done.stderr.count(f"launcher: warning: {said}") == 1, done.stderr
    assert f"launcher:   cause: [gpu-xid] {said}" in done.stderr
    assert "launcher: bad nodes: " in done.stderr and "(1 x gpu-xid)" in done.stderr
    (cause,) = [cause for cause in json.loads(record.read_text())["causes"] if cause["code"] == "gpu-xid"]
    assert cause["retryable"] is True


def test_a_fault_of_the_program_is_no_bad_node(tmp_path: Path) -> None:
    """An Xid of the program repeats on another node."""
    gpu = StandIn(tmp_path)
    falls = (sys.executable, "-c", FALLS, str(gpu.has_events()), "8", "31", "3")
    done = launch(*RUN, "--", *falls, environ=gpu.environ(1))
    assert "cause: [gpu-xid] GPU 0000:3b:00: Xid 31" in done.stderr, done.stderr
    assert "bad nodes" not in done.stderr


def test_an_event_of_a_job_that_succeeds_is_a_line(tmp_path: Path) -> None:
    """The node may fail the next one."""
    gpu = StandIn(tmp_path)
    falls = (sys.executable, "-c", FALLS, str(gpu.has_events()), "8", "79", "0")
    done = launch(*RUN, "--", *falls, environ=gpu.environ(1))
    assert done.returncode == 0
    assert done.stderr.count(f"launcher: warning: {LOST}") == 1, done.stderr
    assert "launcher: bad nodes: " in done.stderr


def test_without_events_nothing_is_said(tmp_path: Path) -> None:
    """A driver that has none, and an NVML that hangs in its first call: neither delays the job."""
    gpu = StandIn(tmp_path)
    done = launch(*RUN, "--", "true", environ=gpu.environ(1))
    assert (done.returncode, done.stderr) == (0, "")
    with (tmp_path / "pynvml.py").open("a") as file:
        file.write("def nvmlInit():\n    import time\n    time.sleep(3600)\n")
    done = launch(*RUN, "--", "sh", "-c", "exit 4", environ=gpu.environ(1))
    assert done.returncode == 4


def test_without_a_gpu_nvml_is_not_loaded(tmp_path: Path) -> None:
    """It costs a look into /dev."""
    gpu = StandIn(tmp_path)
    (tmp_path / "sitecustomize.py").unlink()
    lasts = (sys.executable, "-c", LASTS)
    done = launch(*RUN, "--", *lasts, environ=gpu.environ(1))
    assert (done.returncode, done.stdout) == (0, "" if not count_gpus(Host()) else "launcher-xids\n")
    gpu = StandIn(tmp_path)
    gpu.has_events()
    done = launch(*RUN, "--", *lasts, environ=gpu.environ(1))
    assert (done.returncode, done.stdout) == (0, "launcher-xids\n")
