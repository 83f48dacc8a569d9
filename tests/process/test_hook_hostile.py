"""The hook where nothing is as it should be: the job starts nevertheless, and at most one line tells why."""

from __future__ import annotations

import glob
import json
import os
import shutil
import struct
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from launcher.hook.install import find_writable
from tests.process.hooking import RANK, install, make_prefix, make_venv, run, write_dump
from tests.process.starting import ROOT, launch
from tests.pythons import need_python

HOST = """
#include <Python.h>
int main(int argc, char **argv) {
    PyConfig config;
    PyConfig_InitPythonConfig(&config);
    config.parse_argv = 0;
    PyConfig_SetBytesArgv(&config, argc, argv);
    PyConfig_SetBytesString(&config, &config.program_name, PYTHON);
    Py_InitializeFromConfig(&config);
    return PyRun_SimpleString(
        "import os; print([n in os.environ for n in ('RANK', 'LAUNCHER_HOOKED')], flush=True)");
}
"""


@pytest.mark.parametrize(
    "name", ["select", "json", "time", "errno", "ipaddress", "binascii", "signal", "launcher"]
)
def test_a_module_of_the_users_stands_in_for_pythons_own(each_hooked: str, name: str, tmp_path: Path) -> None:
    """PYTHONPATH leads to a broken one: whatever the hook cannot use here, the launcher's own Python can."""
    broken = tmp_path / "path"
    broken.mkdir()
    (broken / f"{name}.py").write_text("raise SystemExit('broken')\n")
    script = tmp_path / "train.py"
    script.write_text("import os; print(os.environ.get('RANK'))\n")
    done = run(each_hooked, str(script), PYTHONPATH=str(broken), **RANK)
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_a_broken_os_module(hooked: str, tmp_path: Path) -> None:
    """Python from 3.11 on has its own inside, and so starts; the hook is no worse than Python."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "os.py").write_text("raise SystemExit('broken')\n")
    script = tmp_path / "train.py"
    script.write_text("import posix; print(posix.environ.get(b'HOME') is not None)\n")
    with_hook = run(hooked, str(script), PYTHONPATH=str(tmp_path / "path"), **RANK)
    bare = run(hooked, "-S", str(script), PYTHONPATH=str(tmp_path / "path"), **RANK)
    assert (with_hook.stdout, with_hook.stderr) == (bare.stdout, bare.stderr)


def test_another_pth_file_raises(tmp_path: Path) -> None:
    """Python says so, and goes on to ours."""
    prefix = make_venv(tmp_path / "venv")
    path = install(prefix)
    (path.parent / "aaa.pth").write_text("import sys; raise RuntimeError('not ours')\n")
    done = run(prefix / "bin" / "python", write_dump(tmp_path), **RANK)
    assert json.loads(done.stdout)["environ"]["RANK"] == "1"
    assert "launcher" not in done.stderr and "not ours" in done.stderr


def test_no_home_and_no_passwd_entry(each_hooked: str, tmp_path: Path) -> None:
    """A container that knows nothing of its user."""
    script = write_dump(tmp_path)
    done = subprocess.run(
        [each_hooked, script],
        env={**RANK, "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (json.loads(done.stdout)["environ"]["RANK"], done.stderr) == ("1", "")


@pytest.mark.root
def test_nothing_can_be_written_anywhere(each_hooked: str, tmp_path: Path) -> None:
    """A read-only root and no /tmp: the hook needs no file."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("needs root and unshare")
    script = write_dump(tmp_path)
    steps = f"mount -o remount,bind,ro / && ! touch /tmp/x 2>/dev/null && exec {each_hooked} {script}"
    done = run("/usr/bin/unshare", "--mount", "sh", "-c", f"mount --bind / / && cd / && {steps}", **RANK)
    if done.returncode:
        pytest.skip(f"the root cannot be made read-only here: {done.stderr[-200:]}")
    assert json.loads(done.stdout)["environ"]["RANK"] == "1"


