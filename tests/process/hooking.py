"""Python environments for tests of the hook: real interpreters in every layout, and the hook put into them.

pyenv's interpreters are shared by all tests of a machine, so nothing is installed into them: a tree of links
with a Python of its own stands in, as conda lays out its environments, or pyenv its versions.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from launcher.inprocess.marker import HOOKED
from tests.process.starting import clean_environ, launch

DUMP = """
import json, os, sys
print(json.dumps({"environ": dict(os.environ), "version": list(sys.version_info[:2]), "path": sys.path,
                  "modules": sorted(sys.modules), "finders": [str(f) for f in sys.meta_path]}))
"""
RANK = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_MCA_orte_num_nodes": "1",
}
"""One of two ranks of an mpirun on one node."""
NOT_THE_HOOKS = ("LC_CTYPE", "PYTHONPATH", "PWD", "SHLVL", "_", HOOKED)
"""What starting a program in one or another way changes."""


def make_venv(folder: Path, python: str = sys.executable) -> Path:
    """Make a virtual environment of a Python, and return it."""
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    return folder


def make_prefix(folder: Path, python: str) -> Path:
    """Make an environment that is no virtual one: a Python, its library as links, an empty site-packages."""
    source = Path(os.path.realpath(python))
    name = source.name
    library = source.parent.parent / "lib" / name
    (folder / "bin").mkdir(parents=True)
    shutil.copy(source, folder / "bin" / name)
    for link in ("python3", "python"):
        (folder / "bin" / link).symlink_to(name)
    (folder / "lib" / name / "site-packages").mkdir(parents=True)
    for item in library.iterdir():
        if item.name != "site-packages":
            (folder / "lib" / name / item.name).symlink_to(item)
    for item in library.parent.glob("lib*.so*"):
        (folder / "lib" / item.name).symlink_to(item)
    return folder


def hook(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``launcher hook WORDS`` to its end."""
    return launch("hook", *words, environ=variables)


def install(prefix: Path) -> Path:
    """Put the hook into an environment, and return its file."""
    done = hook("install", "--prefix", str(prefix))
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    (path,) = prefix.rglob("launcher_hook.pth")
    return path


def run(python: Path | str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a Python in a clean environment, without the tests' own PYTHONPATH, to its end."""
    environ = {name: value for name, value in clean_environ().items() if name != "PYTHONPATH"}
    return subprocess.run(
        [str(python), *words],
        env={**environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def write_dump(folder: Path) -> str:
    """Write a script that prints what its process is like, and return its path."""
    path = folder / "train.py"
    path.write_text(DUMP)
    return str(path)


def read_dump(done: subprocess.CompletedProcess[str]) -> dict[str, object]:
    """Return what the script has printed; the hook has said nothing."""
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def read_environ(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Return the variables of the script's process, less those that are nobody's."""
    environ = read_dump(done)["environ"]
    assert isinstance(environ, dict)
    return {name: value for name, value in environ.items() if name not in NOT_THE_HOOKS}
