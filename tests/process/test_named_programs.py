"""Scripts by other names: console scripts, executables without a suffix, editable installs; their Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.hooking import make_venv
from tests.process.starting import ROOT, clean_environ
from tests.pythons import find_python

BODY = "from mpi4py import MPI\n\ndef main():\n    print(MPI)\n"
ENTRY = """#!{python}
# -*- coding: utf-8 -*-
import re
import sys
from mytrain.cli import main
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script.pyw|.exe)?$', '', sys.argv[0])
    sys.exit(main())
"""
FINDER = "import sys\nMAPPING: dict[str, str] = {{'mytrain': '{place}'}}\nNAMESPACES = {{}}\n"


def launch(*words: str, cwd: Path, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the launcher in a folder to its end."""
    return subprocess.run(
        (sys.executable, f"{ROOT}/bin/launcher", *words),
        cwd=cwd,
        env=clean_environ(**(environ or {})),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """Return a virtual environment with an editable install of a package from another folder."""
    venv = make_venv(tmp_path / "venv")
    package = tmp_path / "elsewhere" / "mytrain"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "cli.py").write_text(BODY)
    (package / "__main__.py").write_text(BODY)
    (packages,) = venv.glob("lib/python3*/site-packages")
    (packages / "mpi4py").mkdir()
    (packages / "mpi4py" / "__init__.py").write_text("MPI = None\n")
    (packages / "__editable___mytrain_1_0_finder.py").write_text(FINDER.format(place=package))
    for name, text in (
        ("mytrain", ENTRY.format(python=venv / "bin" / "python")),
        ("plain", f"#!{venv}/bin/python\n{BODY}"),
        ("by-env", f"#!/usr/bin/env python3\n{BODY}"),
    ):
        (venv / "bin" / name).write_text(text)
        (venv / "bin" / name).chmod(0o755)
    return venv


@pytest.mark.rows(5)
@pytest.mark.parametrize(
    "words", [("BIN/mytrain",), ("mytrain",), ("BIN/plain",), ("by-env",), ("BIN/python", "-m", "mytrain")]
)
def test_the_script_behind_a_name_is_read(venv: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    """Each of two processes would be an MPI world of its own, and exit with 0."""
    words = tuple(word.replace("BIN", f"{venv}/bin") for word in words)
    path = f"{venv}/bin:{os.environ['PATH']}"
    done = launch("plan", "--nproc-per-node", "2", "--", *words, environ={"PATH": path}, cwd=tmp_path)
    assert done.returncode == 64 and "mpi4py" in done.stderr, (done.stdout, done.stderr)


def test_an_executable_script_keeps_its_python(tmp_path: Path) -> None:
    other = find_python(12) or find_python(10)
    if other is None:
        pytest.skip("no second Python on this machine")
    script = tmp_path / "train.py"
    show = "import sys; print(sys.version_info[:2])\n"
    version = subprocess.run((other, "-c", show), capture_output=True, text=True, check=True).stdout
    script.write_text(f"#!{other} -B\n{show}")
    own = f"{sys.version_info[:2]}\n"
    assert launch("run", "--", "./train.py", cwd=tmp_path).stdout == own  # not executable
    script.chmod(0o755)
    assert launch("run", "--", "./train.py", cwd=tmp_path).stdout == version
    assert launch("run", "--", str(script), cwd=tmp_path).stdout == version
    assert launch("run", "--", "train.py", cwd=tmp_path).stdout == own  # a shell would not run it, either
    script.write_text(f"#!/usr/bin/env python3\n{show}")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(other)
    environ = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    assert launch("run", "--", "./train.py", cwd=tmp_path, environ=environ).stdout == version
    environ |= {"PYTHON_EXEC": sys.executable}
    assert launch("run", "--", "./train.py", cwd=tmp_path, environ=environ).stdout == own
    environ = {"PATH": "/nonexistent"}
    assert launch("run", "--", "./train.py", cwd=tmp_path, environ=environ).stdout == own


@pytest.mark.rows(6)
@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (("--nproc-per-node", "2", "train.py"), "launcher run --nproc-per-node 2 -- train.py"),
        (
            ("--nproc-per-node=2", "train.py", "--lr", "1"),
            "launcher run --nproc-per-node=2 -- train.py --lr 1",
        ),
        (("--hosts", "a,b", "python", "train.py"), "launcher run --hosts a,b -- python train.py"),
        (("-t", "3", "train.py"), "launcher run -t 3 -- train.py"),
        (("--restarts", "3"), "launcher run FLAGS -- COMMAND"),
        (("-u", "train.py"), "launcher run -- python -u train.py"),
    ],
)
def test_a_flag_after_the_dashes_is_recognized(tmp_path: Path, words: tuple[str, ...], fix: str) -> None:
    done = launch("run", "--", *words, cwd=tmp_path)
    assert done.returncode == 64 and fix in done.stderr, done.stderr


def test_a_rehearsal_starts_the_python_that_run_would(venv: Path, tmp_path: Path) -> None:
    """The first python on PATH, not that of the launcher."""
    line = ("python", "-c", "import sys; print('prefix', sys.prefix)")
    path = {"PATH": f"{venv}/bin:{os.environ['PATH']}"}
    done = launch(
        "rehearse", "--like", "slurm", "--loopback", "--nodes", "1", "--", *line, cwd=tmp_path, environ=path
    )
    assert f"prefix {venv}" in done.stdout, (done.stdout, done.stderr)


def test_a_rehearsal_needs_no_path(tmp_path: Path) -> None:
    """With an empty PATH the nodes are loopback addresses, and the line says which programs are missing."""
    done = launch("rehearse", "--", "/bin/true", cwd=tmp_path, environ={"PATH": ""})
    assert done.returncode == 0, done.stderr
    assert "not on PATH: unshare, nsenter, ip" in done.stderr
