"""``LAUNCHER_DISABLE=1``: entry points and the hook leave a command as it is, but for one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.process.hooking import RANK, read_environ, run, write_dump
from tests.process.starting import ROOT, clean_environ, launch, open_launcher
from tests.process.test_init import UNSHARE, need_pid_namespaces

DUMP = "import json, os; print(json.dumps([os.getpid(), os.getppid(), dict(os.environ)]))"
ON = ("1", "true", "TRUE")
OFF = ("", "0", "false")
UNTRUSTED = {"RANK": "3", "MASTER_ADDR": "localhost", "AZ_BATCH_HOST_LIST": "10.0.0.4,10.0.0.5"}
LAST_RESORT = "LAUNCHER_DISABLE=1 runs the command as it is, without the launcher"


def said(value: str = "1") -> str:
    """Return the one line."""
    return f"launcher: LAUNCHER_DISABLE={value}: the command runs as it is\n"


@pytest.mark.parametrize("value", ON)
def test_the_command_is_the_launchers_process_in_its_environment(value: str) -> None:
    """Whatever that says, and whichever flags are typed: nothing of it is read, set or taken out."""
    environ = {
        **UNTRUSTED,
        "LAUNCHER_NNODES": "x",
        "LAUNCHER_HOOKED": "process/,/RANK:1",
        "LAUNCHER_DISABLE": value,
    }
    with open_launcher(
        "run", "--nproc-per-node", "4", "--", sys.executable, "-c", DUMP, environ=environ
    ) as job:
        out, err = job.communicate(timeout=60)
    pid, parent, seen = json.loads(out)
    assert (job.returncode, err, pid, parent) == (0, said(value), job.pid, os.getpid())
    assert {name: seen[name] for name in seen if name != "LC_CTYPE"} == clean_environ(**environ)


def test_the_command_has_its_own_status_and_python(tmp_path: Path) -> None:
    """What keeps it from starting is its own, and a script runs under Python."""
    environ = {"LAUNCHER_DISABLE": "1"}
    assert launch("run", "--", "sh", "-c", "exit 7", environ=environ).returncode == 7
    assert launch("run", "--", "no-such-program", environ=environ).returncode == 127
    done = launch("run", environ=environ)
    assert (done.returncode, "[no-command]" in done.stderr) == (64, True)
    # As with the launcher; a shell is not looked into.
    (tmp_path / "script.py").write_text("import sys; print(sys.argv[1:])")
    environ = {"LAUNCHER_DISABLE": "1", "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    for words in (("--", str(tmp_path / "script.py")), ("-m", "script"), ("--", "-m", "script")):
        done = launch("run", *words, "--lr", "1", environ=environ)
        assert (done.stdout, done.stderr) == ("['--lr', '1']\n", said())
    shell = ("sh", "-c", "exec cat /proc/$$/cmdline")
    assert launch("run", "--", *shell, environ=environ).stdout.split("\0")[0] == "cat"


@pytest.mark.parametrize("value", OFF)
def test_it_is_off_by_default(value: str) -> None:
    done = launch("run", "--", "sh", "-c", "echo $RANK", environ={"LAUNCHER_DISABLE": value})
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_another_value_is_an_error_and_a_dry_run_runs_nothing() -> None:
    """A switch that is meant, and does not work, would be worse."""
    done = launch("run", "--", "true", environ={"LAUNCHER_DISABLE": "yes"})
    assert done.returncode == 64
    assert "[malformed-flag] LAUNCHER_DISABLE='yes': expected 0, 1, false or true" in done.stderr
    environ = {"LAUNCHER_DISABLE": "1", "LAUNCHER_DRY_RUN": "1"}
    out = launch("run", "--", "echo", "started", environ=environ).stdout
    assert "started\n" not in out.splitlines(keepends=True) and "WORLD_SIZE" in out
    assert "LAUNCHER_DISABLE='1': launcher run runs the command unchanged, and does none of this" in out


def test_as_process_1_the_command_is_process_1() -> None:
    need_pid_namespaces()
    line = [*UNSHARE, sys.executable, "-m", "launcher", "run", "--", sys.executable, "-c", DUMP]
    done = subprocess.run(
        line, env=clean_environ(LAUNCHER_DISABLE="1"), capture_output=True, text=True, timeout=60, check=True
    )
    assert (json.loads(done.stdout)[0], done.stderr) == (1, said())


def test_a_start_that_does_not_understand_its_environment_names_it() -> None:
    """In one line, behind all that is wrong; a wrong command line is to be corrected."""
    done = launch("run", "--", "true", environ=UNTRUSTED)
    assert done.returncode == 78
    assert done.stderr.splitlines()[-1] == f"launcher: note: {LAST_RESORT}"
    assert LAST_RESORT not in launch("run", "--nnodes", "x", "--", "true").stderr
    assert LAST_RESORT not in launch("plan", "--", "true", environ=UNTRUSTED).stderr


@pytest.mark.parametrize("value", ON)
def test_the_hook_does_nothing(value: str, each_hooked: str, tmp_path: Path) -> None:
    """Silently: every Python of a job would say so."""
    told = read_environ(run(each_hooked, write_dump(tmp_path), LAUNCHER_DISABLE=value, **RANK))
    assert "WORLD_SIZE" not in told and "LAUNCHER_HOOKED" not in told
    shown = run(each_hooked, write_dump(tmp_path), LAUNCHER_DISABLE=value, **{**RANK, **UNTRUSTED})
    assert shown.stderr == ""


@pytest.mark.parametrize(("value", "rank"), [("1", "none"), ("True", "none"), ("0", "1")])
def test_neither_does_the_hook_of_shells(value: str, rank: str, tmp_path: Path) -> None:
    file = tmp_path / "hook.sh"
    launch("hook", "install", "--target", str(tmp_path), "--shell", str(file))
    environ = clean_environ(BASH_ENV=str(file), LAUNCHER_DISABLE=value, **RANK)
    done = subprocess.run(
        ["bash", "-c", "echo ${RANK-none}"], env=environ, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == (f"{rank}\n", "")


def enter_nvidia(*words: str, **variables: str) -> tuple[list[str], str]:
    """Return the command that an entry point of NVIDIA's images is left with, and what was said."""
    text = f'for file in "{ROOT}"/docker/entrypoint.d/*.sh; do source "$file"; done; printf "%s\\n" "$@"'
    done = subprocess.run(
        ["bash", "-c", text, "entry", *words],
        env=clean_environ(**variables),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines(), done.stderr


def test_the_entry_point_of_nvidias_images_leaves_the_command() -> None:
    """A shell for people stays one without a word, as ever."""
    assert enter_nvidia("python", "t.py") == (["launcher", "run", "--", "python", "t.py"], "")
    assert enter_nvidia("python", "t.py", LAUNCHER_DISABLE="0")[0][0] == "launcher"
    assert enter_nvidia("python", "t.py", LAUNCHER_DISABLE="yes")[0][0] == "launcher"
    for value in ON:
        assert enter_nvidia("python", "t.py", LAUNCHER_DISABLE=value) == (["python", "t.py"], said(value))
    assert enter_nvidia("bash", LAUNCHER_DISABLE="1") == (["bash"], "")


def enter_image(tmp_path: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run an image's ``launcher`` whose Python has gone, with a PATH on which there is no other."""
    file, folder = tmp_path / "launcher", tmp_path / "bin"
    file.write_text(
        Path(ROOT, "docker", "launcher.sh").read_text().replace("@PYTHON@", "/nonexistent/python")
    )
    file.chmod(0o755)
    folder.mkdir(exist_ok=True)
    text = file.read_text().replace("/usr/bin/python3", str(folder / "none"))
    file.write_text(text)
    environ: Mapping[str, str] = {"PATH": str(folder), **variables}
    return subprocess.run(
        ["/bin/sh", str(file), *words], env=environ, capture_output=True, text=True, check=False
    )


def test_an_image_without_a_python_for_the_launcher_runs_the_command(tmp_path: Path) -> None:
    """The last resort does not need what is broken."""
    words = ("run", "--", "/bin/sh", "-c", "echo $A; exit 3")
    broken = enter_image(tmp_path, *words)
    assert broken.returncode == 69 and LAST_RESORT in broken.stderr
    done = enter_image(tmp_path, *words, LAUNCHER_DISABLE="1", A="b")
    assert (done.returncode, done.stdout, done.stderr) == (3, "b\n", said())
    assert enter_image(tmp_path, "plan", LAUNCHER_DISABLE="1").returncode == 69
