"""``launcher check --health-command``: a site's own checks are findings like the others."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.checks import site
from launcher.process.helper import Helper
from launcher.recovery.health import ask_health
from tests.process.looking import is_gone, read_pid, wait_for
from tests.process.starting import clean_environ, launch, open_launcher

SECRET = "ghp_" + "a1B2c3D4e5" * 4
FLAG = "--health-command"
IMPATIENT = """
import sys
from launcher.cli.entry import main
from launcher.recovery import health
health.LIMIT_S = 0.5
sys.exit(main(sys.argv[1:]))
"""


def shell(script: str) -> str:
    """Return a command that runs a shell script."""
    return shlex.join(("sh", "-c", script))


def findings(*words: str, environ: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """Run ``launcher check --json WORDS``; return the findings of the site's checks."""
    done = launch("check", "--json", *words, environ=environ)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["version"] == 1
    levels = {finding["level"] for finding in document["findings"]}
    assert document["verdict"] == max(levels, key=("ok", "warning", "problem").index)
    return [finding for finding in document["findings"] if finding["check"] == "site"]


def test_a_node_is_judged_by_the_commands_status() -> None:
    """Whatever it prints; the first line says why; several are several findings."""
    # Status 0, whatever the command prints.
    (found,) = findings(FLAG, shell("echo looked at 8 GPUs"))
    assert (found["level"], found["found"], found["fix"]) == ("ok", "healthy", "")
    # As before an attempt of a job; ``--strict`` makes it status 69.
    command = shell("echo; echo row remapping failed on GPU 3 >&2; echo more; exit 3")
    (found,) = findings(FLAG, command)
    assert (found["level"], found["found"]) == ("problem", "row remapping failed on GPU 3")
    assert found["expected"] == "status 0" and command in found["fix"]
    done = launch("check", "--strict", FLAG, command)
    assert done.returncode == 69 and "problem  site     the health command, sh -c " in done.stdout
    silent = launch("check", FLAG, shell("kill -9 $$"))
    assert silent.returncode == 0 and "sh ended with exit code 137" in silent.stdout
    # All run, also behind one that fails.
    several = findings(FLAG, shell("exit 1"), FLAG, "true", FLAG, shell("echo slow disk; exit 1"))
    assert [(one["level"], one["found"]) for one in several] == [
        ("ok", "healthy"),
        ("problem", "sh ended with exit code 1"),
        ("problem", "slow disk"),
    ]


def test_the_command_of_the_fleet(tmp_path: Path) -> None:
    """A variable or a file of defaults; a typed one replaces it."""
    environ = {"LAUNCHER_HEALTH_COMMAND": shell("echo of the variable; exit 1")}
    (found,) = findings(environ=environ)
    assert found["found"] == "of the variable"
    (found,) = findings(FLAG, "true", environ=environ)
    assert found["level"] == "ok"
    (tmp_path / "launcher.conf").write_text(f"health-command = {shell('echo of the file; exit 1')}\n")
    (found,) = findings(environ={"LAUNCHER_CONFIG": str(tmp_path / "launcher.conf")})
    assert found["found"] == "of the file"


@pytest.mark.parametrize("strict", [(), ("--strict",)])
def test_a_command_that_does_not_exist_is_an_error_and_no_finding(
    strict: tuple[str, ...], tmp_path: Path
) -> None:
    """A typing error is no fault of the node: nothing is looked at, and the status is not 69."""
    done = launch("check", *strict, FLAG, "no-such-check --quick")
    assert (done.returncode, done.stdout) == (127, "")
    assert "[command-not-found] 'no-such-check'" in done.stderr and "from: --health-command" in done.stderr
    (tmp_path / "plain").write_text("exit 0\n")
    done = launch("check", *strict, FLAG, str(tmp_path / "plain"))
    assert (done.returncode, done.stdout) == (126, "")
    assert launch("check", FLAG, "'").returncode == 64


def test_a_command_that_hangs_is_ended_with_what_it_has_started(tmp_path: Path) -> None:
    """The limit of a health command, here half a second."""
    script = f"sleep 1000 & echo $! > {tmp_path}/pid; wait"
    line = [sys.executable, "-c", IMPATIENT, "check", "--strict", FLAG, shell(script)]
    done = subprocess.run(line, env=clean_environ(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 69 and "found sh gave no answer within 0.5 s" in done.stdout, done
    wait_for(lambda: is_gone(read_pid(tmp_path / "pid")), "its process has ended")


def test_ctrl_c_ends_a_command_with_what_it_has_started(tmp_path: Path) -> None:
    """The launcher, the command, and the process of the command."""
    script = f"sleep 1000 & echo $! > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; wait"
    checking = open_launcher("check", FLAG, shell(script))
    wait_for((tmp_path / "pid").exists, "the command runs")
    os.kill(checking.pid, signal.SIGINT)
    checking.communicate(timeout=30)
    assert checking.returncode == 130
    wait_for(lambda: is_gone(read_pid(tmp_path / "pid")), "its process has ended")


def test_what_a_command_prints_is_safe() -> None:
    """No control character, no secret of its own."""
    # Control characters, bytes that are no text, a line without end, and a secret.
    script = f"printf '\\033[2J\\377 {SECRET} '; head -c 100000 /dev/zero | tr '\\0' x; exit 1"
    (found,) = findings(FLAG, shell(script))
    assert "\x1b" not in found["found"] and SECRET not in json.dumps(found)
    assert len(found["found"]) < 900
    done = launch("check", FLAG, shell(script))
    assert "\x1b[2J" not in done.stdout and SECRET not in done.stdout
    # Neither in text nor as JSON.
    words = f"true --token {SECRET}"
    (found,) = findings(FLAG, words)
    assert SECRET not in json.dumps(found) and "the health command, true --token " in found["what"]
    assert SECRET not in launch("check", FLAG, words).stdout


def test_no_command_runs_on_a_recorded_machine(tmp_path: Path) -> None:
    """It would check this machine."""
    snapshot = tmp_path / "node.json"
    snapshot.write_text(launch("snapshot").stdout)
    done = launch("check", "--json", "--replay", str(snapshot), FLAG, f"touch {tmp_path}/ran")
    document = json.loads(done.stdout)
    assert "site" in document["silent"] and not (tmp_path / "ran").exists()


def test_ctrl_c_while_a_command_starts_ends_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that comes between the fork and our look at it waits until the command can be ended."""
    begun: list[int] = []

    def begin(*words: Any) -> Helper | None:
        helper = ask_health(*words)
        assert helper is not None and helper.pid is not None
        begun.append(helper.pid)
        signal.raise_signal(signal.SIGINT)
        return helper

    monkeypatch.setattr(site, "ask_health", begin)
    with pytest.raises(KeyboardInterrupt):
        site._ask(("sleep", "1000"))
    wait_for(lambda: is_gone(begun[0]), "the helper has ended")
