"""The launcher as a parent and as process 1: statuses, signals, orphans, and who outlives whom."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import pytest

from tests.process.looking import is_gone, read_pid, wait_for
from tests.process.starting import ROOT, clean_environ, launch, open_launcher

FORWARDED = sorted(
    signal.valid_signals()
    - {
        *(signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGTTIN, signal.SIGTTOU),
        *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT),
        *(signal.SIGTRAP, signal.SIGSYS),
    }
)
UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def as_init(*words: str) -> subprocess.CompletedProcess[str]:
    """Run ``launcher WORDS`` as process 1 of a pid namespace of its own."""
    need_pid_namespaces()
    command = [*UNSHARE, sys.executable, "-m", "launcher", *words]
    return subprocess.run(
        command, env=clean_environ(), capture_output=True, text=True, timeout=60, check=False
    )


def need_pid_namespaces() -> None:
    """Skip, with the kernel's reason, where no process can be made process 1."""
    done = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no pid namespaces here: {done.stderr.strip()}")


ALL_ENDS = """
import signal, subprocess, sys
harmless = {signal.SIGCONT, signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH, signal.SIGSTOP, signal.SIGTSTP,
            signal.SIGTTIN, signal.SIGTTOU}
wrong = []
def end(expected, *command):
    done = subprocess.run([*sys.argv[1:], *command], capture_output=True)
    if done.returncode != expected:
        wrong.append((expected, done.returncode, done.stderr))
for status in range(256):
    end(status, "sh", "-c", f"exit {status}")
for number in sorted(signal.valid_signals() - harmless):
    code = "import os, resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); "
    code += f"os.kill(os.getpid(), {int(number)})"
    if number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        code = f"import signal; signal.signal({int(number)}, signal.SIG_DFL); {code}"
    end(128 + number, sys.executable, "-I", "-S", "-c", code)
print(wrong)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("prefix", [(), UNSHARE], ids=["child", "init"])
def test_every_status_and_death_by_signal_is_passed_on(prefix: tuple[str, ...]) -> None:
    """0 to 255, and 128+n for every signal that can end a process, as somebody's child and as process 1."""
    if prefix:
        need_pid_namespaces()
    line = [sys.executable, "-c", ALL_ENDS, *prefix, sys.executable, "-m", "launcher", "run", "--"]
    done = subprocess.run(line, env=clean_environ(), capture_output=True, text=True, timeout=900)
    assert done.stdout == "[]\n", done.stdout + done.stderr


NOTE_ALL = """
import os, signal, sys
reading, writing = os.pipe()
os.set_blocking(writing, False)
for number in map(int, sys.argv[2:]):
    signal.signal(number, lambda *_: None)
signal.set_wakeup_fd(writing)
open(sys.argv[1], "w").write(f"{os.getpid()}\\n")
seen = []
while signal.SIGTERM not in seen:
    seen += os.read(reading, 100)
    with open(sys.argv[1] + ".seen", "w") as file:
        file.write(f" {' '.join(map(str, seen))} ")
print(seen, flush=True)
"""


def has_arrived(launcher: int, seen: Path, words: str) -> bool:
    """Whether the rank has noted a signal, or the launcher has gone."""
    return is_gone(launcher) or (seen.exists() and words in seen.read_text())


def test_every_forwardable_signal_arrives(tmp_path: Path) -> None:
    """Each of them, once; SIGTERM last, which asks to end."""
    numbers = [int(n) for n in FORWARDED if n not in (signal.SIGTERM, signal.SIGTSTP)] + [int(signal.SIGTERM)]
    ready = tmp_path / "ready"
    words = [str(n) for n in numbers]
    with open_launcher("run", "--", sys.executable, "-c", NOTE_ALL, str(ready), *words) as process:
        read_pid(ready)
        seen_file = ready.with_suffix(".seen")
        for number in numbers:
            process.send_signal(number)
            # One after the other: handlers inside of handlers overflow the stack that faulthandler gives them
            noted = f" {number} "
            wait_for(partial(has_arrived, process.pid, seen_file, noted), f"signal{noted}has arrived")
        out, err = process.communicate(timeout=60)
    seen = [int(word) for word in out.strip(" []\n").split(", ")]
    # SIGCONT comes along with the two that ask to end, for those that are stopped.
    expected = sorted(number for number in numbers if number != signal.SIGCONT)
    assert sorted(number for number in seen if number != signal.SIGCONT) == expected, err
    assert process.returncode == 0, err
    assert signal.SIGCONT in seen


