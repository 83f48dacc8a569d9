"""``launcher hook``: into every layout of a Python environment, and out of it again, without a trace."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.hook.line import HEAD
from tests.process.hooking import (
    RANK,
    hook,
    install,
    make_prefix,
    make_venv,
    read_dump,
    read_environ,
    run,
    write_dump,
)
from tests.process.starting import ROOT
from tests.pythons import need_python

SYSTEM = "/usr/bin/python3"


def list_files(folder: Path) -> set[str]:
    """Return all that is in a folder, but the bytecode that Python writes."""
    return {str(path) for path in folder.rglob("*") if "__pycache__" not in path.parts}


def make(layout: str, minor: int, folder: Path) -> Path:
    """Make an environment of a layout."""
    python = need_python(minor)
    if layout == "venv":
        return make_venv(folder / "venv", python)
    if layout == "conda":
        made = make_prefix(folder / "conda", python)
        (made / "conda-meta").mkdir()
        return made
    return make_prefix(folder / "versions" / f"3.{minor}.0", python)


@pytest.mark.parametrize("minor", [8, 9, 10, 11, 12, 13])
@pytest.mark.parametrize("layout", ["venv", "conda", "pyenv"])
def test_the_hook_comes_and_goes(layout: str, minor: int, tmp_path: Path) -> None:
    """Plain python is told its rank while it is there; afterwards every file is as it was before."""
    if (layout, minor) == ("conda", 11) or (layout, minor) == ("pyenv", 11):
        pytest.skip("Debian's library has its packages elsewhere")
    prefix = make(layout, minor, tmp_path)
    before, script = list_files(prefix), write_dump(tmp_path)
    python = prefix / "bin" / "python"
    install(prefix)
    again, status = hook("install", "--prefix", str(prefix)), hook("status", "--prefix", str(prefix))
    assert again.stdout.startswith("as it was: ")
    assert (status.returncode, status.stdout.partition(":")[0]) == (0, "installed")
    assert f"({layout}, Python 3.{minor}." in status.stdout
    told = read_environ(run(python, script, **RANK))
    assert (told["RANK"], told["WORLD_SIZE"], told["MASTER_ADDR"]) == ("1", "2", "127.0.0.1")
    assert hook("remove", "--prefix", str(prefix)).stdout.startswith("removed: ")
    assert hook("remove", "--prefix", str(prefix)).stdout.startswith("not there: ")
    assert hook("status", "--prefix", str(prefix)).returncode == 1
    assert "RANK" not in read_environ(run(python, script, **RANK))
    assert list_files(prefix) == before


def test_the_python_itself_names_its_environment(tmp_path: Path) -> None:
    """``--prefix ENV/bin/python``, through a link from elsewhere, too."""
    prefix = make_venv(tmp_path / "venv")
    assert hook("install", "--prefix", str(prefix / "bin" / "python")).returncode == 0
    assert len(list(prefix.rglob("launcher_hook.pth"))) == 1


def test_a_narrow_umask_shuts_nobody_out(tmp_path: Path) -> None:
    """A job may run as another user than who has installed."""
    prefix = make_venv(tmp_path / "venv")
    line = [sys.executable, "-m", "launcher", "hook", "install", "--prefix", str(prefix)]
    subprocess.run(["sh", "-c", 'umask 077; exec "$@"', "sh", *line], check=True, timeout=60, cwd=ROOT)
    (path,) = prefix.rglob("launcher_hook.pth")
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_folder_of_packages_on_pythonpath(tmp_path: Path) -> None:
    """``--target``: PYTHONPATH leads there, where no .pth is read; the next sitecustomize is run as well."""
    target, other = tmp_path / "packages", tmp_path / "other"
    target.mkdir()
    other.mkdir()
    (other / "sitecustomize.py").write_text("import os; os.environ['FROM_OTHER'] = __name__\n")
    assert hook("install", "--target", str(target)).returncode == 0
    prefix, script = make_venv(tmp_path / "venv"), write_dump(tmp_path)
    python = prefix / "bin" / "python"
    path = f"{target}{os.pathsep}{other}"
    told = read_environ(run(python, script, PYTHONPATH=path, **RANK))
    assert (told["RANK"], told["FROM_OTHER"]) == ("1", "sitecustomize")
    plain = read_environ(run(python, script, PYTHONPATH=path))
    assert ("RANK" in plain, plain["FROM_OTHER"]) == (False, "sitecustomize")
    modules = [read_dump(run(python, script, PYTHONPATH=p))["modules"] for p in (path, str(other))]
    assert modules[0] == modules[1]
    assert hook("remove", "--target", str(target)).returncode == 0
    assert [path.name for path in target.iterdir() if path.name != "__pycache__"] == []


@pytest.mark.root
def test_a_shell_part_that_stays_is_named(tmp_path: Path) -> None:
    """Who takes the hook away without --shell has shells that still act; /etc/profile.d is one of our own."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("needs root and unshare")
    hook_line = f"{sys.executable} -m launcher hook"
    steps = f"""
    set -e
    mount -t tmpfs none /etc/profile.d
    {hook_line} install --target {tmp_path} --shell
    {hook_line} remove --target {tmp_path}
    {hook_line} remove --target {tmp_path} --shell
    """
    done = run("/usr/bin/unshare", "--mount", "sh", "-c", steps, PYTHONPATH=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("still installed: /etc/profile.d/launcher_hook.sh (for shells; ") == 1
    assert "removed: /etc/profile.d/launcher_hook.sh" in done.stdout.splitlines()[-1]


def test_the_python_of_the_distribution(tmp_path: Path) -> None:
    """Debian's own layout, in a copy of the system that ends with the test; refused unless one insists."""
    if os.geteuid() != 0 or not shutil.which("unshare") or not os.path.exists(SYSTEM):
        pytest.skip("needs root, unshare and Debian's Python")
    script = write_dump(tmp_path)
    hook_line = f"{sys.executable} -m launcher hook"
    steps = f"""
    set -e
    mount -t tmpfs none /usr/local/lib
    {hook_line} install --prefix /usr 2>&1 || echo "status $?"
    {hook_line} install --prefix /usr --break-system-packages
    env -u PYTHONPATH {" ".join(f"{n}={v}" for n, v in RANK.items())} {SYSTEM} {script}
    {hook_line} remove --prefix /usr
    find /usr/local/lib -type f
    """
    done = run("/usr/bin/unshare", "--mount", "sh", "-c", steps, PYTHONPATH=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert "[externally-managed] /usr belongs to the distribution" in done.stdout
    assert "status 64" in done.stdout
    assert "/usr/local/lib/python3.11/dist-packages/launcher_hook.pth (system, Python 3." in done.stdout
    assert '"RANK": "1"' in done.stdout
    assert done.stdout.splitlines()[-1].startswith("removed: ")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Return a folder that other users can look into, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="launcher_") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def test_a_user_without_rights(open_folder: Path) -> None:
    """Their own packages take the hook, an environment of root's is refused with words."""
    if os.geteuid() != 0 or not shutil.which("setpriv") or not os.path.exists(SYSTEM):
        pytest.skip("needs root, to become another user, and a Python that one can run")
    prefix, home = make_venv(open_folder / "venv", SYSTEM), open_folder / "home"
    home.mkdir()
    os.chown(home, 65534, 65534)
    line = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    launcher = [*line, SYSTEM, "-m", "launcher", "hook"]
    known = {"HOME": str(home), "PYTHONPATH": ROOT, "PYTHONDONTWRITEBYTECODE": "1"}
    refused = run(launcher[0], *launcher[1:], "install", "--prefix", str(prefix), **known)
    assert (refused.returncode, "Permission denied" in refused.stderr) == (75, True), refused.stderr
    done = run(launcher[0], *launcher[1:], "install", "--prefix", str(prefix), "--user", **known)
    assert (done.returncode, "does not read the user's packages" in done.stderr) == (64, True), done.stderr
    done = run(launcher[0], *launcher[1:], "install", "--prefix", SYSTEM, "--user", **known)
    assert done.returncode == 0, done.stderr
    assert len(list(home.rglob("launcher_hook.pth"))) == 1
    told = run(line[0], *line[1:], SYSTEM, write_dump(open_folder), **{**RANK, "HOME": str(home)})
    assert read_environ(told)["RANK"] == "1"


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    """A read-only environment: what, where, and what to do; nothing half-written stays."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("needs root, to make a read-only folder that root cannot write to either")
    prefix = make_venv(tmp_path / "venv")
    steps = f"mount --bind {prefix} {prefix} && mount -o remount,bind,ro {prefix} && exec "
    steps += f"{sys.executable} -m launcher hook install --prefix {prefix}"
    done = run("/usr/bin/unshare", "--mount", "sh", "-c", steps, PYTHONPATH=ROOT)
    assert (done.returncode, "[cannot-write]" in done.stderr) == (75, True), done.stderr
    assert "Read-only file system" in done.stderr
    assert list(prefix.rglob("launcher_hook*")) == []


@pytest.mark.parametrize(
    ("make_it", "said"),
    [
        (lambda folder: None, "no such directory"),
        (lambda folder: folder.mkdir(), "it has no bin/python3"),
        (lambda folder: (folder / "versions" / "3.12.1").mkdir(parents=True), "pyenv's own directory"),
    ],
    ids=["nothing", "empty", "pyenv"],
)
def test_what_is_no_environment(make_it: object, said: str, tmp_path: Path) -> None:
    """Status 64, and what to name instead."""
    make_it(tmp_path / "env")  # type: ignore[operator]
    done = hook("install", "--prefix", str(tmp_path / "env"))
    assert (done.returncode, said in done.stderr) == (64, True), done.stderr


def test_a_python_that_does_not_run(tmp_path: Path) -> None:
    """One of another architecture, for example."""
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.write_bytes(b"\x7fELF nonsense")
    python.chmod(0o755)
    done = hook("status", "--prefix", str(tmp_path))
    assert (done.returncode, "its Python does not run" in done.stderr) == (64, True)


def test_an_old_python(tmp_path: Path) -> None:
    """3.7 has no command line at that moment, and no posix_spawn."""
    done = hook("install", "--prefix", need_python(7))
    assert (done.returncode, "needs 3.8 or newer" in done.stderr) == (64, True)


def test_two_places_at_once(tmp_path: Path) -> None:
    """A flag that would do nothing is refused."""
    for words in (("--user", "--target", str(tmp_path)), ("--prefix", "/usr", "--target", str(tmp_path))):
        assert hook("install", *words).returncode == 64
    assert list(tmp_path.iterdir()) == []


def test_lines_that_somebody_has_added_stay(tmp_path: Path) -> None:
    """A merged file is no more ours alone: neither another install nor remove takes the rest away."""
    assert hook("install", "--target", str(tmp_path)).returncode == 0
    path = tmp_path / "sitecustomize.py"
    merged = path.read_text() + "import theirs\n"
    for text in (merged, merged.replace(ROOT, "/opt/another")):
        path.write_text(text)
        for action in ("install", "remove"):
            done = hook(action, "--target", str(tmp_path))
            assert (done.returncode, "[hook-conflict]" in done.stderr) == (64, True), done.stdout
        assert path.read_text() == text
    path.write_text(merged)
    status = hook("status", "--target", str(tmp_path))
    assert (status.returncode, status.stdout.startswith("installed, and changed since: ")) == (0, True)


def test_what_a_file_of_another_user_says_reaches_no_terminal(tmp_path: Path) -> None:
    """Root looks into a folder of any user: its second line names the launcher, or whatever stands there."""
    place = tmp_path / "\x1b[2J"
    place.mkdir()
    (place / "sitecustomize.py").write_text(
        f"{HEAD} 1\n# /\x1b]0;x\x07password=hunter2Xk\u202e\n{'x' * 99}\n"
    )
    status = hook("status", "--target", str(place))
    assert status.returncode == 1 and status.stdout.startswith("does nothing: /\\x1b]0;x\\x07password=")
    assert status.stdout.removesuffix("\n").isprintable() and "hunter2Xk" not in status.stdout


def test_one_can_insist_on_a_changed_file(tmp_path: Path) -> None:
    """``--force``: install makes it the hook's own again, remove takes it away; never another's file."""
    assert hook("install", "--target", str(tmp_path)).returncode == 0
    path = tmp_path / "sitecustomize.py"
    ours = path.read_text()
    path.write_text(f"{ours}import theirs\n")
    refused = hook("install", "--target", str(tmp_path))
    assert (refused.returncode, "--force" in refused.stderr) == (64, True), refused.stderr
    done = hook("install", "--force", "--target", str(tmp_path))
    assert (done.returncode, done.stdout.startswith("updated: ")) == (0, True), done.stderr
    assert path.read_text() == ours
    path.write_text(f"{ours}import theirs\n")
    done = hook("remove", "--force", "--target", str(tmp_path))
    assert (done.returncode, done.stdout.startswith("removed: ")) == (0, True), done.stderr
    path.write_text("import os\n")
    for action in ("install", "remove"):
        done = hook(action, "--force", "--target", str(tmp_path))
        assert (done.returncode, "[hook-conflict]" in done.stderr) == (64, True), done.stdout
    assert path.read_text() == "import os\n"


def test_files_of_others_stay(tmp_path: Path) -> None:
    """A sitecustomize.py of somebody, and a file that only begins like ours."""
    # A sitecustomize.py that somebody wrote is neither replaced nor removed.
    (tmp_path / "sitecustomize.py").write_text("import os\n")
    for action in ("install", "remove", "status"):
        done = hook(action, "--target", str(tmp_path))
        assert (done.returncode, "[hook-conflict]" in done.stderr) == (64, True)
    assert (tmp_path / "sitecustomize.py").read_text() == "import os\n"
    # A shell's file of somebody who has copied our first line.
    prefix, path = make_venv(tmp_path / "venv"), tmp_path / "profile.sh"
    path.write_text(f"{HEAD} was here\nexport THEIRS=1\n")
    for action in ("install", "remove"):
        done = hook(action, "--prefix", str(prefix), "--shell", str(path))
        assert (done.returncode, "[hook-conflict]" in done.stderr) == (64, True), done.stdout
    assert "THEIRS" in path.read_text()


def test_a_hook_whose_launcher_is_gone(tmp_path: Path) -> None:
    """It does nothing, says nothing, and status tells why; another install repairs it."""
    prefix, script = make_venv(tmp_path / "venv"), write_dump(tmp_path)
    path = install(prefix)
    path.write_text(path.read_text().replace(ROOT, str(tmp_path / "gone")))
    assert "RANK" not in read_environ(run(prefix / "bin" / "python", script, **RANK))
    status = hook("status", "--prefix", str(prefix))
    assert (status.returncode, status.stdout.startswith("does nothing: ")) == (1, True)
    assert hook("install", "--prefix", str(prefix)).stdout.startswith("updated: ")
    assert read_environ(run(prefix / "bin" / "python", script, **RANK))["RANK"] == "1"
