"""launcher.pyz, built for real: what an installation can do, from one file and a private folder."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher import __version__
from tests.process.looking import wait_for
from tests.process.starting import DEADLINE_S, clean_environ
from tests.process.test_package import call, copy
from tests.pythons import find_python, need_python

__all__ = ["copy"]

pytestmark = pytest.mark.xdist_group("package")
OTHER = 65533
"""A user that does not exist here."""
OWN = f"launcher-pyz-{os.geteuid()}"
TRAINS = """
import os, sys, time
attempt = os.environ.get("LAUNCHER_ATTEMPT", "0")
line = "rank %s of %s attempt %s" % (os.environ["RANK"], os.environ["WORLD_SIZE"], attempt)
os.write(1, (line + chr(10)).encode())  # at once, because nodes share a pipe
"""
FAILS_ONCE = TRAINS + 'sys.exit(os.environ["RANK"] == "1" and attempt == "0")\n'
HANGS = (
    TRAINS
    + """
def wait_for_data():
    open(sys.argv[1] + "/up-" + os.environ["RANK"], "w").close()
    time.sleep(3600)
wait_for_data()
"""
)


@pytest.fixture(scope="module")
def pyz(copy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the file from a copy of the project."""
    folder = tmp_path_factory.mktemp("pyz")
    call(sys.executable, "-m", "build", "--wheel", "--outdir", folder, copy)
    (wheel,) = folder.glob("*.whl")
    call(sys.executable, copy / "tools" / "make_pyz.py", folder / "launcher.pyz", wheel)
    return folder / "launcher.pyz"