ORPHANS = """
import os, sys, time
for _ in range(20):
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(0.05)
            os._exit(0)
        os._exit(0)
    os.wait()
deadline = time.monotonic() + 20
parent = os.getppid()
def children():
    return open(f"/proc/{parent}/task/{parent}/children").read().split()
def zombies():
    found = []
    for pid in children():
        try:
            if open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] == "Z":
                found.append(pid)
        except OSError:
            pass
    return found
adopted = len(children())
while len(children()) > 2 and time.monotonic() < deadline:
    time.sleep(0.01)
print("adopted" if adopted > 2 else "none", "zombies", len(zombies()), "children", len(children()) <= 2)
"""


@pytest.mark.parametrize("init", [False, True], ids=["child", "init"])
def test_orphans_are_adopted_and_reaped(init: bool) -> None:
    """What a process leaves behind becomes the launcher's, and no zombie stays."""
    run = as_init if init else launch
    done = run("run", "--", sys.executable, "-c", ORPHANS)
    assert (done.returncode, done.stdout) == (0, "adopted zombies 0 children True\n"), done.stderr


DAEMON = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        if sys.argv[2] == "refuse":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for fd in (0, 1, 2):
            os.close(fd)
        with open(sys.argv[1], "w") as file:
            file.write(f"{os.getpid()}\\n")
        time.sleep(600)
    os._exit(0)
os.wait()
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
"""


@pytest.mark.parametrize("manner", ["obey", "refuse"])
def test_a_daemon_does_not_survive_the_job(tmp_path: Path, manner: str) -> None:
    """Double fork, own session, closed descriptors: it ends with the job, by SIGTERM or SIGKILL."""
    pid_file = tmp_path / "daemon"
    done = launch("run", "--grace", "0.3", "--", sys.executable, "-c", DAEMON, str(pid_file), manner)
    assert done.returncode == 0, done.stderr
    assert is_gone(read_pid(pid_file))
    assert "left behind" in done.stderr


def test_a_command_that_leaves_its_training_in_the_background_has_failed() -> None:
    """Its shell ends with 0 at once, and we end what it has started: nothing was trained."""
    for command in ("sleep 600 &", "setsid sleep 600 & disown", "nohup sleep 600 >/dev/null 2>&1 &"):
        done = launch("run", "--nproc-per-node", "2", "--", "bash", "-c", command)
        assert done.returncode == 1, (command, done.stderr)
        assert "cause: [left-running]" in done.stderr and "sleep 600" in done.stderr
        assert "the shell ended within 5 s" in done.stderr
    done = launch("run", "--", "bash", "-c", "for n in 1 2 3 4 5; do setsid sleep 600 & done")
    assert done.returncode == 1 and "; and 2 more" in done.stderr, done.stderr
    done = launch("run", "--nproc-per-node", "2", "--", "bash", "-c", "sleep 0.1 & wait")
    assert done.returncode == 0 and "left" not in done.stderr


def test_a_shell_that_has_worked_beside_a_daemon_has_succeeded() -> None:
    """A resumed training may have little left to do; what it started before is ended, and that is all."""
    work = f"{sys.executable} -c 'import time; t = time.process_time\nwhile t() < 0.7: pass'"
    done = launch("run", "--", "bash", "-c", f"sleep 600 & {work}")
    assert done.returncode == 0 and "left behind" in done.stderr, done.stderr
    for command in (f"{work}; sleep 600 &", "sleep 600 & sleep 0.7"):  # the work is not the last, or is none
        done = launch("run", "--", "bash", "-c", command)
        assert done.returncode == 1 and "[left-running]" in done.stderr, (command, done.stderr)


def test_a_setsid_that_does_not_wait_has_failed() -> None:
    """It leads a process group, so it starts its command apart and ends with 0."""
    for front in (("setsid",), ("nice", "setsid", "--fork"), ("nohup", "setsid")):
        done = launch("run", "--nproc-per-node", "2", "--", *front, "sleep", "600")
        assert done.returncode == 1 and "setsid ended within 5 s" in done.stderr, (front, done.stderr)
        assert "fix:   `setsid --wait`" in done.stderr
    done = launch("run", "--nproc-per-node", "2", "--", "setsid", "--wait", "true")
    assert done.returncode == 0 and not done.stderr


STARTER = """
import os, subprocess, sys, time
# As DeepSpeed's command does: its launcher on this node starts the ranks, and ends by a signal
command = [sys.executable, sys.argv[-1]]
if os.environ.get("LIVES"):
    done = [subprocess.run(command, env={**os.environ, "RANK": "0", "LOCAL_RANK": "0"}).returncode]
