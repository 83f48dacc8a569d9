"""``launcher run`` as a parent and as a shell: real processes, statuses, signals, environments."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.frameworks.torch import ELASTIC
from tests.process.looking import wait_for
from tests.process.starting import ROOT, clean_environ, launch, open_launcher

MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "OMPI_MCA_orte_num_nodes": "2",
    "OMPI_MCA_orte_hnp_uri": "1.0;tcp://10.77.0.4:5",
    "OMPI_MCA_orte_local_daemon_uri": "1.1;tcp://10.77.0.5:6",
    "PMIX_RANK": "3",
    "PMI_FD": "9",
}
PER_NODE = {
    **MPI,
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "PET_NNODES": "2",
    "LAUNCHER_PEERS": "0",  # the other node of this job is never started
}
DUMP = "import json, os; print(json.dumps({**os.environ, 'pid': os.getpid(), 'ppid': os.getppid()}))"


def dumps(text: str) -> list[dict[str, str]]:
    lines = [line.partition("] ")[2] if line.startswith("[rank ") else line for line in text.splitlines()]
    return sorted((json.loads(line) for line in lines), key=lambda item: item["RANK"])


@pytest.mark.rows(2)
@pytest.mark.parametrize("environ", [MPI, {}], ids=["exec", "supervise"])
def test_the_commands_status_is_passed_on(environ: dict[str, str]) -> None:
    """The launcher exits with the command's own status, whatever it is; test_init.py has all of them."""
    for status in (0, 7, 78, 127, 255):
        assert launch("run", "--", "sh", "-c", f"exit {status}", environ=environ).returncode == status


def test_a_typing_error_in_a_variable_is_named_once_per_node() -> None:
    """And all starts; of the processes of mpirun the first says it, and its value is nobody's business."""
    environ = {"LAUNCHER_GRASE": "hunter2"}
    done = launch("run", "--nproc-per-node", "2", "--", "true", environ=environ)
    said = "launcher: warning: LAUNCHER_GRASE is not a variable of the launcher, and has no effect; "
    assert (done.returncode, done.stderr) == (0, f"{said}LAUNCHER_GRACE is the nearest\n")
    second = launch("run", "--", "true", environ={**environ, **MPI})
    assert (second.returncode, second.stderr) == (0, "")


@pytest.mark.parametrize("environ", [MPI, {}], ids=["exec", "supervise"])
def test_a_script_that_is_not_there_is_no_start(tmp_path: Path, environ: dict[str, str]) -> None:
    """As for a program: status 127, and one error in place of one traceback per process."""
    missing = str(tmp_path / "train.py")
    done = launch("run", "--", sys.executable, "-u", missing, "--lr", "1", environ=environ)
    assert (done.returncode, done.stdout) == (127, "")
    assert done.stderr.startswith(f"launcher: error: [command-not-found] {missing!r}: no such script")
    assert len(done.stderr.splitlines()) == 3
    assert f"note: {missing}: no such script here" in launch("plan", "--", sys.executable, missing).stdout
    assert "no such script on this machine" in launch("check", "--", sys.executable, missing).stdout
    for words in (("-c", "pass"), ("-m", "this"), ("-",), (str(tmp_path.parent), "x")):
        found = launch("run", "--", sys.executable, *words, environ=environ)
        assert "command-not-found" not in found.stderr


