"""``launcher.setup()`` in a running interpreter: the same as ``launcher run`` before exec."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.process.starting import clean_environ, launch
from tests.process.test_run import DUMP, MPI

SCRIPT = """
import json, os, launcher
one = launcher.setup()
two = launcher.setup()
assert one is two
print(json.dumps({**os.environ, "place": [one.rank, one.local_rank, one.world_size]}))
"""


def run_script(script: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script],
        env=clean_environ(**environ),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_setup_gives_what_run_gives() -> None:
    """Both ways end in the same environment, and setup returns the place in the job."""
    through_setup = json.loads(run_script(SCRIPT, MPI).stdout)
    through_run = json.loads(launch("run", "--", sys.executable, "-c", DUMP, environ=MPI).stdout)
    assert through_setup.pop("place") == [3, 1, 4]
    del through_run["pid"], through_run["ppid"]
    assert through_setup == through_run


def test_setup_in_a_process_is_what_run_gives_or_refused() -> None:
    """In one of the launcher's it changes nothing; one interpreter cannot become four."""
    # A script may call it under launcher run as well: the contract is there already.
    done = launch("run", "--nproc-per-node", "2", "--no-prefix", "--", sys.executable, "-c", SCRIPT)
    places = sorted(json.loads(line)["place"] for line in done.stdout.splitlines())
    assert places == [[0, 0, 2], [1, 1, 2]]
    # One interpreter cannot become four processes; the message says what to type.
    done = run_script(SCRIPT, {"LAUNCHER_NPROC_PER_NODE": "4"})
    assert (done.returncode, "should run 4" in done.stderr) == (1, True)