elif not os.fork():
    for rank in "01":
        subprocess.Popen(command, env={**os.environ, "RANK": rank, "LOCAL_RANK": rank})
    os.kill(os.getpid(), 9)
else:
    os.wait()
"""
RANKS = {
    "a rank": "import time\nfor _ in range(300): time.sleep(0.1)",
    "a worker": "import os, time\nif not os.fork(): time.sleep(30)\nos._exit(0)",
    "a daemon": "import subprocess\nsubprocess.Popen(['sleep', '30'], start_new_session=True)",
}


@pytest.mark.parametrize(("what", "status"), [("a rank", 1), ("a worker", 0), ("a daemon", 0)])
def test_a_starter_that_ends_with_0_while_a_rank_runs_has_failed(
    tmp_path: Path, what: str, status: int
) -> None:
    """The rank is ended before it has done its work. What ranks leave behind when they end is no rank."""
    bin_folder, script = tmp_path / "bin", tmp_path / "train.py"
    bin_folder.mkdir()
    program = bin_folder / "deepspeed"
    program.write_text(f"#!{sys.executable}\n{STARTER}")
    program.chmod(0o755)
    script.write_text(RANKS[what])
    environ = clean_environ() | {"PATH": f"{bin_folder}:{os.environ['PATH']}"}
    environ |= {} if status else {"LIVES": "1"}
    done = launch(
        "run", "--nproc-per-node", "2", "--grace", "1", "--", "deepspeed", str(script), environ=environ
    )
    assert done.returncode == status, done.stderr
    assert "left behind" in done.stderr
    assert ("cause: [left-running]" in done.stderr) is bool(status), done.stderr
    assert not status or "deepspeed ended with 0 before ranks 0-1 did" in done.stderr, done.stderr


@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_a_crash_whose_status_was_lost_is_a_warning(shell: str) -> None:
    """A shell says it, and goes on."""
    done = launch("run", "--nproc-per-node", "2", "--", "nice", shell, "-c", "sh -c 'kill -SEGV $$'; true")
    assert done.returncode == 0 and "with code 0, but a crash ends its output" in done.stderr, done.stderr
    done = launch("run", "--nproc-per-node", "2", "--", shell, "-c", "echo Killed the bug >&2; echo ok >&2")
    assert "warning" not in done.stderr


def test_an_error_on_standard_output_is_a_programs_message() -> None:
    """``print("Error: ..."); sys.exit(1)``; a line of its log is none."""
    code = "import sys; print('step 1'); print(sys.argv[1]); sys.exit(1)"
    line = ("run", "--nproc-per-node", "2", "--", sys.executable, "-c", code)
    done = launch(*line, "Error: the config has no key 'model'")
    assert (
        "[program-message] the program ended itself; its last line: Error: the config has no" in done.stderr
    )
    assert "cause: unknown" in launch(*line, "loss 0.3").stderr


LOST = f"[ $RANK = 0 ] || {sys.executable} -c 'raise ValueError(7)'"


@pytest.mark.parametrize("command", [f"({LOST}) 2>&1 | cat", f"{LOST}; true", f"({LOST}) & wait; echo done"])
def test_an_exception_whose_status_was_lost_is_a_warning(command: str, tmp_path: Path) -> None:
    """In the log and the record, and in the report if another rank fails."""
    line = "exited with code 0, but an uncaught exception ends its output: ValueError: 7"
    record = tmp_path / "record"
    done = launch("run", "--nproc-per-node", "2", "--failure-file", str(record), "--", "bash", "-c", command)
    assert done.returncode == 0 and "launcher: warning: rank 1 (pid " in done.stderr, done.stderr
    assert line in done.stderr
    told = json.loads(record.read_text())
    assert (told["exit_status"], told["causes"][0]["code"]) == (0, "hidden-failure")
    assert line in told["causes"][0]["what"]
    fails = f"[ $RANK = 1 ] || {{ sleep 1; exit 3; }}; {command}"
    done = launch("run", "--nproc-per-node", "2", "--failure-file", str(record), "--", "bash", "-c", fails)
    assert done.returncode == 3 and line in done.stderr, done.stderr
    assert any(line in also for also in json.loads(record.read_text())["also"])


FAMILY = """
import os, signal, subprocess, sys, time
folder = sys.argv[1]
rank = os.environ["RANK"]
def note(name):
    with open(f"{folder}/{name}.new", "w") as file:
        file.write(f"{os.getpid()}\\n")
    os.rename(f"{folder}/{name}.new", f"{folder}/{name}")
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        note(f"daemon{rank}")
        time.sleep(600)
    note(f"child{rank}")
    os.execve("/bin/sleep", ["sleep", "600"], {})