@pytest.mark.parametrize(
    ("command", "fix"),
    [
        (["python train.py"], "launcher run -- python train.py"),
        (["no-such train"], "launcher run -- no-such train"),
        (["LR=1", "python"], "LR=1 launcher run ..."),
        (["cd", "/tmp"], "sh -c 'cd ...'"),
        ([""], "a variable of a script may be unset"),
        (["horovodrun", "x"], "pip install horovod"),
        (["pyhton", "x"], "check the name"),
        (["src.start.go", "x"], "write it as a module: launcher run -- -m src.start.go"),
        (["src/start/go"], "write it as a module: launcher run -- -m src.start.go"),
        (["./crlf.sh"], "sed -i 's/\\r$//' ./crlf.sh"),
        (["./other"], "its first line names /no/such/python, which is not here"),
    ],
)
def test_a_command_that_is_no_program_is_told_what_it_looks_like(
    command: list[str], fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Quotes around it, a variable before it, a word of the shell, a framework that is not installed."""
    (tmp_path / "src" / "start").mkdir(parents=True)
    (tmp_path / "src" / "start" / "go.py").touch()
    (tmp_path / "crlf.sh").write_bytes(b"#!/bin/sh\r\ntrue\r\n")
    (tmp_path / "crlf.sh").chmod(0o755)
    (tmp_path / "other").write_bytes(b"#!/no/such/python\n")
    (tmp_path / "other").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    environ = {"PATH": str(Path(sys.executable).parent)}
    done = launch("run", "--", *command, environ=environ)
    assert done.returncode == 127
    assert fix in done.stderr.splitlines()[-1]
    if "/" in command[0] or "src" in command[0]:  # a front that does not find it
        behind = launch("run", "--", "/usr/bin/nice", *command, environ=environ)
        assert behind.returncode == 127 and f"fix:   {fix}" in behind.stderr.replace(
            "its first line has a Windows line end: ", ""
        )


def test_a_launchers_own_error_is_not_repeated_by_the_verdict() -> None:
    """`docker run IMAGE launcher rnu`: once by the command itself, once as the cause."""
    done = launch("run", "--", sys.executable, "-m", "launcher", "rnu")
    assert done.returncode == 64
    assert done.stderr.count("'rnu' is not a command") == 2
    assert "cause: [usage] 'rnu' is not a command" in done.stderr and "its stderr ended" not in done.stderr


def test_what_nobody_would_notice_later_is_said_at_the_start(tmp_path: Path) -> None:
    """Once per node, and by nothing that is inside of the job."""
    script = tmp_path / "train.py"
    script.write_text("print('alone')\n")
    line = ("run", "--nproc-per-node", "2", "--", sys.executable)
    done = launch(*line, str(script), "--nnodes=2")
    assert done.returncode == 0
    assert done.stderr.startswith("launcher: warning: --nnodes comes after the script")
    assert len(done.stderr.splitlines()) == 1
    place = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "0"}
    worker = {**place, "LAUNCHER_LAUNCHED": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "6105"}
    inside = launch("run", "--", sys.executable, str(script), "--nnodes=2", environ=worker)
    assert (inside.returncode, inside.stderr) == (0, "")


def test_exec_keeps_the_pid_and_hands_down_the_contract() -> None:
    """At PROCESS scope the launcher becomes the command: same pid, nothing of MPI dropped."""
    process = open_launcher("run", "--", sys.executable, "-c", DUMP, environ=MPI)
    out, _ = process.communicate(timeout=60)
    seen = json.loads(out)
    assert seen["pid"] == process.pid
    expected = {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "1",
        "GROUP_RANK": "1",
        "MASTER_ADDR": "10.77.0.4",
        "MASTER_ADDRESS": "10.77.0.4",
        "MASTER_PORT": "6105",
        "ROLE_NAME": "default",
        "ROLE_RANK": "3",
        "ROLE_WORLD_SIZE": "4",
    }
    assert expected == {name: seen.get(name) for name in expected}
    assert {name: seen[name] for name in MPI} == MPI


def test_pmi_fd_stays_open_across_exec() -> None:
    """PMI_FD is a live socket: an MPI program after exec must still be able to talk on it."""
    reading, writing = os.pipe()
    try:
        environ = {**MPI, "PMI_FD": str(writing)}
        talk = "import os; os.write(int(os.environ['PMI_FD']), b'hello')"
        done = launch("run", "--", sys.executable, "-c", talk, environ=environ, pass_fds=[writing])
        assert done.returncode == 0, done.stderr
        assert os.read(reading, 100) == b"hello"
    finally:
        os.close(reading)
        os.close(writing)


def test_one_launcher_per_node_starts_every_process() -> None:
    """At NODE scope each process gets its own ranks; MPI's private state is gone, its names true."""
    words = ("run", "--engine", "process", "--nproc-per-node", "3")  # node 0 is not there to be met
    done = launch(*words, "--", sys.executable, "-c", DUMP, environ=PER_NODE)
    assert done.returncode == 0, done.stderr
    processes = dumps(done.stdout)
    assert [p["RANK"] for p in processes] == ["3", "4", "5"]
    assert [p["LOCAL_RANK"] for p in processes] == ["0", "1", "2"]
    for place, seen in enumerate(processes):
        assert (seen["WORLD_SIZE"], seen["LOCAL_WORLD_SIZE"], seen["NODE_RANK"]) == ("6", "3", "1")
        assert seen["OMPI_COMM_WORLD_LOCAL_RANK"] == str(place)
        assert (seen["OMPI_COMM_WORLD_RANK"], seen["OMPI_COMM_WORLD_SIZE"]) == (seen["RANK"], "6")
        private = ("PMIX_", "PMI_", "PRTE_", "OMPI_MCA_", "HYDI_", "TORCHELASTIC_", "PET_")
        left = {name for name in seen if name.startswith(private)}
        # ours: where a process says why it fails, and the marks of a worker
        assert left == {"TORCHELASTIC_ERROR_FILE", *ELASTIC}
        assert seen["TORCHELASTIC_USE_AGENT_STORE"] == "False"
        assert int(seen["OMP_NUM_THREADS"]) == max(1, len(os.sched_getaffinity(0)) // 3)


def test_a_flag_can_be_a_variable() -> None:
    """Each flag also works as LAUNCHER_*, and does not leak into the processes."""
    done = launch("run", "--", sys.executable, "-c", DUMP, environ={"LAUNCHER_NPROC_PER_NODE": "2"})
    assert [p["RANK"] for p in dumps(done.stdout)] == ["0", "1"]
    assert all("LAUNCHER_NPROC_PER_NODE" not in p for p in dumps(done.stdout))


def test_a_launcher_inside_a_process_starts_nothing_twice() -> None:
    """launcher run -- launcher run -- X: the inner one execs with the same contract."""
    inner = (sys.executable, "-m", "launcher", "run", "--", sys.executable, "-c", DUMP)
    done = launch(
        "run",
        "--nproc-per-node",
        "2",
        "--",
        *inner,
        environ={"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "1"},
    )
    assert [(p["RANK"], p["WORLD_SIZE"]) for p in dumps(done.stdout)] == [("0", "2"), ("1", "2")]


@pytest.mark.parametrize("environ", [MPI, {}], ids=["exec", "supervise"])
def test_signals_are_as_a_shell_would_leave_them(environ: dict[str, str]) -> None:
    """Nothing blocked, and SIGPIPE and SIGXFSZ at their default, which Python takes away."""
    done = launch("run", "--", "grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status", environ=environ)
    masks = {line.split(":")[0]: int(line.split()[1], 16) for line in done.stdout.splitlines()}
    # glibc's posix_spawn leaves its own two, 32 and 33, ignored; nobody else can use them.
    internal = 1 << 31 | 1 << 32
    assert {name: mask & ~internal for name, mask in masks.items()} == {"SigBlk": 0, "SigIgn": 0}


@pytest.mark.parametrize("environ", [MPI, {}], ids=["exec", "supervise"])
def test_a_command_that_cannot_run_has_a_shells_status(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """127 for nothing of that name, 126 for a file that cannot be executed, with the fix."""
    missing = launch("run", "--", "no-such-program", environ=environ)
    assert missing.returncode == 127 and "command-not-found" in missing.stderr
    plain = tmp_path / "script.sh"
    plain.write_text("echo hello\n")
    refused = launch("run", "--", str(plain), environ=environ)
    assert refused.returncode == 126 and "chmod +x" in refused.stderr
    monkeypatch.chdir(tmp_path)
    here = launch("run", "--", "script.sh", environ=environ)
    assert here.returncode == 127 and "./script.sh, or sh script.sh" in here.stderr


@pytest.mark.parametrize("environ", [{}, {"LAUNCHER_NPROC_PER_NODE": "2"}], ids=["one", "two"])
def test_a_command_that_cannot_be_one_is_told_apart(environ: dict[str, str], tmp_path: Path) -> None:
    """A folder needs no chmod, and a flag behind ``--`` is in the wrong place, not off PATH."""
    folder = launch("run", "--", str(tmp_path), environ=environ)
    assert folder.returncode == 126 and "it is a directory" in folder.stderr and "chmod" not in folder.stderr
    flag = launch("run", "--", "--nproc-per-node", "2", "true", environ=environ)
    assert flag.returncode == 64 and "launcher run FLAGS -- COMMAND" in flag.stderr


def test_commands_may_be_scripts_modules_and_programs(tmp_path: Path) -> None:
    """A .py file and a module run under Python; --no-python leaves the command alone."""
    script = tmp_path / "train.py"
    script.write_text("import sys; print('script', sys.argv[1:])\n")
    assert launch("run", "--", str(script), "--lr", "1").stdout == "script ['--lr', '1']\n"
    assert "json" in launch("run", "--", "-m", "json.tool", "--help").stdout
    assert "json" in launch("run", "-m", "json.tool", "--help").stdout
    assert launch("run", "--no-python", str(script)).returncode == 126


def test_the_affinity_that_mpirun_narrowed_is_widened_for_forks_only() -> None:
    """A launcher bound to one core gives its processes the whole set; at PROCESS scope it does not."""
    everything = os.sched_getaffinity(0)
    if len(everything) < 2:
        pytest.skip("one CPU cannot be narrowed")
    one = min(everything)
    bind = ("taskset", "-c", str(one), sys.executable)
    show = (sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))")
    forked = launch(
        "run", "--nproc-per-node", "2", "--no-prefix", "--", *show, environ=PER_NODE, interpreter=bind
    )
    assert forked.stdout.splitlines() == [str(sorted(everything))] * 2
    kept = launch("run", "--", *show, environ=MPI, interpreter=bind)
    assert kept.stdout.splitlines() == [str([one])]


def test_a_dry_run_can_be_asked_for_by_a_variable(tmp_path: Path) -> None:
    """LAUNCHER_DRY_RUN=1 shows what an image would do, without touching its command."""
    witness = tmp_path / "started"
    done = launch("run", "--", "touch", str(witness), environ={**MPI, "LAUNCHER_DRY_RUN": "1"})
    assert (done.returncode, witness.exists()) == (0, False)
    assert (
        launch("run", "--", "touch", str(witness), environ={**MPI, "LAUNCHER_DRY_RUN": "0"}).returncode == 0
    )
    assert witness.exists()


def shell(script: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a line of sh in which ``"$@"`` is the launcher with these words."""
    return subprocess.run(
        ["sh", "-c", script, "sh", sys.executable, "-m", "launcher", *words],
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


TWO = ("run", "--nproc-per-node", "2", "--")


def test_a_signal_that_was_ignored_stays_ignored() -> None:
    """nohup launcher run ...: the hangup that ends a login does not end the job."""
    script = 'trap "" HUP; exec "$@"'
    flags = ("--nproc-per-node", "2", "--no-prefix", "--grace", "0.2")
    command = ("sh", "-c", "kill -HUP $PPID; kill -HUP $PPID; sleep 0.5; echo done")
    done = shell(script, "run", *flags, "--", *command)
    assert (done.returncode, done.stdout) == (0, "done\ndone\n"), done.stderr


@pytest.mark.parametrize("name", ["INT", "QUIT", "TTIN", "TTOU"])
def test_what_a_script_ignores_in_the_background_stays_ignored(name: str) -> None:
    """A shell without job control starts ``launcher run ... &`` with SIGINT ignored, for the job too."""
    done = shell(f'trap "" {name}; exec "$@"', *TWO, "grep", "^SigIgn", "/proc/self/status")
    bit = 1 << getattr(signal, f"SIG{name}") - 1
    masks = [int(line.split()[-1], 16) & ~(1 << 31 | 1 << 32) for line in done.stdout.splitlines()]
    assert masks == [bit, bit], done


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ((*TWO, "sh", "-c", "exit 7"), 7),
        (("check", "--strict", "--health-command", "false"), 69),
        (("rehearse", "--loopback", "--", "sh", "-c", "exit 7"), 7),
        (("rehearse", "--loopback", "--bare", "--", "sh", "-c", "exit 7"), 7),
    ],
)
def test_statuses_arrive_where_sigchld_was_ignored(words: tuple[str, ...], status: int) -> None:
    """A parent that ignores SIGCHLD hands that down; each command still waits and sees the status.

    Not by ``trap``, which dash doesn't hand down for this signal.
    """
    assert shell('exec env --ignore-signal=CHLD "$@"', *words).returncode == status


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("flags", [TWO, ("run", "--")], ids=["two", "one"])
def test_closed_descriptors_stop_nothing(closed: str, flags: tuple[str, ...]) -> None:
    """A daemon's child has no standard streams; the command runs, with /dev/null in their place."""
    assert shell(f'exec "$@" {closed}', *flags, "sh", "-c", "exit 5").returncode == 5


@pytest.mark.parametrize("is_gone", [False, True], ids=["full", "gone"])
@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("rehearse", "--loopback", "--nodes", "2", "--", "sh", "-c", "exit 7"), 7),
        (("run", "--log-format", "json", "--scope", "process", "--", "sh", "-c", "exit 7"), 7),
        (("run", "--", "no-such-program"), 127),
        (("run", "--no-such-flag"), 64),
    ],
)
def test_a_log_that_cannot_be_written_changes_no_status(
    words: tuple[str, ...], status: int, *, is_gone: bool
) -> None:
    """A full disk, and a reader that has gone: the launcher's lines are lost, and the job is not."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as gone, open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "launcher", *words],
            env=clean_environ(WORLD_SIZE="1", RANK="0"),
            stdout=subprocess.DEVNULL,
            stderr=gone if is_gone else full,
            timeout=60,
            check=False,
        )
    assert done.returncode == status


def test_a_reader_that_is_slow_gets_everything() -> None:
    """Also through a pipe that does not block, as some programs make it: it has room again later."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    environ = clean_environ(**{f"MASTER_{number}": "x" * 1000 for number in range(200)})
    with subprocess.Popen(
        [sys.executable, "-m", "launcher", "env", "--all"],
        stdout=writing,
        stderr=subprocess.PIPE,
        env=environ,
    ) as process:
        wait_for(lambda: not select.select([], [writing], [], 0)[1], "the pipe is full")
        os.close(writing)
        with open(reading, "rb") as pipe:
            assert len(pipe.read()) > 200_000
        assert process.stderr is not None
        assert (process.wait(30), process.stderr.read()) == (0, b"")


def test_the_whole_environment_on_a_terminal_comes_with_a_warning() -> None:
    """It has the user's secrets; a pipe or a file gets the environment alone."""
    reading, writing = os.openpty()
    line = [sys.executable, "-m", "launcher", "env", "--all"]
    done = subprocess.run(line, stdout=writing, stderr=subprocess.PIPE, env=clean_environ(), check=True)
    os.close(writing)
    os.close(reading)
    assert b"note: --all shows secrets" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("run", "train.py"),
        ("run", "--log-dir", "logs", "--", "true"),
        ("run", "--hostfile", "hosts", "true"),
        ("check", "--", "python", "train.py"),
        ("hook", "status", "--prefix", "env"),
        ("rehearse", "--", "true"),
    ],
    ids=lambda words: words[0] + words[1],
)
def test_a_deleted_working_directory_is_said_in_one_line(words: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    enter = ("sh", "-c", 'cd "$0" && rmdir "$0" && exec "$@"', str(folder), sys.executable)
    done = launch(*words, interpreter=enter)
    assert done.returncode == 69, done.stderr
    assert "[no-working-directory] the working directory was deleted" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", ["env", "hook status", "help"])
def test_a_full_disk_is_said_in_one_line(words: str) -> None:
    """What cannot be written is a problem with a fix, not a traceback."""
    done = shell('exec "$@" >/dev/full', *words.split())
    assert (done.returncode, "cannot-write" in done.stderr) == (75, True)
    assert "Traceback" not in done.stderr


def test_a_snapshot_that_does_not_fit_leaves_nothing_behind(tmp_path: Path) -> None:
    """On a full disk there is a message and no half of a file."""
    done = shell(f'ulimit -f 0; cd "{tmp_path}"; exec "$@"', "snapshot", "-o", "node.json")
    assert (done.returncode, "cannot-write" in done.stderr, list(tmp_path.iterdir())) == (75, True, [])


def test_the_traceback_of_a_bug_is_safe_to_print(tmp_path: Path) -> None:
    """An error of our own ends in status 70, without the control characters and secrets that it holds."""
    token = "hf_" + "aB3" * 11
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nclass Broken:\n    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == 'launcher.planning.plan':\n            raise RuntimeError('\\x1b[31m {token}')\n"
        "sys.meta_path.insert(0, Broken())\n"
    )
    done = launch("plan", environ={"PYTHONPATH": f"{ROOT}:{tmp_path}"})
    assert (done.returncode, "RuntimeError" in done.stderr) == (70, True)
    assert "\x1b" not in done.stderr
    assert token not in done.stderr


