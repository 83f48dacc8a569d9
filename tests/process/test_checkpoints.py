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
# Saves no sooner than the test lets it: what happens during a save is what is to be seen. Under
# SIGKILL, too, the test gets what was said before.
HELD_SAVE = """
import os, runpy, sys, time, torch
hold, save = sys.argv[1], torch.save
def save_slowly(*words):
    if os.path.exists(hold):
        print("saving", flush=True)
        while os.path.exists(hold):
            time.sleep(0.01)
        print("done", flush=True)
    save(*words)
torch.save = save_slowly
del sys.argv[0:2]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


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
        self.checkpoint, self.log, self.hold = folder / "checkpoint", folder / "log", folder / "hold"
        # One thread each, and over loopback: the processes share two cores and one machine.
        self.environ = clean_environ(
            OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", CUDA_VISIBLE_DEVICES="", TERM="xterm"
        )

    def script(self, *words: str) -> list[str]:
        """Return the command that trains."""
        return [sys.executable, TRAIN, "--checkpoint", str(self.checkpoint), *(words or ENDLESS)]

    def held_script(self, *words: str) -> list[str]:
        """Return the same with saves that last while `hold` exists."""
        _, *rest = self.script(*words)
        return [sys.executable, "-c", HELD_SAVE, str(self.hold), *rest]

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

    def wait_until(self, text: str, times: int = 1, *, read: Callable[[], str] | None = None) -> None:
        """Wait until something was said so often."""
        look = read or self.read
        wait_for(lambda: look().count(text) >= times, lambda: f"no {text!r} in:\n{look()[-3000:]}")

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


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the one job that the tests of this module stop and start.

    Each goes on where the one before was stopped, and checks that: so many reruns would cost a minute. A
    test that is run alone starts at the beginning.
    """
    return tmp_path_factory.mktemp("story")


@pytest.fixture
def job(story: Path) -> Job:
    """Return the job that goes on, with nothing in its log."""
    job = Job(story)
    job.log.write_text("")
    return job


@pytest.fixture
def pair(tmp_path: Path) -> Job:
    """Return a job of its own."""
    return Job(tmp_path)


def stop_while_training(job: Job, line: list[str]) -> int:
    """Start, send SIGTERM to the launcher after a few steps, and return its status."""
    step = job.latest() + 5
    with job.open(line) as process:
        job.wait_until(f"step {step}: loss")
        process.send_signal(signal.SIGTERM)
        return process.wait(timeout=DEADLINE_S)


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


def test_sigterm_saves_the_checkpoint_of_every_process(job: Job) -> None:
    """SIGTERM to the launcher: the processes save at one step and end by themselves, as they like."""
    status = stop_while_training(job, job.line(job.script()))
    text = job.read()
    assert status == 128 + signal.SIGTERM, text
    assert "still run" not in text
    job.saved_step("SIGTERM", text)


def test_bash_around_python_saves_the_checkpoint(job: Job) -> None:
    """``bash -c 'python train.py; echo done'``: bash dies of SIGTERM, python hears it from us and saves."""
    before = job.latest()
    status = stop_while_training(job, job.line(["bash", "-c", f"{shlex.join(job.script())}; echo all done"]))
    text = job.read()
    assert status == 128 + signal.SIGTERM, text
    assert "all done" not in text
    job.assert_resumed(before, text)
    job.saved_step("SIGTERM", text)


def test_as_process_1_the_checkpoint_is_saved(job: Job) -> None:
    """The launcher as process 1 of a pid namespace, as in a container; the kernel drops no signal."""
    line = [*init_prefix(), *job.line(job.script())]
    before = job.latest()
    with job.open(line) as outside:
        job.wait_until(f"step {before + 5}: loss")
        (init,) = children_of(outside.pid)
        os.kill(init, signal.SIGTERM)
        status = outside.wait(timeout=DEADLINE_S)
    text = job.read()
    assert status == 128 + signal.SIGTERM, text
    job.assert_resumed(before, text)
    job.saved_step("SIGTERM", text)


def init_prefix() -> list[str]:
    """Return what makes a command process 1 and, as --fork alone does not, passes its status on."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if os.geteuid():
        command[1:1] = ["--user", "--map-root-user"]
    done = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no pid namespaces here: {done.stderr.strip()}")
    return command


def children_of(pid: int) -> list[int]:
    """Return the children of a process."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def training_below(pid: int) -> list[int]:
    """Return all below a launcher that run the example: the processes and their DataLoaders' workers."""
    found = []
    for child in children_of(pid):
        words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        if TRAIN.encode() in words and b"launcher" not in words:  # the launcher's watchdog is its fork
            found.append(child)
        found += training_below(child)
    return sorted(found)