note(f"leader{rank}")
time.sleep(600)
"""


@pytest.mark.parametrize("count", [1, 2])
def test_nobody_survives_a_sigkill_of_the_launcher(tmp_path: Path, count: int) -> None:
    """Processes, a child without its environment, and a grandchild in a session of its own."""
    words = ("--nproc-per-node", str(count), "--", sys.executable, "-c", FAMILY, str(tmp_path))
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with open_launcher("run", *words, environ={"TMPDIR": str(temporary)}) as process:
        names = [f"{kind}{rank}" for kind in ("leader", "child", "daemon") for rank in range(count)]
        pids = [read_pid(tmp_path / name) for name in names]
        assert not any(is_gone(pid) for pid in pids)
        process.kill()
        process.wait(timeout=10)
        for name, pid in zip(names, pids, strict=True):
            wait_for(lambda pid=pid: is_gone(pid), f"{name} is gone")  # type: ignore[misc]
        _, err = process.communicate(timeout=10)
    assert "the launcher was killed" in err
    wait_for(lambda: not list(temporary.iterdir()), "its temporary directory is gone")


KILLS_ITS_LAUNCHER = """
sleep 600 & echo $! > $0/$RANK.new; mv $0/$RANK.new $0/pid-$RANK
test $RANK != 0 || kill -9 $PPID
wait
"""


def test_nobody_survives_a_launcher_that_is_killed_while_it_starts_processes(tmp_path: Path) -> None:
    """The first rank does that; it and others have started processes of their own."""
    words = ("--nproc-per-node", "32", "--", "sh", "-c", KILLS_ITS_LAUNCHER, str(tmp_path))
    with open_launcher("run", *words) as process:
        process.wait(timeout=10)
        _, err = process.communicate(timeout=10)
    pids = [read_pid(path) for path in tmp_path.glob("pid-*")]
    assert pids and "the launcher was killed" in err
    for pid in pids:
        wait_for(lambda pid=pid: is_gone(pid), "what a rank has started is gone")  # type: ignore[misc]


WRAPPED = """
import os, signal, sys, time
def save(*_):
    time.sleep(0.3)  # the work of saving
    open(sys.argv[1], "a").write("saved\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.mark.parametrize(
    "shell",
    [
        '"$0" -c "$1" "$2"; echo after',
        'trap "" TERM; "$0" -c "$1" "$2"; echo after',
        'trap "echo trapped" TERM; "$0" -c "$1" "$2"; echo after',
        'trap "kill -TERM \\$!; wait" TERM; "$0" -c "$1" "$2" & wait',
    ],
    ids=["plain", "ignores", "traps", "forwards"],
)
@pytest.mark.parametrize("whom", ["leader", "group"])
def test_a_wrapper_does_not_swallow_the_checkpoint(tmp_path: Path, shell: str, whom: str) -> None:
    """bash around python, in all the ways people write it: the script hears SIGTERM, once, and saves."""
    saved = tmp_path / "saved"
    words = (
        *("--grace", "3", "--signal-to", whom, "--", "bash", "-c", shell, sys.executable, WRAPPED),
        str(saved),
    )
    with open_launcher("run", *words) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    assert saved.read_text() == "saved\n", err
    assert process.returncode in (0, 143), err


