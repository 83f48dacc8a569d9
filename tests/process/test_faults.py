"""The fault matrix of docs/failures.md: each fault is made, and its row must hold."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.machine.cgroup import cgroup_folders
from launcher.machine.host import Host
from launcher.machine.process import read_state
from tests.process.faults import ANYTHING, Job, Outcome, read_rows
from tests.process.looking import is_gone, read_pid, wait_for

ROWS = read_rows()
TWO = ("--nproc-per-node", "2")
GRACE_S = 0.4
SHORT = ("--grace", str(GRACE_S))
READY = ("sh", "-c", "echo ready; exec sleep 600")
Hold = Callable[..., None]


@pytest.fixture
def hold(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Hold:
    """Return the check of this test's row: that of its parameter, or of its name."""
    parameter = getattr(getattr(request.node, "callspec", None), "id", "")
    name = parameter if parameter in ROWS else request.function.__name__.removeprefix("test_")

    def check(outcome: Outcome, grace_s: float = 0.0) -> None:
        record_property("seconds", round(outcome.seconds, 3))
        ROWS[name].check(outcome, grace_s)

    return check


# --- one process fails

PREAMBLE = """
import os, resource, sys, time
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
if os.environ["RANK"] != "1":
    time.sleep(600)
"""
FAILING = {
    "exit-3": "sys.exit(3)",
    "shell": r"""os.execvp("sh", ["sh", "-c", 'sh -c "kill -9 \\$\\$"; exit $?'])""",
    "segmentation-fault": "import ctypes; ctypes.string_at(0)",
    "abort": r"""
os.write(2, b"terminate called after throwing an instance of 'std::runtime_error'\n  what():  no mesh\n")
os.abort()""",
    "exception": "raise ValueError('batch 7 is empty')",
    "message": "sys.exit('no data for this rank')",
    "module": "import nothing_of_that_name",
    "arguments": "import argparse; argparse.ArgumentParser().parse_args(['--epoch', '3'])",
    "script": "os.execv(sys.executable, [sys.executable, 'nothing_of_that_name.py'])",
    "host-memory": "bytearray(1 << 60)",
    "cuda-memory": """
class OutOfMemoryError(RuntimeError):
    __module__ = "torch"
raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of")""",
    "port": """
import socket
server = socket.create_server(("127.0.0.1", 0))
socket.create_server(server.getsockname())""",
}
RECORDED = """
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    raise ValueError("batch 7 is empty")
main()
"""


@pytest.mark.parametrize(
    "script",
    [
        *(pytest.param(script, id=name) for name, script in FAILING.items()),
        pytest.param(RECORDED, id="record", marks=pytest.mark.torch),
    ],
)
def test_one_of_two_fails(script: str, tmp_path: Path, hold: Hold) -> None:
    """It is named with its cause, the other one is ended, and its status is the launcher's."""
    outcome = Job(tmp_path, *TWO, "--", sys.executable, "-c", PREAMBLE + script).end()
    hold(outcome)
    assert "rank 1 of 2 failed first" in outcome.err
    then = r"then:  the launcher stopped rank 0 \(SIGTERM\) [0-9.]+ s later"
    assert re.search(then, outcome.err), outcome.err


def test_somebody_kills_one(tmp_path: Path, hold: Hold) -> None:
    """SIGKILL from outside, and not for lack of memory."""
    job = Job(tmp_path, *TWO, "--", "sleep", "600")
    job.kill(job.ranks(2)[1])
    hold(job.end())


@pytest.mark.parametrize("first", [1, 3])
def test_two_fail_at_once(first: int, tmp_path: Path, hold: Hold) -> None:
    """The kernel's order counts, also where the launcher stands still while both end."""
    for _ in range(10):
        job = Job(tmp_path, "--nproc-per-node", "4", "--", "sleep", "600")
        ranks = job.watched_ranks(4)
        os.kill(job.launcher.pid, signal.SIGSTOP)
        wait_until_stopped(job.launcher.pid)
        for rank in (first, 4 - first):
            job.kill(ranks[rank])
            wait_until_gone(ranks[rank])
        os.kill(job.launcher.pid, signal.SIGCONT)
        outcome = job.end()
        hold(outcome)
        assert f"rank {first} of 4 failed first" in outcome.err


def wait_until_stopped(pid: int) -> None:
    """Wait until a process that was sent SIGSTOP stands still."""
    wait_for(lambda: read_state(pid) == "T", f"{pid} stands still")


