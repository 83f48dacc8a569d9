"""A working directory full of modules with the names of others: none of them is imported by the launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from launcher.frameworks import horovod, tensorflow
from launcher.rehearse.job import with_launcher
from launcher.servers import torchrun_agent
from tests.process.hooking import make_venv
from tests.process.starting import ROOT, clean_environ

DEPENDENCIES_TEXT = """
    torch numpy rich psutil tensorflow horovod deepspeed accelerate yaml pynvml mpi4py jax sitecustomize
    typing_extensions packaging setuptools markdown_it pygments
"""
BEFORE_US = frozenset(("importlib", "types", "__future__"))
"""What Python 3.12 and newer import for ``-m`` before anything of ours runs."""
NAMES = sorted({*sys.stdlib_module_names, *DEPENDENCIES_TEXT.split()} - BEFORE_US)
BARE = os.path.realpath(sys.executable)
"""A Python without packages, whose .pth files would import something before us."""
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
    "exec": ("exec", "--all", "--", "true"),
    "hook": ("hook", "status", "--prefix", "FOLDER/venv"),
    "tf-server": ("tf-server", "--until", "127.0.0.1:1", "--wait", "0", "--", "true"),
}


@pytest.fixture
def shadows(tmp_path: Path) -> Path:
    """Return a folder with a module for each name, which leaves a file behind when it is imported."""
    return write_shadows(tmp_path / "shadows", NAMES)


@pytest.fixture
def named(tmp_path: Path) -> Path:
    """Return a folder for PYTHONPATH: modules of Python, save those of its own start, and a launcher."""
    line = (BARE, "-c", "import sys; print(*sys.modules)")
    start = subprocess.run(line, capture_output=True, text=True, check=True).stdout.replace(".", " ").split()
    names = {name for name in {*sys.stdlib_module_names} - {*start} if find_spec(name)}  # none of Windows
    return write_shadows(tmp_path / "named", sorted(names | {"launcher"}))


def write_shadows(folder: Path, names: list[str]) -> Path:
    """Write modules that leave a file behind when they are imported."""
    folder.mkdir()
    seen = str(folder.parent / "imported")
    for name in names:
        text = f"open({seen!r}, 'a').write('{name}\\n')\nraise ImportError('{name}')\n"
        (folder / f"{name}.py").write_text(text)
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
    words = [word.replace("FOLDER", str(shadows.parent)) for word in COMMANDS[name]]
    for module in ("launcher", "cluster_launcher"):
        run(shadows, sys.executable, "-m", module, *words)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("start", ["bin/launcher", "launcher/__main__.py"])
def test_no_command_imports_from_pythonpath(name: str, start: str, named: Path) -> None:
    """The launcher has modules of Python from Python, and its own from its own place."""
    if name == "hook":
        make_venv(named.parent / "venv")
    words = [word.replace("FOLDER", str(named.parent)) for word in COMMANDS[name]]
    done = run(named, BARE, f"{ROOT}/{start}", *words, PYTHONPATH=f"{named}:")
    assert "error: [bug]" not in done.stderr
    assert name in ("status", "stacks", "exec") or done.returncode in (0, 1, 75), done.stderr


@pytest.mark.parametrize("path", [":/nowhere", "/nowhere:", "."])
def test_nothing_is_imported_by_an_empty_part_of_pythonpath(path: str, tmp_path: Path) -> None:
    """Python takes it for the working directory; `subprocess` tries a module of Windows, we optional ones."""
    shadows = write_shadows(tmp_path / "shadows", ["msvcrt", "pynvml"])
    for start in ("bin/launcher", "launcher/__main__.py"):
        for command in ("check", "topology"):
            run(shadows, BARE, f"{ROOT}/{start}", command, PYTHONPATH=path)
    run(shadows, BARE, "-m", "launcher", "check", PYTHONPATH=f"{ROOT}:{path}")


def test_programs_in_the_users_python_have_its_library_first(named: Path) -> None:
    """Torch's agent and the servers run where torch, Horovod and TensorFlow are, on PYTHONPATH maybe."""
    (named / "__future__.py").unlink()  # the first line of these files: nothing can come before it
    stub = named.parent / "stub" / "torch" / "distributed"
    stub.mkdir(parents=True)
    (stub / "run.py").write_text("import json, socket\nprint('the agent of', __file__)\n")
    path = f"{named}:{named.parent}/stub:"
    done = run(named, BARE, torchrun_agent.__file__, PYTHONPATH=path)
    assert done.stdout == f"the agent of {stub}/run.py\n", done.stderr
    until = ("--until", "127.0.0.1:1", "--wait", "0", "--", "true")
    assert run(named, BARE, tensorflow.SERVER, *until, PYTHONPATH=path).returncode == 0
    done = run(named, BARE, horovod.SERVER, "1", "a:1", "127.0.0.1", PYTHONPATH=path)
    assert done.returncode == 69 and "[horovod-missing]" in done.stderr
    done = run(named, BARE, f"{ROOT}/launcher/bandwidth/program.py", PYTHONPATH=path)
    assert done.returncode == 64 and "found none of them" in done.stderr


def test_a_forked_rank_has_the_users_module_of_such_a_name(tmp_path: Path) -> None:
    """The template of --preload has Python's own; then its forks would not be what new processes are."""
    (tmp_path / "json.py").write_text("WORD = 'own'\n")
    (tmp_path / "train.py").write_text("import json; print(json.WORD)\n")
    words = ("run", "--nproc-per-node", "2", "--no-prefix", "--preload", "decimal", "--", BARE, "train.py")
    done = run(tmp_path, BARE, f"{ROOT}/bin/launcher", *words, PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "own\nown\n"), done.stderr
    assert "preload skipped" not in done.stderr or "json" in done.stderr


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
