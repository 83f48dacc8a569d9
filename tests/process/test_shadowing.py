"""A working directory full of modules with the names of others: none of them is imported by the launcher."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from launcher.rehearse.job import with_launcher
from tests.process.hooking import make_venv
from tests.process.starting import clean_environ

DEPENDENCIES_TEXT = """
    torch numpy rich psutil tensorflow horovod deepspeed accelerate yaml pynvml mpi4py jax sitecustomize
    typing_extensions packaging setuptools markdown_it pygments
"""
BEFORE_US = frozenset(("importlib", "types", "__future__"))
"""What Python 3.12 and newer import for ``-m`` before anything of ours runs."""
NAMES = sorted({*sys.stdlib_module_names, *DEPENDENCIES_TEXT.split()} - BEFORE_US)
COMMANDS = {
    "plan": ("plan", "--nproc-per-node", "2", "--", "python", "train.py"),
    "env": ("env", "--format", "json"),
    "run": ("run", "--", "true"),
    "two processes": ("run", "--nproc-per-node", "2", "--", "true"),
    "snapshot": ("snapshot", "-o", "/dev/null"),
    "topology": ("topology",),
    "check": ("check",),
    "status": ("status",),
    "stacks": ("stacks",),
    "keygen": ("keygen", "FOLDER/key"),
    "hook": ("hook", "status", "--prefix", "FOLDER/venv"),
    "tf-server": ("tf-server", "--until", "127.0.0.1:1", "--wait", "0", "--", "true"),
}


@pytest.fixture
def shadows(tmp_path: Path) -> Path:
    """Return a folder with a module for each name, which leaves a file behind when it is imported."""
    folder = tmp_path / "shadows"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(
            f"open({str(tmp_path / 'imported')!r}, 'a').write('{name}\\n')\nraise ImportError('{name}')\n"
        )
    return folder


def run(folder: Path, *argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command there to its end; none of the modules may have been imported."""
    done = subprocess.run(
        argv,
        cwd=folder,
        env=clean_environ(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    seen = folder.parent / "imported"
    assert not seen.exists(), (seen.read_text(), done.stderr)
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_imports_from_where_the_user_stands(name: str, shadows: Path) -> None:
    """``python -m launcher COMMAND``: Python puts the working directory in front."""
    if name == "hook":
        make_venv(shadows.parent / "venv")
    words = (word.replace("FOLDER", str(shadows.parent)) for word in COMMANDS[name])
    run(shadows, sys.executable, "-m", "launcher", *words)


def test_a_launcher_of_the_users_is_none_of_ours(shadows: Path) -> None:
    """A rehearsal starts this one on its nodes, by its path."""
    (shadows / "launcher.py").write_text("raise SystemExit('the user\\'s')\n")
    done = run(shadows, *with_launcher(["launcher", "--version"]))
    assert done.returncode == 0 and done.stdout.startswith("launcher "), done.stderr


def test_what_the_user_runs_imports_from_there(shadows: Path) -> None:
    """``launcher run -m NAME``, and a script, find what they would find without the launcher."""
    (shadows / "neighbour.py").write_text("WORD = 'found'\n")
    (shadows / "train.py").write_text("import neighbour; print(neighbour.WORD)\n")
    for words in (("-m", "train"), ("train.py",), ("python", "-m", "train")):
        done = run(shadows, sys.executable, "-m", "launcher", "run", "--", *words)
        assert (done.returncode, done.stdout) == (0, "found\n"), (words, done.stderr)


@pytest.mark.torch
def test_torchruns_agent_imports_nothing_from_there(shadows: Path) -> None:
    """Its workers find the modules beside their script, as ever."""
    job = shadows.parent / "job"
    job.mkdir()
    (job / "json.py").write_text("WORD = 'own '\n")
    (job / "train.py").write_text(
        "import json, os; print(json.WORD + os.environ['RANK'] + '\\n', end='', flush=True)\n"
    )
    words = ("--engine", "torchrun", "--nproc-per-node", "2", "--", str(job / "train.py"))
    done = run(shadows, sys.executable, "-m", "launcher", "run", *words, OMP_NUM_THREADS="1")
    assert done.returncode == 0 and sorted(done.stdout.splitlines()) == ["own 0", "own 1"], done.stderr


@pytest.mark.torch
@pytest.mark.horovod
def test_horovods_server_imports_nothing_from_there(shadows: Path) -> None:
    """Nor do the ranks that wait for it; it stands beside the modules of the launcher's other servers."""
    words = ("--framework", "horovod", "--nproc-per-node", "2", "--no-prefix", "--", sys.executable, "-c")
    done = run(shadows, sys.executable, "-m", "launcher", "run", *words, "print('met')")
    assert (done.returncode, done.stdout) == (0, "met\nmet\n"), done.stderr