def test_the_launchers_python_is_gone(hooked_old: str, tmp_path: Path) -> None:
    """Another Python has nobody to ask then, and says why."""
    folder = tmp_path / "old"
    prefix = make_prefix(folder, need_python(8))
    path = install(prefix)
    path.write_text(path.read_text().replace(sys.executable, "/nowhere/python"))
    done = run(prefix / "bin" / "python", write_dump(tmp_path), **RANK)
    assert "RANK" not in json.loads(done.stdout)["environ"]
    assert done.stderr.startswith("launcher: hook: no variables set: /nowhere/python gives no answer: ")
    assert len(done.stderr.splitlines()) == 1


def test_the_launchers_python_hangs(tmp_path: Path) -> None:
    """Its file system does not answer, for example: the job starts, and nothing is left of the try."""
    copy, stuck = tmp_path / "copy", tmp_path / "stuck"
    shutil.copytree(Path(ROOT) / "launcher", copy / "launcher", ignore=shutil.ignore_patterns("__pycache__"))
    enter = copy / "launcher" / "hook" / "enter.py"
    enter.write_text(enter.read_text().replace("ANSWER_TIMEOUT_S = 20.0", "ANSWER_TIMEOUT_S = 0.5"))
    stuck.write_text("#!/bin/sh\nexec sleep 1000\n")
    stuck.chmod(0o755)
    prefix = make_venv(tmp_path / "venv")
    path = install(prefix)
    text = path.read_text().replace(sys.executable, str(stuck)).replace(ROOT, str(copy))
    path.write_text(text.replace(str(sys.implementation.cache_tag), "another"))
    done = run(prefix / "bin" / "python", write_dump(tmp_path), **RANK)
    assert "RANK" not in json.loads(done.stdout)["environ"]
    assert done.stderr.startswith(
        f"launcher: hook: no variables set: {stuck} gives no answer: not within 0.5 s"
    )


def test_a_python_inside_of_another_program(hooked: str, tmp_path: Path) -> None:
    """No command line that is Python's: an editor or debugger with Python inside is no job."""
    script = (
        "import os, sys, site\nsys.orig_argv[:] = ['gdb', '-x']\nsite.main()\nprint('RANK' in os.environ)"
    )
    done = run(hooked, "-S", "-c", script, **RANK)
    assert done.stdout == "False\n"


def test_a_host_program_that_gives_python_its_command_line(hooked: str, tmp_path: Path) -> None:
    """Its words look like a script's: the program that runs tells."""
    library = sysconfig.get_config_var("LIBDIR")
    name = f"python{sysconfig.get_config_var('LDVERSION')}"
    if not shutil.which("cc") or not list(Path(library).glob(f"lib{name}.*")):
        pytest.skip("needs a C compiler and Python's library")
    host = tmp_path / "blender"
    (tmp_path / "host.c").write_text(HOST)
    options = [f"-I{sysconfig.get_path('include')}", f'-DPYTHON="{hooked}"', f"-L{library}"]
    options += [f"-Wl,-rpath,{library}", f"-l{name}", "-ldl", "-lm", "-lpthread", "-lutil", "-Wl,-E"]
    subprocess.run(["cc", "-o", host, tmp_path / "host.c", *options], check=True, timeout=120)
    done = run(host, "-b", "scene.blend", **RANK)
    assert (done.stdout, done.stderr) == ("[False, False]\n", "")
    as_python = host.rename(tmp_path / "python3-wrapped")
    assert run(as_python, "-b", "scene.blend", **RANK).stdout == "[True, True]\n"


@pytest.mark.skipif(not glob.glob("/lib64/ld-linux*"), reason="another loader")
def test_a_python_that_the_loader_runs(hooked: str, tmp_path: Path) -> None:
    """``ld.so python train.py``, as relocated trees do: a Python, whatever program the kernel sees."""
    (loader,) = glob.glob("/lib64/ld-linux*")
    words = ["--argv0", hooked, os.path.realpath(hooked), write_dump(tmp_path)]
    assert json.loads(run(loader, *words, **RANK).stdout)["environ"].get("RANK") == "1"


