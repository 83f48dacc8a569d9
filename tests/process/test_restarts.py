"""Restarts on one node: when another attempt follows, what it sees, and what is said and kept of it."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shlex
import signal
import socket
import sys
from pathlib import Path

import pytest

from launcher.core.environ import Malformed
from launcher.options.flag_values import regex
from tests.process.looking import is_gone, read_pid, wait_for
from tests.process.starting import ROOT, launch, open_launcher

FAILS = 'import os, sys; print("attempt", os.environ.get("LAUNCHER_ATTEMPT", "0"), flush=True); sys.exit({})'
TWO = ("run", "--nproc-per-node", "2")


def attempts(errors: str) -> int:
    """Return the number of attempts that failed: each has its report."""
    return errors.count("failed first")


SETS_CLOCK = """
import os, runpy, sys, time
mark = sys.argv.pop(1)
def make(real, unit):
    return lambda: real() + (34_560_000 * unit if os.path.exists(mark) else 0)
time.time, time.time_ns = make(time.time, 1), make(time.time_ns, 10**9)
sys.argv[1:2] = []
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


def test_a_clock_that_is_set_between_two_attempts_lengthens_nothing(tmp_path: Path) -> None:
    """By 400 days: the time of the job and of its attempts is that of a clock that nobody sets."""
    (tmp_path / "clock.py").write_text(SETS_CLOCK)
    mark = tmp_path / "set"
    script = f"test $LAUNCHER_ATTEMPT || exit 3; touch {mark}; test $LAUNCHER_ATTEMPT = 2 || exit 4"
    interpreter = (sys.executable, str(tmp_path / "clock.py"), str(mark))
    done = launch(*TWO, "--restarts", "3", "--", "sh", "-c", script, interpreter=interpreter)
    assert done.returncode == 0 and "3 attempts, 2 failed" in done.stderr, done.stderr
    assert all(float(one) < 60 for one in re.findall(r"([0-9.]+) s\b", done.stderr)), done.stderr


def test_the_last_screen_sums_up_the_attempts() -> None:
    """Each attempt has its report; then attempts, causes, and where the time went."""
    script = "import os, sys; sys.exit(3 if os.environ.get('LAUNCHER_ATTEMPT', '0') == '0' else 0)"
    done = launch(*TWO, "--restarts", "3", "--", sys.executable, "-c", script)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("failed first") == 1
    assert "launcher: restart 1 of 3\n" in done.stderr
    assert "launcher: 2 attempts, 1 failed (1 x status 3); exit code 0\n" in done.stderr
    time = (
        r"time: [0-9.]+ s in total: [0-9.]+ s start, [0-9.]+ s in attempts .*, [0-9.]+ s between attempts\n"
    )
    assert re.search(time, done.stderr)


def test_a_cause_that_a_restart_does_not_help_ends_the_job() -> None:
    line = (*TWO, "--restarts", "3", "--", sys.executable, "-c", FAILS.format("__import__('no_such')"))
    done = launch(*line)
    assert (done.returncode, attempts(done.stderr)) == (1, 1), done.stderr
    assert "no restart: import-error is not retryable" in done.stderr


@pytest.mark.parametrize("kind", ["file", "pattern"])
def test_progress_keeps_the_job_going(kind: str, tmp_path: Path) -> None:
    """The file is written, or the line printed, in each attempt: all restarts are used."""
    path = tmp_path / "ckpt"
    gate = ("--progress-file", str(path)) if kind == "file" else ("--progress-pattern", "step [0-9]")
    moves = f'open({str(path)!r}, "a").write("x"); print("step 7"); ' + FAILS.format(5)
    done = launch(*TWO, "--restarts", "4", *gate, "--", sys.executable, "-c", moves)
    assert (done.returncode, attempts(done.stderr)) == (5, 5), done.stderr