def test_no_file_stays_in_the_temporary_folder(tmp_path: Path) -> None:
    """However the job ends, except for the report of a job that hung, which the log names."""
    environ = {"TMPDIR": str(tmp_path)}
    python, two = sys.executable, ("run", "--nproc-per-node", "2")
    up = str(tmp_path / "up-")
    waits = f"import os, time; open({up!r} + os.environ['RANK'], 'w'); time.sleep(60)"
    assert launch(*two, "--", "true", environ=environ).returncode == 0
    assert launch(*two, "--", python, "-c", "raise ValueError", environ=environ).returncode == 1
    fatal = "import os; os.kill(os.getpid(), 11)"
    assert launch(*two, "--restarts", "1", "--", python, "-c", fatal, environ=environ).returncode == 139
    assert launch(*two, "--", "no-such-command", environ=environ).returncode == 127
    assert not list(tmp_path.iterdir())
    with open_launcher(*two, "--", python, "-c", waits, environ=environ) as killed:
        wait_for(lambda: len(list(tmp_path.glob("up-*"))) == 2, "the ranks run")
        assert list(tmp_path.glob("launcher_*"))
        killed.kill()
    wait_for(lambda: not list(tmp_path.glob("launcher_*")), "the watchdog has removed its folder")
    stop = ("--stall-timeout", "1", "--on-stall", "stop")
    hung = launch(*two, *stop, "--", python, "-c", waits, environ=environ)
    (folder,) = tmp_path.glob("launcher_*")
    assert [one.name for one in folder.iterdir()] == ["stall-1.txt"]
    assert f"all stacks: {folder}/stall-1.txt" in hung.stderr
