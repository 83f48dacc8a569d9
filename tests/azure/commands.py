"""The command lines in docker/: what a shell makes of them, and what the launcher plans on recorded nodes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.golden.jobs import Json, read_case, snapshots
from tests.process.starting import clean_environ, launch

NOTE = """\
#!{python}
import json, os, sys, time
deadline = time.monotonic() + {deadline_s}
while {gate!r} and not os.path.exists({gate!r}) and time.monotonic() < deadline:
    time.sleep(0.02)
record = json.dumps({{"words": sys.argv[1:], "folder": os.getcwd()}})
with open({file!r} + ".part", "w") as file:
    file.write(record)
os.replace({file!r} + ".part", {file!r})
"""
DEADLINE_S = 60.0


class Shell:
    """A shell in which `launcher` is a program that notes how it was called: the one thing that is not real.

    Attributes:
        called: The file that the last call stands in, once there was one.
    """

    def __init__(self, folder: Path) -> None:
        self.called = folder / "called.json"
        self._programs = folder / "programs"
        self._programs.mkdir()
        self.stay_until(None)

    def stay_until(self, gate: Path | None) -> None:
        """Let the program wait until there is a file of this name, before it notes its call."""
        text = NOTE.format(
            python=sys.executable, file=str(self.called), gate=str(gate or ""), deadline_s=DEADLINE_S
        )
        program = self._programs / "launcher"
        program.write_text(text)
        program.chmod(0o755)

    def run(self, argv: Sequence[str], environ: Mapping[str, str], folder: Path) -> str:
        """Run a line to its end, which must be 0; return what it and all that it leaves behind print."""
        self.called.unlink(missing_ok=True)
        base = clean_environ()
        done = subprocess.run(
            list(argv),
            env={**base, **environ, "PATH": f"{self._programs}:{base['PATH']}"},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE_S,
            check=True,
        )
        return done.stdout

    def call(self) -> Json:
        """Return the words of the last call of `launcher`, and the folder in which it was."""
        found: Json = json.loads(self.called.read_text())
        return found


def plan_run(words: Sequence[str], case: str, folder: Path, **known: Any) -> list[Json]:
    """Return the plan of ``launcher WORDS`` in each start of a recorded job, as ``launcher plan`` gives it.

    Args:
        words: Those of ``launcher run``, the command among them.
        case: A golden case, whose own options must be none: the line that is rehearsed has all it needs.
        folder: Where snapshots are written.
        known: Fields of the snapshots that the recording leaves out.
    """
    recorded = read_case(case)
    assert not recorded.get("options") and words[0] == "run"
    plans = []
    for number, snapshot in enumerate(snapshots(recorded)):
        file = folder / f"{case}-{number}.json"
        file.write_text(json.dumps({**snapshot, **known}))
        done = launch("plan", "--format", "json", "--replay", str(file), *words[1:])
        assert done.returncode == 0, done.stderr
        plans.append(json.loads(done.stdout))
    return plans


def ranks(plans: Sequence[Json]) -> list[int]:
    """Return the ranks of all processes of a job, sorted."""
    return sorted(process["rank"] for plan in plans for process in plan["processes"])
