"""--timings: where the time of a job went, on the last lines, in the status and in the record."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.process.looking import wait_for
from tests.process.starting import DEADLINE_S, launch, open_launcher

TWO = ("run", "--timings", "--nproc-per-node", "2")
WAITS = """
import os, sys, time
time.sleep(0.3)
print("first", flush=True)
time.sleep(0.4)
if sys.argv[1:] and os.environ["RANK"] == "0":
    open(sys.argv[1], "a").write(".")
while sys.argv[1:] and not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
time.sleep(0.3)
sys.exit(os.environ.get("LAUNCHER_ATTEMPT", "0") == "0" and os.environ["RANK"] == "1" and len(sys.argv) > 1)
"""


def read(err: str) -> dict[str, float]:
    """Return the figures of the last lines, by the words around them."""
    text = "\n".join(line for line in err.splitlines() if line.startswith("launcher: timings: "))
    found = re.findall(
        r"(?:: |, )(launcher|imports|processes|first line|connected|first progress) ([\d.]+) s", text
    )
    whole = re.search(
        r"(\d+) attempts?, ([\d.]+) s in total: ([\d.]+) s of work \(([\d.]+) %\)(?:, ([\d.]+))?", text
    )
    assert whole, err
    names = ("attempts", "whole", "work", "goodput", "lost")
    sums = {name: float(value or 0) for name, value in zip(names, whole.groups(), strict=True)}
    return {**{name: float(value) for name, value in found}, **sums}


def test_a_job_that_succeeds(tmp_path: Path) -> None:
    """Work counts from the first line, if nothing better is known."""
    script = tmp_path / "train.py"
    script.write_text(WAITS)
    done = launch(*TWO, str(script))
    assert done.returncode == 0
    told = read(done.stderr)
    assert 0.3 <= told["first line"] < told["whole"] and told["attempts"] == 1 and told["lost"] == 0
    assert 0.6 <= told["work"] <= told["whole"] - told["first line"] + 0.1  # both have one decimal
    assert abs(told["goodput"] - 100 * told["work"] / told["whole"]) < 5


def test_what_a_failure_has_cost(tmp_path: Path) -> None:
    """With a progress file what came after its last change; the imports are those of all attempts."""
    script, saved = tmp_path / "train.py", tmp_path / "checkpoint"
    script.write_text(WAITS)
    flags = ("--restarts", "1", "--restart-on", "any", "--restart-delay", "0", "--progress-file", str(saved))
    done = launch(*TWO, *flags, "--preload", "json", str(script), str(saved))
    assert done.returncode == 0, done.stderr
    told = read(done.stderr)
    assert told["attempts"] == 2 and told["imports"] > 0.01
    assert 0.25 <= told["lost"] < 0.7
    assert told["work"] >= 2 * 0.4
    without = launch(*TWO, *flags[:6], str(script), str(saved))
    assert read(without.stderr)["lost"] >= 0.6


def test_the_record_of_a_failure_has_them(tmp_path: Path) -> None:
    """Those of the node that writes it."""
    script, record = tmp_path / "train.py", tmp_path / "failure.json"
    script.write_text(WAITS)
    done = launch(
        "run", "--failure-file", str(record), "--nproc-per-node", "2", str(script), str(tmp_path / "x")
    )
    assert done.returncode == 1
    told = json.loads(record.read_text())["timings"]
    assert told["attempts"] == 1 and told["lost_s"] > 0.5 and told["work_s"] < 0.3


def test_the_first_progress_is_seen_in_the_output(tmp_path: Path) -> None:
    """--progress-pattern, also without --restarts."""
    script = tmp_path / "train.py"
    text = "time.sleep(0.5)\nprint('step 1', flush=True)\ntime.sleep(0.3)\n"
    script.write_text(f"import time\nprint('start', flush=True)\n{text}")
    done = launch(*TWO, "--progress-pattern", r"step \d", str(script))
    told = read(done.stderr)
    assert told["first line"] < told["first progress"] - 0.4


def test_the_status_of_a_running_job_has_them(tmp_path: Path) -> None:
    """As JSON, for every node, without the flag."""
    script = tmp_path / "train.py"
    script.write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    running = open_launcher("run", "--nproc-per-node", "2", str(script))
    try:
        assert running.stdout is not None
        running.stdout.readline()
        job = ("--job", str(running.pid))
        wait_for(lambda: launch("status", *job).returncode == 0, "it answers")
        told = json.loads(launch("status", *job, "--json").stdout)
        (node,) = told["nodes"]
        figures = node["timings"]
        assert figures["attempts"] == 1 and figures["first_line_s"] > 0 and 0 < figures["goodput"] <= 1
    finally:
        running.terminate()
        running.communicate(timeout=DEADLINE_S)


def test_what_was_told_to_end_has_lost_nothing(tmp_path: Path) -> None:
    """And a shell before the launcher is not its time."""
    # The job has not failed.
    script = tmp_path / "train.py"
    script.write_text("import time\nprint('first', flush=True)\ntime.sleep(600)\n")
    running = open_launcher(*TWO, str(script))
    assert running.stdout is not None and "first" in running.stdout.readline()
    running.terminate()
    _, err = running.communicate(timeout=DEADLINE_S)
    assert read(err)["lost"] == 0 and running.returncode == 143
    # Its exec keeps the process, and the launcher's figures begin with the launcher.
    script = tmp_path / "train.py"
    script.write_text("print('first')\n")
    line = f"read -t 1.5 <> <(:); exec {sys.executable} -m launcher run --timings {script}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and read(done.stderr)["launcher"] < 1.5, done.stderr
