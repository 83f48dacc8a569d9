"""Companions: processes beside the ranks of a node, that have no rank and are not waited for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.process.looking import is_gone, read_pid
from tests.process.starting import DEADLINE_S, clean_environ

SUPERVISE = """
    import json, os, sys
    from launcher.core.supervision import (Route, Supervision)
    from launcher.process.spawn import Child
    from launcher.agent.lone import run_processes
    from launcher.agent.runtime import NodePlace

    asked = json.loads(sys.argv[1])
    beside = []
    for n, one in enumerate(asked["beside"]):
        place = (-1 - n, -1, one["argv"], os.environ)
        kind = {"finishes": one["finishes"], "serves": one["serves"]}
        beside.append(Child(*place, called=one["name"], companion=True, **kind))
    ranks = [Child(n, n, argv, os.environ) for n, argv in enumerate(asked["ranks"])]
    routes = tuple(Route() for _ in ranks)
    watch = Supervision(grace_s=asked["grace"], routes=routes, prefix=True, failure_file=asked["record"])
    sys.exit(run_processes([*beside, *ranks], watch, NodePlace(0, len(ranks)), os.environ))
"""
STAYS = "trap 'exit 0' TERM; echo here; while :; do sleep 0.02; done"
STUBBORN = "trap '' TERM; echo $$ > {pid}; while :; do sleep 0.02; done"


def beside(name: str, script: str, *, finishes: bool = False, serves: bool = False) -> dict[str, object]:
    """Return a companion that is a shell script."""
    return {"name": name, "argv": ["sh", "-c", script], "finishes": finishes, "serves": serves}


def supervise(
    folder: Path, companions: list[dict[str, object]], ranks: list[str], grace_s: float = 5.0
) -> subprocess.CompletedProcess[str]:
    """Run shell scripts as companions and ranks of a node, to their end."""
    asked = {
        "beside": companions,
        "ranks": [["sh", "-c", script] for script in ranks],
        "grace": grace_s,
        "record": str(folder / "record.json"),
    }
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SUPERVISE), json.dumps(asked)],
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_a_companion_ends_with_the_ranks_and_its_end_does_not_count(tmp_path: Path) -> None:
    """The ranks have ended well; that the server dies of being told so is no failure."""
    server = beside("ps 0", f"echo serving; touch {tmp_path}/up; exec sleep 600")
    rank = f"while ! test -e {tmp_path}/up; do sleep 0.02; done; echo trained"
    done = supervise(tmp_path, [server], [rank, rank])
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[ps 0] serving", "[rank 0] trained", "[rank 1] trained"]
    assert not (tmp_path / "record.json").exists()


def test_the_death_of_a_companion_is_a_failure_named_after_it(tmp_path: Path) -> None:
    """The ranks would wait for their server: they are stopped, and the verdict says who it was."""
    server = beside("ps 1", "echo no space >&2; kill -9 $$")
    done = supervise(tmp_path, [server], ["exec sleep 600"])
    record = json.loads((tmp_path / "record.json").read_text())
    assert done.returncode == 128 + signal.SIGKILL
    assert "ps 1 failed first: it was killed by SIGKILL" in done.stderr
    assert "[ps 1] no space" in done.stderr
    assert (record["called"], record["rank"]) == ("ps 1", None)
    assert [other["rank"] for other in record["others"]] == [0]


def test_a_signal_that_the_ranks_handle_does_not_end_a_server_of_ours(tmp_path: Path) -> None:
    """The server has no handler for the signal at which ranks save; without it they could not go on."""
    server = beside("horovod server", f"touch {tmp_path}/up; exec sleep 600", serves=True)
    rank = (
        f"trap 'echo saved; exit 0' USR1; while ! test -e {tmp_path}/up; do sleep 0.02; done; "
        "kill -USR1 $PPID; while :; do sleep 0.02; done"
    )
    done = supervise(tmp_path, [server], [rank])
    assert (done.returncode, done.stdout) == (0, "[rank 0] saved\n"), done.stderr


def test_a_signal_for_the_command_reaches_a_companion_that_runs_it(tmp_path: Path) -> None:
    """A parameter server that is the user's own script saves at the same signal."""
    server = beside(
        "ps 0", f"trap 'touch {tmp_path}/saved' USR1; touch {tmp_path}/up; while :; do sleep 0.02; done"
    )
    rank = (
        f"trap '' USR1; while ! test -e {tmp_path}/up; do sleep 0.02; done; kill -USR1 $PPID; "
        f"while ! test -e {tmp_path}/saved; do sleep 0.02; done"
    )
    done = supervise(tmp_path, [server], [rank])
    assert done.returncode == 0, done.stderr


