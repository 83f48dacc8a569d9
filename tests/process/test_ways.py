"""Four ways in, as real processes in every recorded environment: the variables are the same, byte for byte.

The entry point, ``python -m launcher``, ``launcher.setup()`` and the hook, each on this machine, with what
the real platform gave one of its processes. Where the recording stands for a node, see
``tests/golden/test_ways.py``; where this machine contradicts it (its GPUs, its addresses), all refuse.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from launcher.core.errors import LauncherError
from launcher.core.model import Scope
from launcher.hook.line import MARKERS
from launcher.inprocess.marker import AGENT
from launcher.machine.host import Host
from launcher.options.reading import read_options
from launcher.planning.plan import plan_job
from tests.golden.jobs import read_recorded, recorded_environments, recording_names
from tests.process.hooking import NOT_THE_HOOKS
from tests.process.starting import ROOT, clean_environ

DUMP = "import json, os; print(json.dumps(dict(os.environ)))\n"
SETUP = f"import launcher; launcher.setup()\n{DUMP}"
WITHOUT_MASTER = ("mpich", "intelmpi", "hnp-not-a-worker", "5.0.11_hosts-reversed", "srun_arbitrary")
"""Recordings in which no variable leads to rank 0: there the user names it."""


def last_processes() -> list[str]:
    """Return the last process of each recording: no rank 0, which could be taken for a machine alone."""
    found = [(name, recorded_environments(name)) for name in recording_names()]
    return [paths[-1] for _, paths in found if paths]


def environ_of(path: str) -> dict[str, str]:
    """Return what a recorded process had, this machine's PATH, and a master where only a parent knows it."""
    master = {"MASTER_ADDR": "10.77.0.4"} if any(name in path for name in WITHOUT_MASTER) else {}
    recorded = {**read_recorded(path), **master}
    chosen = {n: v for n, v in recorded.items() if "<" not in v and not n.startswith("PYTHON")}
    return {**chosen, **{name: clean_environ()[name] for name in ("PATH", "HOME")}}


def kind(environ: Mapping[str, str]) -> str:
    """Return what the launcher takes this process for, here."""
    if environ.get(AGENT):
        return "told"
    if not any(map(environ.get, MARKERS)):
        return "no sign"
    try:
        return plan_job(environ, Host(), read_options({}, environ), ()).allocation.scope.value
    except LauncherError as error:
        return error.problems[0].code


def dump(line: list[str], environ: Mapping[str, str]) -> dict[str, str] | str:
    """Return the variables that a command's script has printed; what was said, if it was refused."""
    done = subprocess.run(
        line, env={**environ, "PYTHONPATH": ROOT}, capture_output=True, text=True, timeout=60, check=False
    )
    if not done.stdout:
        return done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    told = {name: value for name, value in found.items() if name not in NOT_THE_HOOKS}
    if told.get("WORLD_SIZE") != "1" or "MASTER_PORT" in environ or "MASTER_PORT" not in told:
        return told
    port = told["MASTER_PORT"]  # any that is free: another one each time
    return {name: value.replace(port, "<port>") for name, value in told.items()}


@pytest.mark.parametrize("path", last_processes())
def test_all_ways_give_the_same(path: str, hooked: str, tmp_path: Path) -> None:
    """What differs is nothing; what is refused is refused by all, and then the hook changes nothing."""
    environ, script = environ_of(path), tmp_path / "train.py"
    script.write_text(DUMP)
    calling = tmp_path / "calls_setup.py"
    calling.write_text(SETUP)
    what = kind(environ)
    if what == Scope.NODE.value:
        pytest.skip("stands for a node")
    through_hook = dump([hooked, str(script)], environ)
    if what in ("told", "no sign"):
        left = {n: v for n, v in environ.items() if n not in NOT_THE_HOOKS}
        assert through_hook == left
        return
    off = {**environ, "LAUNCHER_HOOK": "0"}
    run = ("run", "--no-stay", "--", hooked, str(script))  # a parent adds files of its own
    ways = {
        "entry point": dump([sys.executable, f"{ROOT}/bin/launcher", *run], off),
        "module": dump([sys.executable, "-m", "launcher", *run], off),
        "setup": dump([hooked, str(calling)], off),
    }
    if what != Scope.PROCESS.value:
        assert all(isinstance(said, str) and f"[{what}]" in said for said in ways.values()), ways
        assert through_hook == {n: v for n, v in environ.items() if n not in NOT_THE_HOOKS}
        return
    for way, found in ways.items():
        assert isinstance(found, dict), (way, found)
        assert found.pop("LAUNCHER_HOOK") == "0"
        assert found == through_hook, way


def test_the_framework_of_a_script_is_seen_by_all(hooked: str, tmp_path: Path) -> None:
    """One that uses jax.distributed: each way reads the script, or none does."""
    script, calling = tmp_path / "train.py", tmp_path / "calls_setup.py"
    used = "if False:\n    import jax\n    jax.distributed.initialize()\n"
    script.write_text(f"{used}{DUMP}")
    calling.write_text(f"{used}{SETUP}")
    environ = {**environ_of("captured_openmpi-5.0.11_2x2/processes/3")}
    off = {**environ, "LAUNCHER_HOOK": "0"}
    launched = dump([sys.executable, "-m", "launcher", "run", "--", hooked, str(script)], off)
    through_setup, through_hook = dump([hooked, str(calling)], off), dump([hooked, str(script)], environ)
    assert isinstance(launched, dict) and launched["JAX_PROCESS_ID"] == "3"
    assert through_setup == launched
    assert {**through_hook, "LAUNCHER_HOOK": "0"} == launched  # type: ignore[dict-item]


def test_the_ways_are_compared_where_they_can_be() -> None:
    """Recordings of ranks are compared, whatever else stands beside them."""
    kinds = [kind(environ_of(path)) for path in last_processes()]
    assert kinds.count(Scope.PROCESS.value) >= 30, sorted(kinds)
    assert os.path.exists(f"{ROOT}/bin/launcher")
