"""Where torchrun's agent is the only child, the verdict is about the process that the agent names."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.process.starting import launch, open_launcher

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("torch")]
AGENT = ("run", "--init", "--engine", "torchrun", "--standalone", "--nproc-per-node", "2")
FAILS = """
import os, signal, sys, time
if os.environ["RANK"] == "1":
    if sys.argv[1] == "raise":
        raise ValueError("boom in rank 1")
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60)
"""


@pytest.mark.parametrize(("how", "status"), [("raise", 1), ("kill", 137)])
def test_the_rank_that_the_agent_names_is_the_one_of_the_verdict(
    tmp_path: Path, how: str, status: int
) -> None:
    """Rank 1 failed, not the agent: in words and in the record; the status is the agent's."""
    script, record = tmp_path / "fails.py", tmp_path / "failure.json"
    script.write_text(FAILS)
    done = launch(*AGENT, "--failure-file", str(record), "--", str(script), how)
    assert done.returncode == 1, done.stderr
    document = json.loads(record.read_text())
    assert (document["rank"], document["local_rank"], document["exit_status"]) == (1, 1, status)
    assert "launcher: rank 1 of 2 failed first" in done.stderr
    if how == "raise":
        assert document["exception"] == "ValueError: boom in rank 1"
    else:
        assert document["signal"] == "SIGKILL"


def test_an_agent_that_was_told_to_stop_is_blamed_for_nothing(tmp_path: Path) -> None:
    """SIGTERM: one line about the agent, no cause from its own traceback."""
    script = tmp_path / "sleeps.py"
    script.write_text("import os, time; os.write(1, b'ready\\n'); time.sleep(60)")
    with open_launcher(*AGENT, "--", str(script)) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["ready\n", "ready\n"]
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert "launcher: torchrun (pid " in err
    assert "cause:" not in err
