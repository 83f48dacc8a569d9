"""A rehearsal ends as its job ends: with the right status, and with nothing left running."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from launcher.rehearse import job as rehearsal
from launcher.rehearse.cluster import Cluster
from launcher.rehearse.job import run_all, run_rehearsal, with_launcher
from launcher.rehearse.platforms import PlatformStart
from tests.process.starting import DEADLINE_S, ROOT, clean_environ

from .conftest import need_namespaces, read_dumps

KINDS = pytest.mark.parametrize("loopback", [False, True], ids=["namespaces", "loopback"])
PATIENCE_S = 20
BY_RANK = "case $SLURM_PROCID in 2) exit 3;; *) exec sleep 600;; esac"
REHEARSE = """
import sys
from launcher.rehearse.job import run_rehearsal
sys.exit(run_rehearsal("slurm", 2, 1, sys.argv[2:], bare=True, loopback=sys.argv[1] == "True"))
"""


def rehearse(script: str, *, loopback: bool) -> int:
    """Run a shell script as a Slurm task on two nodes by two processes."""
    if not loopback:
        need_namespaces()
    return run_rehearsal("slurm", 2, 2, ["sh", "-c", script], bare=True, loopback=loopback)


@KINDS
@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit $((SLURM_PROCID == 3 ? 44 : 0))", 44), ("kill -9 $$", 137)]
)
def test_status_is_passed_on(script: str, status: int, loopback: bool) -> None:
    """0 when all did well, else the failing process's own, 128+n for a signal."""
    assert rehearse(script, loopback=loopback) == status


@KINDS
def test_one_failure_ends_the_job(loopback: bool) -> None:
    """When one process fails the others are told to end, and its status stands."""
    before = time.monotonic()
    assert rehearse(BY_RANK, loopback=loopback) == 3
    assert time.monotonic() - before < PATIENCE_S


def test_the_node_that_failed_first_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    """By the report of the job; where the command has no launcher, by the last line."""
    command = ["sh", "-c", "exit $((SLURM_PROCID * 3))"]
    assert run_rehearsal("slurm", 2, 1, command, loopback=True) == 3
    said = capfd.readouterr().err
    assert "rank 1 of 2 failed first: it exited with code 3" in said
    assert "ended first" not in said, "the launcher on the other node may end before"
    assert run_rehearsal("slurm", 2, 1, command, loopback=True, bare=True) == 3
    assert "the process on node1 ended first, with status 3" in capfd.readouterr().err


