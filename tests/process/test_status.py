"""``launcher status`` and ``launcher stacks`` on one node: what is seen, and who may ask."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from launcher.control import NAME as SOCKET_NAME
from launcher.control import client as coming
from launcher.control.client import is_coming
from launcher.control.responder import CLIENTS_MAX, QUESTION_LIMIT_BYTES
from tests.process.asking import Asked, read_all
from tests.process.looking import wait_for
from tests.process.starting import clean_environ, launch, open_launcher
from tests.process.test_terminal import Terminal

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


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Asked]:
    """Return a job of two ranks, of which the first sleeps for good and the other goes round."""
    one = Asked(tmp_path)
    yield one
    one.end()


# --- what is seen


def test_each_rank_stands_in_the_table(job: Asked) -> None:
    """With its state, what it uses, and how long it has written nothing."""
    done = job.run("status")
    assert (done.returncode, done.stderr) == (0, "")
    head, titles, *rows = done.stdout.splitlines()
    assert head.startswith("python3 ") and "2 of 2 ranks run" in head
    assert titles.split()[:5] == ["node", "host", "rank", "pid", "state"]
    assert [row.split()[2] for row in rows[:2]] == ["0", "1"]
    assert all("running" in row and " % " in row and " MiB " in row and "s ago" in row for row in rows[:2])


def test_tools_get_the_same_as_json(job: Asked) -> None:
    """Each rank with its pid, memory, CPU time, and processes; and the launcher's own words."""
    (node,) = job.status()["nodes"]
    assert (node["pid"], node["state"], node["world_size"]) == (job.launcher.pid, "running", 2)
    for rank in node["ranks"]:
        assert Path(f"/proc/{rank['pid']}/cmdline").read_bytes().endswith(f"{job.folder}\0".encode())
        assert rank["memory_bytes"] > 1 << 20 and rank["cpu_s"] > 0 and rank["process_count"] == 1
        assert 0 <= rank["cpu_percent"] < 100 and rank["silence_s"] >= 0


def test_a_rank_that_is_stopped_is_seen_as_stopped(job: Asked) -> None:
    """The kernel's state stands there where it says more than that it runs."""
    pid = job.status()["nodes"][0]["ranks"][1]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_for(lambda: job.status()["nodes"][0]["ranks"][1]["kernel_state"] == "T", "it is stopped")
        assert "running (T)" in job.run("status").stdout
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_rank_that_has_ended_says_how_and_a_restart_is_counted(tmp_path: Path) -> None:
    """What the launcher has said is among the events."""
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
        wait_for(lambda: job.status()["nodes"][0]["ranks"][1]["state"] == "exited with status 0", "its end")
        (node,) = job.status()["nodes"]
        assert (node["attempt"], node["restarts"]) == (1, 1)
        assert any("restart 1 of 1" in event["what"] for event in node["events"])
        text = job.run("status").stdout
        assert "exited with status 0" in text and "restart 1 of 1" in text and "1 of 2 ranks run" in text
    finally:
        job.end()


def test_the_ranks_of_an_agent_are_found(tmp_path: Path) -> None:
    """torchrun starts them; each is what its environment says."""
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


def test_logs_in_a_folder_of_the_users_have_no_socket_beside_them(tmp_path: Path) -> None:
    """Where logs go others may read, or there can be no sockets; and nothing stays in the private folder."""
    job = Asked(tmp_path, "--log-dir", str(tmp_path / "logs"), "-r", "3")
    assert os.stat(os.path.dirname(job.path)).st_mode & 0o777 == 0o700
    assert job.status()["nodes"][0]["state"] == "running"
    job.end()
    assert not list(tmp_path.glob("launcher_*")) and not list((tmp_path / "logs").rglob("status"))


def test_a_folder_with_a_long_name_is_left_out(tmp_path: Path) -> None:
    """A socket's path has 107 bytes at most: then it stands in the next place, and is found there."""
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
        wait_for(lambda: ask().returncode == 0, "the door is open, a moment after the start")
        done = ask()
        launcher.send_signal(signal.SIGTERM)
        launcher.stdout.read()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["nodes"][0]["pid"] == launcher.pid