@pytest.mark.root
@pytest.mark.parametrize(
    ("name", "mode", "owner", "mend"),
    [
        ("above/launcher/hook/enter.py", 0o666, (0, 0), "chmod -R go-w {package}"),
        ("above/launcher/core/log.py", 0o664, (0, 4711), "chmod -R go-w {package}"),
        ("above/launcher/core/log.py", 0o644, (4711, 0), "chown -R -h 0:0 {package}"),
        ("above/launcher/inprocess", 0o777, (0, 0), "chmod -R go-w {package}"),
        ("above/launcher/inprocess", 0o1777, (0, 0), "chmod -R go-w {package}"),
        ("above", 0o775, (0, 4711), "chmod go-w {path}"),
        ("above", 0o755, (4711, 4711), "chown -h 0:0 {path}"),
        ("above", 0o1777, (0, 0), ""),
        ("above/launcher", 0o775, (0, 0), ""),
    ],
)
def test_root_installs_no_launcher_that_others_can_change(
    name: str, mode: int, owner: tuple[int, int], mend: str, tmp_path: Path
) -> None:
    """Every job of root would run what they write; what the message names makes it right."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    prefix = make_venv(tmp_path / "venv")
    package = tmp_path / "above" / "launcher"
    shutil.copytree(Path(ROOT) / "launcher", package, ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / name
    os.chown(path, *owner)
    path.chmod(mode)
    python = os.path.realpath(sys.executable)
    words = (str(package / "__main__.py"), "hook", "install", "--prefix", str(prefix))
    done = run(python, "-B", *words)
    if mend:
        assert (done.returncode, "[hook-unsafe]" in done.stderr) == (64, True), done.stderr
        assert list(prefix.rglob("launcher_hook.pth")) == []
        command = done.stderr.partition("fix:  ")[2].strip()
        assert command == mend.format(path=path, package=package)
        subprocess.run(command, shell=True, check=True)
        done = run(python, "-B", *words)
    assert (done.returncode, "other users can change" in done.stderr) == (0, False), done.stderr
    if mend:  # in an environment that is theirs anyway, as /opt/conda of some images
        os.chown(path, 4711, 0)
        os.chown(prefix / "lib", 4711, 0)
        done = run(python, "-B", *words, "--force")
        assert (done.returncode, "warning: other users can change" in done.stderr) == (0, True), done.stderr
        shell = tmp_path / "profile.d" / "launcher_hook.sh"  # but the shells are not
        done = run(python, "-B", *words, "--force", "--shell", str(shell))
        assert (done.returncode, "[hook-unsafe]" in done.stderr) == (64, True), done.stderr
        assert not shell.exists()


@pytest.mark.root
def test_a_launcher_behind_a_link_of_another_user(tmp_path: Path) -> None:
    """Its owner can lead it elsewhere."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a link away")
    prefix = make_venv(tmp_path / "venv")
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    link = tmp_path / "shared" / "link"
    link.symlink_to(ROOT)
    os.chown(link, 4711, 4711, follow_symlinks=False)
    line = (f"{link}/launcher/__main__.py", "hook", "install", "--prefix", str(prefix))
    done = run(os.path.realpath(sys.executable), "-B", *line)
    assert (done.returncode, f"chown -h 0:0 {link}" in done.stderr) == (64, True), done.stderr


