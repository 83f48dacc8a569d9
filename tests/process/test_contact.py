"""Processes that never meet are N jobs of one: they are warned about, those that meet are not.

Each job has a network namespace of its own: no connections of other tests, and a port that is free.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.starting import clean_environ, launch

pytestmark = pytest.mark.root

OWN_NETWORK = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable)
TRAFFIC = """
import os, socket, sys, time
server = socket.create_server(("127.0.0.1", 0))
while os.path.exists("/proc/" + sys.argv[1]):
    time.sleep(0.05)
    socket.create_connection(server.getsockname()).close()
    server.accept()[0].close()
"""
BESIDE = 'ip link set lo up; other="$1"; shift; ("$1" -c "$other" "$$" >&- 2>&- &); exec "$@"'
BESIDE_OTHERS = ("unshare", "--net", "sh", "-c", BESIDE, "sh", TRAFFIC)
"""The same with connections of a program that is none of the job's."""
BEGIN = """
import mmap, os, signal, socket, subprocess, sys, tempfile, time
rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
def connect(family=socket.AF_INET, host="127.0.0.1"):
    while True:
        try:
            return socket.create_connection((host, port))
        except ConnectionRefusedError:
            time.sleep(0.01)
def load():  # a file with the name of a framework's library: only the name counts
    with tempfile.TemporaryDirectory() as folder, open(folder + "/libgloo.so", "w+b") as file:
        file.truncate(4096)
        return mmap.mmap(file.fileno(), 4096, mmap.MAP_PRIVATE)
def meet():
    if rank == 0:
        with socket.create_server(("127.0.0.1", port)) as server:
            return [server.accept()[0] for _ in range(int(os.environ["WORLD_SIZE"]) - 1)]
    return [connect()]
"""
SECONDS = "2"
"""Longer than the 1 s that the tests give processes to meet."""
LONG = "5"
"""At the end a process is judged by its last second: on a busy machine that it began is seen late."""
ALONE = f"library = load()\ntime.sleep({LONG})\n"
STAYS = f"kept = meet()\ntime.sleep({SECONDS})\n"
BRIEF = (
    f"time.sleep({SECONDS})\nfor one in meet():\n    one.sendall(b'x')\n    one.recv(1)\n    one.close()\n"
)
IN_A_CHILD = f"subprocess.run([sys.executable, '-c', sys.argv[1] + '''\n{STAYS}'''], check=True)\n"
SHARED = f"""
with open(sys.argv[2], "r+b") as file:
    kept = mmap.mmap(file.fileno(), 4096)
time.sleep({SECONDS})
"""
TO_ITSELF = f"""
library = load()
server = socket.create_server(("127.0.0.1", 0))
kept = [socket.create_connection(server.getsockname()), server.accept()]
time.sleep({LONG})
"""
LATE = f"time.sleep({SECONDS})\nkept = meet()\ntime.sleep(0.5)\n"


