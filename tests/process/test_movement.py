"""The stall report without a flag: real jobs in which something moves, or nothing does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.starting import DEADLINE_S, clean_environ

IDLE_S = 3.0
SHORT = f"""
import runpy, sys
import launcher.planning.supervision as supervision
supervision.IDLE_TIMEOUT_S = {IDLE_S}
sys.argv[0] = "launcher"
runpy.run_module("launcher", run_name="__main__", alter_sys=True)
"""
"""The launcher with a default that a test can wait for."""
HEAD = f"""
import os, socket, sys, time
rank = int(os.environ["RANK"])
end = time.monotonic() + {3 * IDLE_S}
"""
WAIT = "time.sleep(max(0, end - time.monotonic()))\n"
GLOO = """
import threading
ready = threading.Event()
def note():
    while not ready.wait(0.2):
        print("starts", flush=True)
threading.Thread(target=note).start()
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(8)
dist.all_reduce(x)
ready.set()
if rank == 1:
    time.sleep(3 * {idle})
dist.all_reduce(x)
dist.barrier()
dist.destroy_process_group()
sys.exit(5 if rank == 1 else 0)
"""


def run(
    tmp_path: Path, script: str, *words: str, count: int = 2, **environ: str
) -> tuple[int, list[str], str]:
    """Run a job; return its status, the headlines of its stall reports, and all that was said."""
    path = tmp_path / "train.py"
    path.write_text(HEAD + script)
    done = subprocess.run(
        [sys.executable, "-c", SHORT, "run", "--nproc-per-node", str(count), *words, str(path)],
        env=clean_environ(**environ),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("launcher: stalled: ")]
    return done.returncode, lines, done.stderr


def test_a_collective_that_one_rank_skips_is_reported_once(tmp_path: Path) -> None:
    """Real gloo: one report that names what did not move, then the job goes on and has its own status."""
    status, stalls, said = run(tmp_path, GLOO.format(idle=IDLE_S), count=3)
    assert len(stalls) == 1 and stalls[0].startswith("launcher: stalled: no output"), said
    if (
        "; only rank " not in stalls[0]
    ):  # on a busy machine a start takes CPU time in one of these short windows
        assert ", CPU time or network traffic for " in stalls[0], said
        assert stalls[0].endswith("; rank 1 waits in sleep (train.py:18), and the others wait"), said
    assert status == 5, said


def test_zero_switches_all_of_it_off(tmp_path: Path) -> None:
    """No report, whatever does not move."""
    assert run(tmp_path, WAIT, "--stall-timeout", "0")[:2] == (0, [])


@pytest.mark.thorough
def test_the_action_needs_a_given_time(tmp_path: Path) -> None:
    """A fleet's LAUNCHER_ON_STALL=stop without a time ends no job."""
    status, stalls, said = run(tmp_path, WAIT, LAUNCHER_ON_STALL="stop")
    assert (status, len(stalls)) == (0, 1), said


@pytest.mark.thorough
def test_one_process_whose_output_is_not_seen(tmp_path: Path) -> None:
    """Its output goes to a file past the launcher: the report does not speak of it."""
    path, out = tmp_path / "train.py", tmp_path / "out"
    path.write_text(HEAD + WAIT)
    with out.open("w") as file:
        done = subprocess.run(
            [sys.executable, "-c", SHORT, "run", "--nproc-per-node", "1", str(path)],
            env=clean_environ(), stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.PIPE, text=True,
            timeout=DEADLINE_S, check=False,
        )  # fmt: skip
    assert "launcher: stalled: no CPU time or network traffic for 3 s\n" in done.stderr
    assert done.returncode == 0


STEPS = """
for step in range(1258, 1258 + (2 if rank == 1 else 4)):
    print("step", step, flush=True)
"""


def test_the_rank_that_is_behind_is_named(tmp_path: Path) -> None:
    """By the last number of each rank's output that the user's pattern finds."""
    words = ("--progress-pattern", r"step (\d+)")
    status, stalls, said = run(tmp_path, STEPS + WAIT, *words, count=3)
    assert (status, len(stalls)) == (0, 1), said
    assert f"{stalls[0]}\nlauncher:   rank 1 is behind: step 1,259, the others 1,261\nlauncher:   " in said


@pytest.mark.thorough
def test_a_pattern_that_takes_forever_delays_nothing(tmp_path: Path) -> None:
    """It is searched in a fork, which the launcher ends; the report has no line about it then."""
    status, stalls, said = run(tmp_path, "print('a' * 40 + 'b')\n" + WAIT, "--progress-pattern", "(a+)+$")
    assert (status, len(stalls)) == (0, 1), said
    assert "behind" not in said