def test_a_single_process_whose_output_is_searched() -> None:
    """The only process gets a pipe for that, and its lines arrive unchanged."""
    moves = 'print("step 7", flush=True); ' + FAILS.format(5)
    flags = ("--restarts", "4", "--progress-pattern", "step [0-9]")
    done = launch("run", *flags, "--", sys.executable, "-c", moves)
    assert done.returncode == 5 and done.stdout.count("step 7\n") == 5, done.stderr


BURST = """
import os, signal, sys
launcher = os.getppid()
if os.environ.get("LAUNCHER_ATTEMPT", "0") == "0":
    print(os.getpid(), file=open(sys.argv[1], "w"), flush=True)
    os.kill(launcher, signal.SIGSTOP)
    os.write(1, b"x" * 79 + b"\\n")
    os.write(1, (b"x" * 79 + b"\\n") * 330 + b"step 7\\n" + (b"x" * 79 + b"\\n") * 430)
    sys.exit(5)
"""


def test_a_line_is_found_wherever_it_is_in_the_output(tmp_path: Path) -> None:
    """60 KB wait in the pipe when the rank has ended, and the line is in the middle."""
    record = tmp_path / "attempts.jsonl"
    flags = ("--restarts", "1", "--attempts-file", str(record), "--progress-pattern", "^step [0-9]$")
    line = ("run", *flags, "--", sys.executable, "-c", BURST, str(tmp_path / "pid"))
    with open_launcher(*line) as process:
        pid = read_pid(tmp_path / "pid")
        wait_for(lambda: is_gone(pid), "the rank has ended")
        process.send_signal(signal.SIGCONT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert out.count("step 7\n") == 1
    assert json.loads(record.read_text().splitlines()[0])["progressed"] is True


def test_output_that_is_not_shown_is_searched_too() -> None:
    """--local-ranks-filter hides rank 0."""
    flags = ("--restarts", "4", "--progress-pattern", "step [0-9]", "--local-ranks-filter", "1")
    moves = 'import os; print("step 7" * (os.environ["RANK"] == "0")); ' + FAILS.format(5)
    done = launch(*TWO, *flags, "--restart-delay", "0", "--", sys.executable, "-c", moves)
    assert (done.returncode, attempts(done.stderr)) == (5, 5), done.stderr
    assert "step 7" not in done.stdout


def test_the_record_has_a_json_line_for_each_failed_attempt(tmp_path: Path) -> None:
    path = tmp_path / "new" / "attempts.jsonl"
    flags = ("--restarts", "1", "--attempts-file", str(path))
    done = launch(*TWO, *flags, "--", sys.executable, "-c", FAILS.format(5))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert done.returncode == 5
    assert [(line["number"], line["status"], line["restarts"]) for line in lines] == [
        (0, 5, True),
        (1, 5, False),
    ]
    assert lines[0]["why"] == "restart 1 of 1" and "the only restart is used" in lines[1]["why"]


def test_a_disk_that_is_full_costs_the_record_and_not_the_job() -> None:
    flags = ("--restarts", "2", "--restart-delay", "0", "--attempts-file", "/dev/full/attempts")
    done = launch(*TWO, *flags, "--", sys.executable, "-c", FAILS.format(5))
    assert (done.returncode, attempts(done.stderr)) == (5, 3)
    assert done.stderr.count("no record of attempts") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_a_restart_waits_ends_the_job(number: int) -> None:
    """With the status of the attempt that failed, and no report twice."""
    with open_launcher(
        "run", "--restarts", "9", "--restart-delay", "60", "--", "sh", "-c", "exit 9"
    ) as process:
        assert process.stderr is not None
        seen = ""
        while "restart 2 of 9 in" not in seen:
            line = process.stderr.readline()
            assert line, seen
            seen += line
        process.send_signal(number)
        _, rest = process.communicate(timeout=20)
    assert process.returncode == 9
    assert seen.count("failed first") == 2 and "failed first" not in rest


def test_the_health_of_a_lone_node_is_reported(tmp_path: Path) -> None:
    check = "sh -c 'echo the disk is slow; exit 1'"
    flags = ("--restarts", "1", "--health-command", check)
    done = launch(*TWO, *flags, "--", sys.executable, "-c", FAILS.format(5))
    assert (done.returncode, attempts(done.stderr)) == (5, 2), done.stderr
    assert "this node is unhealthy (the disk is slow), and starts again" in done.stderr


def test_flags_of_restarts_are_checked() -> None:
    """They need restarts."""
    done = launch("run", "--restarts-per-cause", "2", "--", "true")
    assert done.returncode == 64 and "does nothing without --restarts" in done.stderr
    done = launch("run", "--restarts", "2", "--restart-delay", "10", "--restart-delay-max", "5", "--", "true")
    assert done.returncode == 64, done.stderr
    assert "--restart-delay 10 is more than --restart-delay-max 5" in done.stderr
    done = launch("plan", "--format", "json", "--restarts", "2", "--restart-delay", "90", "--", "true")
    assert done.returncode == 0, done.stderr
    assert '"delay_max_s": 90.0' in done.stdout


def test_the_first_example_of_the_page_is_what_is_printed() -> None:
    """Apart from times, the host and the lines that are cut (``...``)."""
    page = (Path(ROOT) / "docs" / "restarts.md").read_text()
    command, *shown = next(part for part in page.split("\n\n") if part.startswith("    $ ")).splitlines()
    done = launch(*shlex.split(command.removeprefix("    $ launcher ")))
    assert done.returncode == 0, done.stderr

    def mask(line: str) -> str:
        return re.sub(r" on \S+ was", " on HOST was", re.sub(r"[0-9]+[.][0-9]+", "N", line.strip()))

    expected = ["(.*\n)?" if line == "    ..." else re.escape(f"{mask(line)}\n") for line in shown]
    printed = "".join(f"{mask(line)}\n" for line in done.stderr.splitlines())
    assert re.fullmatch("".join(expected), printed, re.DOTALL), printed


def test_nothing_of_an_attempt_is_left_in_the_next(tmp_path: Path) -> None:
    """A child that has left its process group is gone before the second attempt looks for it."""
    script = (
        "import os, subprocess, sys\n"
        f"path = {str(tmp_path / 'pid')!r}\n"
        "if 'LAUNCHER_ATTEMPT' not in os.environ:\n"
        "    child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "    open(path, 'w').write(str(child.pid))\n"
        "    sys.exit(5)\n"
        "pid = open(path).read()\n"
        "print('left' if os.path.exists(f'/proc/{pid}') else 'gone')\n"
    )
    done = launch("run", "--restarts", "1", "--grace", "1", "--", sys.executable, "-c", script)
    assert (done.returncode, done.stdout) == (0, "gone\n"), done.stderr


ONCE = "import os, sys; sys.exit(0 if 'LAUNCHER_ATTEMPT' in os.environ else 5)"


def test_a_health_command_counts_by_its_status() -> None:
    """Not by its words, and a daemon that it starts is not waited for."""
    check = "sh -c 'echo healthy; exit 1'"
    done = launch(*TWO, "--restarts", "1", "--health-command", check, "--", sys.executable, "-c", ONCE)
    assert done.returncode == 0 and "this node is unhealthy (healthy)" in done.stderr, done.stderr
    # It holds the pipe of the command's output; the command itself has ended.
    check = "sh -c 'sleep 600 & exit 0'"
    done = launch(*TWO, "--restarts", "1", "--health-command", check, "--", sys.executable, "-c", ONCE)
    assert done.returncode == 0 and "unhealthy" not in done.stderr, done.stderr
    assert "left behind" not in done.stderr, done.stderr


def test_a_health_command_ends_with_its_launcher(tmp_path: Path) -> None:
    """SIGTERM comes while it runs: nothing of it is left. What it floods us with is not kept."""
    path, script = tmp_path / "pid", tmp_path / "check"
    script.write_text(f"#!/bin/sh\necho $$ > {path}.new; mv {path}.new {path}\nyes\n:\n")
    script.chmod(0o755)
    line = ("run", "--restarts", "1", "--health-command", str(script), "--", "sh", "-c", "exit 9")
    with open_launcher(*line) as process:
        wait_for(path.exists, "the command runs")
        pid = int(path.read_text())
        helper = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        wait_for(lambda: Path(f"/proc/{pid}/task/{pid}/children").read_text(), "it floods")
        read = Path(f"/proc/{helper}/io")
        wait_for(lambda: int(read.read_text().split()[1]) > 1 << 28, "it has read 256 MiB")
        resident = int(Path(f"/proc/{helper}/statm").read_text().split()[1])
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    assert process.returncode == 9
    assert resident * 4096 < 1 << 27
    wait_for(lambda: is_gone(pid), "it has ended")


def test_a_pipe_that_no_process_reads_costs_the_record_and_not_the_job(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    flags = ("--restarts", "1", "--attempts-file", str(tmp_path / "pipe"))
    done = launch(*TWO, *flags, "--", sys.executable, "-c", FAILS.format(5))
    assert (done.returncode, attempts(done.stderr)) == (5, 2)
    assert done.stderr.count("no record of attempts") == 1


def test_the_record_of_a_job_that_hung_has_the_cause(tmp_path: Path) -> None:
    """Its processes end with 0 when they are told to: no process has failed."""
    record = tmp_path / "attempts"
    flags = ("--restarts", "1", "--attempts-file", str(record), "--stall-timeout", "1", "--on-stall", "stop")
    script = "trap 'exit 0' TERM; while :; do sleep 0.1; done"
    done = launch(*TWO, *flags, "--", "sh", "-c", script)
    assert done.returncode == 75, done.stderr
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert [one["cause"] for one in lines] == ["stalled", "stalled"] and "2 x stalled" in done.stderr


def test_no_attempt_follows_while_a_process_survives(tmp_path: Path) -> None:
    """A debugger holds rank 0, as the kernel may hold a process that waits for a device."""
    script = (
        f"test $RANK = 1 || {{ echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; }}; "
        f"while ! test -e {tmp_path}/go; do sleep 0.05; done; test $RANK = 0 && sleep 600; exit 9"
    )
    line = (*TWO, "--restarts", "1", "--grace", "1", "--", "sh", "-c", script)
    with open_launcher(*line) as process:
        wait_for((tmp_path / "pid").exists, "rank 0 runs")
        seize, pid = 0x4206, int((tmp_path / "pid").read_text())
        assert not ctypes.CDLL(None).ptrace(seize, pid, 0, 0)
        (tmp_path / "go").touch()
        _, said = process.communicate(timeout=30)
    os.waitpid(pid, 0x40000000)  # __WALL
    assert process.returncode == 9, said
    assert attempts(said) == 1 and "no restart: a process of this attempt survives SIGKILL" in said, said


def test_a_job_that_is_told_to_end_while_it_stops_says_so(tmp_path: Path) -> None:
    """Rank 1 has failed, and rank 0 takes its time to stop, when SIGTERM comes."""
    record = tmp_path / "attempts"
    script = (
        f"test $RANK = 1 && {{ until test -e {tmp_path}/on; do sleep 0.02; done; exit 9; }}; "
        f"trap 'touch {tmp_path}/stops' TERM; touch {tmp_path}/on; while :; do sleep 0.05; done"
    )
    flags = ("--restarts", "3", "--grace", "3", "--attempts-file", str(record))
    with open_launcher(*TWO, *flags, "--", "sh", "-c", script) as process:
        wait_for((tmp_path / "stops").exists, "rank 0 stops")
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=20)
    assert process.returncode == 9, said
    assert said.count("no restart: the launcher received a signal to stop") == 1, said
    (line,) = map(json.loads, record.read_text().splitlines())
    assert (line["status"], line["restarts"], line["why"]) == (
        9,
        False,
        "the launcher received a signal to stop",
    )


@pytest.mark.parametrize(("lost", "status"), [("the program", 127), ("the folder", 127)])
def test_the_last_screen_and_the_record_are_right_if_the_next_attempt_cannot_start(
    tmp_path: Path, lost: str, status: int
) -> None:
    record, folder = tmp_path / "attempts", tmp_path / "folder"
    folder.mkdir()
    program = folder / "program"
    program.write_text(f"#!/bin/sh\nrm -r {folder if lost == 'the folder' else program}\nexit 9\n")
    program.chmod(0o755)
    flags = ("run", "--nproc-per-node", "1", "--restarts", "3", "--attempts-file", str(record))
    python = ("env", f"--chdir={folder}", sys.executable)
    done = launch(*flags, "--", str(program), interpreter=python)
    assert done.returncode == status, done.stderr
    (line,) = map(json.loads, record.read_text().splitlines())
    assert (line["number"], line["restarts"]) == (0, False)
    assert line["why"].startswith("attempt 1 could not start: ["), line
    assert f"no restart: {line['why']}" in done.stderr
    assert f"2 attempts, 1 failed (1 x status 9); exit code {status}" in done.stderr, done.stderr


@pytest.mark.parametrize("name", ["failure.json", "termination-log"])
def test_a_job_that_succeeds_in_the_end_has_no_failure_record(tmp_path: Path, name: str) -> None:
    """Kubernetes mounts the termination log: it is emptied."""
    file = tmp_path / name
    if name == "termination-log":
        file.touch()
    flags = ("--restarts", "1", "--failure-file", str(file))
    script = f'test "$LAUNCHER_ATTEMPT" && test -s {file} && cp {file} {tmp_path}/seen && exit 0; exit 9'
    done = launch("run", "--nproc-per-node", "1", *flags, "--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    assert "exited with code 9" in json.loads((tmp_path / "seen").read_text())["status"]
    assert file.read_text() == "" if name == "termination-log" else not file.exists()


SLOW = "(a+)+$"


def test_a_pattern_never_blocks_the_launcher(tmp_path: Path) -> None:
    """Its search of this line would take longer than the sun lasts; SIGTERM ends the job all the same."""
    script = f"import time; print('a' * 100 + '!'); open({str(tmp_path / 'said')!r}, 'w'); time.sleep(600)"
    line = (*TWO, "--restarts", "3", "--progress-pattern", SLOW, "--", sys.executable, "-uc", script)
    with open_launcher(*line) as process:
        wait_for((tmp_path / "said").exists, "the line was written")
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=20)
    assert process.returncode == 143, said


def test_progress_is_unknown_if_the_search_needs_too_long(tmp_path: Path) -> None:
    """An unknown progress does not end a job: three attempts without progress would."""
    record = tmp_path / "attempts"
    flags = ("--restarts", "3", "--restart-on", "any", "--restart-delay", "0", "--progress-pattern", SLOW)
    script = "import sys; print('a' * 100 + '!', flush=True); sys.exit(9)"
    line = (*flags, "--attempts-file", str(record), "--", sys.executable, "-c", script)
    done = launch("run", "--nproc-per-node", "1", *line)
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert [one["progressed"] for one in lines] == [None] * 4, done.stderr
    said = (
        "--progress-pattern needs more than 1 s for a part",
        "--progress-pattern is slower than the output",
    )
    assert sum(map(done.stderr.count, said)) == 4  # the second one on a machine without a free CPU
    assert "all 3 restarts are used" in done.stderr and done.returncode == 9


@pytest.mark.parametrize("text", ["a{99999999999999}", "(" * 3000 + ")" * 3000, "("])
def test_an_expression_that_cannot_be_compiled_is_a_wrong_flag(text: str) -> None:
    with pytest.raises(Malformed):
        regex(text)


def test_an_expression_may_have_any_bytes() -> None:
    flags = ("--restarts", "1", "--progress-pattern", "\udcff")
    done = launch(*TWO, *flags, "--", "true")
    assert done.returncode == 0, done.stderr


def test_the_plan_tells_spare_nodes_and_what_restarts_may_do() -> None:
    flags = ("--nnodes", "3", "--spares", "1", "--node-rank", "1", "--master-addr", "10.0.0.1")
    rules = ("--restarts", "3", "--restarts-per-cause", "2", "--progress-file", "ckpt.pt",
             "--health-command", "nvidia-smi -q", "--attempts-file", "tries.jsonl")  # fmt: skip
    done = launch("plan", *flags, "--nproc-per-node", "1", *rules, "--", "true")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("3 processes on 3 nodes and 1 spare node; this is node 1;")
    assert re.search(r"node_count +4 \(1 spare\) ", done.stdout), done.stdout
    assert "3 nodes (--nnodes 3 --spares 1) x 1 per node" in done.stdout
    for part in (
        "3 restarts (2 for each cause)",
        "progress is seen in ckpt.pt",
        "record of attempts in tries.jsonl",
        "each node is checked by nvidia-smi -q",
    ):
        assert part in done.stdout, done.stdout


@pytest.mark.parametrize(
    ("check", "status", "code"),
    [
        ("nosuchcmd --now", 127, "command-not-found"),
        ("./nosuchcmd", 127, "command-not-found"),
        ("/etc/passwd", 126, "command-not-executable"),
        ("''", 64, "malformed-flag"),
        ("", 64, "malformed-flag"),
    ],
)
def test_a_mistyped_health_command_is_an_error_before_the_start(check: str, status: int, code: str) -> None:
    done = launch("run", "--restarts", "1", "--health-command", check, "--", "echo", "started")
    assert done.returncode == status and f"[{code}]" in done.stderr, done.stderr
    assert "--health-command" in done.stderr and not done.stdout


def test_the_first_attempt_has_no_number_from_outside() -> None:
    """A launcher inside of another's second attempt begins anew."""
    show = ("sh", "-c", "echo seen $LAUNCHER_ATTEMPT/$TORCHELASTIC_RESTART_COUNT; test $LAUNCHER_ATTEMPT")
    told = {"LAUNCHER_ATTEMPT": "7", "TORCHELASTIC_RESTART_COUNT": "7"}
    done = launch("run", "--nproc-per-node", "1", "--restarts", "1", "--", *show, environ=told)
    assert done.returncode == 0 and "seen /0" in done.stdout and "seen 1/1" in done.stdout, done.stderr


MEETS = """
import os, socket
port = int(os.environ["MASTER_PORT"])
print("port", port, flush=True)
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", port))
listener.listen()
raise SystemExit(3 if os.environ.get("LAUNCHER_ATTEMPT") != "2" else 0)
"""


def test_each_attempt_of_one_node_has_a_port_of_its_own() -> None:
    """What remains of an attempt cannot connect to the next, which can listen at its port."""
    line = ("run", "--restarts", "3", "--restart-delay", "0", "--", sys.executable, "-c", MEETS)
    for environ in ({}, {"MASTER_ADDR": "127.0.0.1"}):
        done = launch(*line, environ=environ)
        ports = [word for word in done.stdout.splitlines() if word.startswith("port")]
        assert done.returncode == 0 and len(ports) == len(set(ports)) == 3, done.stdout + done.stderr


def test_a_port_that_was_asked_for_is_that_of_all_attempts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = str(found.getsockname()[1])
    line = ("run", "--restarts", "3", "--master-port", port, "--restart-delay", "0")
    done = launch(*line, "--", sys.executable, "-c", MEETS)
    assert done.returncode == 0 and done.stdout.count(f"port {port}\n") == 3, done.stdout + done.stderr
