"""Files of defaults for real: every way into a job reads them, and a plan shows the line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.options.flags import FLAGS
from tests.process.hooking import RANK, read_environ, run, write_dump
from tests.process.starting import clean_environ, launch

SHOW = ("--", "sh", "-c", "echo $RANK of $WORLD_SIZE ${LAUNCHER_CONFIG-none}")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return a file that counts processes, and is the only one."""
    file = tmp_path / "team.conf"
    file.write_text("# of the team\nnproc-per-node = 2\nprefix = false\nrole = trainer\n")
    return file


def test_a_job_is_started_by_it_and_a_plan_shows_the_line(config: Path) -> None:
    """Its name is for this launcher, as all flags are."""
    done = launch("run", *SHOW, environ={"LAUNCHER_CONFIG": str(config)})
    assert sorted(done.stdout.splitlines()) == ["0 of 2 none", "1 of 2 none"]
    assert launch("run", "--nproc-per-node", "1", *SHOW, environ={"LAUNCHER_CONFIG": str(config)}).stdout == (
        "0 of 1 none\n"
    )
    done = launch("plan", "--", "true", environ={"LAUNCHER_CONFIG": str(config)})
    assert f"processes_per_node   2           {config}:2: nproc-per-node = 2  (config)" in done.stdout
    assert f"note: {config}:3: prefix = false\n" in done.stdout
    assert f"ROLE_NAME trainer {config}:4: role = trainer" in " ".join(done.stdout.split())


def test_a_relative_path_is_one_of_the_working_directory(config: Path) -> None:
    line = [sys.executable, "-m", "launcher", "run", *SHOW]
    environ = clean_environ(LAUNCHER_CONFIG=config.name)
    done = subprocess.run(line, env=environ, cwd=config.parent, capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 2


def test_setup_and_the_hook_read_it_too(config: Path, hooked: str, tmp_path: Path) -> None:
    config.write_text("role = trainer\n")
    script = tmp_path / "script.py"
    script.write_text("import launcher, os\nlauncher.setup()\nprint(os.environ['ROLE_NAME'])\n")
    environ = clean_environ(LAUNCHER_CONFIG=str(config), LAUNCHER_NPROC_PER_NODE="1")
    done = subprocess.run(
        [sys.executable, str(script)], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout == "trainer\n"
    told = read_environ(run(hooked, write_dump(tmp_path), LAUNCHER_CONFIG=str(config), **RANK))
    assert (told["ROLE_NAME"], "LAUNCHER_CONFIG" in told) == ("trainer", False)


def test_what_is_wrong_stops_the_start(config: Path) -> None:
    """A wrong value does; a name that no flag has does not, and what its warning names works."""
    config.write_text("nproc-per-nod = 2\nxyzzy = 1\n")
    done = launch("run", *SHOW, environ={"LAUNCHER_CONFIG": str(config)})
    assert done.returncode == 0
    assert f"warning: {config}:1: 'nproc-per-nod' is not the name of a flag and is not used" in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "'xyzzy'" in line]
    command, _, _ = line.partition("none is similar: launcher ")[2].partition(" lists all")
    shown = launch(*command.split()).stdout
    assert [flag.name for flag in FLAGS if f"{flag.name} " not in shown.replace("\n", " ")] == []
    config.write_text("grace = soon\n")
    done = launch("run", *SHOW, environ={"LAUNCHER_CONFIG": str(config)})
    assert (done.returncode, done.stdout) == (64, "")
    assert f"[malformed-flag] {config}:1: grace = soon: expected" in done.stderr


def test_a_snapshot_replays_it(config: Path, tmp_path: Path) -> None:
    environ = {"LAUNCHER_CONFIG": str(config)}
    file = tmp_path / "snapshot.json"
    assert launch("snapshot", "-o", str(file), environ=environ).returncode == 0
    config.unlink()
    done = launch("plan", "--format", "json", "--replay", str(file), "--", "true")
    facts = json.loads(done.stdout)["facts"]
    assert facts["processes_per_node"]["origin"] == f"{config}:2: nproc-per-node = 2"


def test_a_named_file_that_all_users_can_write_stops_the_start(config: Path) -> None:
    config.chmod(0o666)
    done = launch("run", *SHOW, environ={"LAUNCHER_CONFIG": str(config)})
    assert (done.returncode, "all users can write it" in done.stderr) == (64, True)
