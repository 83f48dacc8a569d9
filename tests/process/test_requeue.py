"""``launcher requeue`` with a stand-in for scontrol; a real Slurm is in tests/deploy/test_slurm.py."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from launcher.cli.requeue import LINE_BYTES
from tests.process.starting import launch

SCONTROL = """\
#!/bin/sh
echo "$*" >> {folder}/asked
case "$1" in
  show) cat {folder}/job ;;
  requeue) exit {status} ;;
esac
"""
SAID = "  to avoid them: sbatch --exclude="


def ask(
    folder: Path,
    *flags: str,
    state: str = "RUNNING",
    excluded: str = "(null)",
    runs: str = "0",
    status: int = 0,
    name: bytes = b"train",
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run the command in a job; return how it ended, and what it asked of Slurm besides the job."""
    (folder / "scontrol").write_text(SCONTROL.format(folder=folder, status=status))
    (folder / "scontrol").chmod(0o755)
    job = f"JobId=7 JobName=NAME\n   JobState={state} Reason=None\n   StdErr={folder}/log\n"
    text = f"{job}   ReqNodeList=(null) ExcNodeList={excluded}\n"
    (folder / "job").write_bytes(text.encode().replace(b"NAME", name))
    environ = {"PATH": f"{folder}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": runs}
    done = launch("requeue", *flags, environ=environ)
    asked = (folder / "asked").read_text().splitlines() if (folder / "asked").exists() else []
    return done, [line for line in asked if not line.startswith("show")]


def test_the_bad_nodes_of_the_log_are_left_out(tmp_path: Path) -> None:
    """Those in our own lines, as text with and without a time, and as JSON; and the user's own exclusion."""
    log = (
        f"launcher: {SAID}node1",
        f"2026-11-27T10:00:00.000Z launcher: {SAID}node2,node4",
        json.dumps({"stream": "launcher", "text": f"{SAID}node5"}),
        f"[rank 0] launcher: {SAID}node6",
        json.dumps({"stream": "stdout", "text": f"launcher: {SAID}node7"}),
        f"launcher: {SAID}$(reboot)",
    )
    (tmp_path / "log").write_text("\n".join(log) + "\n")
    done, asked = ask(tmp_path, excluded="node[8-9]")
    assert done.returncode == 0, done.stderr
    assert asked == ["requeue 7", "update JobId=7 ExcNodeList=node1,node2,node4,node5,node[8-9]"]
    assert "job 7 is queued again, without node1,node2,node4,node5,node[8-9]" in done.stderr


def test_a_line_without_an_end_takes_no_time(tmp_path: Path) -> None:
    """A rank may write anything, and what follows on such a line is its own."""
    log = (
        '"stream": "launcher"' * 200_000 + f"launcher: {SAID}$",
        "x" * LINE_BYTES + f"launcher: {SAID}node1",
        f"launcher: {SAID}node2",
    )
    (tmp_path / "log").write_text("\n".join(log) + "\n")
    done, asked = ask(tmp_path)
    assert done.returncode == 0, done.stderr
    assert asked == ["requeue 7", "update JobId=7 ExcNodeList=node2"]


def test_a_job_without_bad_nodes_or_a_log_is_queued_again(tmp_path: Path) -> None:
    done, asked = ask(tmp_path)
    assert (done.returncode, asked) == (0, ["requeue 7"]), done.stderr


def test_a_job_may_have_any_name(tmp_path: Path) -> None:
    """Slurm prints the bytes of a name as they are."""
    (tmp_path / "log").write_text(f"launcher: {SAID}node1\n")
    done, asked = ask(tmp_path, name=b"caf\xe9")
    assert done.returncode == 0, done.stderr
    assert asked == ["requeue 7", "update JobId=7 ExcNodeList=node1"]


@pytest.mark.parametrize("kind", ["pipe", "/dev/zero"])
def test_a_log_that_is_no_regular_file_is_not_read(kind: str, tmp_path: Path) -> None:
    """It would never end, and SIGTERM is ignored from here on."""
    if kind == "pipe":
        os.mkfifo(tmp_path / "log")
    else:
        (tmp_path / "log").symlink_to(kind)
    done, asked = ask(tmp_path)
    assert (done.returncode, asked) == (0, ["requeue 7"]), done.stderr


@pytest.mark.rows(2)
@pytest.mark.parametrize(
    ("flags", "state", "runs", "says"),
    [
        (("--limit", "2"), "RUNNING", "2", "not queued again: 2 times before"),
        ((), "CANCELLED", "0", "not queued again: the job was canceled"),
    ],
)
def test_a_job_is_not_queued_again(
    flags: tuple[str, ...], state: str, runs: str, says: str, tmp_path: Path
) -> None:
    """After as many runs as asked for, or if its user has canceled it."""
    done, asked = ask(tmp_path, *flags, state=state, runs=runs)
    assert (done.returncode, asked) == (1, []) and says in done.stderr


def test_what_slurm_refuses_is_an_error(tmp_path: Path) -> None:
    done, _ = ask(tmp_path, status=1)
    assert done.returncode == 75 and "[not-requeued] scontrol requeue 7" in done.stderr
    outside = launch("requeue")
    assert outside.returncode == 64 and "SLURM_JOB_ID=''" in outside.stderr