@pytest.mark.root
@pytest.mark.parametrize("name", ["inprocess/marker.py", "inprocess", "inprocess/dangling.py"])
def test_a_launcher_with_a_link_to_a_file_of_another_user(name: str, tmp_path: Path) -> None:
    """An installer may make a package of links into a cache (uv --link-mode symlink)."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    prefix = make_venv(tmp_path / "venv")
    package, cache = tmp_path / "launcher", tmp_path / "cache"
    shutil.copytree(Path(ROOT) / "launcher", package, ignore=shutil.ignore_patterns("__pycache__"))
    cache.mkdir()
    inside = package / name
    if inside.exists():
        inside.rename(cache / inside.name)
    inside.symlink_to(cache / inside.name)
    python, words = os.path.realpath(sys.executable), (str(package / "__main__.py"), "hook")
    done = run(python, "-B", *words, "install", "--prefix", str(prefix))
    assert done.returncode == 0, done.stderr
    assert run(python, "-B", *words, "remove", "--prefix", str(prefix)).returncode == 0
    theirs = {"inprocess": cache / "inprocess/marker.py", "inprocess/dangling.py": cache}
    os.chown(theirs.get(name, cache / inside.name), 4711, 4711)
    done = run(python, "-B", *words, "install", "--prefix", str(prefix))
    assert (done.returncode, "[hook-unsafe]" in done.stderr) == (64, True), done.stderr
    assert str(cache) in done.stderr.partition("fix:  ")[2]
    assert list(prefix.rglob("launcher_hook.pth")) == []


JOB = {**RANK, "LAUNCHER_HOSTFILE": "FOLDER/secret"}
ARMED = {"LAUNCHER_STACKS_FILE": "FOLDER/stacks.txt", "TORCHELASTIC_ERROR_FILE": "FOLDER/error.json"}
FAILING = "import os; print(os.environ.get('LAUNCHER_HOOKED'), flush=True); 1 / 0"


def run_with(hooked: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script that fails with files of a folder in its variables."""
    (folder / "secret").write_text("root:$y$j9T$hunter2$hunter2:19000:0:99999:7:::\n")
    script = folder / "train.py"
    script.write_text(FAILING)
    named = {name: value.replace("FOLDER", str(folder)) for name, value in {**JOB, **ARMED}.items()}
    return run(hooked, str(script), **named, **variables)


@pytest.mark.parametrize(
    "variables",
    [
        {"SUDO_UID": "4711"},
        {"PKEXEC_UID": "4711"},
        {"SUDO_UID": "x"},
        {"DOAS_USER": "4711"},
        {"DOAS_USER": "daemon"},
    ],
)
def test_nothing_is_done_for_a_user_with_other_rights(
    each_hooked: str, variables: dict[str, str], tmp_path: Path
) -> None:
    """``sudo -E python``: what the user's variables name is neither read nor made, and nothing is said."""
    done = run_with(each_hooked, tmp_path, **variables)
    assert done.stdout == "None\n" and "launcher" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret", "train.py"]


@pytest.mark.parametrize(
    "variables",
    [{}, {"SUDO_UID": "0"}, {"SUDO_UID": str(os.getuid())}, {"DOAS_USER": "root"}, {"DOAS_USER": ""}],
)
def test_what_stands_in_a_file_of_the_environment_is_not_shown(
    each_hooked: str, variables: dict[str, str], tmp_path: Path
) -> None:
    """It may be any; root gives its own rights away with ``sudo -E -u user``, and the hook acts there."""
    done = run_with(each_hooked, tmp_path, **variables)
    assert f"[malformed-hostfile] LAUNCHER_HOSTFILE='{tmp_path}/secret', line 1 (" in done.stderr
    assert "hunter2" not in done.stderr and "root:" not in done.stderr and "$y" not in done.stderr
    assert {"stacks.txt", "error.json"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("variable", "text", "place"),
    [
        ("LAUNCHER_CONFIG", "grace = 5\nroot:hunter2:0\n", "[malformed-config] {path}:2"),
        ("LAUNCHER_CONFIG", "grace = hunter2\n", "[malformed-flag] {path}:1"),
        ("LAUNCHER_CONFIG", "nproc-per-node = 313377\n", "[malformed-flag] {path}:1"),
        ("LAUNCHER_CONFIG", "hosts = hunter2\n", "[malformed-config] {path}:1"),
        ("LAUNCHER_CONFIG", "grace = 5\n\ngrace = hunter2\n", "[malformed-config] {path}:3"),
        ("LAUNCHER_HOSTFILE", "hunter2-a\nhunter2-b\nhunter2-a\n", "[malformed-hostfile] "),
        ("LAUNCHER_HOSTFILE", "hunter2-a\nhunter2-b\nhunter2-c\n", "[contradiction] "),
        ("PBS_NODEFILE", "hunter2-a\nhunter2/b\n", ""),
        ("PE_HOSTFILE", "hunter2-a 1\nhunter2-b x\n", ""),
    ],
)
def test_what_a_file_says_is_not_shown(
    hooked: str, variable: str, text: str, place: str, tmp_path: Path
) -> None:
    """Whatever is wrong with it, or with what it says: the hook shows the reason, the file and the line."""
    path = tmp_path / "named"
    path.write_text(text)
    script = tmp_path / "train.py"
    script.write_text("print('runs')\n")
    named = {variable: str(path), "LAUNCHER_NNODES": "2", "PBS_JOBID": "1", "JOB_ID": "1"}
    done = run(hooked, str(script), **RANK, **named)
    assert done.stdout == "runs\n"
    assert place.format(path=path) in done.stderr, done.stderr
    assert "hunter2" not in done.stderr and "313377" not in done.stderr


