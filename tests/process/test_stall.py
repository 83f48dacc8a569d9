"""Jobs that have come to a stand: real processes that hang, and what is said of them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.hang.ask import NO_PY_SPY, Inquiry, find_py_spy
from launcher.hang.report import describe_hang
from launcher.inprocess import STACKS_NAME
from launcher.inprocess.site.sitecustomize import STACK_SIGNAL
from launcher.machine.process import find_descendants, is_alive
from launcher.observers.stall import StallDetector
from launcher.output.progress import GpuUse
from tests.process.looking import wait_for
from tests.process.starting import DEADLINE_S, clean_environ, launch, open_launcher

ARM = "import launcher; launcher.arm()\n"
UP = "print('up', flush=True)\n"
SLEEPS = UP + "import time\ndef fetch():\n    time.sleep(3600)\nfetch()\n"
LOCKED = UP + "import threading\nlock = threading.Lock()\ndef work():\n    lock.acquire()\nwork()\nwork()\n"

needs_py_spy = pytest.mark.skipif(find_py_spy() is None, reason="py-spy is not installed")


class Job:
    """Processes that have written a line and nothing since."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, script: str, *around: str) -> int:
        """Start the next rank; ``around`` is put in front of the command."""
        own = self.folder / "attempt_0" / str(len(self.processes))
        own.mkdir(parents=True)
        (own / "train.py").write_text(script)
        process = subprocess.Popen(
            [*around, sys.executable, "train.py"],
            cwd=own,
            env=clean_environ(
                LAUNCHER_STACKS_FILE=str(own / STACKS_NAME), RANK=str(len(self.processes)), WORLD_SIZE="2"
            ),
            stdout=subprocess.PIPE,
        )
        self.processes.append(process)
        return process.pid

    def inquire(self, folder: str | None = "") -> Inquiry:
        """Begin to ask, once every process has written its line."""
        for process in self.processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
        pids = [process.pid for process in self.processes]
        wait_for(lambda: is_at_rest(pids), "all processes wait")
        ranks = [(rank, process.pid) for rank, process in enumerate(self.processes)]
        return Inquiry(ranks, str(self.folder) if folder == "" else folder)

    def report(self, world_size: int | None = None, folder: str | None = "") -> list[str]:
        """Ask until all have answered; return the report's lines."""
        inquiry = self.inquire(folder)
        drive(inquiry, lambda: inquiry.complete)
        hang = describe_hang("no output for 1 s", inquiry.answers, world_size, {})
        return [hang.headline, *hang.lines]

    def end(self) -> None:
        """End all processes."""
        pids = [process.pid for process in self.processes]
        for pid in [*pids, *find_descendants(pids)]:
            with contextlib.suppress(ProcessLookupError):  # a child that has just ended
                os.kill(pid, signal.SIGKILL)
        for process in self.processes:
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def is_at_rest(pids: list[int]) -> bool:
    """Whether some processes and their descendants use no CPU time for a while."""
    before = read_cpu(pids)
    select.select([], [], [], 0.3)
    return read_cpu(pids) == before


def read_cpu(pids: list[int]) -> list[str]:
    """Return the CPU time of processes and their descendants, in the kernel's words."""
    found = []
    for pid in [*pids, *find_descendants(pids)]:
        found += Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return found


def drive(inquiry: Inquiry, until: Callable[[], bool]) -> None:
    """Do what the launcher's loop does, until something has happened."""
    deadline = time.monotonic() + DEADLINE_S
    while not until():
        assert time.monotonic() < deadline
        inquiry.go_on(time.monotonic())
        select.select([], [], [], 0.005)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """A job without processes, whose processes are ended afterwards."""
    found = Job(tmp_path)
    yield found
    found.end()


def test_processes_that_hang_say_where(job: Job) -> None:
    """One in a lock, one asleep, both armed by the hook: the report names place and line."""
    job.start(ARM + LOCKED)
    job.start(ARM + SLEEPS)
    assert job.report() == [
        "stalled: no output for 1 s",
        "rank 0 waits for a lock or a thread (train.py:6 in work)",
        "rank 1 waits in sleep (train.py:5 in fetch)",
    ]
    assert all(process.poll() is None for process in job.processes)


