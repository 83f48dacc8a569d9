"""A job that is told to stop saves where every process stands, and goes on from there when started again.

The processes are real ones, training with DistributedDataParallel: ``examples/train_checkpoint.py``.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.process.starting import ROOT, clean_environ

# One after the other: two processes that import torch keep two cores busy for three seconds.
pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("checkpoints")]

DEADLINE_S = 90.0
TRAIN = f"{ROOT}/examples/train_checkpoint.py"
LAUNCHER = (sys.executable, "-m", "launcher")
ENDLESS = ("--steps", "1000000", "--every", "1000000")


@pytest.fixture(scope="module", autouse=True)
def _torch_is_there() -> None:
    """Fail, rather than skip, where the framework environment is missing."""
    if importlib.util.find_spec("torch") is None:
        pytest.fail("torch is not installed: run bash tools/test.sh", pytrace=False)


def wait_for(condition: Callable[[], object], describe: Callable[[], str]) -> None:
    """Poll until something is true; fail with words at the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, describe()
        time.sleep(0.02)  # between two looks: there is nothing to wait on


@contextmanager
def ended_at_last(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill a launcher that a failed test leaves behind: it would train forever."""
    try:
        yield
    finally:
        if process.poll() is None:
            process.kill()


class Job:
    """One start of the example under the launcher, with a folder for its checkpoint."""

    def __init__(self, folder: Path, count: int = 2) -> None:
        self.folder, self.count = folder, count
        self.checkpoint, self.log = folder / "checkpoint", folder / "log"
        # One thread each, and over loopback: the processes share two cores and one machine.
        self.environ = clean_environ(
            OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", CUDA_VISIBLE_DEVICES="", TERM="xterm"
        )

    def script(self, *words: str) -> list[str]:
        """Return the command that trains."""
        return [sys.executable, TRAIN, "--checkpoint", str(self.checkpoint), *(words or ENDLESS)]

    def line(self, command: list[str], *flags: str) -> list[str]:
        """Return the launcher's command line, with a port that no other job has."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        places = ("--nproc-per-node", str(self.count), "--master-port", str(port))
        return [*LAUNCHER, "run", *places, *flags, "--", *command]

    @contextmanager
    def open(self, line: list[str]) -> Iterator[subprocess.Popen[bytes]]:
        """Start the launcher, its output in the log."""
        with (
            self.log.open("ab") as log,
            subprocess.Popen(
                line,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            ) as process,
            ended_at_last(process),
        ):
            yield process

    def read(self) -> str:
        """Return what has been said so far."""
        return self.log.read_text(errors="replace")

    def wait_until(self, text: str) -> None:
        """Wait until something was said."""
        wait_for(lambda: text in self.read(), lambda: f"no {text!r} in:\n{self.read()[-3000:]}")

    def run(self, *words: str) -> str:
        """Run the example to its end, and return what it said."""
        self.log.write_text("")
        with self.open(self.line(self.script(*words))) as process:
            assert process.wait(timeout=DEADLINE_S) == 0, self.read()
        return self.read()

    def saved_step(self, by: str, text: str) -> int:
        """Check that each process has saved at the same step and left; return the step."""
        stops = re.findall(r"(SIG\w+): rank (\d+) stops after step (\d+)", text)
        steps = {int(step) for _, _, step in stops}
        assert sorted(int(rank) for _, rank, _ in stops) == list(range(self.count)), text
        assert {name for name, _, _ in stops} == {by} and len(steps) == 1, text
        (step,) = steps
        assert (self.checkpoint / "latest").read_text() == f"{step}\n"
        parts = sorted(part.name for part in (self.checkpoint / f"step-{step}").iterdir())
        assert parts == [f"rank-{rank}.pt" for rank in range(self.count)]
        return step

    def latest(self) -> int:
        """Return the step of the checkpoint that is there, 0 if none is."""
        latest = self.checkpoint / "latest"
        return int(latest.read_text()) if latest.exists() else 0

    def assert_resumed(self, step: int, text: str) -> None:
        """Check that each process went on after a step, and that the steps that follow it followed."""
        resumed = re.findall(r"rank (\d+) goes on after step (\d+)\n", text)
        assert sorted(resumed) == [(str(rank), str(step)) for rank in range(self.count) if step], text
        taken = [int(number) for number in re.findall(r"step (\d+): loss", text)]
        assert taken == list(range(step + 1, step + 1 + len(taken))), text


@pytest.mark.thorough
def test_the_example_takes_the_steps_it_would_have_taken(tmp_path: Path) -> None:
    """After a resume the losses are those of the run that was not interrupted, dropout included."""
    job = Job(tmp_path, count=1)
    whole = job.run("--steps", "12", "--every", "6")
    (job.checkpoint / "latest").write_text("6\n")
    again = job.run("--steps", "12")
    losses = re.findall(r"step \d+: loss .*", whole)
    assert len(losses) == 12
    assert re.findall(r"step \d+: loss .*", again) == losses[6:]


def test_sigterm_saves_the_checkpoint_of_every_process(tmp_path: Path) -> None:
    """At one step: around Python, and as process 1, which loses no signal, around bash, which dies of it.

    Each start goes on where the one before was stopped.
    """
    job = Job(tmp_path)
    plain = job.line(job.script())
    shell = job.line(["bash", "-c", f"{shlex.join(job.script())}; echo all done"])
    prefix = init_prefix()
    for line in (plain, [*prefix, *shell]):
        job.log.write_text("")
        before = job.latest()
        with job.open(line) as process:
            job.wait_until(f"step {before + 5}: loss")
            os.kill(children_of(process.pid)[0] if line[0] in prefix else process.pid, signal.SIGTERM)
            status = process.wait(timeout=DEADLINE_S)
        text = job.read()
        assert status == 128 + signal.SIGTERM, text
        assert "still run" not in text and "all done" not in text
        job.assert_resumed(before, text)
        job.saved_step("SIGTERM", text)


def init_prefix() -> list[str]:
    """Return what makes a command process 1 and passes its status on; nothing where that cannot be."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if os.geteuid():
        command[1:1] = ["--user", "--map-root-user"]
    done = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    return [] if done.returncode else command


def children_of(pid: int) -> list[int]:
    """Return the children of a process."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