def wait_until_gone(pid: int) -> None:
    """Wait until a process has ended."""
    wait_for(lambda: is_gone(pid), f"{pid} has ended")


HANGS = """
import os, signal, time
if os.environ["RANK"] == "0":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""


def test_the_other_hangs(tmp_path: Path, hold: Hold) -> None:
    """One fails, the other ignores SIGTERM: SIGKILL after the grace."""
    job = Job(tmp_path, *TWO, *SHORT, "--", sys.executable, "-c", HANGS)
    job.wait_until_ready(2)
    job.kill(job.ranks(2)[1])
    hold(job.end(), GRACE_S)


def test_the_other_is_stopped(tmp_path: Path, hold: Hold) -> None:
    """One fails, the other does not run (SIGSTOP): the same SIGTERM ends it."""
    job = Job(tmp_path, *TWO, "--", "sleep", "600")
    ranks = job.ranks(2)
    os.kill(ranks[0], signal.SIGSTOP)
    wait_until_stopped(ranks[0])
    job.kill(ranks[1])
    hold(job.end())


TRACE = """
import ctypes, os, sys
attach = ctypes.CDLL(None, use_errno=True).ptrace
attach.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
if attach(16, int(sys.argv[1]), None, None):  # PTRACE_ATTACH
    sys.exit(os.strerror(ctypes.get_errno()))