@pytest.mark.thorough
def test_data_loaders_workers_live_while_their_leader_saves(pair: Job) -> None:
    """SIGTERM to a DataLoader's worker would make its process fail in the middle of the save."""
    words = ("--steps", "1000000", "--every", "3", "--workers", "2")
    pair.hold.touch()  # before both save for the first time: later, one of them may be past its look at it
    with pair.open(pair.line(pair.held_script(*words))) as process:
        pair.wait_until("saving", times=2)  # the one of every third step, in the loop
        everybody = training_below(process.pid)
        assert len(everybody) == 2 * (1 + 2)
        process.send_signal(signal.SIGTERM)
        pair.wait_until("SIGTERM: passed on")
        wait_for(lambda: not any(is_pending(pid, signal.SIGTERM) for pid in everybody), pair.read)
        assert training_below(process.pid) == everybody
        pair.hold.unlink()
        status = process.wait(timeout=DEADLINE_S)
    text = pair.read()
    assert status == 128 + signal.SIGTERM, text
    assert "killed by signal" not in text  # torch's words about a worker that was lost
    pair.saved_step("SIGTERM", text)


@pytest.mark.thorough
def test_a_second_sigterm_cuts_no_save_short(pair: Job) -> None:
    """It is passed on as the first was, and changes nothing about the deadline or the checkpoint."""
    pair.hold.touch()
    with pair.open(pair.line(pair.held_script())) as process:
        pair.wait_until("step 5: loss")
        process.send_signal(signal.SIGTERM)
        pair.wait_until("saving", times=2)
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: not is_pending(process.pid, signal.SIGTERM), lambda: "SIGTERM is not taken")
        pair.hold.unlink()
        status = process.wait(timeout=DEADLINE_S)
    text = pair.read()
    assert status == 128 + signal.SIGTERM, text
    assert (text.count("saving"), text.count("done")) == (2, 2), text
    pair.saved_step("SIGTERM", text)


def is_pending(pid: int, number: int) -> bool:
    """Whether a signal waits to be taken by a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd", "ShdPnd"))]
    return any(mask >> number - 1 & 1 for mask in masks)


@pytest.mark.thorough
def test_too_short_a_grace_ends_in_sigkill_and_is_said(pair: Job) -> None:
    """--grace 1 and a save that takes longer: 137, in words; the checkpoint before it is still whole."""
    line = pair.line(pair.held_script("--steps", "1000000", "--every", "3"), "--grace", "1")
    with pair.open(line) as process:
        wait_for((pair.checkpoint / "latest").exists, pair.read)
        pair.hold.touch()
        # One of them is enough: the other may have looked before the file was there, and then waits for it.
        pair.wait_until("saving", times=1)
        process.send_signal(signal.SIGTERM)
        status = process.wait(timeout=DEADLINE_S)
    text = pair.read()
    assert status == 128 + signal.SIGKILL, text
    assert "2 processes still run after 1 s: sending SIGKILL" in text
    pair.hold.unlink()
    latest = pair.latest()
    pair.assert_resumed(latest, pair.run("--steps", str(latest + 3)))


class Terminal:
    """A terminal that a job is started at, and somebody who types."""

    def __init__(self) -> None:
        self.master, self.slave = os.openpty()
        os.set_blocking(self.master, False)
        self._seen = b""

    @contextmanager
    def open(self, job: Job, line: list[str]) -> Iterator[subprocess.Popen[bytes]]:
        """Start a command with this as its controlling terminal, in the foreground."""
        line = ["setsid", "--ctty", *line]
        with (
            subprocess.Popen(
                line, env=job.environ, stdin=self.slave, stdout=self.slave, stderr=self.slave
            ) as process,
            ended_at_last(process),
        ):
            yield process

    def type(self, text: str) -> None:
        """Type something."""
        os.write(self.master, text.encode())

    def read(self) -> str:
        """Return what has been shown so far, without carriage returns."""
        try:
            while data := os.read(self.master, 1 << 16):
                self._seen += data
        except OSError:
            pass  # nothing more now, or nobody has the terminal open
        return self._seen.decode(errors="replace").replace("\r", "")

    def wait(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for the end of a command; what it shows must be read, or it would wait for us."""
        wait_for(lambda: (self.read(), process.poll() is not None)[1], self.read)
        self.read()
        return int(process.returncode)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    """Return a terminal."""
    made = Terminal()
    yield made
    os.close(made.master)
    os.close(made.slave)


