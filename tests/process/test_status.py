"""``launcher status``, ``stacks`` and ``exec`` on one node: their output, and which users may ask."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from launcher.cli.status import find_debugger
from launcher.control import NAME as SOCKET_NAME
from launcher.control import QUESTION_LIMIT_BYTES, client
from launcher.control.responder import CLIENTS_MAX, PROGRAMS_MAX
from launcher.core.errors import EXIT_NOT_READY, Unavailable
from launcher.core.wire import Garbled
from tests.process.asking import Asked, read_all
from tests.process.looking import is_gone, wait_for
from tests.process.starting import clean_environ, launch, open_launcher
from tests.process.test_terminal import Terminal
from tests.pythons import need_python

pytestmark = pytest.mark.xdist_group("status")

NOBODY = 65534
STATUS = b'{"ask": "status"}\n'
FORKS = """
import os, sys
import launcher
launcher.arm()
def load():
    import time
    time.sleep(3600)
if os.fork() == 0:
    load()
open(sys.argv[1] + "/up-" + os.environ["RANK"], "w").close()
os.wait()
"""
LOOPS = """
import os, sys, time
def loop(seen):
    while not os.path.exists(sys.argv[1] + "/end"):
        time.sleep(0.05)
open(sys.argv[1] + "/up-" + os.environ["RANK"], "w").close()
loop("by rank " + os.environ["RANK"])
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Asked]:
    """Yield a job of two ranks: rank 0 sleeps for an hour, and rank 1 runs a loop."""
    one = Asked(tmp_path)
    yield one
    one.end()


# --- status


def test_status_shows_every_rank(job: Asked) -> None:
    """As rows and as JSON: state, CPU, memory, the time since the last output, and what the kernel tells."""
    # Each row has the rank's state, its CPU and memory use, and the time since its last output.
    done = job.run("status")
    assert (done.returncode, done.stderr) == (0, "")
    head, titles, *rows = done.stdout.splitlines()
    assert head.startswith("python3 ") and "2 of 2 ranks run" in head
    assert titles.split()[:5] == ["node", "host", "rank", "pid", "state"]
    assert [row.split()[2] for row in rows[:2]] == ["0", "1"]
    assert all("running" in row and " % " in row and " MiB " in row and "s ago" in row for row in rows[:2])
    # Each rank has its pid, memory, CPU time and number of processes; the node has the launcher's facts.
    (node,) = job.status()["nodes"]
    assert (node["pid"], node["state"], node["world_size"]) == (job.launcher.pid, "running", 2)
    for rank in node["ranks"]:
        assert Path(f"/proc/{rank['pid']}/cmdline").read_bytes().endswith(f"{job.folder}\0".encode())
        assert rank["memory_bytes"] > 1 << 20 and rank["cpu_s"] >= 0 and rank["process_count"] == 1
        assert 0 <= rank["cpu_percent"] < 100 and rank["silence_s"] >= 0
    # The kernel's state is added if it tells more than that the rank runs.
    pid = job.status()["nodes"][0]["ranks"][1]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_for(lambda: job.status()["nodes"][0]["ranks"][1]["kernel_state"] == "T", "it is stopped")
        assert "running (T)" in job.run("status").stdout
    finally:
        os.kill(pid, signal.SIGCONT)


FAILS_WHEN_ALL_ARE_UP = """
import glob, os, sys, time
open(sys.argv[1] + "/up-" + os.environ["RANK"], "w").close()
while len(glob.glob(sys.argv[1] + "/up-*")) < 2:
    time.sleep(0.01)
sys.exit(3)
"""


def test_status_shows_how_long_a_restart_waits(tmp_path: Path) -> None:
    """Both quick failures are over: nothing runs, and the job has not ended."""
    job = Asked(tmp_path, "--restarts", "5", "--restart-delay", "60", script=FAILS_WHEN_ALL_ARE_UP)
    try:
        wait_for(lambda: " for restart 2" in job.status()["nodes"][0]["state"], "it waits")
        head = job.run("status").stdout.splitlines()[0]
        assert re.search(r"0 of 2 ranks run · .* · waits [0-9.]+ s for restart 2$", head), head
    finally:
        job.end()


def test_status_shows_exited_ranks_and_counts_restarts(tmp_path: Path) -> None:
    """The launcher's messages are among the events."""
    script = """
import os, sys, time
count = os.environ["TORCHELASTIC_RESTART_COUNT"]
if count == "0" and os.environ["RANK"] == "1":
    sys.exit(3)
if count == "1" and os.environ["RANK"] == "1":
    sys.exit(0)
if count == "1":
    open(sys.argv[1] + "/up-0", "w").close()
time.sleep(3600)
"""
    job = Asked(tmp_path, "--restarts", "1", script=script, expected=1)
    try:
        wait_for(lambda: job.status()["nodes"][0]["ranks"][1]["state"] == "exited with code 0", "its end")
        (node,) = job.status()["nodes"]
        assert (node["attempt"], node["restarts"]) == (1, 1)
        assert any("restart 1 of 1" in event["what"] for event in node["events"])
        text = job.run("status").stdout
        assert "exited with code 0" in text and "restart 1 of 1" in text and "1 of 2 ranks run" in text
    finally:
        job.end()


def test_status_lists_the_workers_of_torchrun(tmp_path: Path) -> None:
    """Their ranks are those in their environments."""
    script = """
import os, sys, time
open(sys.argv[1] + "/up-" + os.environ["RANK"], "w").close()
time.sleep(3600)
"""
    job = Asked(tmp_path, "--engine", "torchrun", "--init", "--standalone", script=script)
    try:
        agent, *ranks = job.status()["nodes"][0]["ranks"]
        assert (agent["name"], agent["rank"]) == ("torchrun", None)
        assert [(rank["rank"], rank["local_rank"]) for rank in ranks] == [(0, 0), (1, 1)]
        assert agent["process_count"] >= 1 and all(rank["process_count"] == 1 for rank in ranks)
    finally:
        job.end()