def test_a_terminal_shows_it_again_until_the_job_has_ended(job: Asked) -> None:
    """--watch: one table that changes."""
    terminal = Terminal(
        [sys.executable, "-m", "launcher", "status", "--watch", "0.5", "--job", str(job.launcher.pid)],
        TMPDIR=str(job.folder),
        COLUMNS="150",
        LINES="30",
    )
    try:
        terminal.wait_for("2 of 2 ranks run")
        terminal.wait_for(r"\d %")  # the second view knows how much CPU they use
        job.end()
        assert terminal.end() == 0
        assert "the job has ended" in terminal.seen
    finally:
        os.close(terminal.fd)


def test_keys_change_the_screen_and_leave_it(job: Asked) -> None:
    """As in htop: c sorts by CPU, q leaves; the terminal is as before, with the last table on it."""
    terminal = Terminal(
        [sys.executable, "-m", "launcher", "status", "--watch", "60", "--job", str(job.launcher.pid)],
        TMPDIR=str(job.folder),
        COLUMNS="150",
        LINES="30",
    )
    try:
        terminal.wait_for("\x1b\\[\\?1049h")  # a screen of its own
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


def test_a_log_gets_plain_lines(job: Asked) -> None:
    """--watch into a pipe: the table once more, without a code for terminals."""
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


def test_the_stack_of_each_rank_is_shown_and_who_is_probably_waited_for(job: Asked) -> None:
    """The summary that a stall gives, then every stack."""
    done = job.run("stacks")
    assert done.returncode == 0, done.stderr
    assert "rank 0 waits in sleep (" in done.stdout and "in fetch" in done.stdout
    assert "rank 0, innermost first (faulthandler):" in done.stdout
    assert f'    File "{job.script}", line 6, in fetch' in done.stdout


def test_the_same_stack_is_shown_once(tmp_path: Path) -> None:
    """And what a rank has started stands below it."""
    job = Asked(tmp_path, script=FORKS)
    try:
        text = job.run("stacks").stdout
        assert text.count("ranks 0, 1, innermost first") == 1
        assert "below ranks 0, 1: pid " in text
        assert text.count("in load") == 2  # in the summary, and in the stack
    finally:
        job.end()


def test_all_threads_when_asked_for(tmp_path: Path) -> None:
    """The main one first."""
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


def test_who_gives_no_stack_is_named_with_the_reason(tmp_path: Path) -> None:
    """A rank that has ended, and one that knows nothing of the hook and that nobody can read."""
    script = """
import os, sys, time
open(sys.argv[1] + "/up-" + os.environ["RANK"], "w").close()
if os.environ["RANK"] == "1":
    sys.exit(0)
time.sleep(3600)
"""
    spyless = os.pathsep.join(
        folder
        for folder in os.environ["PATH"].split(os.pathsep)
        if not os.path.exists(os.path.join(folder, "py-spy"))
    )
    job = Asked(tmp_path, script=script, python="/usr/bin/python3", PATH=spyless)
    try:
        wait_for(lambda: "exited" in job.status()["nodes"][0]["ranks"][1]["state"], "rank 1 has ended")
        text = job.run("stacks").stdout
        assert "rank 1 (pid " in text and "it exited with status 0 (node 0)" in text
    finally:
        job.end()


def test_two_who_ask_for_stacks_at_once_both_get_them(job: Asked) -> None:
    """The second joins the first: a process is asked once."""
    callers = [job.connect() for _ in range(4)]
    for caller in callers:
        caller.sendall(b'{"ask": "stacks"}\n')
    answers = [json.loads(read_all(caller).splitlines()[0])["answer"] for caller in callers]
    assert all(len(answer["processes"]) == 2 and answer["stacks"] for answer in answers)


# --- which job, and whether there is one


def test_without_a_job_that_is_said(tmp_path: Path) -> None:
    """And where to ask."""
    for command in ("status", "stacks"):
        done = launch(command, "--job", "999999", environ={"TMPDIR": str(tmp_path)})
        assert done.returncode == 69
        assert "[no-job] no job of yours runs here" in done.stderr or "[no-such-job]" in done.stderr


def test_of_several_jobs_one_is_chosen(job: Asked, tmp_path: Path) -> None:
    """They are listed; a pid or the beginning of a run's name chooses."""
    # Not below tmp_path: a socket's path has 107 bytes, and pytest's folders nearly fill them.
    with tempfile.TemporaryDirectory() as folder:
        choose_of_two(job, Asked(Path(folder), count=1), tmp_path)


