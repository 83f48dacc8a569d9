"""What is published: a source archive with everything, a wheel with what runs and nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from launcher import __version__
from launcher.cli.help import COMMANDS
from launcher.options.flags import FLAGS
from tests.process import starting
from tests.process.hooking import make_venv
from tests.process.starting import clean_environ

pytestmark = pytest.mark.xdist_group("package")
ROOT = Path(starting.ROOT)
NAME = f"cluster_launcher-{__version__}"
SHARE = (
    "bash-completion/completions/launcher",
    "man/man1/launcher.1",
    "zsh/site-functions/_launcher",
    "fish/vendor_completions.d/launcher.fish",
)
SECTIONS = ("NAME", "SYNOPSIS", "DESCRIPTION", "ENVIRONMENT", "FILES", "EXIT STATUS", "EXAMPLES", "SEE ALSO")


FINDER = (
    "import sys, importlib.machinery as m, importlib.util as u; sys.meta_path.append(type('Finder', (), "
    "{{'find_spec': staticmethod(lambda name, path=None, target=None, u=u: u.spec_from_file_location(name, "
    "{place!r} + '/__init__.py') if name == 'launcher' else None)}}))\n"
)
"""What setuptools writes for an editable installation, in one line."""


def call(*words: str | Path, cwd: Path = ROOT) -> str:
    """Run a command to its end, without this checkout on Python's path; return its output."""
    environ = clean_environ()
    environ.pop("PYTHONPATH", None)
    done = subprocess.run(words, cwd=cwd, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def sources() -> set[str]:
    """Return what belongs to the project: all that is tracked, and what is about to be."""
    listed = call("git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard")
    return {name for name in listed.splitlines() if (ROOT / name).is_file()}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the project, as a clone has it."""
    copy = tmp_path_factory.mktemp("copy")
    for name in sources():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((ROOT / name).read_bytes())
        (copy / name).chmod((ROOT / name).stat().st_mode)
    return copy


@pytest.fixture(scope="module")
def built(copy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build both from a copy of the project, the wheel from the source archive; return the folder."""
    folder = tmp_path_factory.mktemp("built")
    call(sys.executable, "-m", "build", "--outdir", folder, copy)
    return folder


@pytest.mark.thorough
def test_the_source_archive_has_everything(built: Path) -> None:
    """What a clone has, the source archive has."""
    with tarfile.open(built / f"{NAME}.tar.gz") as archive:
        names = {name.removeprefix(f"{NAME}/") for name in archive.getnames() if name != NAME}
        files = {name for name in names if archive.getmember(f"{NAME}/{name}").isfile()}
    made = {name for name in files if name == "PKG-INFO" or ".egg-info/" in name}
    assert files - made == sources()


def test_the_wheel_has_the_program_alone(built: Path) -> None:
    """Our modules, the mark of types, the command, completions, the man page: no tests, no tools."""
    with zipfile.ZipFile(built / f"{NAME}-py3-none-any.whl") as archive:
        names = set(archive.namelist())
    program = {name for name in sources() if name.startswith(("launcher/", "cluster_launcher/"))}
    data = f"{NAME}.data"
    expected = program | {f"{data}/scripts/launcher"} | {f"{data}/data/share/{name}" for name in SHARE}
    metadata = {name for name in names if name.startswith(f"{NAME}.dist-info/")}
    assert names - metadata == expected
    assert "launcher/py.typed" in names


def test_the_wheel_works(built: Path, tmp_path: Path) -> None:
    """Installed into an environment of its own: the command, the module, the version from one place."""
    python = install(built / f"{NAME}-py3-none-any.whl", tmp_path)
    assert call(python.with_name("launcher"), "--version", cwd=tmp_path) == (
        f"launcher {__version__} (commit unknown, from a wheel)\n"
    )
    assert "usage: launcher COMMAND" in call(python, "-m", "launcher", "--help", cwd=tmp_path)
    assert call(python.with_name("launcher"), "run", "--", "echo", "hi", cwd=tmp_path) == "hi\n"
    assert f"Version: {__version__}" in call(python, "-m", "pip", "show", "cluster-launcher", cwd=tmp_path)
    check_share(tmp_path)


@pytest.mark.parametrize("shadow", ["launcher.py", "launcher/__init__.py", "launcher/train.py"])
def test_a_users_launcher_is_not_run(copy: Path, tmp_path: Path, shadow: str) -> None:
    """Of a project on PYTHONPATH, in every form of an installation: venv, folder, prefix, editable."""
    project, flat = tmp_path / "project", tmp_path / "flat"
    (project / shadow).parent.mkdir(parents=True)
    (project / shadow).write_text("raise SystemExit('the one of the project')\n")
    make_venv(tmp_path / "env")
    (packages,) = tmp_path.glob("env/lib/python3*/site-packages")
    prefixed = tmp_path / "prefix" / packages.relative_to(tmp_path / "env")
    for place, programs in ((packages, "env"), (flat, "flat"), (prefixed, "prefix")):
        shutil.copytree(copy / "launcher", place / "launcher")
        (tmp_path / programs / "bin").mkdir(exist_ok=True)
        shutil.copy(copy / "bin" / "launcher", tmp_path / programs / "bin" / "launcher")
    make_venv(tmp_path / "editable")
    (place,) = tmp_path.glob("editable/lib/python3*/site-packages")
    (place / "editable.pth").write_text(FINDER.format(place=str(copy / "launcher")))
    shutil.copy(copy / "bin" / "launcher", tmp_path / "editable" / "bin" / "launcher")
    bare = os.path.realpath(sys.executable)
    pythons = {form: tmp_path / form / "bin" / "python" for form in ("env", "editable")}
    for form in ("env", "editable", "flat", "prefix"):
        line = (pythons.get(form, bare), tmp_path / form / "bin" / "launcher", "run", "--")
        environ = clean_environ(PYTHONPATH=f"{project}:{flat}:{prefixed}:")
        what = (*line, "sh", "-c", "echo $PYTHONPATH")
        done = subprocess.run(what, cwd=project, env=environ, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, ""), (form, done.stderr)


@pytest.mark.thorough
def test_the_source_archive_can_be_installed(built: Path, tmp_path: Path) -> None:
    """As the wheel that pip makes of it: completions and man page are made on the way."""
    install(built / f"{NAME}.tar.gz", tmp_path)
    check_share(tmp_path)


@pytest.mark.thorough
def test_a_checkout_can_be_installed(copy: Path, tmp_path: Path) -> None:
    """Completions and man page are made on the way, though git does not have them."""
    install(copy, tmp_path)
    check_share(tmp_path)


def install(what: Path, folder: Path) -> Path:
    """Install the launcher alone into a new environment; return its Python."""
    call(sys.executable, "-m", "venv", folder / "env")
    python = folder / "env" / "bin" / "python"
    dependencies = [] if what.suffix == ".whl" else ["--no-deps"]
    call(python, "-m", "pip", "install", "--quiet", *dependencies, what)
    return python


def check_share(folder: Path) -> None:
    """Look at the man page, and have bash complete flags, commands' files and flags' files."""
    share = folder / "env" / "share"
    page = (share / SHARE[1]).read_text().replace(r"\-", "-").replace(r"\&", "")
    assert f'"launcher {__version__}"' in page and "%(" not in page
    assert [name for name in COMMANDS if rf"\fBlauncher {name}\fR" not in page] == []
    assert {flag.name for flag in FLAGS} <= set(re.findall(r"--[a-z0-9-]+", page))
    assert "#compdef launcher" in (share / SHARE[2]).read_text()
    assert [name for name in SECTIONS if f"\n.SH {name}\n" not in page] == []
    assert "__fish_complete_path" in (share / SHARE[3]).read_text()
    (folder / "train.py").write_text("")
    for line, completed in (
        ("run --nno", "--nnodes"),
        ("run trai", "train.py"),
        ("run -- python trai", "train.py"),
        ("run --hostfile trai", "train.py"),
        ("plan --replay trai", "train.py"),
    ):
        count = len(line.split())
        script = (
            f"source {share / SHARE[0]}; COMP_WORDS=(launcher {line}); COMP_CWORD={count}; "
            "_shtab_launcher launcher; echo ${COMPREPLY[@]}"
        )
        assert call("bash", "-c", script, cwd=folder) == f"{completed}\n"


def test_the_context_of_an_image_has_what_its_install_script_copies() -> None:
    """Images are built by the thorough suite only."""
    kept = {line[1:].rstrip("/") for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"}
    copied = re.search(r"cp -R (.+) \"", (ROOT / "docker/install.sh").read_text())
    assert copied is not None
    words = [word for word in copied[1].split() if word not in kept]
    assert words == ["tools"] and {"tools/parsers.py", "tools/render_cli.py"} < kept