PRINTS = """
import os, sys, time
print("tokens/s", 287.5 if os.environ["RANK"] == "1" else 310, flush=True)
open(sys.argv[1] + "/up-" + os.environ["RANK"], "w").close()
time.sleep(3600)
"""


def test_status_names_the_rank_whose_number_is_too_low(tmp_path: Path) -> None:
    """``--slow-below``: a number in the output is a rule; nothing follows but a line."""
    pattern = ("--progress-pattern", r"tokens/s (?P<value>[\d.]+)", "--slow-below", "300")
    job = Asked(tmp_path, *pattern, script=PRINTS)
    try:
        line = "rank 1 prints 287.5, which is below 300 (--slow-below)"
        wait_for(lambda: f"slow: {line}" in job.run("status").stdout, "it is named")
        found = job.status()
        assert found["stragglers"] == [{"ranks": [1], "nodes": [], "what": line.removeprefix("rank 1 ")}]
        assert [row["value"] for row in found["nodes"][0]["ranks"]] == [310.0, 287.5]
        assert job.launcher.poll() is None
    finally:
        job.end()


@pytest.mark.thorough
@pytest.mark.parametrize("flags", [(), ("--no-stragglers",)], ids=["looks", "none"])
def test_status_names_the_rank_that_sleeps_while_the_others_wait(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """From outside: the script has no line for it. With ``--no-stragglers`` there are no looks."""
    script = """
import os, socket, sys, time
rank, folder = os.environ["RANK"], sys.argv[1]
path = folder + "/socket"
if rank == "0":
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    open(path + ".ready", "w").close()
    other = server.accept()[0]
else:
    while not os.path.exists(path + ".ready"):
        time.sleep(0.01)
    other = socket.socket(socket.AF_UNIX)
    other.connect(path)
open(folder + "/up-" + rank, "w").close()
while True:
    if rank == "1":
        time.sleep(0.05)
    other.send(b"x")
    other.recv(1)
"""
    job = Asked(tmp_path, *flags, script=script)
    try:
        if flags:
            wait_for(lambda: job.status()["nodes"][0]["elapsed_s"] > 40, "it was time enough", 90)
            assert "slow:" not in job.run("status").stdout
            assert "pace" not in job.status()["nodes"][0]["ranks"][0]
        else:
            wait_for(lambda: "slow: rank 1 is in sleep" in job.run("status").stdout, "it is named", 90)
    finally:
        job.end()


def test_log_dir_contains_no_socket(tmp_path: Path) -> None:
    """The job keeps it in a private folder: others may read --log-dir, or it may not support sockets."""
    job = Asked(tmp_path, "--log-dir", str(tmp_path / "logs"), "-r", "3")
    assert os.stat(os.path.dirname(job.path)).st_mode & 0o777 == 0o700
    assert job.status()["nodes"][0]["state"] == "running"
    job.end()
    assert not list(tmp_path.glob("launcher_*")) and not list((tmp_path / "logs").rglob("status"))


def test_socket_is_in_another_folder_if_its_path_would_be_too_long(tmp_path: Path) -> None:
    """A socket's path has at most 107 bytes; clients find the socket in the other folder."""
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    (folder / "train.py").write_text("import time; print('up', flush=True); time.sleep(3600)")
    environ = clean_environ(TMPDIR=str(folder))
    line = (sys.executable, "-m", "launcher", "run", "--nproc-per-node", "2", "--", "python3")
    with subprocess.Popen(
        [*line, str(folder / "train.py")], env=environ, stdout=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout is not None and "up" in launcher.stdout.readline()
        ask = partial(launch, "status", "--json", "--job", str(launcher.pid))
        wait_for(lambda: ask().returncode == 0, "the socket listens")
        done = ask()
        launcher.send_signal(signal.SIGTERM)
        launcher.stdout.read()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["nodes"][0]["pid"] == launcher.pid


def test_watch_updates_the_table_until_the_job_ends(job: Asked) -> None:
    """--watch on a terminal shows one table that changes."""
    terminal = Terminal(
        [sys.executable, "-m", "launcher", "status", "--watch", "0.5", "--job", str(job.launcher.pid)],
        TMPDIR=str(job.folder),
        COLUMNS="150",
        LINES="30",
    )
    try:
        terminal.wait_for("2 of 2 ranks run")
        terminal.wait_for(r"\d %")  # known from the second view on
        job.end()
        assert terminal.end() == 0
        assert "the job has ended" in terminal.seen
    finally:
        os.close(terminal.fd)


def test_watch_takes_keys_from_a_terminal_that_does_not_control_it(job: Asked) -> None:
    """A program that opens a terminal for another one need not make it the controlling one."""
    main, side = os.openpty()
    line = [sys.executable, "-m", "launcher", "status", "--watch", "60", "--job", str(job.launcher.pid)]
    environ = clean_environ(TMPDIR=str(job.folder), TERM="xterm", COLUMNS="150", LINES="30")
    with subprocess.Popen(line, env=environ, stdin=side, stdout=side, stderr=side) as watching:
        os.close(side)
        seen = b""
        while b"2 of 2 ranks run" not in seen:
            seen += os.read(main, 1 << 16)  # fails when the command has ended
        os.write(main, b"q")
        assert watching.wait(timeout=20) == 0
    os.close(main)


def test_watch_keys_sort_the_rows_and_exit(job: Asked) -> None:
    """As in htop, c sorts by CPU and q quits; the terminal is then restored and shows the last table."""
    terminal = Terminal(
        [sys.executable, "-m", "launcher", "status", "--watch", "60", "--job", str(job.launcher.pid)],
        TMPDIR=str(job.folder),
        COLUMNS="150",
        LINES="30",
    )
    try:
        terminal.wait_for("\x1b\\[\\?1049h")  # the alternate screen
        terminal.wait_for("node ▾")
        terminal.type("c")
        terminal.wait_for("cpu ▾")
        before = time.monotonic()
        terminal.type("q")
        assert terminal.end() == 0 and time.monotonic() - before < 20
    finally:
        os.close(terminal.fd)
    _, own, after = terminal.seen.partition("\x1b[?1049l")
    assert own and "2 of 2 ranks run" in after and "quit" not in after


def test_watch_into_a_pipe_prints_plain_lines(job: Asked) -> None:
    """The table is printed repeatedly, without terminal codes."""
    line = [sys.executable, "-m", "launcher", "status", "--watch", "0.5", "--job", str(job.launcher.pid)]
    environ = clean_environ(TMPDIR=str(job.folder))
    with subprocess.Popen(line, env=environ, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        lines = [watching.stdout.readline() for _ in range(10)]
        job.end()
        rest = watching.stdout.read()
    assert watching.returncode == 0
    assert sum("ranks run" in line for line in lines) == 2 and "\x1b" not in "".join(lines) + rest


# --- stacks


def test_debug_names_py_spy_where_pdb_cannot_attach(job: Asked) -> None:
    """Of a Python before 3.14, of a program that is no Python, and of a rank that does not exist."""
    pid = job.status()["nodes"][0]["ranks"][1]["pid"]
    done = job.run("debug", "--rank", "1")
    assert done.returncode == 69 and "Traceback" not in done.stderr, done.stderr
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert f"rank 1 (pid {pid}) runs Python {version}; pdb can attach to Python 3.14 or newer" in done.stderr
    assert f"py-spy dump --pid {pid}" in done.stderr
    done = job.run("debug", "--rank", "7")
    assert done.returncode == 64 and "rank 7 does not run" in done.stderr
    with pytest.raises(Unavailable, match="runs no Python of this machine"):
        find_debugger(0, os.getpid() + (1 << 22))  # nothing


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_debug_runs_no_program_of_another_user() -> None:
    """Root would run the Python of the rank, which that user may have made."""
    with subprocess.Popen(
        ["/usr/bin/python3", "-I", "-c", "input()"], user=NOBODY, group=NOBODY, stdin=subprocess.PIPE, cwd="/"
    ) as other:
        with pytest.raises(Unavailable, match=f"user {NOBODY}"):
            find_debugger(0, other.pid)
        other.communicate(b"\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_debug_runs_no_program_of_a_process_that_becomes_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's Python may become a set-user-ID program of root right after its path was read."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    program = folder / "sleep"
    shutil.copy("/usr/bin/sleep", program)
    program.chmod(0o4755)
    code = f"import os; input(); os.execv({str(program)!r}, ['sleep', '60'])"
    with subprocess.Popen(
        ["/usr/bin/python3", "-I", "-c", code], user=NOBODY, group=NOBODY, stdin=subprocess.PIPE, cwd="/"
    ) as other:

        def read_before_it_changes(path: str) -> str:
            found = os.readlink(path)
            assert other.stdin is not None
            other.stdin.write(b"\n")
            other.stdin.flush()
            wait_for(lambda: os.readlink(path) == str(program), "it runs another program")
            return found

        try:
            monkeypatch.setattr("launcher.cli.status.read_link", read_before_it_changes)
            with pytest.raises(Unavailable, match=f"user {NOBODY}"):
                find_debugger(0, other.pid)
        finally:
            other.kill()
            shutil.rmtree(folder)


NAMES_ANOTHER = """
import json, os, socket, sys
folder = "/dev/shm/launcher_%016x" % os.getpid()
os.mkdir(folder)
os.chmod(folder, 0o755)
listening = socket.socket(socket.AF_UNIX)
listening.bind(f"{folder}/NAME")
os.chmod(f"{folder}/NAME", 0o666)
listening.listen(9)
print("up", flush=True)
who = {"pid": os.getpid(), "run": "invented", "elapsed_s": 1.0, "node_rank": 0, "host": "here"}
row = {"rank": 0, "pid": int(sys.argv[1]), "state": "running"}
while asked := (connected := listening.accept()[0]).recv(4096):
    answer = who if b"who" in asked else {"node": 0, "answer": {**who, "ranks": [row]}}
    connected.sendall(json.dumps(answer).encode() + b"\\n" + b'{"over": true}\\n')
    connected.close()
os.unlink(f"{folder}/NAME")
os.rmdir(folder)
""".replace("NAME", SOCKET_NAME)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_debug_attaches_to_no_process_that_a_launcher_of_another_user_names() -> None:
    """It could name any Python of root, which would stand still at pdb's prompt."""
    with subprocess.Popen(
        ["/usr/bin/python3", "-I", "-c", NAMES_ANOTHER, str(os.getpid())],
        user=NOBODY,
        group=NOBODY,
        extra_groups=(),
        cwd="/",
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == b"up\n"
        try:
            done = launch("debug", "--job", str(other.pid), "--rank", "0")
        finally:
            with socket.socket(socket.AF_UNIX) as ends_it:
                ends_it.connect(f"/dev/shm/launcher_{other.pid:016x}/{SOCKET_NAME}")
    assert done.returncode == 69 and f"user {NOBODY}" in done.stderr, done.stderr
    assert str(os.getpid()) not in done.stderr


def test_debug_runs_no_program_that_only_has_the_path_of_a_ranks_python(tmp_path: Path) -> None:
    """A rank in a container of its own sees other files: in our /tmp, its path may be another user's file."""
    python = tmp_path / "python3"
    python.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    python.chmod(0o755)
    there = f"mount -t tmpfs none {tmp_path} && cp /usr/bin/sleep {python} && exec {python} 60"
    with subprocess.Popen(["unshare", "--map-root-user", "--mount", "sh", "-c", there]) as rank:
        try:
            wait_for(lambda: os.readlink(f"/proc/{rank.pid}/exe") == str(python), "it runs")
            with pytest.raises(Unavailable, match="runs no Python of this machine"):
                find_debugger(0, rank.pid)
        finally:
            rank.kill()
    assert not (tmp_path / "ran").exists()


def test_debug_attaches_pdb_and_lets_go(tmp_path: Path) -> None:
    """The prompt sees the variables of the rank; after ``quit`` the rank goes on."""
    job = Asked(tmp_path, script=LOOPS, python=need_python(14))
    try:
        line = [sys.executable, "-m", "launcher", "debug", "--job", str(job.launcher.pid), "--rank", "1"]
        environ, asked = clean_environ(**job.environ), "p seen\nquit\n"
        done = subprocess.run(
            line, env=environ, input=asked, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0 and "(Pdb) 'by rank 1'" in done.stdout, done.stderr
        (tmp_path / "end").touch()
        assert job.launcher.wait(30) == 0
    finally:
        job.end()


def test_stacks_shows_equal_stacks_once(tmp_path: Path) -> None:
    """The child processes of ranks are shown below the ranks."""
    job = Asked(tmp_path, script=FORKS)
    try:
        text = job.run("stacks").stdout
        assert text.count("ranks 0-1, innermost first") == 1
        assert "below ranks 0-1: pid " in text
        assert text.count("in load") == 2  # in the summary, and in the stack
    finally:
        job.end()


def test_stacks_shows_all_threads_only_on_request(tmp_path: Path) -> None:
    """The main thread comes first."""
    script = HANGS_WITH_THREAD
    job = Asked(tmp_path, script=script, count=1)
    try:
        assert "in beside" not in job.run("stacks").stdout
        text = job.run("stacks", "--threads").stdout
        assert text.index("in fetch") < text.index("in beside")
    finally:
        job.end()


HANGS_WITH_THREAD = """
import os, sys, threading, time
import launcher
launcher.arm()
def fetch():
    time.sleep(3600)
def beside():
    time.sleep(3600)
threading.Thread(target=beside, daemon=True).start()
open(sys.argv[1] + "/up-0", "w").close()
fetch()
"""


def test_the_main_thread_is_shown_of_stacks_that_are_too_long(tmp_path: Path) -> None:
    """Threads with deep stacks of long names: the dump has more than what is read of it."""
    job = Asked(tmp_path, script=HANGS_WITH_DEEP_THREADS, count=1)
    try:
        assert "in fetch" in job.run("stacks").stdout
    finally:
        job.end()


HANGS_WITH_DEEP_THREADS = f"""
import sys, threading, time
import launcher
launcher.arm()
def fetch():
    open(sys.argv[1] + "/up-0", "w").close()
    time.sleep(3600)
def deep_{"x" * 200}(left):
    deep_{"x" * 200}(left - 1) if left else ready.wait() + 1 and time.sleep(3600)
ready = threading.Barrier(61)
for _ in range(60):
    threading.Thread(target=deep_{"x" * 200}, args=(98,), daemon=True).start()
ready.wait()
fetch()
"""


def test_stacks_names_ranks_without_a_stack_and_the_reason(tmp_path: Path) -> None:
    """One rank has exited; the other has no hook, and py-spy is not installed."""
    script = """
import os, sys, time
open(sys.argv[1] + "/up-" + os.environ["RANK"], "w").close()
if os.environ["RANK"] == "1":
    sys.exit(0)
time.sleep(3600)
"""
    path_without_py_spy = os.pathsep.join(
        folder
        for folder in os.environ["PATH"].split(os.pathsep)
        if not os.path.exists(os.path.join(folder, "py-spy"))
    )
    job = Asked(tmp_path, script=script, python="/usr/bin/python3", PATH=path_without_py_spy)
    try:
        wait_for(lambda: "exited" in job.status()["nodes"][0]["ranks"][1]["state"], "rank 1 has ended")
        text = job.run("stacks").stdout
        assert "rank 1 (pid " in text and "it exited with code 0 (node 0)" in text
    finally:
        job.end()


def test_stacks_shows_where_each_rank_waits(job: Asked) -> None:
    """The summary of a stall report comes first; later requests join the first one."""
    # The summary of a stall report comes first, then every stack.
    done = job.run("stacks")
    assert done.returncode == 0, done.stderr
    assert "rank 0 waits in sleep (" in done.stdout and "in fetch" in done.stdout
    assert "rank 0, innermost first (faulthandler):" in done.stdout
    assert f'    File "{job.script}", line 6, in fetch' in done.stdout
    # Later requests join the first one, so that each process is asked once.
    clients = [job.connect() for _ in range(4)]
    for one in clients:
        one.sendall(b'{"ask": "stacks"}\n')
    answers = [json.loads(read_all(one).splitlines()[0])["answer"] for one in clients]
    assert all(len(answer["processes"]) == 2 and answer["stacks"] for answer in answers)


# --- programs of people


def test_exec_has_the_launchers_environment_without_the_token(tmp_path: Path) -> None:
    """It is of this run, so that nothing of it survives the job."""
    job = Asked(tmp_path, LAUNCHER_TOKEN="t" * 40, OWN="mine")
    try:
        done = job.run("exec", "--all", "--", "env")
        assert "node 0: OWN=mine\n" in done.stdout and "t" * 40 not in done.stdout
        assert "LAUNCHER_RUN_ID=" in done.stdout and "LAUNCHER_TOKEN" not in done.stdout
    finally:
        job.end()


def test_the_end_of_the_job_ends_a_program(job: Asked) -> None:
    """It does not count among the processes that the job waits for."""
    script = f"echo $$ > {job.folder}/program; setsid sleep 3597 & echo $! > {job.folder}/kept; sleep 3596"
    asking = open_launcher(
        "exec", "--all", "--job", str(job.launcher.pid), "--", "sh", "-c", script, environ=job.environ
    )
    wait_for(lambda: read_number(job.folder / "kept") > 0, "it runs")
    began = time.monotonic()
    assert "left behind" not in job.end()[1]
    assert time.monotonic() - began < 10
    for name in ("program", "kept"):
        wait_for(lambda: is_gone(read_number(job.folder / name)), "it is gone")  # noqa: B023
    assert asking.communicate(timeout=30)[1].startswith("launcher: error: [no-answer] ")
    assert asking.returncode == 75


def read_number(path: Path) -> int:
    """Return the number in a file; 0 before it is written."""
    return int((path.read_text() if path.exists() else "") or 0)


def test_exec_runs_a_program_and_returns_its_status(job: Asked) -> None:
    """Prefixes on both streams, the beginning of a long output, and names for what it cannot run or ask."""
    # Both streams in order, without input; escapes are printable, and words never reach a shell.
    script = """cat; printf 'a\\tb\\n'; printf 'c\\n' >&2; printf '\\033[31md %s' "$1"; exit 7"""
    done = job.run("exec", "--all", "--", "sh", "-c", script, "sh", "$(id); *")
    assert done.stdout == "node 0: a\tb\nnode 0: c\nnode 0: \\x1b[31md $(id); *\n"
    assert done.returncode == 7 and done.stderr == "launcher: node 0: exit status 7\n"
    # What is left out is counted.
    done = job.run("exec", "0", "--", "sh", "-c", "yes 123456789 | head -c 1000000; yes | head -c 10 >&2")
    shown = done.stdout.replace("node 0: ", "")
    assert done.returncode == 0 and 20_000 < len(shown) < 48_000 and shown.startswith("123456789\n" * 2_000)
    left = int(done.stderr.removeprefix("launcher: node 0: ").split()[0])
    assert left == 1_000_010 - len(shown) + (not shown.endswith("9\n"))  # a cut line gets an end
    # As a shell does; a node without a result outweighs a program that succeeds.
    for nodes, program, status, says in (
        ("0", "/no/such", 127, "node 0: exit status 127: /no/such: No such file or directory"),
        ("0", "/etc", 126, "node 0: exit status 126: /etc: Permission denied"),
        ("0,5", "true", 75, "node 5: no result: the job has no such node"),
    ):
        done = job.run("exec", nodes, "--", program)
        assert (done.returncode, done.stderr) == (status, f"launcher: {says}\n")
    # Also a descendant in a session of its own; the output up to then is shown.
    script = f"setsid sleep 3599 & echo $! > {job.folder}/kept; echo begun; sleep 3598"
    done = job.run("exec", "0", "--timeout", "1", "--", "sh", "-c", script)
    assert (done.returncode, done.stdout) == (124, "node 0: begun\n")
    assert done.stderr == "launcher: node 0: exit status 124: killed after 1 s\n"
    wait_for(lambda: is_gone(int((job.folder / "kept").read_text())), "its descendant is gone")
    assert "2 of 2 ranks run" in job.run("status").stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("0", "--all", "--", "true"), "expected either NODE or --all"),
        (("--", "true"), "expected either NODE or --all"),
        (("0", "true"), "unrecognized arguments: true"),
        (("0", "--"), "expected -- COMMAND"),
        (("0",), "expected -- COMMAND"),
        (("0,x", "--", "true"), "'0,x': expected node ranks"),
        (("0", "--", "echo", "x" * 40_000), "expected a shorter command line"),
        (("0", "--timeout", "9999", "--", "true"), "expected seconds in 0.5..3600"),
    ],
)
def test_exec_refuses_a_line_that_cannot_be_meant(words: tuple[str, ...], says: str) -> None:
    """Before it looks for a job."""
    done = launch("exec", *words)
    assert done.returncode == 64 and "error: [usage] " in done.stderr and says in done.stderr


def test_programs_at_the_same_time_are_limited(job: Asked) -> None:
    """One more is refused, and the job is asked as before."""
    line = json.dumps({"ask": "exec", "argv": ["sleep", "30"], "limit_s": 20.0}).encode() + b"\n"
    clients = [job.connect() for _ in range(PROGRAMS_MAX + 1)]
    for one in clients:
        one.sendall(line)
    answer = json.loads(read_all(clients[-1]).splitlines()[0])["answer"]
    assert answer == {"error": "too many programs at the same time"}
    assert "2 of 2 ranks run" in job.run("status").stdout


# --- selection of the job


def test_missing_job_is_an_error(tmp_path: Path) -> None:
    """The exit status is 69, and the message has an error code."""
    for command in (("status",), ("stacks",), ("exec", "--all", "--", "true")):
        done = launch(command[0], "--job", "999999", *command[1:], environ={"TMPDIR": str(tmp_path)})
        assert done.returncode == 69
        assert "[no-job] none of your jobs runs" in done.stderr or "[no-such-job]" in done.stderr


def test_job_flag_selects_one_of_several_jobs(job: Asked, tmp_path: Path) -> None:
    """Without the flag the jobs are listed; a pid or the beginning of a run's name selects one."""
    # Not below tmp_path: a socket's path has 107 bytes, and pytest's folders nearly fill them.
    with tempfile.TemporaryDirectory() as folder:
        select_each_of_two(job, Asked(Path(folder), count=1), tmp_path)


def select_each_of_two(job: Asked, second: Asked, tmp_path: Path) -> None:
    """Ask about each of two jobs, and end the second."""
    try:
        done = launch("status", environ={"TMPDIR": str(tmp_path)})
        assert done.returncode == 0 and "launcher status --job PID" in done.stdout, done.stderr
        refused = launch("stacks", environ={"TMPDIR": str(tmp_path)})
        assert refused.returncode == 64 and "[several-jobs]" in refused.stderr
        for one in (job, second):
            row = next(row for row in done.stdout.splitlines() if row.split()[0] == str(one.launcher.pid))
            run = row.split()[1]
            chosen = launch("status", "--json", "--job", run)
            assert json.loads(chosen.stdout)["nodes"][0]["pid"] == one.launcher.pid
    finally:
        second.end()


# --- clients


def test_only_the_user_of_the_job_and_root_can_ask(job: Asked) -> None:
    """The folder's mode, the socket's mode and the peer's user ID each prevent other users."""
    if os.geteuid():
        pytest.skip("needs root, to become another user")
    ask = f"import socket; socket.socket(socket.AF_UNIX).connect({job.path!r})"
    assert b"PermissionError" in run_as_nobody(ask)
    folder = Path(job.path).parent
    assert (folder.stat().st_mode & 0o777, os.stat(job.path).st_mode & 0o777) == (0o700, 0o600)
    for path in (*folder.parents, folder):  # with open modes the peer's user ID decides
        if path.stat().st_uid == os.geteuid() and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o011)
    os.chmod(job.path, 0o777)
    said = run_as_nobody(
        "import socket; s = socket.socket(socket.AF_UNIX); s.settimeout(20);"
        f" s.connect({job.path!r}); s.sendall({STATUS!r}); print(s.recv(9))"
    )
    assert b"b''" in said or b"BrokenPipeError" in said or b"ConnectionResetError" in said
    assert job.status()["nodes"][0]["state"] == "running"


def run_as_nobody(code: str) -> bytes:
    """Run some lines of Python as another user; return their output."""
    done = subprocess.run(
        ["/usr/bin/python3", "-I", "-c", code],
        user=NOBODY,
        group=NOBODY,
        extra_groups=(),
        cwd="/",
        capture_output=True,
        check=False,
        timeout=60,
    )
    return done.stdout + done.stderr


MANY_SOCKETS = """
import json, os, select, socket, sys
folders, listening, is_mute = [], {}, sys.argv[1] == "mute"
resource = __import__("resource")
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
for number in range(300):
    folder = f"/dev/shm/launcher_{number:016x}"
    os.mkdir(folder)
    os.chmod(folder, 0o755)
    one = socket.socket(socket.AF_UNIX)
    one.bind(f"{folder}/NAME")
    one.listen(9)
    os.chmod(f"{folder}/NAME", 0o666)
    listening[one.fileno()] = one
    folders.append(folder)
print("up", flush=True)
poll = select.poll()
for fd in (0, *(() if is_mute else listening)):
    poll.register(fd, select.POLLIN)
while True:
    for fd, _ in poll.poll():
        if fd == 0:
            for folder in folders:
                os.unlink(f"{folder}/NAME")
                os.rmdir(folder)
            sys.exit()
        connected = listening[fd].accept()[0]
        who = {"pid": 7, "run": "invented", "elapsed_s": 9e9, "node_rank": 0, "command": ["x"]}
        connected.sendall(json.dumps(who).encode() + b"\\n" + b'{"over": true}\\n')
        connected.close()
""".replace("NAME", SOCKET_NAME)


@pytest.mark.thorough
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("kind", ["mute", "invented"])
def test_sockets_of_another_user_do_not_hide_a_job(job: Asked, kind: str) -> None:
    """Neither their number, nor silence, nor false answers do: our own sockets are asked first."""
    with subprocess.Popen(
        ["/usr/bin/python3", "-I", "-c", MANY_SOCKETS, kind],
        user=NOBODY,
        group=NOBODY,
        extra_groups=(),
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None and other.stdin is not None
        try:
            assert other.stdout.readline() == b"up\n"
            begun = time.monotonic()
            launchers, others = client.find_launchers({})
            assert time.monotonic() - begun < 8
            ours = [one for one in launchers if one.is_ours]  # other tests have some, too
            assert launchers[: len(ours)] == ours
            assert client.choose(launchers, others, str(job.launcher.pid)) in ours
            if kind == "mute":
                assert launchers == ours and others >= client.PATHS_MAX - len(ours)
            else:
                assert f"user {NOBODY}" in launchers[-1].label
            for command, says in (("status", "2 of 2 ranks run"), ("stacks", "rank 1 waits in ")):
                done = job.run(command)
                assert (done.returncode, done.stderr) == (0, "") and says in done.stdout, done.stdout
        finally:
            other.stdin.close()


UNIX_LIST = """\
Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 101 /tmp/a
b c d OTHER e f g /launcher_00000000000000aa/status
0000000000000000: 00000002 00000000 00010000 0001 01 102 /tmp/launcher_00000000000000bb/status
0000000000000000: 00000003 00000000 00000000 0001 03 103 /tmp/launcher_00000000000000bb/status
"""


def test_a_socket_whose_name_has_two_lines_does_not_hide_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel lists the names of sockets as they are, line ends included."""
    (tmp_path / "unix").write_text(UNIX_LIST)
    monkeypatch.setattr(client, "LISTED", str(tmp_path / "unix"))
    assert client.find_paths({"TMPDIR": str(tmp_path)}) == ["/tmp/launcher_00000000000000bb/status"]


LINKED = """
import os, socket, sys
folder, target = sys.argv[1:]
os.mkdir(folder)
here = socket.socket(socket.AF_UNIX)
here.bind(folder + "/NAME")
here.listen()
os.unlink(folder + "/NAME")
os.symlink(target, folder + "/NAME")
print("up", flush=True)
input()
""".replace("NAME", SOCKET_NAME)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_link_of_another_user_to_a_job_is_no_second_job(job: Asked) -> None:
    """The kernel lists the socket that was there before the link; two equal jobs could not be told apart."""
    place = Path(tempfile.mkdtemp(dir="/dev/shm"))
    os.chown(place, NOBODY, NOBODY)
    line = ["/usr/bin/python3", "-I", "-c", LINKED, f"{place}/launcher_00000000000000aa", job.path]
    with subprocess.Popen(
        line,
        user=NOBODY,
        group=NOBODY,
        extra_groups=(),
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        try:
            assert other.stdout is not None and other.stdout.readline() == b"up\n"
            launchers, others = client.find_launchers({})
            assert client.choose(launchers, others, str(job.launcher.pid)).path == job.path
        finally:
            other.kill()
            shutil.rmtree(place)


def test_no_socket_is_looked_at_behind_a_link() -> None:
    """Its owner can replace a folder in its path: 10,000 sockets behind 39 long links took 98 seconds."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name, socket.socket(socket.AF_UNIX) as listening:
        folder = Path(name, "theirs", "launcher_00000000000000aa")
        folder.mkdir(parents=True)
        path = str(folder / SOCKET_NAME)
        listening.bind(path)
        listening.listen()
        assert path in client.find_paths({})
        assert client._choose_paths([path]) == ([path], 0)
        Path(name, "theirs").rename(Path(name, "moved"))
        Path(name, "theirs").symlink_to("moved")
        assert client._choose_paths([path]) == ([], 0)


def test_the_socket_of_a_job_is_not_behind_a_link() -> None:
    """TMPDIR may be one, also of a job with --log-dir, whose socket is in a folder of its own."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:  # a socket's path is short
        real, link = Path(name, "real"), Path(name, "link")
        real.mkdir()
        link.symlink_to("real")
        job = Asked(real, "--log-dir", f"{name}/logs", "-r", "3", TMPDIR=str(link))
        try:
            assert job.status()["nodes"][0]["state"] == "running"
        finally:
            job.end()
        assert not list(real.glob("launcher_*"))


ENDLESS = """
import os, socket, sys
here = socket.socket(socket.AF_UNIX)
here.bind(sys.argv[1])
here.listen()
print("up", flush=True)
while True:
    with here.accept()[0] as connected:
        is_first = b"who" in connected.recv(4096)
        line = b'{"node":0,"answer":{"ranks":[' + b"[]," * (9999 if is_first else 300000) + b"[]]}}\\n"
        sent = 0
        try:
            while True:
                connected.sendall(line)
                sent += len(line)
        except OSError:
            print(sent, flush=True)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_answers_of_another_user_take_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root asks all launchers who they are, and one of them for its status: JSON may be 24 times as large."""
    limited: list[int] = []
    monkeypatch.setattr(client, "limit_memory", limited.append)  # of this process, with all tests after this
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    os.chown(folder, NOBODY, NOBODY)
    path = str(folder / SOCKET_NAME)
    line = ["/usr/bin/python3", "-I", "-c", ENDLESS, path]
    with subprocess.Popen(
        line, user=NOBODY, group=NOBODY, extra_groups=(), cwd="/", stdout=subprocess.PIPE
    ) as other:
        try:
            assert other.stdout is not None and other.stdout.readline() == b"up\n"
            assert client._identify([path]) == ([], 1)
            assert int(other.stdout.readline()) < 1 << 20
            with pytest.raises(Garbled, match="the answer is too long"):
                client.ask(path, "status")
            assert int(other.stdout.readline()) < client.OTHERS_LIMIT_BYTES + (1 << 21)
            assert limited == [client.OTHERS_MEMORY_BYTES]
        finally:
            other.kill()
            shutil.rmtree(folder)


MANY_ROWS = """
import os, socket, sys
here = socket.socket(socket.AF_UNIX)
here.bind(sys.argv[1])
here.listen()
print("up", flush=True)
with here.accept()[0] as connected:
    for node in range(4):
        connected.sendall(b'{"node":%d,"answer":{"ranks":[' % node + b"{}," * 299999 + b"{}]}}\\n")
    connected.sendall(b'{"over":true}\\n')
"""
ASKS = """
import sys
from launcher.cli import entry, status
from launcher.control import client
client.OTHERS_MEMORY_BYTES = 64 << 20
status._find = lambda *words: client.Launcher(sys.argv[1], {"pid": 7}, 1)
sys.exit(entry.main(["stacks"]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_rows_of_another_user_take_little_memory() -> None:
    """Each has three bytes in the answer and 600 in a table: root's question took 5.8 GB."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    os.chown(folder, NOBODY, NOBODY)
    path = str(folder / SOCKET_NAME)
    line = ["/usr/bin/python3", "-I", "-c", MANY_ROWS, path]
    with subprocess.Popen(
        line, user=NOBODY, group=NOBODY, extra_groups=(), cwd="/", stdout=subprocess.PIPE
    ) as other:
        try:
            assert other.stdout is not None and other.stdout.readline() == b"up\n"
            done = subprocess.run(
                [sys.executable, "-c", ASKS, path], capture_output=True, text=True, check=False, timeout=60
            )
            assert done.returncode == EXIT_NOT_READY and "error: [no-memory]" in done.stderr
        finally:
            other.kill()
            shutil.rmtree(folder)


@pytest.mark.parametrize(
    "garbage",
    [b"\n", b"\x00\xff\x1b[31m\n", b"[]\n", b'{"ask": 7}\n', b'{"ask": "run"}\n', b"[" * 4000 + b"\n"],
)
def test_malformed_question_gets_only_an_error(job: Asked, garbage: bytes) -> None:
    """The next client is answered."""
    with job.connect() as connected:
        connected.sendall(garbage)
        lines = read_all(connected).splitlines()
    assert [list(json.loads(line)) for line in lines] == [["error"], ["over"]]
    assert job.status()["nodes"][0]["state"] == "running"


def test_silent_clients_and_excess_clients_are_disconnected(job: Asked) -> None:
    """They exclude other clients for five seconds at most."""
    many = [job.connect() for _ in range(CLIENTS_MAX + 4)]
    wait_for(lambda: read_all(many[-1]) == b"", "the last client is disconnected")
    for one in many:
        assert read_all(one) == b""
        one.close()
    assert job.status()["nodes"][0]["state"] == "running"


def test_clients_that_ask_badly_disturb_no_other(job: Asked) -> None:
    """In pieces, too much, or without reading the answer."""
    # Data is kept until its line is complete.
    with job.connect() as connected:
        connected.sendall(STATUS[:5])
        assert job.status()["nodes"][0]["state"] == "running"  # so the first piece has been read
        connected.sendall(STATUS[5:])
        answer, over = map(json.loads, read_all(connected).splitlines())
    assert (answer["answer"]["state"], over) == ("running", {"over": True})
    # The launcher never buffers more than the maximum length of a question.
    with job.connect() as connected:
        try:
            connected.sendall(b"x" * (4 * QUESTION_LIMIT_BYTES))
            assert read_all(connected) == b""
        except (BrokenPipeError, ConnectionResetError):
            pass
    # Two hundred clients ask and leave without reading the answer; too many at once are hung up on.
    for _ in range(200):
        with job.connect() as connected, contextlib.suppress(BrokenPipeError):
            connected.sendall(STATUS)
    assert job.status()["nodes"][0]["state"] == "running"
    _, err = job.end()
    assert "internal launcher error" not in err, err


def test_launcher_without_free_descriptors_does_not_spin(job: Asked) -> None:
    """A client is answered as soon as a descriptor is free."""
    limits = resource.prlimit(job.launcher.pid, resource.RLIMIT_NOFILE)
    assert job.status()["nodes"][0]["state"] == "running"  # this loads the responder
    used = {int(name) for name in os.listdir(f"/proc/{job.launcher.pid}/fd")}
    first_free = min({*range(len(used) + 1)} - used)
    resource.prlimit(job.launcher.pid, resource.RLIMIT_NOFILE, (first_free, limits[1]))
    with job.connect() as connected:
        connected.sendall(STATUS)
        before, deadline = read_cpu_s(job.launcher.pid), time.monotonic() + 3
        wait_for(lambda: time.monotonic() > deadline, "three seconds")
        assert read_cpu_s(job.launcher.pid) - before < 0.2
        resource.prlimit(job.launcher.pid, resource.RLIMIT_NOFILE, limits)
        assert b'"over":true' in read_all(connected)


def test_status_server_is_idle_before_the_first_question(tmp_path: Path) -> None:
    """It then sleeps for two seconds without a wake-up (--no-meeting: the meeting check would wake it)."""
    job = Asked(tmp_path, "--no-meeting")
    counts: list[tuple[float, int]] = []

    def is_idle() -> bool:
        counts.append((time.monotonic(), count_voluntary_switches(job.launcher.pid)))
        since = next(at for at, count in counts if count == counts[-1][1])
        return counts[-1][0] - since > 2

    wait_for(is_idle, "two seconds in which it does not run, after the one check of the node", 20)
    job.end()


def read_cpu_s(pid: int) -> float:
    """Return the CPU time of a process in seconds."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def count_voluntary_switches(pid: int) -> int:
    """Return the number of voluntary context switches of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("voluntary_ctxt")).split()[1])


def test_socket_is_removed_when_the_launcher_is_killed(job: Asked) -> None:
    """The watchdog removes it."""
    path = job.path
    os.kill(job.launcher.pid, signal.SIGKILL)
    job.launcher.communicate(timeout=20)
    wait_for(lambda: not os.path.exists(path), "the watchdog has removed it")


# --- right after the start


@pytest.mark.slow
def test_a_silent_launcher_does_not_hide_one_that_has_just_started(tmp_path: Path) -> None:
    """A search waits for the silent one, and the other one begins to listen meanwhile."""
    environ = {"TMPDIR": str(tmp_path)}
    (tmp_path / "launcher_0123456789abcdef").mkdir()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "launcher_0123456789abcdef" / "status"))
        silent.listen()
        words = ("run", "--nproc-per-node", "2", "--", "sleep", "60")
        with open_launcher(*words, environ=environ) as one:
            done = launch("status", "--job", str(one.pid), environ=environ)
            one.terminate()
            one.communicate(timeout=30)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("flags", [(), ("--log-dir", "logs")], ids=["private folder", "logs kept"])
def test_status_waits_for_a_launcher_that_has_just_started(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """The launcher listens some time after its start; a client waits for that."""
    environ = {"TMPDIR": str(tmp_path)}
    flags = tuple(str(tmp_path / word) if word == "logs" else word for word in flags)
    with open_launcher("run", "--nproc-per-node", "2", *flags, "--", "sleep", "60", environ=environ) as one:
        done = launch("status", "--job", str(one.pid), environ=environ)
        one.terminate()
        one.communicate(timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