def run(program: str, *flags: str, words: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run two processes that have a second to meet; ``words`` are more of the program's arguments."""
    few = ("--nproc-per-node", "2", "--meeting-timeout", "1")
    command = (sys.executable, "-c", BEGIN + program, BEGIN, *words)
    return launch("run", *few, *flags, "--", *command, interpreter=OWN_NETWORK)


def warnings(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return what the launcher says about processes that have not met."""
    return [line for line in done.stderr.splitlines() if "[never-met]" in line]


def test_processes_that_never_meet_are_warned_about_while_they_run_and_at_the_end(tmp_path: Path) -> None:
    """The fix stands in the first one; the status is the processes' own, and the record says both."""
    record = tmp_path / "record"
    done = run(ALONE, "--failure-file", str(record))
    assert done.returncode == 0
    told = json.loads(record.read_text())
    assert (told["exit_status"], [cause["code"] for cause in told["causes"]]) == (0, ["never-met"])
    first, *last = warnings(done)  # on a busy machine the end may be unproven
    assert first.startswith(
        "launcher: warning: [never-met] ranks 0-1 were not seen connected to another process of the job"
    )
    assert "; fix: " in first
    assert "--no-meeting" in first
    for line in last:
        assert line.startswith(
            "launcher: warning: [never-met] all processes have ended; ranks 0-1 were not seen connected "
        )
        assert "fix: " not in line


def test_processes_that_end_before_are_warned_about_at_the_end() -> None:
    """Five seconds with a framework are enough to be judged, whatever else connects on the machine.

    On a busy machine that it was loaded is seen some seconds late.
    """
    program = BEGIN + "library = load()\ntime.sleep(15)\n"
    few = ("run", "--nproc-per-node", "2", "--", sys.executable, "-c", program)
    done = launch(*few, interpreter=(*BESIDE_OTHERS, sys.executable))
    assert done.returncode == 0
    (line,) = warnings(done)
    assert "all processes have ended" in line
    assert "; fix: " in line


def test_a_library_that_is_unloaded_at_the_end_hides_nothing() -> None:
    """As JAX does; what is loaded there could be the beginning of a meeting."""
    kind = "prot=mmap.PROT_READ | mmap.PROT_EXEC, flags=mmap.MAP_PRIVATE"
    code = f"file = open(sys.executable, 'rb')\nmore = mmap.mmap(file.fileno(), 4096, {kind})"
    program = f"{BEGIN}{code}\nlibrary = load()\ntime.sleep(15)\nmore.close()\ntime.sleep(1)\n"
    done = launch(
        "run", "--nproc-per-node", "2", "--", sys.executable, "-c", program, interpreter=OWN_NETWORK
    )
    assert done.returncode == 0 and len(warnings(done)) == 1


@pytest.mark.parametrize("program", [STAYS, BRIEF, IN_A_CHILD], ids=["stays", "brief", "in-a-child"])
def test_processes_that_meet_are_not(program: str) -> None:
    """By a connection that stays, one that is closed between two looks, and one of a child process."""
    done = run(program, "--meeting-timeout", "30" if program == BRIEF else "1.5")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_process_that_talks_to_itself_has_not_met() -> None:
    """A process with a server of its own. At the end it is judged only if the machine was calm."""
    assert warnings(run(TO_ITSELF))


IN_ACCELERATE = f"""
place = dict(os.environ, ACCELERATE_USE_CPU="False")
subprocess.run([sys.executable, "-c", sys.argv[1] + '''\nlibrary = load()
kept = meet()\ntime.sleep({LONG})'''], env=place, check=True)
"""
"""As by ``accelerate launch`` in a rank without a GPU: its process joins a group, and trains alone."""


def test_processes_of_accelerate_that_use_no_job_are_warned_about() -> None:
    """Without an accelerator it ignores the job: the connections of its process prove nothing."""
    told = warnings(run(IN_ACCELERATE))
    assert any("started by accelerate launch" in line for line in told)  # or not at first: it starts slowly


def test_a_single_process_of_accelerate_is_warned_about(tmp_path: Path) -> None:
    """As COMMAND, where its own configuration is for one process: it gives that one no rank."""
    program = tmp_path / "accelerate"
    child = f"import os, time\nassert 'RANK' not in os.environ\ntime.sleep({LONG})"
    program.write_text(f'#!/bin/sh\nACCELERATE_USE_CPU=False {sys.executable} -c "{child}"\n')
    program.chmod(0o755)
    line = (str(program), "launch", "--config_file", "one.yaml", "train.py")
    few = ("run", "--nproc-per-node", "2", "--meeting-timeout", "1", "--", *line)
    (told,) = warnings(launch(*few, interpreter=OWN_NETWORK))[:1]
    assert "[never-met] rank 0 was started by accelerate launch as a single process: " in told


def test_processes_that_meet_late_take_the_warning_back() -> None:
    """A slow start is no failure: one line completes what was said."""
    done = run(LATE)
    assert done.returncode == 0
    said = [line for line in done.stderr.splitlines() if line.startswith("launcher:")]
    assert len(said) == 2
    assert "[never-met]" in said[0]
    assert said[1].startswith("launcher: the processes have met, ")


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--no-meeting",), "the check is off (--no-meeting)"),
        (("--nproc-per-node", "1"), "the job has one process"),
    ],
    ids=["asked", "one"],
)
def test_nothing_is_looked_at_where_nothing_is_to_meet(flags: tuple[str, ...], why: str) -> None:
    """Shards that never talk on purpose, and a job of one process: the time limit has no effect."""
    done = run(ALONE, *flags)
    said = f"launcher: warning: --meeting-timeout 1: no effect, {why}\n"
    assert (done.returncode, done.stderr) == (0, said)