def choose_of_two(job: Asked, second: Asked, tmp_path: Path) -> None:
    """Ask for each of two jobs, and end the second."""
    try:
        done = launch("status", environ={"TMPDIR": str(tmp_path)})
        assert done.returncode == 64 and "[several-jobs]" in done.stderr
        for one in (job, second):
            row = next(line for line in done.stdout.splitlines() if line.startswith(f"{one.launcher.pid} "))
            run = row.split()[1]
            chosen = launch("status", "--json", "--job", run)
            assert json.loads(chosen.stdout)["nodes"][0]["pid"] == one.launcher.pid
    finally:
        second.end()


def test_a_launcher_that_is_stopped_does_not_hang_who_asks(job: Asked) -> None:
    """It is named as one that does not answer."""
    os.kill(job.launcher.pid, signal.SIGSTOP)
    try:
        done = job.run("status")
    finally:
        os.kill(job.launcher.pid, signal.SIGCONT)
    assert done.returncode == 69
    assert "or stopped" in done.stderr or "no-such-job" in done.stderr


# --- who may ask, and how


def test_only_its_user_and_root_can_connect(job: Asked) -> None:
    """By the folder, by the socket, and by who the kernel says is there."""
    if os.geteuid():
        pytest.skip("needs root, to be somebody else")
    ask = f"import socket; socket.socket(socket.AF_UNIX).connect({job.path!r})"
    assert b"PermissionError" in as_nobody(ask)
    folder = Path(job.path).parent
    assert (folder.stat().st_mode & 0o777, os.stat(job.path).st_mode & 0o777) == (0o700, 0o600)
    for path in (*folder.parents, folder):  # everybody may enter and write: then the kernel's word counts
        if path.stat().st_uid == os.geteuid() and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o011)
    os.chmod(job.path, 0o777)
    said = as_nobody(
        "import socket; s = socket.socket(socket.AF_UNIX); s.settimeout(20);"
        f" s.connect({job.path!r}); s.sendall({STATUS!r}); print(s.recv(9))"
    )
    assert b"b''" in said or b"BrokenPipeError" in said or b"ConnectionResetError" in said
    assert job.status()["nodes"][0]["state"] == "running"


def as_nobody(code: str) -> bytes:
    """Run a few lines of Python as another user; return what it has printed."""
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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user as well")
@pytest.mark.parametrize("kind", ["mute", "invented"])
def test_sockets_of_another_user_hide_no_job(job: Asked, kind: str) -> None:
    """Neither by their number, nor by silence, nor by what they say: ours is asked first."""
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
            launchers, others = coming.find_launchers({})
            assert time.monotonic() - begun < 8
            ours = [one for one in launchers if one.is_ours]  # of other tests, too
            assert launchers[: len(ours)] == ours
            assert coming.choose(launchers, others, str(job.launcher.pid)) in ours
            if kind == "mute":
                assert launchers == ours and others >= coming.PATHS_MAX - len(ours)
            else:
                assert f"user {NOBODY}" in launchers[-1].label
            for command, says in (("status", "2 of 2 ranks run"), ("stacks", "rank 1 waits in ")):
                done = job.run(command)
                assert (done.returncode, done.stderr) == (0, "") and says in done.stdout, done.stdout
        finally:
            other.stdin.close()


@pytest.mark.parametrize(
    "garbage",
    [b"\n", b"\x00\xff\x1b[31m\n", b"[]\n", b'{"ask": 7}\n', b'{"ask": "run"}\n', b"[" * 4000 + b"\n"],
)
def test_garbage_gets_an_error_and_nothing_else(job: Asked, garbage: bytes) -> None:
    """And the next one is answered."""
    with job.connect() as connected:
        connected.sendall(garbage)
        lines = read_all(connected).splitlines()
    assert [list(json.loads(line)) for line in lines] == [["error"], ["over"]]
    assert job.status()["nodes"][0]["state"] == "running"


def test_a_question_may_come_in_pieces(job: Asked) -> None:
    """What has come is kept until its line has an end."""
    with job.connect() as connected:
        connected.sendall(STATUS[:5])
        assert job.status()["nodes"][0]["state"] == "running"  # so the first piece has been read
        connected.sendall(STATUS[5:])
        answer, over = map(json.loads, read_all(connected).splitlines())
    assert (answer["answer"]["state"], over) == ("running", {"over": True})