@KINDS
@pytest.mark.parametrize("killed", [0, 1])
def test_the_other_node_reports_a_lost_one(
    loopback: bool, killed: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its launcher is killed, and cannot tell: the other one finds out after --lost-after, and reports."""
    if not loopback:
        need_namespaces()
    script = f"test $RANK = {killed} && kill -9 $PPID; exec sleep 600"
    env = {"LAUNCHER_LOST_AFTER": "5"}
    assert run_rehearsal("plain", 2, 1, ["sh", "-c", script], env=env, loopback=loopback) == 75
    said = capfd.readouterr().err
    assert f"rehearsal: node{killed} is lost (SIGKILL); waiting for the other nodes to report it" in said
    assert f"node {killed} failed first: it is lost" in said and "cause: [node-lost]" in said
    assert "SIGTERM" not in said


@KINDS
def test_a_frozen_node_is_killed_after_the_grace(
    loopback: bool, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is lost, and ignores SIGTERM; nsenter stops with its command, and never notices the SIGKILL."""
    if not loopback:
        need_namespaces()
    monkeypatch.setattr(rehearsal, "run_all", partial(run_all, grace_s=1))
    script = "test $RANK = 1 && kill -STOP $PPID; exec sleep 600"
    env = {"LAUNCHER_LOST_AFTER": "5"}
    before = time.monotonic()
    assert run_rehearsal("plain", 2, 1, ["sh", "-c", script], env=env, loopback=loopback) == 75
    assert time.monotonic() - before < PATIENCE_S
    assert "node 1 failed first: it is lost" in capfd.readouterr().err


@KINDS
def test_pods_of_an_indexed_job_find_each_other(loopback: bool, capfd: pytest.CaptureFixture[str]) -> None:
    """By their index and their full names; with loopback addresses by the address of pod 0."""
    if not loopback:
        need_namespaces()
    domain = "train.default.svc.cluster.local"
    script = f"echo $RANK $WORLD_SIZE $MASTER_ADDR $HOSTNAME $(getent hosts train-1.{domain})"
    assert run_rehearsal("kubernetes", 2, 2, ["sh", "-c", script], loopback=loopback) == 0
    output = capfd.readouterr()
    master = "127.0.77.10" if loopback else f"train-0.{domain}"
    found = "" if loopback else f" 10.77.0.11 train-1.{domain} train-1"
    lines = sorted(" ".join(line.split()) for line in output.out.splitlines())
    assert lines == [f"[rank {rank}] {rank} 4 {master} train-{rank // 2}{found}" for rank in range(4)], output


def test_nodes_that_share_a_screen_give_one_verdict(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of a hundred nodes would say the same."""
    monkeypatch.chdir(tmp_path)  # Azure ML shows the failure record that is in ./outputs
    command = ["sh", "-c", "test $RANK != 3 || exit 4; exec sleep 60"]
    assert run_rehearsal("azureml-pytorch", 2, 2, command, loopback=True) == 4
    said = capfd.readouterr().err
    assert said.count("rank 3 of 4 failed first: it exited with code 4") == 1
    assert said.count("the failure record: ") == 1


def test_a_rehearsal_of_nodes_with_one_process_has_a_report(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Azure ML names the rank of a node's only process, so its launcher would become the command."""
    monkeypatch.chdir(tmp_path)
    assert run_rehearsal("azureml-pytorch", 2, 1, ["sh", "-c", "exit $((RANK * 4))"], loopback=True) == 4
    assert capfd.readouterr().err.count("rank 1 of 2 failed first: it exited with code 4") == 1


@KINDS
def test_missing_command_is_127(loopback: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a shell."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # a folder that we may not read would give 126
    if not loopback:
        need_namespaces()
    assert run_rehearsal("plain", 1, 1, ["no-such"], bare=True, loopback=loopback) == 127


def test_deaf_process_is_killed_after_the_grace(loopback: Cluster, tmp_path: Path) -> None:
    """SIGTERM first; SIGKILL to who does not listen; the first failure's status stands."""
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    deaf = f"trap '' TERM; echo > {ready}; while :; do sleep 0.1; done"
    environ = {"PATH": os.environ["PATH"]}
    first, second = loopback.nodes
    job = [
        PlatformStart(first, ("sh", "-c", deaf), environ),
        PlatformStart(second, ("sh", "-c", f"cat {ready}; exit 5"), environ),
    ]
    before = time.monotonic()
    assert run_all(loopback, job, grace_s=0.3) == 5
    assert 0.3 <= time.monotonic() - before < PATIENCE_S


@KINDS
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_signal_ends_the_job(loopback: bool, signum: signal.Signals, tmp_path: Path) -> None:
    """Processes get SIGTERM and may save a checkpoint; the status is that of our own signal."""
    if not loopback:
        need_namespaces()
    script = f"trap 'touch {tmp_path}/saved$SLURM_PROCID; exit 0' TERM; echo up; while :; do sleep 0.1; done"
    line = [sys.executable, "-c", REHEARSE, str(loopback), "sh", "-c", script]
    with subprocess.Popen(line, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert [process.stdout.readline(), process.stdout.readline()] == [b"up\n", b"up\n"]
        process.send_signal(signum)
        assert process.wait(PATIENCE_S) == 128 + signum
    assert sorted(path.name for path in tmp_path.iterdir()) == ["saved0", "saved1"]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python train.py", "PYTHON LAUNCHER run -- python train.py"),
        ("launcher env --format json", "PYTHON LAUNCHER env --format json"),
        ("/opt/venv/bin/launcher plan", "PYTHON LAUNCHER plan"),
        ("python -m launcher plan", "python -m launcher plan"),
    ],
)
def test_command_runs_as_in_an_image(command: str, expected: str) -> None:
    """The launcher is the entry point, by its path, unless the command is the launcher."""
    paths = {"PYTHON": sys.executable, "LAUNCHER": os.path.join(ROOT, "launcher", "__main__.py")}
    assert with_launcher(command.split()) == [paths.get(word, word) for word in expected.split()]


@KINDS
def test_every_process_gets_its_own_environment(
    loopback: bool, dump: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process has the identity that the platform gives, nothing of the caller's job, and its words."""
    if not loopback:
        need_namespaces()
    for name, value in {"OMPI_COMM_WORLD_RANK": "7", "SLURM_JOB_ID": "77", "HF_HOME": "/data/hf"}.items():
        monkeypatch.setenv(name, value)
    assert run_rehearsal("slurm", 2, 2, dump, bare=True, loopback=loopback) == 0
    environs = read_dumps(tmp_path)
    assert sorted(environ["SLURM_PROCID"] for environ in environs) == ["0", "1", "2", "3"]
    assert not any("OMPI_COMM_WORLD_RANK" in environ for environ in environs)
    assert not any(environ["SLURM_JOB_ID"] == "77" for environ in environs)
    assert {environ["HF_HOME"] for environ in environs} == {"/data/hf"}


def test_announcement_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    """Standard output is the job's alone; standard error starts with what is rehearsed."""
    run_rehearsal("plain", 2, 1, ["echo", "hello"], bare=True, loopback=True)
    output = capfd.readouterr()
    assert output.out == "hello\nhello\n"
    assert output.err == (
        "launcher: rehearsal: 2 nodes x 1 process as plain (started once per node, loopback addresses)\n"
    )


def test_the_first_command_needs_no_laboratory(tmp_path: Path) -> None:
    """A script, no flag, and nothing installed but Python: two nodes, and what would make them more real."""
    for name in ("sh", "env"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    (tmp_path / "train.py").write_text(
        "import os\nos.write(1, b'rank %s %s\\n' % (os.environb[b'RANK'], os.environb[b'WORLD_SIZE']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "launcher", "rehearse", "train.py"],
        cwd=tmp_path,
        env=clean_environ(PATH=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, ["rank 0 2", "rank 1 2"]), done.stderr
    first, second, *_ = done.stderr.splitlines()
    assert first.endswith("2 nodes x 1 process as plain (started once per node, loopback addresses)")
    assert second.endswith(
        "(not on PATH: unshare, nsenter, ip, mount; apt-get install iproute2 util-linux mount)"
    )
