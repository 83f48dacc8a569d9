"""DeepSpeed's own command for real, under the launcher: how it ends, and what it leaves.

By itself it dies of SIGTERM and leaves its launcher and all ranks running (deepspeed 0.19.8).
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.process.looking import is_gone
from tests.process.starting import open_launcher
from tests.zero import TUNING, deepspeed_environ, read_tuned, write_tuned

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("deepspeed")]

START_S = 120.0
"""DeepSpeed imports torch twice before a rank runs: 10 s, more where others compute as well."""
SCRIPT = """
import os, signal, sys, time
folder, rank = sys.argv[-1], os.environ["RANK"]

def save(*_):
    with open(f"{folder}/saved{rank}", "w") as file:
        file.write("x")
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
with open(f"{folder}/new{rank}", "w") as file:
    file.write(f"{os.getpid()}\\n")
os.rename(f"{folder}/new{rank}", f"{folder}/pid{rank}")
if rank == "1" and "END" in os.environ:
    exec(os.environ["END"])
while True:
    time.sleep(0.05)
"""


class Job:
    """``launcher run -- deepspeed SCRIPT`` with two ranks that run until they are told to end."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        script = folder / "script.py"
        script.write_text(SCRIPT)
        environ = {**deepspeed_environ(), "OMP_NUM_THREADS": "1", **variables}
        words = ("run", "--nproc-per-node", "2", "--grace", "20", "--", "deepspeed", str(script), str(folder))
        self.launcher = open_launcher(*words, environ=environ)

    def ranks(self) -> list[int]:
        """Return the pids of both ranks, once they run."""
        deadline = time.monotonic() + START_S
        files = [self.folder / f"pid{rank}" for rank in range(2)]
        while not all(file.exists() for file in files):
            assert time.monotonic() < deadline and self.launcher.poll() is None, "the ranks do not start"
            time.sleep(0.05)  # between two looks: there is nothing to wait on
        return [int(file.read_text()) for file in files]

    def end(self) -> tuple[int, str]:
        """Return the launcher's status, and all that was said."""
        out, err = self.launcher.communicate(timeout=START_S)
        return self.launcher.returncode, out + err


@pytest.mark.parametrize(("end", "status"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137)])
def test_the_status_of_a_rank_is_the_jobs(tmp_path: Path, end: str, status: int) -> None:
    """Its exit status, or the signal that ended it, of which DeepSpeed makes 247."""
    job = Job(tmp_path, END=end)
    found, said = job.end()
    assert found == status, said[-2000:]
    assert (tmp_path / "saved0").exists(), "the other rank was not asked to end"


def test_sigterm_reaches_every_rank(tmp_path: Path) -> None:
    """Both save their state, although DeepSpeed's command dies at once; nothing is left."""
    job = Job(tmp_path)
    ranks = job.ranks()
    job.launcher.send_signal(signal.SIGTERM)
    status, said = job.end()
    assert status == 143, said[-2000:]
    assert (tmp_path / "saved0").exists() and (tmp_path / "saved1").exists()
    assert all(map(is_gone, ranks))


@pytest.mark.thorough
def test_its_autotuner_on_one_node_needs_no_ssh(tmp_path: Path) -> None:
    """Experiments, the best configuration, and the training with it; where no sshd listens."""
    environ = {**deepspeed_environ(), **TUNING}
    with open_launcher(
        "run", "--nproc-per-node", "1", "--", *write_tuned(tmp_path), environ=environ
    ) as launcher:
        out, err = launcher.communicate(timeout=3 * START_S)
    assert launcher.returncode == 0, out[-2000:] + err[-4000:]
    assert (tmp_path / "results" / "ds_config_optimal.json").exists(), err[-4000:]
    last = read_tuned(tmp_path)[-1]
    assert (last["total"], last["size"], last["master"]) == (1.0, 4, "127.0.0.1")