def test_a_question_without_end_is_hung_up_on(job: Asked) -> None:
    """Nobody makes the launcher keep more than a question is long."""
    with job.connect() as connected:
        try:
            connected.sendall(b"x" * (4 * QUESTION_LIMIT_BYTES))
            assert read_all(connected) == b""
        except (BrokenPipeError, ConnectionResetError):
            pass


def test_who_says_nothing_is_hung_up_on_and_too_many_are_turned_away(job: Asked) -> None:
    """They keep others out for five seconds at most."""
    many = [job.connect() for _ in range(CLIENTS_MAX + 4)]
    wait_for(lambda: read_all(many[-1]) == b"", "the last one is turned away")
    for one in many:
        assert read_all(one) == b""
        one.close()
    assert job.status()["nodes"][0]["state"] == "running"


def test_who_takes_nothing_holds_nobody_up(job: Asked) -> None:
    """A thousand questions, one after the other, whose answers nobody reads."""
    for _ in range(200):
        with job.connect() as connected:
            connected.sendall(STATUS)
    assert job.status()["nodes"][0]["state"] == "running"
    _, err = job.end()
    assert "a fault of the launcher" not in err, err


def test_without_a_descriptor_left_the_launcher_waits_and_does_not_spin(job: Asked) -> None:
    """Who asks then is answered when there is one again."""
    limits = resource.prlimit(job.launcher.pid, resource.RLIMIT_NOFILE)
    assert job.status()["nodes"][0]["state"] == "running"  # what answers is loaded
    used = {int(name) for name in os.listdir(f"/proc/{job.launcher.pid}/fd")}
    first_free = min({*range(len(used) + 1)} - used)
    resource.prlimit(job.launcher.pid, resource.RLIMIT_NOFILE, (first_free, limits[1]))
    with job.connect() as connected:
        connected.sendall(STATUS)
        before, deadline = cpu_s(job.launcher.pid), time.monotonic() + 3
        wait_for(lambda: time.monotonic() > deadline, "three seconds")
        assert cpu_s(job.launcher.pid) - before < 0.2
        resource.prlimit(job.launcher.pid, resource.RLIMIT_NOFILE, limits)
        assert b'"over":true' in read_all(connected)


def test_nothing_of_it_is_loaded_and_no_time_is_spent_before_somebody_asks(tmp_path: Path) -> None:
    """A socket that listens: what answers comes with the first question. (Nor are connections looked at.)"""
    job = Asked(tmp_path, "--no-meeting")
    counts: list[tuple[float, int]] = []

    def rests() -> bool:
        counts.append((time.monotonic(), switches(job.launcher.pid)))
        since = next(at for at, count in counts if count == counts[-1][1])
        return counts[-1][0] - since > 2

    wait_for(rests, "two seconds in which it does not run, after it has looked at the node once", 20)
    job.end()


def cpu_s(pid: int) -> float:
    """Return how long a process has computed."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def switches(pid: int) -> int:
    """Return how often a process has gone to sleep by itself."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("voluntary_ctxt")).split()[1])


def test_the_socket_goes_with_the_job(job: Asked) -> None:
    """At a SIGKILL of the launcher, too."""
    path = job.path
    os.kill(job.launcher.pid, signal.SIGKILL)
    job.launcher.communicate(timeout=20)
    wait_for(lambda: not os.path.exists(path), "the watchdog has removed it")


# --- right after the start


@pytest.mark.parametrize("flags", [(), ("--log-dir", "logs")], ids=["private folder", "logs kept"])
def test_a_job_can_be_asked_from_its_start_on(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """The door opens a moment after the launcher: a question waits for it."""
    environ = {"TMPDIR": str(tmp_path)}
    flags = tuple(str(tmp_path / word) if word == "logs" else word for word in flags)
    with open_launcher("run", "--nproc-per-node", "2", *flags, "--", "sleep", "60", environ=environ) as one:
        done = launch("status", "--job", str(one.pid), environ=environ)
        one.terminate()
        one.communicate(timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_launcher_is_coming_while_it_is_young(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that has no door after some seconds will have none: nobody waits for it."""
    environ = {"TMPDIR": str(tmp_path)}
    with open_launcher("run", "--nproc-per-node", "2", "--", "sleep", "60", environ=environ) as one:
        wait_for(is_coming, "the kernel shows its command line")  # a moment after exec has closed our pipe
        monkeypatch.setattr(coming, "YOUNG_S", 0.0)
        assert not is_coming()
        one.terminate()
        one.communicate(timeout=30)