@pytest.mark.root
@pytest.mark.parametrize("kind", ["user", "group"])
def test_a_set_user_id_program_is_given_nothing(hooked: str, kind: str, tmp_path: Path) -> None:
    """Its effective user is not the real one, who has set the variables."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    tmp_path.chmod(0o777)
    change = "os.setresuid(4711, 0, 0)" if kind == "user" else "os.setresgid(4711, 0, 0)"
    become = f"import os; {change}; os.execv({hooked!r}, [{hooked!r}, *{[str(tmp_path / 'train.py')]!r}])"
    (tmp_path / "train.py").write_text(FAILING)
    named = {name: value.replace("FOLDER", str(tmp_path)) for name, value in {**RANK, **ARMED}.items()}
    done = run(sys.executable, "-I", "-S", "-c", become, **named)
    assert done.stdout == "None\n" and "launcher" not in done.stderr, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_a_shell_with_other_rights_is_given_nothing(tmp_path: Path) -> None:
    """As a Python with them."""
    path = tmp_path / "hook.sh"
    done = launch("hook", "install", "--prefix", str(make_venv(tmp_path / "venv")), "--shell", str(path))
    assert done.returncode == 0, done.stderr
    for variables, expected in (({"SUDO_UID": "4711"}, ""), ({}, "1")):
        line = f'. {path}; echo "$RANK"'
        shown = run("/bin/sh", "-c", line, **RANK, **variables)
        assert (shown.stdout, shown.stderr) == (f"{expected}\n", "")


OPENED = """
import os, sys
sys.path.insert(0, sys.argv[1])
from launcher.hook.install import find_unsafe
print(find_unsafe(sys.argv[1] + "/launcher/hook"))
"""


def test_what_the_launchers_python_reads_is_writable_by_none(tmp_path: Path) -> None:
    """Its pyvenv.cfg names the library that it runs."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", "--copies", str(tmp_path / "venv")], check=True
    )
    line = [str(tmp_path / "venv" / "bin" / "python"), "-I", "-c", OPENED, ROOT]
    assert subprocess.run(line, capture_output=True, text=True, check=True).stdout == "None\n"
    (tmp_path / "venv" / "pyvenv.cfg").chmod(0o666)
    said = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    assert said == f"chmod go-w {tmp_path}/venv/pyvenv.cfg\n"


def test_a_library_that_others_can_change_is_found(tmp_path: Path) -> None:
    """But for installed packages, which the launcher's Python does not load."""
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "x.py").touch()
    (tmp_path / "site-packages" / "x.py").chmod(0o666)
    assert find_writable(str(tmp_path)) is None
    (tmp_path / "os.py").touch()
    (tmp_path / "os.py").chmod(0o666)
    assert find_writable(str(tmp_path)) == f"chmod -R go-w {tmp_path}"


def test_a_file_that_an_access_list_opens_is_writable_by_others(tmp_path: Path) -> None:
    """Its mode names a group, and shows only what the list gives at most; acl(5)."""

    def entry(tag: int, rights: int, number: int = 0xFFFF_FFFF) -> bytes:
        return struct.pack("<HHI", tag, rights, number)

    (tmp_path / "enter.py").write_text("")
    (tmp_path / "enter.py").chmod(0o664)
    assert find_writable(str(tmp_path)) is None
    owner, user, group, mask, other = entry(1, 6), entry(2, 6, 4711), entry(4, 4), entry(16, 6), entry(32, 4)
    acl = struct.pack("<I", 2) + owner + user + group + mask + other
    os.setxattr(tmp_path / "enter.py", "system.posix_acl_access", acl)
    assert find_writable(str(tmp_path)) == f"setfacl -R -b {tmp_path}"