class File:
    """The file, in the hands of a user with a home of their own."""

    def __init__(self, pyz: Path, home: Path, python: str) -> None:
        self.pyz, self.home, self.python = pyz, home, python
        self.cache = home / ".cache" / OWN

    def environ(self, **variables: str) -> dict[str, str]:
        """Return the environment: no package of this checkout."""
        environ = clean_environ(HOME=str(self.home), TMPDIR=str(self.home))
        del environ["PYTHONPATH"]
        return {**environ, **variables}

    def open(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        """Start it."""
        line = [self.python, str(self.pyz), *words]
        environ, pipe = self.environ(**variables), subprocess.PIPE
        return subprocess.Popen(line, env=environ, text=True, cwd=self.home, stdout=pipe, stderr=pipe)

    def run(self, *words: str, **variables: str) -> tuple[int, str, str]:
        """Run it to its end; return status, output and errors."""
        started = self.open(*words, **variables)
        out, errors = started.communicate(timeout=DEADLINE_S)
        return started.returncode, out, errors

    def folder(self) -> Path:
        """Return the folder into which it has unpacked itself, the only one."""
        (folder,) = self.cache.iterdir()
        return folder

    def script(self, text: str) -> str:
        """Write a script and return its path."""
        path = self.home / "train.py"
        path.write_text(text)
        return str(path)


@pytest.fixture
def file(pyz: Path, tmp_path: Path) -> Iterator[File]:
    """Return the file and a new home."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / ".cache").mkdir(mode=0o700)
    yield File(pyz, home, sys.executable)


# --- what it can do


def test_a_job_with_a_restart_runs_from_it(file: File) -> None:
    """Two ranks, the second fails once: the processes are stopped, reported and started again."""
    words = ("--nproc-per-node", "2", "--restarts", "1", "--restart-on", "any")
    status, out, errors = file.run("run", *words, "--", sys.executable, file.script(FAILS_ONCE))
    assert status == 0, errors
    assert "[rank 1] rank 1 of 2 attempt 0" in out and "[rank 0] rank 0 of 2 attempt 1" in out
    assert stat.S_IMODE(file.cache.stat().st_mode) == 0o700


@pytest.mark.thorough
def test_a_running_job_is_looked_at(file: File) -> None:
    """Status and stacks: the ranks load the in-process code from the directory."""
    words = ("run", "--nproc-per-node", "2", "--", sys.executable, file.script(HANGS), str(file.home))
    job = file.open(*words)
    try:
        wait_for(lambda: len(list(file.home.glob("up-*"))) == 2, "both ranks are up")
        ask = ("status", "--json", "--job", str(job.pid))
        wait_for(lambda: file.run(*ask)[0] == 0, "the launcher answers: it does so a moment after the start")
        _, out, _ = file.run(*ask)
        assert [rank["rank"] for rank in json.loads(out)["nodes"][0]["ranks"]] == [0, 1]
        status, out, errors = file.run("stacks", "--job", str(job.pid))
        assert status == 0 and "in wait_for_data" in out, out + errors
    finally:
        job.terminate()
        job.communicate(timeout=DEADLINE_S)


def test_ranks_are_forked_from_it(file: File) -> None:
    """--preload starts a program of the folder with the Python of the job."""
    words = ("run", "--nproc-per-node", "2", "--preload", "decimal", "--", sys.executable)
    status, out, errors = file.run(*words, file.script(TRAINS))
    assert status == 0 and "rank 1 of 2" in out, errors
    assert "preload: decimal imported once" in errors


def test_two_nodes_meet(file: File) -> None:
    """Both unpack it at once: the address is that of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    script = file.script(TRAINS)
    words = (
        *("run", "--nnodes", "2", "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port"),
        port,
    )
    nodes = [file.open(*words, "--node-rank", str(rank), "--", sys.executable, script) for rank in (0, 1)]
    ends = [(*node.communicate(timeout=DEADLINE_S), node.returncode) for node in nodes]
    assert [end[2] for end in ends] == [0, 0], ends
    assert "rank 3 of 4" in ends[1][0]


def test_the_commands_that_show_work(file: File) -> None:
    """Plan, check, topology, and the version, which says the form."""
    for words in (
        ("plan", "--format", "json"),
        ("check", "--format", "json"),
        ("topology", "--format", "json"),
    ):
        status, out, errors = file.run(*words)
        assert json.loads(out)["launcher"] == __version__, errors
    status, out, errors = file.run("run", "--nproc-per-node", "2", "--dry-run", "--", "true")
    assert status == 0 and "WORLD_SIZE" in out, errors
    assert file.run("--version")[1].startswith(f"launcher {__version__} (commit ")
    assert file.run("plna")[0] == 64


def test_it_imports_nothing_from_pythonpath(file: File, tmp_path: Path) -> None:
    """While it unpacks itself, and while it runs: not a launcher of the user's, and no json.py."""
    for name in ("launcher", "json", "hashlib", "tempfile", "shutil", "signal", "argparse", "subprocess"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('the {name} of the user')\n")
    words = ("run", "--nproc-per-node", "2", "--no-prefix", "--", "echo", "hi")
    assert file.run(*words, PYTHONPATH=str(tmp_path)) == (0, "hi\nhi\n", "")


def test_no_hook_names_its_folder(file: File) -> None:
    """A clean-up would take the hook's code away from every Python of that environment."""
    status, _, errors = file.run("hook", "install", "--target", str(file.home))
    assert status == 64 and "[hook-of-one-file]" in errors, errors
    assert not (file.home / "sitecustomize.py").exists()


@pytest.mark.parametrize("minor", [10, 11, 12, 13, 14])
def test_it_runs_with(pyz: Path, tmp_path: Path, minor: int) -> None:
    """Isolated as in an image, too."""
    file = File(pyz, tmp_path, need_python(minor))
    status, out, errors = file.run("run", "--nproc-per-node", "2", "--", file.python, file.script(TRAINS))
    assert status == 0 and "rank 1 of 2" in out, errors
    line = [file.python, "-I", "-S", str(pyz), "run", "--", "echo", "hi"]
    assert (
        subprocess.run(line, env=file.environ(), capture_output=True, text=True, timeout=60).stdout == "hi\n"
    )


@pytest.mark.parametrize("minor", [6, 7, 8, 9])
def test_an_older_python_is_refused_by_name(pyz: Path, tmp_path: Path, minor: int) -> None:
    """Nothing is unpacked; a newer one that is on PATH is named."""
    file = File(pyz, tmp_path, need_python(minor))
    status, _, errors = file.run("run", "--", "true", PATH="/usr/bin")
    assert status == 69 and f"error: [old-python] {file.python!r} is Python 3.{minor}: expected 3." in errors
    os.symlink(sys.executable, tmp_path / "python3.12")
    _, _, errors = file.run("run", "--", "true", PATH=str(tmp_path))
    assert f"fix:  '{tmp_path}/python3.12' {pyz} ..." in errors
    assert not list(tmp_path.rglob("launcher-pyz-*"))


def test_python_2_is_refused_by_name(pyz: Path, tmp_path: Path) -> None:
    """`python launcher.pyz` on an old system is Python 2."""
    python = find_python(12)
    found = sorted(Path(python).parents[2].glob("2.7.*/bin/python2.7")) if python else []
    if not found:
        pytest.skip("no Python 2.7 on this machine: pyenv install 2.7")
    status, _, errors = File(pyz, tmp_path, str(found[0])).run("run", "--", "true")
    assert status == 69 and "is Python 2.7: expected 3." in errors, errors


# --- its folder


def test_the_next_start_uses_what_is_there(file: File) -> None:
    """Nothing is unpacked or compiled again."""
    assert file.run("run", "--", "true", PYTHONDONTWRITEBYTECODE="1")[0] == 0
    folder = file.folder()
    before = {path: path.stat().st_ino for path in folder.rglob("*")}
    assert any(path.suffix == ".pyc" for path in before)
    assert file.run("run", "--", "true", PYTHONDONTWRITEBYTECODE="1")[0] == 0
    assert {path: path.stat().st_ino for path in folder.rglob("*")} == before


def test_many_first_starts_make_one_folder(file: File) -> None:
    """As mpirun does: the first complete one gets the name, and the others use it."""
    started = [file.open("run", "--", "echo", "hi") for _ in range(8)]
    ends = [(*one.communicate(timeout=DEADLINE_S), one.returncode) for one in started]
    assert ends == [("hi\n", "", 0)] * 8
    assert (file.folder() / "lib" / "launcher" / "__init__.py").is_file()


def test_what_was_cleaned_up_is_mended(file: File) -> None:
    """Programs that clean up /tmp remove files that nothing has read for days."""
    assert file.run("run", "--", "true")[0] == 0
    package = file.folder() / "lib" / "launcher"
    shutil.rmtree(package / "cli")
    (package / "core" / "model.py").write_text("")
    shutil.rmtree(package / "core" / "__pycache__")
    assert file.run("run", "--", "echo", "hi") == (0, "hi\n", "")
    shutil.rmtree(package)
    (file.folder() / "files.txt").write_text("")
    assert file.run("run", "--", "echo", "hi") == (0, "hi\n", "")


def test_a_damaged_file_is_refused(file: File, tmp_path: Path) -> None:
    """Of a download that was changed on its way: the hash of the content differs."""
    damaged = tmp_path / "damaged.pyz"
    with zipfile.ZipFile(file.pyz) as old, zipfile.ZipFile(damaged, "w") as new:
        new.writestr("__main__.py", old.read("__main__.py"))
        new.writestr("payload.zip", old.read("payload.zip") + b"x")
    status, _, errors = File(damaged, file.home, sys.executable).run("run", "--", "true")
    assert status == 75 and "[broken-file]" in errors
    assert not list(file.cache.iterdir())


@pytest.mark.root
@pytest.mark.parametrize("kind", ["owner", "link", "mode", "file"])
def test_a_folder_of_another_user_is_not_used(file: File, tmp_path: Path, kind: str) -> None:
    """The name can be guessed, so it may be there before we are: the next place is taken."""
    if os.geteuid():
        pytest.skip("only root can give a folder away")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    theirs, other = shared / OWN, tmp_path / "other"
    other.mkdir(mode=0o700)
    if kind == "link":
        theirs.symlink_to(other)
    elif kind == "file":
        theirs.write_text("")
    else:
        theirs.mkdir()
        theirs.chmod(0o777 if kind == "mode" else 0o755)
        os.chown(theirs, OTHER if kind == "owner" else os.geteuid(), -1)
    status, out, errors = file.run("run", "--", "echo", "hi", XDG_CACHE_HOME=str(shared))
    assert (status, out) == (0, "hi\n"), errors
    assert list(other.iterdir()) == [] and file.folder().is_dir()
    assert not theirs.is_dir() or list(theirs.iterdir()) == []


@pytest.mark.parametrize("inside", ["", "me"], ids=["itself", "above"])
@pytest.mark.parametrize(("mode", "owner"), [(0o777, 0), (0o775, 0), (0o755, OTHER)])
def test_a_place_that_others_can_change_is_not_used(
    file: File, tmp_path: Path, mode: int, owner: int, inside: str
) -> None:
    """Another user could rename our folder there, or one above it, and put one of their own in its place."""
    if os.geteuid():
        pytest.skip("only root can give a folder away")
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    os.chown(open_to_all, owner, -1)
    open_to_all.chmod(mode)
    place = open_to_all / inside
    place.mkdir(0o700, exist_ok=True)
    assert file.run("run", "--", "echo", "hi", XDG_CACHE_HOME=str(place))[1] == "hi\n"
    assert list(place.glob("launcher-*")) == [] and file.folder().is_dir()


def test_root_makes_nothing_in_the_home_of_another_user(file: File, tmp_path: Path) -> None:
    """As after ``sudo -E``: a .cache of root's would be closed to the user's own programs."""
    if os.geteuid():
        pytest.skip("only root can give a folder away")
    theirs = tmp_path / "theirs"
    theirs.mkdir(0o755)
    os.chown(theirs, OTHER, -1)
    (tmp_path / "link").symlink_to(theirs)
    for home in (theirs, tmp_path / "link"):
        assert file.run("run", "--", "echo", "hi", HOME=str(home))[1] == "hi\n"
    assert list(theirs.iterdir()) == []


@pytest.mark.root
@pytest.mark.parametrize("variable", ["XDG_CACHE_HOME", "HOME", "TMPDIR"])
def test_an_unmapped_user_is_not_trusted(file: File, tmp_path: Path, variable: str) -> None:
    """In a user namespace the folder of every user outside of it has the same owner, root's too."""
    if os.geteuid():
        pytest.skip("only root can give a folder away")
    theirs = tmp_path / "theirs"
    (theirs / "me" / ".cache").mkdir(0o700, parents=True)
    os.chown(theirs, OTHER, -1)
    places = {"HOME": "/proc/nowhere", "XDG_CACHE_HOME": "", "TMPDIR": str(file.home)}
    environ = file.environ(**{**places, variable: str(theirs / "me")})
    line = ["unshare", "--user", "--map-root-user", file.python, str(file.pyz), "run", "--", "echo", "hi"]
    done = subprocess.run(line, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "hi\n", done.stderr
    assert list(theirs.rglob("launcher-*")) == []


SQUATTED = """
mount -t tmpfs tmpfs /mnt && cp {pyz} /mnt/launcher.pyz
for place in /tmp /var/tmp /dev/shm; do
    mount -t tmpfs -o mode=1777 tmpfs $place && mkdir $place/{own} $place/{own}-x && chown {other} $place/*
done
for number in 1 2; do {python} /mnt/launcher.pyz run -- echo hi; done
ls -d /tmp/{own}-* /var/tmp/{own}-* /dev/shm/{own}-*
"""


@pytest.mark.root
def test_another_user_cannot_take_all_names(file: File) -> None:
    """The names can be guessed; the last choice has one that cannot, and the next start finds it again."""
    if os.geteuid():
        pytest.skip("only root can give a folder away")
    text = SQUATTED.format(pyz=file.pyz, own=OWN, other=OTHER, python=file.python)
    environ = file.environ(HOME="/proc/nowhere", TMPDIR="")
    line = ["unshare", "--mount", "sh", "-ec", text]
    done = subprocess.run(line, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.startswith("hi\nhi\n"), done.stdout + done.stderr
    assert len(done.stdout.split()) == 2 + 3 + 1, done.stdout


def test_without_a_home_it_uses_the_temporary_folder(file: File, tmp_path: Path) -> None:
    """As in a container with any user; a relative path is not one."""
    other = tmp_path / "tmp"
    other.mkdir(mode=0o700)
    bad = {"HOME": "/proc/nowhere", "XDG_CACHE_HOME": "here", "TMPDIR": str(other)}
    assert file.run("run", "--", "echo", "hi", **bad)[1] == "hi\n"
    assert (other / OWN).is_dir() and not file.cache.exists() and not (file.home / "here").exists()