@pytest.mark.parametrize("count", [1, 2])
def test_ctrl_c_saves_the_checkpoint(tmp_path: Path, terminal: Terminal, count: int) -> None:
    """Typed once: one process hears it from the terminal, several from us, as do DataLoaders' workers."""
    job = Job(tmp_path, count)
    with terminal.open(job, job.line(job.script(*ENDLESS, "--workers", "1"))) as process:
        job.wait_until("step 5: loss", read=terminal.read)
        terminal.type("\x03")
        status = terminal.wait(process)
    assert status == 128 + signal.SIGINT, terminal.read()
    job.saved_step("SIGINT", terminal.read())


class Tmux:
    """A tmux server of our own, with one session: bash at a prompt."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        # A socket's path has at most 107 bytes, and pytest's folders have long names.
        self.socket = f"/tmp/launcher-{os.getpid()}-{folder.name[-12:]}.tmux"
        self.environ = environ
        self("new-session", "-d", "-s", "job", "-x", "150", "-y", "50", "bash --norc --noprofile")
        self.bash = int(self("display-message", "-p", "-t", "job", "#{pane_pid}"))

    def __call__(self, *words: str) -> str:
        """Give tmux a command, and return what it prints."""
        line = ["tmux", "-S", self.socket, "-f", "/dev/null", *words]
        return subprocess.run(
            line, env=self.environ, stdout=subprocess.PIPE, text=True, check=True, timeout=DEADLINE_S
        ).stdout

    def type(self, line: list[str]) -> None:
        """Type a command and Return."""
        self("send-keys", "-t", "job", "-l", shlex.join(line))
        self("send-keys", "-t", "job", "Enter")

    def read(self) -> str:
        """Return what the pane shows and has shown."""
        return self("capture-pane", "-p", "-J", "-S", "-", "-t", "job")

    def close(self) -> None:
        """End the server, if killing its last session has not."""
        subprocess.run(["tmux", "-S", self.socket, "kill-server"], capture_output=True, check=False)
        Path(self.socket).unlink(missing_ok=True)


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Callable[[Job], Tmux]]:
    """Return a function that opens a tmux session."""
    opened: list[Tmux] = []

    def open_session(job: Job) -> Tmux:
        opened.append(Tmux(tmp_path, job.environ))
        return opened[0]

    yield open_session
    for session in opened:
        session.close()


@pytest.mark.thorough
def test_under_tmux_the_checkpoint_is_saved(job: Job, tmux: Callable[[Job], Tmux]) -> None:
    """SIGTERM to a launcher that somebody has typed in a tmux window; started once more, it goes on."""
    session = tmux(job)
    before = job.latest()
    session.type(job.line(job.script()))
    job.wait_until(f"step {before + 5}: loss", read=session.read)
    (launcher,) = children_of(session.bash)
    os.kill(launcher, signal.SIGTERM)
    wait_for(lambda: not children_of(session.bash), session.read)
    session("send-keys", "-t", "job", "echo status $?", "Enter")
    job.wait_until("\nstatus 143\n", read=session.read)
    job.assert_resumed(before, session.read())
    step = job.saved_step("SIGTERM", session.read())
    job.assert_resumed(step, job.run("--steps", str(step + 3)))


@pytest.mark.thorough
@pytest.mark.parametrize("flags", [(), ("--signal-map", "HUP=TERM")], ids=["as it is", "mapped"])
def test_a_closed_tmux_session_ends_the_job(
    pair: Job, tmux: Callable[[Job], Tmux], flags: tuple[str, ...]
) -> None:
    """SIGHUP arrives as it would without us and nobody goes on unseen; --signal-map HUP=TERM saves."""
    session = tmux(pair)
    session.type(pair.line(pair.script(), *flags))
    pair.wait_until("step 5: loss", read=session.read)
    (launcher,) = children_of(session.bash)
    everybody = [launcher, *training_below(launcher)]
    session("kill-session", "-t", "job")
    wait_for(lambda: not any(is_alive(pid) for pid in everybody), lambda: f"{everybody} still run")
    assert (pair.checkpoint / "latest").exists() == bool(flags)


def is_alive(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