def test_two_who_ask_at_a_time_take_turns(job: Job) -> None:
    """A stall and a user: each has an answer of its own, and none has both."""
    pid = job.start(ARM + SLEEPS)
    job.inquire()
    both = [Inquiry([(0, pid)], str(job.folder)) for _ in range(2)]
    deadline = time.monotonic() + DEADLINE_S
    while not all(one.complete for one in both):
        assert time.monotonic() < deadline
        for one in both:
            one.go_on(time.monotonic())
        select.select([], [], [], 0.005)
    for one in both:
        (answer,) = one.answers
        assert answer.means == "faulthandler" and len(answer.threads) == 1


STALLS = """
import os, time
rank = os.environ["RANK"]
for turn in range(2):
    print("turn", turn, flush=True)
    open(f"{os.environ['JOB']}/{turn}-{rank}", "w").close()
    while not turn and not os.path.exists(f"{os.environ['JOB']}/go"):
        time.sleep(0.02)
def spin():
    while True: pass  # on one line, which every stack names
if rank == "2":
    spin()
time.sleep(1000)
"""


def test_each_stall_is_reported_once_with_the_rank_that_differs(tmp_path: Path) -> None:
    """All ranks wait, then go on, then one runs in circles: two reports, and a file for each."""
    script = tmp_path / "train.py"
    script.write_text(STALLS)
    words = (
        *("run", "--stall-timeout", "1", "--nproc-per-node", "3", "--log-dir"),
        str(tmp_path / "logs"),
        str(script),
    )
    running = open_launcher(*words, environ=clean_environ(JOB=str(tmp_path)))
    folder = tmp_path / "logs"
    wait_for(lambda: len(list(folder.rglob("stall-1.txt"))) == 1, "the first report")
    (tmp_path / "go").touch()
    wait_for(lambda: len(list(folder.rglob("stall-2.txt"))) == 1, "the second report")
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(timeout=DEADLINE_S)
    assert running.returncode == 143, err
    stalls = [line for line in err.splitlines() if "stalled: " in line]
    assert stalls[0].startswith("launcher: stalled: no output for 1 s")
    assert stalls[1].startswith("launcher: stalled: no output for 1 s; rank 2 runs in spin (")
    assert stalls[1].endswith("/train.py:10), and the others wait")
    files = [line.partition("all stacks: ")[2] for line in err.splitlines() if "all stacks: " in line]
    assert len(files) == len(set(files)) == 2
    assert "(faulthandler)" in Path(files[0]).read_text()


def test_a_stall_can_end_the_job(tmp_path: Path) -> None:
    """--on-stall stop: the record names the rank that differs, and has the stacks of all."""
    script, record = tmp_path / "train.py", tmp_path / "failure.json"
    script.write_text(STALLS)
    (tmp_path / "go").touch()
    words = ("run", "--stall-timeout", "1", "--on-stall", "stop", "--failure-file", str(record))
    done = launch(*words, "--nproc-per-node", "3", str(script), environ=clean_environ(JOB=str(tmp_path)))
    assert done.returncode == 75, done.stderr
    told = json.loads(record.read_text())
    assert told["causes"][0]["code"] == "stalled" and "rank 2 runs in spin" in told["causes"][0]["what"]
    assert [(one["ranks"], one["differs"]) for one in told["evidence"]] == [("0-1", False), ("2", True)]
    assert any("train.py" in line for line in told["evidence"][1]["stack"])


def test_the_python_below_a_shell_is_asked(job: Job) -> None:
    """The shell has no handler for the signal and must not get it."""
    pid = job.start(ARM + SLEEPS, "bash", "-c", '"$@"; true', "bash")
    assert "rank 0 waits in sleep (train.py:5 in fetch)" in job.report()
    assert is_alive(pid)


def test_forked_children_answer_one_after_the_other(job: Job) -> None:
    """They share their parent's file, and their answers do not mix."""
    fork = "import os\nif os.fork():\n    os.wait()\nelse:\n"
    job.start(
        ARM
        + fork
        + "    import time\n    time.sleep(0.6)\n    print('up', flush=True)\n    time.sleep(3600)\n"
    )
    lines = job.report()
    (child,) = find_descendants([job.processes[0].pid])
    assert lines[1] == "rank 0 waits for a child process (train.py:4)"
    assert lines[2] == f"with rank 0: pid {child} waits in sleep (train.py:9)"


