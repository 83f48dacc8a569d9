"""torchrun's agent whose launcher is told to end: its workers save what they have, each told once."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from launcher.machine.process import read_stat
from launcher.process.loop import Loop
from launcher.process.torch_agent import TorchAgent, find_workers
from tests.process.looking import wait_for
from tests.process.starting import launch, open_launcher
from tests.saying import keep

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("torch")]
FAILS = """
import os, sys, time
folder, rounds, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
count, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), os.environ["RANK"]
assert "LAUNCHER_STARTS_FILE" not in os.environ
open(f"{folder}/round-{rank}-{count}", "w").close()
while len([name for name in os.listdir(folder) if name.endswith(f"-{count}")]) < 2:
    time.sleep(0.01)
if count < rounds:
    sys.exit(5 if rank == "1" else 0)
while how == "waits" and not os.path.exists(f"{folder}/go"):
    time.sleep(0.02)
sys.exit(6 if how == "fails" else 0)
"""
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
    assert "launcher: rank 1 of 2 ended first: it exited with code 3" in told.err


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


def test_only_a_worker_that_is_not_restarted_is_signalled_itself() -> None:
    """One that torchrun would start again, and one that leads no session, are left to the agent."""
    begun, script = [], "trap : TERM; echo; read line"
    for restarts, leads in (("0", True), ("2", True), ("0", False)):
        environ = {"TORCHELASTIC_MAX_RESTARTS": restarts}
        begun.append(
            subprocess.Popen(
                ["/bin/sh", "-c", script], env=environ, start_new_session=leads, stdin=-1, stdout=-1
            )
        )
    for one in begun:
        assert one.stdout is not None and one.stdout.readline() == b"\n"
    assert find_workers(os.getpid(), signal.SIGTERM) == [begun[0].pid]
    for one in begun:
        one.communicate()


@pytest.mark.parametrize(("status", "goes_on"), [(0, True), (3, False)])
def test_an_agent_is_held_for_long_only_after_a_failure(status: int, goes_on: bool) -> None:
    """One whose workers end well has heartbeats to send while the others still save."""
    loop = Loop(keep([]))
    with contextlib.ExitStack() as stack:
        agent, saves, ends = (
            stack.enter_context(subprocess.Popen(["/bin/sh", "-c", f"read line; exit {code}"], stdin=-1))
            for code in (0, 0, status)
        )
        workers = TorchAgent(agent.pid, [ends.pid, saves.pid], loop)
        stack.callback(_resume, agent)
        wait_for(lambda: _state(agent) == "T", "it is held")
        (hold,) = loop.timers
        _end(ends)
        loop.turn_until(lambda: workers._running == {saves.pid}, 30)
        hold.fire(0.0)
        wait_for(lambda: (_state(agent) == "T") is not goes_on, "what the agent does")
        _end(saves)
        loop.turn_until(lambda: not workers._running, 30)
        wait_for(lambda: _state(agent) != "T", "it goes on")
    loop.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()


def _resume(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGCONT)


def _state(process: subprocess.Popen[bytes]) -> str:
    stat = read_stat(process.pid)
    return "" if stat is None else stat.state


def restart(tmp_path: Path, how: str, rounds: int = 2) -> tuple[str, ...]:
    """Return the line of a job whose first rounds fail; torchrun restarts its workers twice."""
    script = tmp_path / "fails.py"
    script.write_text(FAILS)
    flags = ("--max-restarts", "2", "--nproc-per-node", "2", "--monitor-interval", "0.1")
    record = ("--failure-file", str(tmp_path / "failure.json"))
    return ("run", "--init", *flags, *record, "--", str(script), str(tmp_path), str(rounds), how)


def test_restarts_of_torchrun_are_on_the_last_screen(tmp_path: Path) -> None:
    """Where there is one, and in the failure record."""
    done = launch(*restart(tmp_path, "ends"))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("launcher: torchrun restarted its processes 2 times; with --restarts N") == 1
    done = launch(*restart(tmp_path, "ends", rounds=0))
    assert done.returncode == 0 and "restarted" not in done.stderr, done.stderr
    done = launch(*restart(tmp_path, "fails"))
    record = json.loads((tmp_path / "failure.json").read_text())
    assert (done.returncode, record["attempt"]) == (1, 2), done.stderr
    assert ", restart 2, " in done.stderr
    assert "torchrun restarted its processes 2 times" in done.stderr


def test_restarts_of_torchrun_are_in_the_status(tmp_path: Path) -> None:
    """While the third round runs."""
    with open_launcher(*restart(tmp_path, "waits")) as process:
        wait_for(lambda: len(list(tmp_path.glob("round-*-2"))) == 2, "the third round runs", 60)
        job = ("status", "--job", str(process.pid))
        status, facts = launch(*job), launch(*job, "--json")
        (tmp_path / "go").touch()
        _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert "torchrun restarted its processes 2 times" in status.stdout, status.stdout + status.stderr
    assert json.loads(facts.stdout)["nodes"][0]["attempt"] == 2
