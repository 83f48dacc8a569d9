"""The quick checks beside a job: they say what is wrong, and nothing depends on them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.process.looking import is_gone, read_pid, wait_for
from tests.process.starting import DEADLINE_S, clean_environ, launch, open_launcher

SEVERAL = ("--nnodes", "2", "--node-rank", "0", "--master-addr", "10.1.1.1", "--no-peers")
PROXY = {"RAY_ADDRESS": "head:6379", "http_proxy": "http://proxy:3128"}
"""A problem that any machine can have: every node of the job is looked for behind a proxy."""
SAID = "launcher: check: [proxies] proxy variables: expected no_proxy for all nodes of the job"
RANK_OF_MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "MASTER_ADDR": "10.1.1.1",
}
PROGRAM = """
import os, sys, time
from launcher.core.supervision import (Restarts, Route, Supervision)
from launcher.agent import observers
from launcher.process.spawn import Child
from launcher.agent.lone import run_processes
from launcher.agent.runtime import NodePlace

def tell():
    with open({told!r} + ".new", "w") as file:
        file.write(str(os.getpid()) + "\\n")
    os.rename({told!r} + ".new", {told!r})

def look():
    tell()
    {look}

{before}
words = ("sh", "-c", {job!r})
count = {count}
children = [Child(rank, rank, words, dict(os.environ)) for rank in range(count)]
watch = Supervision(routes=(Route(),) * count, restarts=Restarts(most={restarts}), grace_s=10.0)
sys.exit(run_processes(children, watch, NodePlace(), os.environ, checks=look))
"""
HANG = "time.sleep(1000)"
UNTIL_LOOKED = (
    "until [ -e {told} ]; do sleep 0.01; done; while kill -0 $(cat {told}) 2>/dev/null; do sleep 0.01; done"
)
"""A job that goes on until whoever looks has ended: at the lowest priority that can take a while."""


class Job:
    """A supervised job with checks of a test's own."""

    def __init__(
        self, tmp_path: Path, look: str, job: str, *, before: str = "", count: int = 1, restarts: int = 0
    ) -> None:
        self.told = tmp_path / "checker"
        job = job.format(until_looked=UNTIL_LOOKED.format(told=self.told))
        text = PROGRAM.format(
            told=str(self.told), look=look, job=job, before=before, count=count, restarts=restarts
        )
        self.argv = [sys.executable, "-c", text]

    def run(self) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        return subprocess.run(
            self.argv, env=clean_environ(), capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )

    @contextmanager
    def running(self) -> Iterator[tuple[subprocess.Popen[str], int]]:
        """Yield the launcher and the pid of the process that looks."""
        with subprocess.Popen(
            self.argv,
            env=clean_environ(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as launcher:
            try:
                yield launcher, read_pid(self.told)
            finally:
                launcher.kill()


def test_problems_are_said_while_the_job_runs() -> None:
    """Once for a node, and only problems: the clock of this machine would be a warning."""
    words = (
        "run",
        *SEVERAL,
        *("--nproc-per-node", "2", "--", "sh", "-c", "trap 'exit 0' TERM; sleep 600 & wait"),
    )
    with open_launcher(*words, environ=PROXY) as launcher:
        assert launcher.stderr is not None
        ready, _, _ = select.select([launcher.stderr], [], [], DEADLINE_S)
        launcher.terminate()
        _, text = launcher.communicate(timeout=DEADLINE_S)
    assert ready and text.startswith(SAID) and text.count("check:") == 1


@pytest.mark.parametrize(
    ("words", "environ"),
    [
        ((*SEVERAL, "--no-check"), {}),
        (SEVERAL, {"LAUNCHER_CHECK": "0"}),
        (("--nnodes", "1"), {}),
        ((), RANK_OF_MPIRUN),
    ],
    ids=["off", "off by a variable", "one node without GPUs", "a process"],
)
def test_nothing_is_looked_at_where_nothing_is_wanted_or_at_stake(
    words: tuple[str, ...], environ: dict[str, str]
) -> None:
    """A second is many times what the checks take."""
    done = launch("run", *words, "--", "sleep", "1", environ={**PROXY, **environ})
    assert (done.returncode, done.stderr) == (0, "")


def test_asked_for_they_come_before_the_start_and_once() -> None:
    """``--check`` costs time, and is not made a second time beside the job."""
    done = launch("run", *SEVERAL, "--check", "--", "sh", "-c", "echo started >&2; sleep 0.5", environ=PROXY)
    first, *rest = done.stderr.splitlines()
    assert first.startswith(SAID) and rest == ["started"]


def test_all_is_well_and_nothing_is_said(tmp_path: Path) -> None:
    """No lines, no word."""
    done = Job(tmp_path, "return ()", "{until_looked}").run()
    assert (done.returncode, done.stderr) == (0, "")


def test_lines_have_our_prefix_and_are_safe_for_a_terminal(tmp_path: Path) -> None:
    """Several lines are several lines; what they quote does not reach the terminal raw."""
    done = Job(tmp_path, r'return ("check: one \x1b[31m", "check: two")', "{until_looked}").run()
    assert done.stderr.splitlines()[1] == "launcher: check: two"
    assert done.stderr.startswith("launcher: check: one ") and "\x1b" not in done.stderr


def test_a_flood_of_lines_is_cut(tmp_path: Path) -> None:
    """A megabyte is nothing that anybody reads."""
    done = Job(tmp_path, 'return ("check: " + "x" * 100,) * 10000', "{until_looked}").run()
    assert done.returncode == 0
    assert 1000 < len(done.stderr) < 100_000


def test_who_looks_is_nobody_to_the_job(tmp_path: Path) -> None:
    """Lowest priority, a group of its own, and nothing open that a reader would wait for the end of."""
    look = "return (f'{os.nice(0)} {os.getpgrp() == os.getpid()} {len(os.listdir(\"/proc/self/fd\"))}',)"
    done = Job(tmp_path, look, "{until_looked}", count=2).run()
    # Three that lead nowhere, the pipe, and the folder that is listed.
    assert done.stderr == "launcher: 19 True 5\n"


@pytest.mark.parametrize("look", ["raise ValueError('x')", "sys.exit(3)", "os.abort()", "return 1"])
def test_a_check_that_fails_is_not_heard_of(tmp_path: Path, look: str) -> None:
    """The status is the job's, and so are all words."""
    done = Job(tmp_path, look, "{until_looked}; exit 7").run()
    assert done.returncode == 7
    assert "Traceback" not in done.stderr and "fault" not in done.stderr


@pytest.mark.parametrize("status", [0, 5])
def test_a_check_that_hangs_does_not_delay_the_end(tmp_path: Path, status: int) -> None:
    """The job ends when it ends, and the check with it."""
    job = Job(tmp_path, HANG, f"while [ ! -e {tmp_path}/checker ]; do sleep 0.01; done; exit {status}")
    begun = time.monotonic()
    done = job.run()
    assert done.returncode == status and time.monotonic() - begun < 10
    assert "left behind" not in done.stderr and "survive" not in done.stderr
    wait_for(lambda: is_gone(read_pid(job.told)), "the check has ended")


def test_a_signal_goes_to_the_job_at_once(tmp_path: Path) -> None:
    """As if nobody looked."""
    with Job(tmp_path, HANG, "exec sleep 1000").running() as (launcher, checker):
        begun = time.monotonic()
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(DEADLINE_S) == 128 + signal.SIGTERM
        assert time.monotonic() - begun < 3
        wait_for(lambda: is_gone(checker), "the check has ended")


def test_it_ends_when_its_time_is_up(tmp_path: Path) -> None:
    """The job goes on, and the process that looked is collected."""
    with Job(tmp_path, HANG, "exec sleep 1000", before="observers.CHECK_S = 0.3").running() as (
        launcher,
        pid,
    ):
        wait_for(lambda: not os.path.exists(f"/proc/{pid}"), "the check is ended, and waited for")
        assert launcher.poll() is None


def test_somebody_ends_it(tmp_path: Path) -> None:
    """Not the job's failure."""
    job = Job(tmp_path, HANG, "{until_looked}; exit 3")
    with job.running() as (launcher, pid):
        os.kill(pid, signal.SIGKILL)
        assert launcher.wait(DEADLINE_S) == 3


def test_it_ends_with_the_launcher(tmp_path: Path) -> None:
    """Also with one that is killed."""
    with Job(tmp_path, HANG, "exec sleep 1000").running() as (launcher, pid):
        launcher.kill()
        wait_for(lambda: is_gone(pid), "the check has ended")


def test_a_restart_is_not_looked_at_again(tmp_path: Path) -> None:
    """The machine is the same."""
    job = Job(tmp_path, 'return ("check: said",)', "{until_looked}; exit 1", restarts=2)
    assert job.run().stderr.count("check: said") == 1