def test_the_failure_of_a_rank_ends_the_companions(tmp_path: Path) -> None:
    """It is the rank that has failed, and the companions stand among the others by name."""
    companions = [beside("ps 0", STAYS), beside("evaluator 0", STAYS, finishes=True)]
    done = supervise(tmp_path, companions, ["sleep 0.3; exit 3"])
    record = json.loads((tmp_path / "record.json").read_text())
    assert done.returncode == 3
    assert (record["called"], record["rank"]) == (None, 0)
    assert sorted(other["called"] for other in record["others"]) == ["evaluator 0", "ps 0"]


def test_a_companion_that_finishes_has_the_grace_for_it(tmp_path: Path) -> None:
    """The last checkpoint is evaluated after the training; only then the server is told to end."""
    told = tmp_path / "told"
    evaluator = beside("evaluator 0", f"sleep 0.5; test ! -e {told} && echo evaluated", finishes=True)
    server = beside("ps 0", f"trap 'touch {told}; exit 0' TERM; while :; do sleep 0.02; done")
    done = supervise(tmp_path, [server, evaluator], ["echo trained"])
    assert done.returncode == 0, done.stderr
    assert "[evaluator 0] evaluated" in done.stdout
    assert told.exists()


def test_a_companion_that_does_not_end_by_itself_is_ended(tmp_path: Path) -> None:
    """Without the grace or with all of it; its end does not count."""
    # And the job has succeeded all the same.
    pid = tmp_path / "pid"
    server = beside("ps 0", STUBBORN.format(pid=pid))
    done = supervise(tmp_path, [server], [f"while ! test -s {pid}; do sleep 0.02; done"], grace_s=0.4)
    assert done.returncode == 0, done.stderr
    assert "1 process still runs after 0.4 s: sending SIGKILL" in done.stderr
    assert is_gone(read_pid(pid))
    # That does not count either.
    done = supervise(tmp_path, [beside("evaluator 0", STAYS, finishes=True)], ["true"], grace_s=0.3)
    assert done.returncode == 0, done.stderr
    assert "still running 0.3 s after the last rank ended" in done.stderr


def test_a_node_without_ranks_ends_when_its_companions_have(tmp_path: Path) -> None:
    """Where there is nothing else, each of them counts."""
    assert supervise(tmp_path, [beside("ps 0", "exit 0"), beside("ps 1", "exit 0")], []).returncode == 0
    done = supervise(tmp_path, [beside("ps 0", STAYS), beside("ps 1", "sleep 0.2; exit 75")], [])
    assert done.returncode == 75
    assert "ps 1 failed first: it exited with code 75" in done.stderr


def test_files_of_a_companion_have_its_name(tmp_path: Path) -> None:
    """Its folder stands beside those of the local ranks."""
    script = 'echo "$TORCHELASTIC_ERROR_FILE"'
    done = supervise(tmp_path, [beside("ps 0", script)], [f"sleep 0.2; {script}"])
    names = {os.path.basename(line.partition("] ")[2]) for line in done.stdout.splitlines()}
    assert names == {"0_ps_0_error.json", "0_0_error.json"}
