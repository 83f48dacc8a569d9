"""What a hostile or careless job, script or machine does to the launcher, and must not achieve."""

from __future__ import annotations

import os
import pty
import re
import resource
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher.failure.stderr import read_last_output
from launcher.machine.process import list_pids, read_environ
from tests.process import refusing
from tests.process.looking import is_gone, wait_for
from tests.process.starting import clean_environ, open_launcher

LAUNCHER = f"{sys.executable} -m launcher"
DEADLINE_S = 30.0


def run_script(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a bash script."""
    return subprocess.run(
        ["/bin/bash", "-c", script],
        env=clean_environ(**variables),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_tee_of_the_script_around_us_gets_the_verdict(tmp_path: Path) -> None:
    """``exec > >(tee log); exec launcher run ...``: tee is our child then, and none of the job."""
    log = tmp_path / "log"
    job = "if [ $RANK = 1 ]; then exit 7; else exec sleep 30; fi"
    done = run_script(
        f"exec > >(exec tee {log}) 2>&1; exec {LAUNCHER} run --nproc-per-node 2 -- bash -c '{job}'"
    )
    assert done.returncode == 7
    assert "rank 1 of 2 failed first: it exited with code 7" in log.read_text()


def test_what_was_our_child_before_outlives_restarts_and_the_job(tmp_path: Path) -> None:
    """A sidecar that a script starts before it becomes the launcher is neither told nor killed."""
    pid_file = tmp_path / "pid"
    run_script(
        f"sleep 60 >/dev/null 2>&1 & echo $! > {pid_file};"
        f" exec {LAUNCHER} run --nproc-per-node 2 --restarts 1 -- bash -c 'exit 3'"
    )
    sidecar = int(pid_file.read_text())
    alive = not is_gone(sidecar)
    if alive:
        os.kill(sidecar, signal.SIGKILL)
    assert alive


def test_restarts_do_not_use_up_descriptors(tmp_path: Path) -> None:
    """Log files of an attempt are closed with it: 32 restarts of 2 processes with 64 descriptors."""
    done = subprocess.run(
        f"{LAUNCHER} run --nproc-per-node 2 --restarts 32 --restart-on any --restart-delay 0".split()
        + f"--log-dir {tmp_path} -t 3 -- false".split(),
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)),
    )
    assert done.returncode == 1
    assert "restart 32 of 32" in done.stderr


def test_sigterm_is_passed_on_without_proc() -> None:
    """A chroot without /proc: the processes still hear SIGTERM."""
    job = 'trap "echo heard; exit 5" TERM; echo up; while :; do sleep 0.1; done'
    script = (
        f"umount -l /proc || exit 77; {LAUNCHER} run --nproc-per-node 2 --grace 20 -- bash -c '{job}' > $OUT"
        " & until grep -q 'rank 0. up' $OUT && grep -q 'rank 1. up' $OUT; do sleep 0.05; done;"
        " kill -TERM $!; wait $!"
    )
    out = Path(os.environ.get("TMPDIR", "/tmp"), f"no_proc_{os.getpid()}")
    out.touch()
    try:
        done = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "bash", "-c", script],
            env=clean_environ(OUT=str(out)),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        text = out.read_text()
    finally:
        out.unlink()
    if "unshare" in done.stderr or done.returncode == 77:
        pytest.skip(f"no mount namespaces here: {done.stderr.strip()}")
    assert done.returncode == 5, done.stderr
    assert text.count("heard") == 2
    assert "watchdog" not in done.stderr


OWN_MOUNTS = ("unshare", "--mount", "--propagation", "private")
UNSEEN = {
    "no-proc": (*OWN_MOUNTS, "sh", "-c", 'umount -l /proc && "$@"', "sh"),
    "proc-of-others": ("unshare", "--pid", "--fork", "--kill-child", "sh", "-c", '"$@"; exit $?', "sh"),
    "no-prctl": (sys.executable, refusing.__file__, "1", "prctl"),
}
"""Where /proc shows no child of the launcher, or an orphan is no child of it."""
LEAVES = """
if [ ! "$LAUNCHER_ATTEMPT" ]; then
    sleep 60 & echo $! > $D/new$RANK; mv $D/new$RANK $D/$RANK
    until [ -e $D/0 ] && [ -e $D/1 ]; do sleep 0.02; done
    [ $RANK = 1 ] && kill -9 $$
    wait
fi
for pid in $(cat $D/0 $D/1); do
    kill -0 $pid 2> /dev/null && ! grep -qs 'State:.Z' /proc/$pid/status && exit 9
done
sleep 60 & exit 0
"""


@pytest.mark.parametrize("kind", UNSEEN)
def test_what_a_rank_leaves_in_its_group_ends_with_the_attempt(kind: str, tmp_path: Path) -> None:
    """It never runs beside the next attempt or after the job, and the job has not succeeded."""
    if "unshare" in UNSEEN[kind][0] and subprocess.run(["unshare", "--mount", "--pid", "true"]).returncode:
        pytest.skip("no namespaces here")
    flags = ("--nproc-per-node", "2", "--restarts", "1", "--grace", "3")
    began = time.monotonic()
    done = subprocess.run(
        [*UNSEEN[kind], *LAUNCHER.split(), "run", *flags, "--", "sh", "-c", LEAVES],
        env=clean_environ(D=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1 and "[left-running]" in done.stderr, done.stderr
    assert time.monotonic() - began < 20
    assert "internal launcher error" not in done.stderr
    assert not [pid for pid in list_pids() if read_environ(pid).get("D") == str(tmp_path)]


def test_a_launcher_inside_of_a_killed_launcher_leaves_nothing(tmp_path: Path) -> None:
    """SIGKILL of the outer one takes along what the inner one has started, in sessions of their own."""
    pids = tmp_path / "pid"
    inner = f"setsid sleep 60 & echo $! > {pids}; wait"
    outer = open_launcher(
        "run", "--init", "--", *LAUNCHER.split(), "run", "--init", "--", "bash", "-c", inner
    )
    wait_for(lambda: pids.exists() and pids.read_text().strip() != "", "the innermost process runs")
    outer.send_signal(signal.SIGKILL)
    outer.communicate(timeout=DEADLINE_S)
    wait_for(lambda: is_gone(int(pids.read_text())), "it is gone")


@pytest.mark.parametrize("count", ["1", "2"])
def test_ctrl_z_without_a_shell_stops_nobody(count: str) -> None:
    """As a session's leader (ssh -t, tmux new-session, docker run -t) nobody could type fg."""
    pid, fd = pty.fork()
    if pid == 0:
        job = "for i in $(seq 1000); do echo tick $i; sleep 0.05; done"
        # A bash whose sleep ends by itself just then goes on after a Ctrl-C: the grace ends it soon.
        flags = ["--nproc-per-node", count, "--init", "--grace", "2"]
        words = [*LAUNCHER.split(), "run", *flags, "--", "bash", "-c", job]
        os.execve(words[0], words, clean_environ())
    try:
        read_until(fd, b"tick 3\r")
        os.write(fd, b"\x1a")
        read_until(fd, b"tick 25\r")
        os.write(fd, b"\x03\x03")
        deadline = time.monotonic() + DEADLINE_S
        while not os.waitpid(pid, os.WNOHANG)[0]:
            assert time.monotonic() < deadline
            select.select([fd], [], [], 0.05)[0] and drop(fd)
    finally:
        os.close(fd)


def drop(fd: int) -> bytes:
    """Read what a terminal shows; nothing once it is closed."""
    try:
        return os.read(fd, 4096)
    except OSError:
        return b""


def read_until(fd: int, text: bytes) -> None:
    """Read from a terminal until a text has come."""
    seen, deadline = b"", time.monotonic() + DEADLINE_S
    while text not in seen:
        assert time.monotonic() < deadline, seen[-500:]
        if select.select([fd], [], [], 0.1)[0]:
            seen += drop(fd)


def test_a_strangers_group_with_the_number_of_an_ended_process_is_spared() -> None:
    """A rank that has ended long ago has left its number: SIGKILL at the end of the grace is not for it."""
    script = rf"""
    {LAUNCHER} run --nproc-per-node 2 --grace 1 -- bash -c '
      if [ $RANK = 0 ]; then echo $$ > $OUT; exit 0; fi
      trap "" TERM; while :; do sleep 0.1; done' > /dev/null 2>&1 &
    launcher=$!
    until [ -s $OUT ]; do sleep 0.05; done; sleep 0.5
    free=$(cat $OUT)
    for i in $(seq 50); do
      echo $((free - 1)) > /proc/sys/kernel/ns_last_pid
      setsid sleep 30 > /dev/null 2>&1 & stranger=$!
      [ $stranger = $free ] && break
      kill -9 $stranger
    done
    [ $stranger = $free ] || exit 77
    sleep 0.2; kill -$1 $launcher; wait $launcher; sleep 0.5
    kill -0 $stranger && echo spared
    kill -9 $stranger
    """
    for number in ("TERM", "KILL"):
        out = Path(os.environ.get("TMPDIR", "/tmp"), f"stranger_{os.getpid()}")
        out.unlink(missing_ok=True)
        done = subprocess.run(
            ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "bash", "-c", script, "-", number],
            env=clean_environ(OUT=str(out)),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        out.unlink(missing_ok=True)
        if done.returncode == 77 or "unshare" in done.stderr:
            pytest.skip(f"no pid can be chosen here: {done.stderr.strip()}")
        assert "spared" in done.stdout, (number, done.stderr)


def test_a_slow_reader_does_not_mix_up_ranks_after_a_restart() -> None:
    """A pipe that was not read while our reader was slow is forgotten with its attempt."""
    job = (
        "if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then [ $RANK = 0 ] && exec yes; sleep 1; exit 4; fi;"
        " echo 'second of' $RANK; sleep 3; echo 'third of' $RANK; sleep 0.5; exit 5"
    )
    launcher = open_launcher("run", "--nproc-per-node", "2", "--restarts", "1", "--", "bash", "-c", job)
    assert launcher.stderr is not None
    while "restart 1 of 1" not in launcher.stderr.readline():
        pass
    out, err = launcher.communicate(timeout=DEADLINE_S)
    assert launcher.returncode == 5
    assert "internal launcher error" not in err
    for rank in (0, 1):
        assert re.search(rf"^\[rank {rank}\] third of {rank}$", out[-400:], re.MULTILINE)


def test_a_flood_of_tracebacks_is_read_in_no_time() -> None:
    """Thousands of headers in stderr, none of which ended the process: the verdict does not wait."""
    flood = (
        b"Exception ignored in: x\n" + b"\n" * 15000 + b"Original Traceback (most recent call last):\n" * 400
    )
    started = time.monotonic()
    assert read_last_output(flood, None).traceback
    assert time.monotonic() - started < 3


ADOPTED = """
cd {folder}
sh -c '
    sh -c "trap \\"echo > heard; exit\\" TERM; echo > up; while :; do sleep 0.02; done" &
    while ! test -e told; do sleep 0.02; done
' &
trap 'echo > told' TERM
while ! test -e heard; do sleep 0.02; done
exit 0
"""


def test_an_orphan_that_becomes_ours_unnoticed_is_told_after_half_of_the_grace(tmp_path: Path) -> None:
    """Its parent ends, which is none of ours: nothing tells us of that but a look."""
    with open_launcher(
        "run", "--init", "--grace", "3", "--", "sh", "-c", ADOPTED.format(folder=tmp_path)
    ) as job:
        wait_for((tmp_path / "up").exists, "the child of a child is there")
        job.send_signal(signal.SIGTERM)
        _, err = job.communicate(timeout=30)
    assert job.returncode == 0, err
