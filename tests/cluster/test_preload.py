"""--preload on several nodes: a template on each, for all attempts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cluster.conftest import need_namespaces
from tests.process.starting import launch

pytestmark = pytest.mark.root

TRAINS = """
import os, sys
import heavy
attempt = os.environ.get("LAUNCHER_ATTEMPT", "0")
print("attempt", attempt, os.environ["MASTER_ADDR"], heavy.PID != os.getpid(), flush=True)
if attempt == "0":
    open(f"{sys.argv[1]}/{os.environ['RANK']}", "w").close()
    while len(os.listdir(sys.argv[1])) < 4:  # all run before one fails
        pass
    sys.exit(os.environ["RANK"] == "3")
"""


def test_each_node_imports_once_for_all_attempts(tmp_path: Path) -> None:
    """Two nodes of two ranks, one of which fails in the first attempt."""
    need_namespaces()
    (tmp_path / "heavy.py").write_text("import os\nPID = os.getpid()\nprint('imported', flush=True)\n")
    (tmp_path / "here").mkdir()
    script = tmp_path / "train.py"
    script.write_text(TRAINS)
    settings = {"PRELOAD": "heavy", "RESTARTS": "1", "RESTART_ON": "any", "RESTART_DELAY": "0"}
    flags = [word for name, value in settings.items() for word in ("--env", f"LAUNCHER_{name}={value}")]
    words = (
        *("rehearse", "--nodes", "2", "--processes", "2"),
        *flags,
        "--",
        str(script),
        str(tmp_path / "here"),
    )
    done = launch(*words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("[template] imported") == 2, done.stdout
    attempts = [re.search(r"attempt (\d) \S+ True$", line) for line in done.stdout.splitlines()]
    assert sorted(found[1] for found in attempts if found) == ["0"] * 4 + ["1"] * 4, done.stdout + done.stderr
    assert "not used" not in done.stderr