def test_a_signal_that_is_mapped_to_sigterm_asks_to_end() -> None:
    """--signal-map HUP=TERM or USR1=TERM: the whole grace, also for what a wrapper leaves behind."""
    for number, name in ((signal.SIGHUP, "HUP"), (signal.SIGUSR1, "USR1")):
        words = ("--grace", "1", "--signal-map", f"{name}=TERM", "--", "sh", "-c")
        script = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
        wrapper = f'sh -c "{script}"; echo after'
        with open_launcher("run", *words, wrapper) as process:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            process.send_signal(number)
            out, err = process.communicate(timeout=30)
        assert (process.returncode, out) == (143, ""), err
        assert f"SIG{name}: passed on as SIGTERM to 1 process, 1 s until SIGKILL" in err
        assert "still runs after 1 s: sending SIGKILL" in err


LEADER_FIRST = """
import os, signal, sys, time
worker = os.fork()
if worker == 0:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(600)
def save(*_):
    time.sleep(0.5)
    alive = os.waitpid(worker, os.WNOHANG) == (0, 0)
    os.write(1, b"worker alive\\n" if alive else b"worker lost\\n")
    os._exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.mark.parametrize(("whom", "expected"), [("leader", "worker alive\n"), ("group", "worker lost\n")])
def test_leaders_hear_a_signal_before_their_children(whom: str, expected: str) -> None:
    """By default a DataLoader's worker lives while its process saves; --signal-to group tells all."""
    with open_launcher("run", "--signal-to", whom, "--", sys.executable, "-c", LEADER_FIRST) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        assert process.stderr is not None
        process.send_signal(signal.SIGTERM)
        assert "SIGTERM: passed on" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)  # a second one cuts no save short
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, expected), err


def test_a_stopped_process_is_ended(tmp_path: Path) -> None:
    """SIGSTOP does not keep a process from SIGTERM."""
    script = 'trap "echo told; exit 7" TERM; echo ready; while :; do sleep 0.05; done'
    with open_launcher("run", "--grace", "10", "--", "bash", "-c", script) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        (leader,) = children_of(process.pid, b"bash")
        os.kill(leader, signal.SIGSTOP)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (7, "told\n"), err


