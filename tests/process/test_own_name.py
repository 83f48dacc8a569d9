"""``cluster_launcher``: our API and command in a project that has a ``launcher`` of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from launcher.core.version import __version__
from tests.process.starting import ROOT, clean_environ

RANK = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
MASTER = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return the folder of a project with a launcher.py, a launcher/, and a main module in it."""
    (tmp_path / "launcher").mkdir()
    (tmp_path / "launcher" / "__init__.py").write_text("WHOSE = 'theirs'\n")
    (tmp_path / "launcher" / "jobs.py").write_text("WHOSE = 'their module'\n")
    (tmp_path / "launcher.py").write_text("WHOSE = 'theirs'\n")
    return tmp_path


def run(folder: Path, *words: str, **variables: str) -> str:
    """Run this Python there, with our packages behind the folder, and return its output."""
    environ = clean_environ(PYTHONPATH=ROOT, **variables)
    done = subprocess.run(
        (sys.executable, *words), cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.rows(4)
@pytest.mark.parametrize(
    "lines",
    [
        "import cluster_launcher; t = cluster_launcher.setup(); import launcher, launcher.jobs",
        "import launcher, launcher.jobs, cluster_launcher; t = cluster_launcher.setup()",
        "import cluster_launcher as c, launcher, launcher.jobs; c.arm(); t = c.setup(); c.setup()",
        "from cluster_launcher import setup; t = setup()\nimport launcher.jobs\nassert setup() is t",
    ],
)
def test_a_script_has_both(project: Path, lines: str) -> None:
    """The order of the imports does not matter, nor the number of calls."""
    (project / "train.py").write_text(
        f"{lines}\nprint(t.world_size, launcher.WHOSE, launcher.jobs.WHOSE, launcher.__file__)\n"
    )
    told = run(project, "train.py", **RANK, **MASTER)
    assert told == f"2 theirs their module {project}/launcher/__init__.py\n"


def test_without_another_one_both_names_are_one(tmp_path: Path) -> None:
    """`launcher` stays, and has the same state."""
    (tmp_path / "train.py").write_text(
        "import cluster_launcher, launcher\nassert cluster_launcher.setup() is launcher.setup()\n"
        "import launcher.core.errors\nassert cluster_launcher.errors is launcher.core.errors\n"
        "print(cluster_launcher.__version__)\n"
    )
    assert run(tmp_path, "train.py", **RANK, **MASTER) == f"{__version__}\n"


def test_its_exceptions_can_be_caught(project: Path) -> None:
    (project / "train.py").write_text(
        "import cluster_launcher as launcher\n"
        "try:\n    launcher.setup()\nexcept launcher.errors.EnvironmentUntrusted as error:\n"
        "    print(error.exit_status)\n"
    )
    assert run(project, "train.py", RANK="7", WORLD_SIZE="2", **MASTER) == "78\n"


def test_the_module_runs_the_launcher_there(project: Path) -> None:
    (project / "train.py").write_text("import launcher; print(launcher.WHOSE)\n")
    words = ("run", "--nproc-per-node", "2", "--no-prefix", "--", sys.executable, "train.py")
    assert run(project, "-m", "cluster_launcher", *words) == "theirs\ntheirs\n"
    assert run(project, "-m", "cluster_launcher", "--version").startswith("launcher ")