@pytest.mark.parametrize("command", [("echo", "hello"), ("sleep", "8")], ids=["short", "no-framework"])
def test_what_nobody_expects_to_meet_is_left_alone(command: tuple[str, ...]) -> None:
    """Four times hello; shards of a program that loads no framework."""
    done = launch("run", "--nproc-per-node", "4", "--", *command, interpreter=OWN_NETWORK)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("program", "flags"),
    [("time.sleep(3600)", ()), ("time.sleep(8)", ("--meeting-timeout", "30"))],
    ids=["long", "ended"],
)
def test_a_meeting_that_is_required_and_never_was_is_status_78(
    program: str, flags: tuple[str, ...], tmp_path: Path
) -> None:
    """While it runs, and where all have ended with 0; with the verdict and its record."""
    record = tmp_path / "failure.json"
    done = run(program, *flags, "--require-meeting", "--failure-file", str(record))
    assert done.returncode == 78, done.stderr
    assert (
        "[never-met] the launcher ended the job (--require-meeting): ranks 0-1 were not seen " in done.stderr
    )
    (cause,) = json.loads(record.read_text())["causes"]
    assert (cause["code"], cause["retryable"]) == ("never-met", False)


def test_a_required_meeting_that_takes_place_costs_nothing() -> None:
    """Status 0."""
    done = run(STAYS, "--require-meeting", "--meeting-timeout", "30")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_record_of_a_failure_tells_of_it(tmp_path: Path) -> None:
    """Behind the cause itself: what was warned about may be why."""
    record = tmp_path / "failure.json"
    done = run(ALONE + "1 / 0", "--failure-file", str(record))
    assert done.returncode == 1
    assert [cause["code"] for cause in json.loads(record.read_text())["causes"]] == [
        "python-exception",
        "never-met",
    ]
    assert "failed first" in done.stderr


LOADS_MORE = "library = load()\ntime.sleep(5)\nimport _ctypes, _decimal, _sqlite3\ntime.sleep(1)\n"
LOADS = "time.sleep(5)\nlibrary = load()\ntime.sleep(1)\n"


@pytest.mark.parametrize("program", [LOADS, LOADS_MORE], ids=["framework", "more"])
def test_what_may_have_met_unseen_is_not_said_to_have_not(program: str) -> None:
    """Loading takes long, and a meeting between two looks is not seen: silence at the end."""
    done = run(program, "--meeting-timeout", "30")
    assert (done.returncode, done.stderr) == (0, "")


AGENT = ("--engine", "torchrun", "--standalone", "--require-meeting")
JOIN = "import torch.distributed as dist\ndist.init_process_group('gloo')\ntime.sleep(2)\n"
ONCE_MORE = (
    "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n    time.sleep(1.5)\n    sys.exit(1)\n" + JOIN
)


@pytest.mark.torch
def test_the_workers_of_an_agent_have_to_meet_too(tmp_path: Path) -> None:
    """The agent and its rendezvous prove nothing: status 78, as where the launcher starts the processes."""
    record = tmp_path / "failure.json"
    done = run("time.sleep(3600)", *AGENT, "--init", "--failure-file", str(record))
    assert done.returncode == 78, done.stderr
    assert "the job ends (--require-meeting): ranks 0-1 were not seen connected" in done.stderr
    assert json.loads(record.read_text())["causes"][0]["code"] == "never-met"


@pytest.mark.torch
@pytest.mark.parametrize("program", [JOIN, ONCE_MORE], ids=["joined", "restarted"])
def test_workers_that_join_have_met(program: str) -> None:
    """By the store of their agent; after a restart the time begins again."""
    done = run(program, *AGENT, "--max-restarts", "1", "--meeting-timeout", "30")
    assert done.returncode == 0, done.stderr
    assert "[never-met]" not in done.stderr


def test_a_requirement_that_is_switched_off_is_refused() -> None:
    """Both flags, and a flag with the other's variable."""
    done = launch("run", "--no-meeting", "--require-meeting", "--", "true")
    assert done.returncode == 64
    done = launch("run", "--require-meeting", "--", "true", environ={"LAUNCHER_MEETING": "0"})
    assert (done.returncode, "flag-conflict" in done.stderr) == (64, True)


def test_what_meets_is_not_warned_about(tmp_path: Path) -> None:
    """By shared memory, and by an address that is mapped; a process that talks to itself has not met."""
    # As MPI's processes of one node have it: no socket is needed.
    segment = tmp_path / "segment"
    segment.write_bytes(bytes(4096))
    done = run(SHARED, words=(str(segment),))
    assert (done.returncode, done.stderr) == (0, "")
    # A server on IPv6 that takes IPv4: the kernel shows one end in each table.
    program = """
import socket
from launcher.observers.connections import find_pairs, read_table
server = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
client = socket.create_connection(("127.0.0.1", server.getsockname()[1]))
print(len(find_pairs(read_table())))
"""
    done = launch_python(program)
    assert done.stdout == "2\n", done.stderr


def launch_python(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a network of its own."""
    return subprocess.run(
        [*OWN_NETWORK, "-c", program], capture_output=True, text=True, env=clean_environ(), check=False
    )