def children_of(pid: int, name: bytes) -> list[int]:
    """Return the children of a process that run a program of this name."""
    pids = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [child for child in pids if name in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")[0]]


FORK_LOOP = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
end = time.monotonic() + 60
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
"""
# Each generation of it is another process, which leaves its group and is adopted by the launcher.
FORK_LOOP_APART = FORK_LOOP.replace("        os._exit(0)\n", "        os._exit(0)\n    os.setsid()\n")


@pytest.mark.parametrize("script", [FORK_LOOP, FORK_LOOP_APART], ids=["group", "sessions"])
def test_a_process_that_forks_in_a_loop_is_ended(script: str) -> None:
    """Whoever runs away from SIGTERM by forking is caught by SIGKILL, in bounded time."""
    started = time.monotonic()
    with open_launcher("run", "--grace", "0.5", "--", sys.executable, "-c", script) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    assert time.monotonic() - started < 15, err
    assert process.returncode in (0, 137), err


def test_an_early_signal_is_not_lost(tmp_path: Path) -> None:
    """A SIGTERM that comes while processes are being started ends them all."""
    for _ in range(5):
        words = ("run", "--nproc-per-node", "8", "--", "sleep", "60")
        with open_launcher(*words) as process:
            wait_for(lambda: children_now(process.pid), "the first process is started")
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=20)
        assert process.returncode == 143, err


def test_a_signal_for_process_1_is_not_lost_while_it_starts() -> None:
    """The kernel drops what process 1 has no handler for; from our first lines on nothing is dropped."""
    need_pid_namespaces()
    slow = (
        "import os, sys, time\n"
        "class Slow:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'launcher.planning.plan':\n"
        "            open(os.environ['READY'], 'w').close()\n            time.sleep(1)\n"
        "sys.meta_path.insert(0, Slow())\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(slow)
        ready = Path(folder, "ready")
        environ = {**clean_environ(), "READY": str(ready)}
        environ["PYTHONPATH"] += f":{folder}"
        command = (sys.executable, "-m", "launcher", "run", "--", "sleep", "60")
        with subprocess.Popen([*UNSHARE, *command], env=environ, stderr=subprocess.PIPE) as process:
            wait_for(ready.exists, "the launcher plans")
            (init,) = children_now(process.pid).split()
            os.kill(int(init), signal.SIGTERM)
            process.communicate(timeout=20)
    assert process.returncode == 143


def children_now(pid: int) -> str:
    """Return the children of a process, as the kernel writes them."""
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return ""


def test_the_last_word_is_one_shared_deadline() -> None:
    """Eight processes that refuse SIGTERM take one grace, not eight."""
    script = 'trap "" TERM; echo ready; while :; do sleep 0.1; done'
    with open_launcher("run", "--nproc-per-node", "8", "--grace", "1", "--", "bash", "-c", script) as process:
        assert process.stdout is not None
        for _ in range(8):
            assert "ready" in process.stdout.readline()
        started = time.monotonic()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, time.monotonic() - started < 6) == (137, True), err


def test_every_signal_that_may_be_mapped_is_sent_as_another(tmp_path: Path) -> None:
    """Each of them as SIGUSR1, one after the other: what the flag takes does happen."""
    numbers = [int(n) for n in FORWARDED]
    ready = tmp_path / "ready"
    mapping = ",".join(f"{number}={int(signal.SIGUSR1)}" for number in numbers)
    script = COUNT_USR1.replace("COUNT", str(len(numbers)))
    with open_launcher(
        "run", "--signal-map", mapping, "--", sys.executable, "-c", script, str(ready)
    ) as process:
        read_pid(ready)
        assert process.stdout is not None
        for place, number in enumerate(numbers, 1):
            process.send_signal(number)
            assert process.stdout.readline() == f"{place}\n", f"signal {number} did not arrive"
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err


COUNT_USR1 = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
open(sys.argv[1], "w").write(f"{os.getpid()}\\n")
for place in range(1, COUNT + 1):
    signal.sigwait([signal.SIGUSR1])
    print(place, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM])
def test_no_restart_after_a_request_to_end(number: int) -> None:
    """A process that dies of a signal that was passed on ends the job, also where restarts are left."""
    script = "trap 'exit $((128 + $1))' $1; echo ready; while :; do sleep 0.05; done"
    flags = ("--restarts", "5", "--nproc-per-node", "2")
    for command in (("sh", "-c", "echo ready; exec sleep 60"), ("sh", "-c", script, "sh", str(int(number)))):
        with open_launcher("run", *flags, "--", *command) as process:
            assert process.stdout is not None
            assert all(process.stdout.readline().endswith("ready\n") for _ in range(2))
            process.send_signal(number)
            out, err = process.communicate(timeout=20)
        assert (process.returncode, out) == (128 + number, ""), err
        assert "restart 1 of" not in err and "[told-to-stop]" in err


def test_a_signal_that_was_survived_ends_nothing() -> None:
    """SIGUSR1 to save a checkpoint; a death by another cause after it is a failure as ever."""
    script = "trap 'echo saved' USR1; echo ready; while :; do sleep 0.05; done"
    last = 'test "$LAUNCHER_ATTEMPT" && exit; ' + script
    with open_launcher("run", "--restarts", "5", "--", "sh", "-c", last) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline() == "saved\n"
        (rank,) = children_of(process.pid, b"sh")
        os.kill(rank, signal.SIGKILL)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 0 and "restart 1 of 5" in err, err


def test_a_lone_process_at_process_scope_gets_an_init_where_asked() -> None:
    """--init: the launcher stays, as it does as process 1; LAUNCHER_INIT=0 takes even that back."""
    show = (sys.executable, "-c", "import os; print(os.getpid(), os.getppid())")
    mpi = {
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
    }
    process = open_launcher("run", "--init", "--", *show, environ=mpi)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out.split()[1]) == (0, str(process.pid)), err
    process = open_launcher("run", "--", *show, environ={**mpi, "LAUNCHER_INIT": "0"})
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out.split()[0]) == (0, str(process.pid)), err


FAULTY = """
import sys
from launcher.process.group import ProcessGroup
count = 0
good = ProcessGroup.reap
def reap(self):
    global count
    count += 1
    if count < 3:
        raise RuntimeError("made by the test")
    return good(self)
ProcessGroup.reap = reap
from launcher.cli.entry import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_fault_of_the_launcher_does_not_end_the_job() -> None:
    """An exception in the loop is said; the processes continue and their status arrives."""
    command = ["run", "--nproc-per-node", "2", "--", "sh", "-c", "sleep 0.3; exit $((RANK + 3))"]
    done = subprocess.run(
        [sys.executable, "-c", FAULTY, *command],
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode in (3, 4), done.stderr
    assert "internal launcher error, the job continues: RuntimeError: made by the test" in done.stderr


@pytest.mark.parametrize(
    ("command", "number", "status"),
    [
        ("exit 0", None, 0),
        ("test $RANK = 1 && exit 3; sleep 600", None, 3),
        ("sleep 600", signal.SIGTERM, 143),
    ],
    ids=["success", "failure", "stop"],
)
def test_files_of_the_launcher_that_are_gone_change_no_end(
    command: str, number: int | None, status: int, tmp_path: Path
) -> None:
    """Another version is installed over it during the job: what is still to be loaded does not exist."""
    package, go, orphan = tmp_path / "launcher", tmp_path / "go", tmp_path / "orphan"
    shutil.copytree(Path(ROOT, "launcher"), package, ignore=shutil.ignore_patterns("__pycache__"))
    begin = f"test $RANK = 1 || {{ setsid sleep 600 & echo $! > {orphan}; }}"
    script = f"{begin}; until test -e {go}; do sleep 0.05; done"
    words = ("run", "--nproc-per-node", "2", "--", "sh", "-c", f"{script}; {command}")
    environ = {"PYTHONPATH": str(tmp_path), "TMPDIR": str(tmp_path)}
    with open_launcher(*words, environ=environ, folder=str(tmp_path)) as process:
        pid = read_pid(orphan)
        wait_for(lambda: [*tmp_path.glob("launcher_*/status")], "it has loaded what watches a job")
        package.rename(tmp_path / "old")
        if number is None:
            go.touch()
        else:
            process.send_signal(number)
        _, said = process.communicate(timeout=30)
    assert process.returncode == status, said
    assert not status or "internal launcher error, the job continues" in said
    wait_for(lambda: is_gone(pid), "what a rank has started has ended")


ENDS_EARLY = """
import os, sys
from launcher.process.loop import Loop
turn = Loop.turn
def fail(self, *, wait=True):
    if os.path.exists(os.environ["READY"]):
        raise RuntimeError("made by the test")
    turn(self, wait=wait)
Loop.turn = fail
from launcher.cli.entry import main
os._exit(main(sys.argv[1:]))
"""


def test_a_fault_that_ends_the_launcher_ends_its_processes(tmp_path: Path) -> None:
    """What the processes have started, too: the watchdog is not dismissed before they have ended."""
    script = f"test $RANK = 1 || {{ setsid sleep 600 & echo $! > {tmp_path}/orphan; }}; exec sleep 600"
    done = subprocess.run(
        [sys.executable, "-c", ENDS_EARLY, "run", "--nproc-per-node", "2", "--", "sh", "-c", script],
        env=clean_environ(READY=str(tmp_path / "orphan")),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode not in (0, None)
    assert "RuntimeError: made by the test" in done.stderr
    wait_for(lambda: is_gone(read_pid(tmp_path / "orphan")), "what a rank has started has ended")