@pytest.mark.parametrize(
    "start", ["subprocess.run(['true'])", "os.waitpid(fork(), 0)[1]"], ids=["vfork", "fork"]
)
def test_a_child_that_becomes_another_program_is_not_ended(job: Job, start: str) -> None:
    """Until then it is a copy of its parent, with its handler and its file."""
    job.start(
        ARM + "import os, subprocess\n\n\n"
        "def fork():\n    pid = os.fork()\n    return pid or os.execvp('true', ['true'])\n\n\n"
        f"print('up', flush=True)\nwhile True:\n    ended = {start}\n"
        "    assert getattr(ended, 'returncode', ended) == 0, ended\n"
    )
    (process,) = job.processes
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    until = time.monotonic() + 4
    while time.monotonic() < until:
        inquiry = Inquiry([(0, process.pid)], str(job.folder))
        drive(inquiry, lambda inquiry=inquiry: inquiry.complete)  # type: ignore[misc]
    assert process.poll() is None


@needs_py_spy
def test_a_process_without_the_hook_is_read_by_py_spy(job: Job) -> None:
    """Also one that is stopped and could answer nothing."""
    job.start(LOCKED)
    job.start(
        ARM + UP + "import os, signal\ndef stop():\n    os.kill(0, signal.SIGSTOP)\nstop()\n", "setsid", "-w"
    )
    lines = job.report()
    assert lines[1] == "rank 0 waits for a lock or a thread (train.py:5 in work)"
    assert lines[2].startswith("rank 1 is stopped (state T) in stop (train.py:5)")