os.waitpid(int(sys.argv[1]), 0)
print("attached", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def debug() -> Iterator[Callable[[int], int]]:
    """Return what stops a process as a debugger does, and returns the debugger's pid."""
    debuggers: list[subprocess.Popen[str]] = []

    def attach(pid: int) -> int:
        debugger = subprocess.Popen(
            [sys.executable, "-c", TRACE, str(pid)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        debuggers.append(debugger)
        assert debugger.stdout is not None and debugger.stderr is not None
        if debugger.stdout.readline() != "attached\n":
            pytest.skip(f"no debugging here: {debugger.stderr.read().strip()}")
        return debugger.pid

    yield attach
    for debugger in debuggers:
        debugger.communicate(timeout=10)  # which closes its standard input


def test_a_debugger_holds_the_other(tmp_path: Path, hold: Hold, debug: Callable[[int], int]) -> None:
    """Its status is the debugger's until that lets go: the launcher does not wait, and says who has it."""
    job = Job(tmp_path, *TWO, *SHORT, "--", "sleep", "600")
    ranks = job.ranks(2)
    debugger = debug(ranks[0])
    job.kill(ranks[1])
    outcome = job.end()
    hold(outcome, GRACE_S)
    assert f"pid {ranks[0]} (state Z, held by a debugger, pid {debugger})" in outcome.err


@pytest.fixture
def freezer() -> Iterator[Path]:
    """Return a cgroup of version 1 that can freeze: even SIGKILL has to wait until it is thawed."""
    for folder in cgroup_folders(Host(), "freezer"):
        path = Path(folder, f"launcher-test-{os.getpid()}")
        try:
            path.mkdir()
        except OSError:
            continue
        if (path / "freezer.state").exists():
            yield path
            thaw(path)
            return
        path.rmdir()
    pytest.skip("no freezer of cgroup v1 for us here; in version 2 SIGKILL ends what is frozen")


def thaw(freezer: Path) -> None:
    """Let what was killed while it was frozen end, and take the cgroup away."""
    (freezer / "freezer.state").write_text("THAWED")
    wait_for(lambda: not (freezer / "cgroup.procs").read_text(), "what was frozen has ended")
    freezer.rmdir()


def freeze(freezer: Path, *pids: int) -> None:
    """Freeze processes."""
    for pid in pids:
        (freezer / "cgroup.procs").write_text(str(pid))
    (freezer / "freezer.state").write_text("FROZEN")
    wait_for(lambda: (freezer / "freezer.state").read_text() == "FROZEN\n", "it is frozen")


@pytest.fixture
def gpu_file() -> Iterator[str]:
    """Return a file that looks like a GPU's to who asks what a process holds, not to who counts GPUs."""
    path = Path(f"/dev/nvidia-launcher-test-{os.getpid()}")
    try:
        path.touch()
    except OSError as error:
        pytest.skip(f"no files in /dev: {error}")
    yield str(path)
    path.unlink()


@pytest.mark.root
def test_the_other_is_in_d_state(tmp_path: Path, hold: Hold, freezer: Path, gpu_file: str) -> None:
    """SIGKILL does not end it: the launcher gives up, and names its pid, state and GPU."""
    job = Job(tmp_path, *TWO, *SHORT, "--", "sh", "-c", 'echo ready; exec sleep 600 3<"$0"', gpu_file)
    job.wait_until_ready(2)
    ranks = job.ranks(2)
    freeze(freezer, ranks[0])
    job.kill(ranks[1])
    outcome = job.end()
    hold(outcome, GRACE_S)
    assert re.search(rf"left:  pid {ranks[0]} \(state D.*holds {gpu_file}\)", outcome.err), outcome.err


@pytest.mark.root
def test_all_are_in_d_state(tmp_path: Path, hold: Hold, freezer: Path) -> None:
    """The same where nobody has failed and the launcher is told to stop."""
    job = Job(tmp_path, *TWO, *SHORT, "--", "sleep", "600")
    freeze(freezer, *job.ranks(2).values())
    job.kill(job.launcher.pid, signal.SIGTERM)
    hold(job.end(), GRACE_S)


@pytest.mark.root
def test_the_platform_kills_the_launcher_while_ranks_end(tmp_path: Path, freezer: Path) -> None:
    """As Kubernetes and Slurm do 5 s after the default grace: the record is there, with the reason."""
    job = Job(tmp_path, *TWO, *SHORT, "--", "sleep", "600")
    ranks, watchdog = job.ranks(2), job.watchdog()
    freeze(freezer, *ranks.values())
    job.kill(job.launcher.pid, signal.SIGTERM)
    assert job.launcher.stderr is not None
    line = next(line for line in job.launcher.stderr if "sending SIGKILL" in line or "failed first" in line)
    for pid in (job.launcher.pid, watchdog, *ranks.values()):
        job.kill(pid)
    assert "2 processes still run after 0.4 s: sending SIGKILL" in line
    record = json.loads(job.record.read_text())
    assert (record["rank"], record["told"], record["causes"][0]["code"]) == (0, "SIGTERM", "told-to-stop")
    assert "was killed by the launcher (SIGKILL)" in record["verdict"]


def test_all_hang(tmp_path: Path, hold: Hold) -> None:
    """--on-stall stop: a job that does nothing is ended as a failure."""
    words = (*TWO, "--stall-timeout", "1", "--on-stall", "stop", "--", "sleep", "600")
    job = Job(tmp_path, *words)
    job.since = job.started
    hold(job.end())


def test_all_hang_and_end_with_0(tmp_path: Path) -> None:
    """The same where they save when they are told to end: what the launcher ended has not succeeded."""
    script = 'trap "exit 0" TERM; while :; do sleep 600 & wait; done'
    record = tmp_path / "failure.json"
    flags = ("--stall-timeout", "1", "--on-stall", "stop", "--failure-file", str(record))
    outcome = Job(tmp_path, *TWO, *flags, "--", "sh", "-c", script).end()
    assert outcome.status == 75
    assert "of 2 ended first: it exited with code 0 after the launcher sent SIGTERM" in outcome.err
    assert json.loads(record.read_text())["causes"][0]["code"] == "stalled"


# --- the launcher is told to stop


def test_sigterm(tmp_path: Path, hold: Hold) -> None:
    """It is passed on, and the verdict does not blame the processes."""
    job = Job(tmp_path, *TWO, "--", *READY)
    job.wait_until_ready(2)
    job.kill(job.launcher.pid, signal.SIGTERM)
    hold(job.end())


def test_sigterm_and_all_save(tmp_path: Path, hold: Hold) -> None:
    """Where all have a handler and end with 0, so does the launcher, without a verdict."""
    script = 'trap "exit 0" TERM; echo ready; while :; do sleep 0.02; done'
    job = Job(tmp_path, *TWO, "--", "sh", "-c", script)
    job.wait_until_ready(2)
    job.kill(job.launcher.pid, signal.SIGTERM)
    outcome = job.end()
    hold(outcome)
    assert "first" not in outcome.err


def test_sigterm_and_one_hangs(tmp_path: Path, hold: Hold) -> None:
    """SIGKILL after the grace."""
    job = Job(tmp_path, *SHORT, "--", sys.executable, "-c", HANGS)
    job.wait_until_ready(1)
    job.kill(job.launcher.pid, signal.SIGTERM)
    hold(job.end(), GRACE_S)


# --- the launcher itself


def test_the_launcher_crashes(tmp_path: Path, hold: Hold) -> None:
    """A SIGSEGV of its own: its watchdog takes the processes along, and says so."""
    job = Job(tmp_path, *TWO, "--", "sleep", "600", before=("prlimit", "--core=0:0"))
    ranks, _ = job.ranks(2), job.watchdog()
    job.kill(job.launcher.pid, signal.SIGSEGV)
    hold(job.end())
    for pid in ranks.values():
        wait_until_gone(pid)


def test_the_watchdog_is_killed_and_later_the_launcher(tmp_path: Path) -> None:
    """Another watchdog has taken its place, and kills what a shell has started, too."""
    job = Job(tmp_path, *TWO, "--", "sh", "-c", f"sleep 600 & echo $! > {tmp_path}/pid-$RANK; wait")
    job.ranks(2)
    first = job.watchdog()
    os.kill(first, signal.SIGKILL)
    job.watchdog(after=first)
    pids = [read_pid(tmp_path / f"pid-{rank}") for rank in (0, 1)]
    job.kill(job.launcher.pid)
    for pid in pids:
        wait_until_gone(pid)


def test_launcher_and_watchdog_are_killed(tmp_path: Path, hold: Hold) -> None:
    """Both by SIGKILL, at once: the kernel ends the processes, by their parent-death signal."""
    job = Job(tmp_path, *TWO, "--", "sleep", "600")
    ranks, watchdog = job.ranks(2), job.watchdog()
    job.kill(watchdog)
    job.kill(job.launcher.pid)
    outcome = job.end()
    hold(outcome)
    for pid in ranks.values():
        wait_until_gone(pid)


def test_the_watchdog_is_killed(tmp_path: Path, hold: Hold) -> None:
    """It is said, changes neither the job nor its status, and another one takes its place, once."""
    job = Job(tmp_path, *TWO, "--", "sleep", "600")
    ranks = job.ranks(2)
    first = job.watchdog()
    os.kill(first, signal.SIGKILL)
    os.kill(job.watchdog(after=first), signal.SIGKILL)
    wait_for(lambda: sorted(job.children()) == sorted(ranks.values()), "the launcher has noticed")
    job.kill(ranks[1])
    hold(job.end())


@pytest.mark.rows(4)
@pytest.mark.parametrize("_", range(4))
def test_all_processes_end_at_once_without_a_watchdog(_: int, tmp_path: Path) -> None:
    """Those that are stopped end while the launcher looks: then all of its children have ended."""
    job = Job(tmp_path, "--nproc-per-node", "32", "--", "sleep", "600")
    ranks = job.ranks(32)
    first = job.watchdog()
    os.kill(first, signal.SIGKILL)
    os.kill(job.watchdog(after=first), signal.SIGKILL)
    wait_for(lambda: sorted(job.children()) == sorted(ranks.values()), "the launcher has noticed")
    job.kill(ranks[1])
    outcome = job.end()
    assert outcome.status == 128 + signal.SIGKILL, outcome.err
    assert "internal launcher error" not in outcome.err


# --- output


@pytest.mark.root
@pytest.mark.parametrize("flag", ["--redirects", "--tee"])
def test_the_disk_of_the_logs_is_full(flag: str, tmp_path: Path, hold: Hold) -> None:
    """No process ends for it; it is said once, and what is lost is counted."""
    script = 'mount -t tmpfs -o size=64k tmpfs "$0" && exec "$@"'
    mount = ("unshare", "-m", "sh", "-c", script, str(tmp_path))
    if subprocess.run([*mount, "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounting needs root")
    write = "import os\nfor _ in range(100): os.write(1, b'x' * 1999 + b'\\n')\nos.write(2, b'over\\n')"
    words = (*TWO, flag, "3", "--log-dir", str(tmp_path), "--", sys.executable, "-c", write)
    outcome = Job(tmp_path, *words, before=mount).end()
    hold(outcome)
    assert outcome.err.count("No space left on device") == 1


def test_the_record_cannot_be_written(tmp_path: Path, hold: Hold) -> None:
    """The verdict is on the screen nevertheless, and the status is the process's."""
    (tmp_path / "failure.json").mkdir()
    hold(Job(tmp_path, "--", "sh", "-c", "exit 3").end())


# --- nothing can be started

OTHER_USER = (
    "setpriv --clear-groups --inh-caps=-all,+dac_read_search --ambient-caps=-all,+dac_read_search --reuid"
)


def limit_processes(count: int) -> tuple[str, ...]:
    """Return the words before a command whose user may have that many processes; root has no such limit."""
    user = (*OTHER_USER.split(), str(61000 + os.getpid() % 4000))
    if subprocess.run([*user, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no user without processes here: that needs root, and setpriv")
    return (*user, "prlimit", f"--nproc={count}:{count}")


@pytest.mark.root
def test_no_more_processes(tmp_path: Path, hold: Hold) -> None:
    """The limit is reached in the middle: those that are there are ended, too."""
    hold(Job(tmp_path, "--nproc-per-node", "4", "--", "sleep", "600", before=limit_processes(3)).end())


@pytest.mark.root
def test_no_process_for_the_watchdog(tmp_path: Path, hold: Hold) -> None:
    """The limit is just enough for what was asked for: the job runs."""
    words = ("--nproc-per-node", "4", "--", sys.executable, "-I", "-S", "-c", "import time; time.sleep(0.3)")
    hold(Job(tmp_path, *words, before=limit_processes(5)).end())


def test_no_more_descriptors(tmp_path: Path, hold: Hold) -> None:
    """32 processes, 32 descriptors: none is left running."""
    before = ("prlimit", "--nofile=32:32")
    hold(Job(tmp_path, "--nproc-per-node", "32", "--", "sleep", "600", before=before).end())


# --- what is left behind

STORM = """
import os, signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
start = time.monotonic()
count = 0
while (passed := time.monotonic() - start) < 2:
    if count < passed * 1000:
        count += 1
        if os.fork() == 0:
            os.fork()  # the child of this one is the orphan
            os._exit(0)
        os.wait()
os.write(1, b"%d\\n" % count)
signal.sigwait([signal.SIGUSR1])
"""


def test_a_storm_of_orphans(tmp_path: Path, hold: Hold) -> None:
    """1000 a second for 2 s: none stays as a zombie, and the exit is prompt."""
    job = Job(tmp_path, "--", sys.executable, "-I", "-S", "-c", STORM)
    (leader,) = job.ranks(1).values()
    assert int(job.line()) > 100  # a busy machine makes fewer
    wait_for(lambda: not any(read_state(pid) == "Z" for pid in job.children()), "no zombie is left")
    job.kill(leader, signal.SIGUSR1)
    hold(job.end())


MAIN_THREAD_ENDS = """
import ctypes, os, sys, threading, time
def work():
    while open("/proc/self/stat").read().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.005)
    os.write(1, b"ready\\n")
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.005)
    os._exit(4)
def go_on_without_main_thread():
    threading.Thread(target=work).start()
    ctypes.CDLL(None).pthread_exit(None)
"""


def test_the_main_thread_ends(tmp_path: Path, hold: Hold) -> None:
    """The kernel shows a zombie, but another thread works: that is a process, and its status counts."""
    go = tmp_path / "go"
    job = Job(tmp_path, "--", sys.executable, "-c", MAIN_THREAD_ENDS + "go_on_without_main_thread()", str(go))
    job.wait_until_ready(1)
    assert "Z" in map(read_state, job.children())
    go.touch()
    hold(job.end())


def test_the_main_thread_of_a_daemon_ends(tmp_path: Path, hold: Hold) -> None:
    """It is left behind like any other, and ended."""
    script = "if os.fork() == 0: go_on_without_main_thread()\nos.read(reading, 1)"
    script = f"reading, writing = os.pipe()\n{script}"
    script = MAIN_THREAD_ENDS.replace('b"ready\\n")', 'b"ready\\n"); os.write(writing, b"x")') + script
    hold(Job(tmp_path, "--", sys.executable, "-c", script, str(tmp_path / "never")).end())


# --- the table


@pytest.mark.parametrize("name", ROWS)
def test_every_row_is_tested(name: str) -> None:
    """It names a test of this file, a parameter of one, or a test elsewhere that asserts its words."""
    row = ROWS[name]
    file, _, test = name.rpartition("::")
    if not file:
        assert name in FAILING or name == "record" or f"test_{name}" in globals()
        return
    folders = (Path(__file__).parents[1] / folder for folder in ("process", "cluster"))
    path = next(folder / file for folder in folders if (folder / file).exists())
    text = path.read_text(encoding="utf-8")
    (node,) = [
        node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == test
    ]
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    source = "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    for words in row.words:
        for part in words.split(ANYTHING):
            assert part in source, part
    for status in row.statuses:
        name = signal.Signals(status - 128).name if status > 128 else "no signal"
        assert re.search(rf"\b({status}|{name})\b", source), status
