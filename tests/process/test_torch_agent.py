"""torchrun's agent whose launcher is told to end: its workers save what they have, each told once."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.process.looking import wait_for
from tests.process.starting import open_launcher

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("torch")]
WHOLE = "saved " * 10
SAVES = """
import os, signal, sys, time
folder, how = sys.argv[1:]
rank = os.environ["RANK"]
def save(*_):
    with open(f"{folder}/heard-{rank}", "a") as file:
        file.write("TERM ")
    if how == "fails" and rank == "1":
        os._exit(3)
    with open(f"{folder}/checkpoint-{rank}", "w") as file:
        for _ in range(10):
            file.write("saved ")
            file.flush()
            time.sleep(0.1)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
if (how, rank) == ("ignores", "1"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if (how, rank) == ("dies", "1"):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
open(f"{folder}/ready-{rank}", "w").close()
while True:
    time.sleep(0.02)
"""


class Told(NamedTuple):
    """How a job has ended that was told to."""

    status: int
    err: str
    record: dict[str, object]


def train(folder: Path, how: str, *flags: str) -> Told:
    """Run two workers, tell the launcher to end once they listen, and return how that went."""
    script, record = folder / "saves.py", folder / "failure.json"
    script.write_text(SAVES)
    words = ("run", "--engine", "torchrun", "--nproc-per-node", "2", "--failure-file", str(record), *flags)
    with open_launcher(*words, "--", str(script), str(folder), how) as launcher:
        _wait(launcher, folder)
        launcher.send_signal(signal.SIGTERM)
        _, err = launcher.communicate(timeout=60)
    return Told(launcher.returncode, err, json.loads(record.read_text()) if record.exists() else {})


def _wait(launcher: subprocess.Popen[str], folder: Path) -> None:
    listen = lambda: launcher.poll() is not None or ranks_with(folder, "ready") == [0, 1]  # noqa: E731
    wait_for(listen, "the workers listen")


def ranks_with(folder: Path, what: str, text: str = "") -> list[int]:
    """Return the ranks that have written a file with this text."""
    return [rank for rank in range(4) if _read(folder / f"{what}-{rank}") == text]


def _read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


STANDALONE: Sequence[str] = ("--init", "--standalone")


@pytest.mark.parametrize("flags", [STANDALONE, ("--init",)], ids=["c10d", "static"])
def test_workers_that_save_and_end_well_are_a_job_that_ended_well(
    tmp_path: Path, flags: Sequence[str]
) -> None:
    """As with processes of the launcher's own: status 0, nothing to report."""
    told = train(tmp_path, "saves", *flags, "--grace", "20")
    assert told.status == 0, told.err
    assert ranks_with(tmp_path, "heard", "TERM ") == ranks_with(tmp_path, "checkpoint", WHOLE) == [0, 1]
    assert "Traceback" not in told.err and not told.record


def test_a_worker_that_fails_when_it_is_told_does_not_disturb_one_that_saves(tmp_path: Path) -> None:
    """The agent would end the others by a second signal, in the middle of the file."""
    told = train(tmp_path, "fails", *STANDALONE, "--grace", "20")
    assert told.status == 1, told.err
    assert ranks_with(tmp_path, "heard", "TERM ") == [0, 1]
    assert ranks_with(tmp_path, "checkpoint", WHOLE) == [0]
    causes = told.record["causes"]
    assert isinstance(causes, list) and causes[0]["code"] == "told-to-stop", told.err
    assert (told.record["rank"], told.record["exit_status"]) == (1, 3)
    assert "launcher: rank 1 of 2 ended first: it exited with status 3" in told.err


def test_a_worker_that_ignores_the_signal_is_killed_after_the_grace(tmp_path: Path) -> None:
    """The other one has its checkpoint; the status is that of SIGKILL."""
    told = train(tmp_path, "ignores", *STANDALONE, "--grace", "4")
    assert told.status == 137, told.err
    assert ranks_with(tmp_path, "checkpoint", WHOLE) == [0]
    assert re.search("still runs? after 4 s: sending SIGKILL", told.err)


@pytest.mark.parametrize(
    ("how", "flags"), [("dies", ()), ("saves", ("--max-restarts", "2"))], ids=["dies", "restarts"]
)
def test_where_no_end_can_be_well_the_agent_is_told(tmp_path: Path, how: str, flags: Sequence[str]) -> None:
    """It tells each worker once, and waits for all; it does not start them anew."""
    told = train(tmp_path, how, *STANDALONE, *flags, "--grace", "20")
    assert told.status == 1, told.err
    saved = [0] if how == "dies" else [0, 1]
    assert ranks_with(tmp_path, "heard", "TERM ") == ranks_with(tmp_path, "checkpoint", WHOLE) == saved