def test_without_any_help_the_kernel_is_asked(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """No hook and no py-spy: what it waits in, why there is no stack, and how to get one."""
    monkeypatch.setattr("launcher.hang.ask.find_py_spy", lambda: None)
    pid = job.start(SLEEPS)
    lines = job.report()
    assert lines[1].startswith(f"rank 0: no Python stack (pid {pid}, python, state S, in clock_nanosleep")
    assert lines[1].endswith(NO_PY_SPY)
    assert "launcher.setup()" in lines[2]


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (f"import signal\nsignal.signal({STACK_SIGNAL}, lambda *_: 1 / 0)\n" + SLEEPS, ""),
        (ARM + "import os\nos.closerange(3, 64)\n" + SLEEPS, ""),
        (
            ARM + f"import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [{STACK_SIGNAL}])\n" + SLEEPS,
            "it does not answer within 2 s; ",
        ),
    ],
    ids=["handler of its own", "closed file", "blocked"],
)
def test_who_is_not_ready_is_not_asked(
    script: str, why: str, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal ends a process that does not expect it; and none is waited for."""
    monkeypatch.setattr("launcher.hang.ask.find_py_spy", lambda: None)
    job.start(script)
    line = job.report()[1]
    assert f"): {why}" in line and line.endswith(NO_PY_SPY)
    assert job.processes[0].poll() is None


def test_a_py_spy_that_hangs_is_ended(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is bounded, and meanwhile it is known as none of the job's."""
    fake = tmp_path / "py-spy"
    fake.write_text("#!/bin/sh\nexec sleep 3600\n")
    fake.chmod(0o755)
    monkeypatch.setattr("launcher.hang.ask.find_py_spy", lambda: str(fake))
    monkeypatch.setattr("launcher.hang.limits.PY_SPY_S", 0.3)
    job.start(SLEEPS)
    inquiry = job.inquire()
    drive(inquiry, lambda: bool(inquiry.helpers()))
    (helper,) = inquiry.helpers()
    assert is_alive(helper)
    drive(inquiry, lambda: inquiry.complete)
    assert "py-spy did not end within 0.3 s" in inquiry.answers[0].why
    assert (is_alive(helper), inquiry.helpers()) == (False, ())


def test_closing_ends_what_was_begun(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job ends while its stacks are being read."""
    fake = tmp_path / "py-spy"
    fake.write_text("#!/bin/sh\nexec sleep 3600\n")
    fake.chmod(0o755)
    monkeypatch.setattr("launcher.hang.ask.find_py_spy", lambda: str(fake))
    job.start(SLEEPS)
    inquiry = job.inquire()
    drive(inquiry, lambda: bool(inquiry.helpers()))
    (helper,) = inquiry.helpers()
    inquiry.close()
    assert inquiry.complete and inquiry.helpers() == ()
    os.waitpid(helper, 0)  # the collector of orphans does this


def test_without_a_folder_the_kernel_is_asked(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process can have a file for its answer."""
    monkeypatch.setattr("launcher.hang.ask.find_py_spy", lambda: None)
    job.start(ARM + SLEEPS)
    assert "in clock_nanosleep" in job.report(folder=None)[1]


# --- when it is one, with a clock that the test moves


class Gauge:
    """GPUs as a test wants them."""

    def __init__(self, *uses: GpuUse) -> None:
        self.uses = uses

    def read(self, now: float) -> tuple[GpuUse, ...]:
        """Return what was given."""
        return self.uses


class Clock:
    """A stall detector with a clock that the test moves, so that each stall is only counted."""

    def __init__(self, gauge: Gauge | None = None) -> None:
        self.stalls: list[float] = []
        self.now = self.output = 0.0
        self.moves = 0
        self.stall = StallDetector(
            100, lambda: self.output, self.note_stall, self.note_move, started=0.0, gpus=gauge
        )

    def note_stall(self, what: str) -> None:
        """Note a stall."""
        self.stalls.append(self.now)

    def note_move(self) -> None:
        """Note that the job goes on."""
        self.moves += 1

    def run_until(self, end: float) -> None:
        """Fire whenever it is due."""
        while self.stall.due is not None and self.stall.due <= end:
            self.now = self.stall.due
            self.stall.fire(self.now)


def test_silence_is_counted_from_the_last_output_and_told_once() -> None:
    """Not from the last look; after new output the next stall is told, and the end of each."""
    # Not from the last look.
    clock = Clock()
    clock.run_until(90)
    clock.output = 62.5
    clock.run_until(160)
    assert clock.stalls == []
    clock.run_until(170)
    assert clock.stalls[0] == 165
    # The same silence is told once; after new output the next one is told again.
    clock = Clock()
    clock.run_until(350)
    assert (clock.stalls, clock.moves) == ([100], 0)
    clock.output = 352.0
    clock.run_until(600)
    assert (len(clock.stalls), clock.moves) == (2, 1)
    # Silence alone says little; one that only waits for others does not work.
    working = Clock(Gauge(GpuUse(30, 5, 0, 1), GpuUse(0, 0, 0, 1)))
    working.run_until(1000)
    assert working.stalls == []
    waiting = Clock(Gauge(GpuUse(100, 0, 0, 1), GpuUse(0, 0, 0, 1)))
    waiting.run_until(104)
    assert waiting.stalls[0] == 100


def test_time_in_which_we_were_not_running_is_no_silence() -> None:
    """A container that was paused for an hour has not stalled for an hour."""
    clock = Clock()
    clock.run_until(50)
    clock.now = 3600.0
    clock.stall.fire(clock.now)
    clock.run_until(3699)
    assert clock.stalls == []
    clock.run_until(3704)
    assert clock.stalls[0] == 3700


ALL_REDUCE = """
import os, time
import torch, torch.distributed as dist
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
store = dist.FileStore(os.path.join(os.getcwd(), "..", "store"), 2)
dist.init_process_group("gloo", store=store, rank=int(os.environ["RANK"]), world_size=2)
print("up", flush=True)
if dist.get_rank() == 1:
    time.sleep(3600)
dist.all_reduce(torch.ones(1))
"""


@pytest.mark.torch
def test_the_rank_that_others_wait_for_is_named(job: Job) -> None:
    """A real collective, and one process that does not come to it."""
    pytest.importorskip("torch")
    job.start(ARM + ALL_REDUCE)
    job.start(ARM + ALL_REDUCE)
    lines = job.report(world_size=2)
    assert lines[1].startswith("rank 0 waits in all_reduce (torch/distributed/distributed_c10d.py:")
    assert lines[1].endswith(" <- train.py:11")
    assert lines[2] == "rank 1 waits in sleep (train.py:10): probably the one that the others wait for"
