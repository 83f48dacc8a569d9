"""The parts of the environment hook that decide: what is a job's program, and whether it must be told."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from launcher.core.mpi import TABLE as TABLE_OF_MPI
from launcher.hook import shell
from launcher.hook.install import find_closed_folder, install
from launcher.hook.line import MARKERS, WEAK, render_line, render_pth
from launcher.inprocess import marker
from launcher.inprocess.program import find_program, is_job, starts_workers
from launcher.sources import TABLE
from tests.process.starting import ROOT

RANK = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("line", "program", "job"),
    [
        ("python train.py --epochs 3", "train.py", True),
        ("python -u -W ignore -X dev ./a/train.py", "./a/train.py", True),
        ("python -uWignore train.py", "train.py", True),
        ("python --check-hash-based-pycs always train.py", "train.py", True),
        ("python -m package.train -c x", "-m package.train", True),
        ("python -um package.train", "-m package.train", True),
        ("python -mpackage.train", "-m package.train", True),
        ("python /opt/conda/bin/torchrun train.py", "/opt/conda/bin/torchrun", True),
        ("python /app", "/app", True),
        ("python -c print()", "", False),
        ("python -Bc print()", "", False),
        ("python -", "", False),
        ("python - train.py", "", False),
        ("python -u - train.py --epochs 3", "", False),
        ("python", "", False),
        ("python -m pip install x", "-m pip", False),
        ("python -Im pip", "-m pip", False),
        ("python -m json.tool", "-m json.tool", False),
        ("python -m launcher run -- python train.py", "-m launcher", False),
        ("python /opt/conda/bin/pip3.11 install x", "/opt/conda/bin/pip3.11", False),
        ("python /tmp/pip/__pip-runner__.py", "/tmp/pip/__pip-runner__.py", False),
        ("python setup.py build", "setup.py", False),
        ("python pip.py", "pip.py", True),
        ("python -m launcher.bandwidth", "-m launcher.bandwidth", False),
        ("python -m build.train", "-m build.train", False),
        ("", "", False),
    ],
)
def test_the_program_of_a_command_line(line: str, program: str, job: bool) -> None:
    """Python's own options, alone and together, and tools by their names."""
    found = find_program(shlex.split(line))
    assert (found, is_job(found)) == (program, job)


def test_a_users_own_of_a_tools_name_is_the_jobs(tmp_path: Path) -> None:
    """What Python would run is looked at where it looks first; a tool is an installed one."""
    for place in ("launcher/train.py", "build/train.py", "site/__main__.py", "pip/__main__.py", "wheel.py"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text("")
    theirs = (
        *("-m launcher.train", "-m build.train", "-m pip", "-m wheel", "site", "site/", "site/__main__.py"),
    )
    here = [name if name[0] == "-" else str(tmp_path / name) for name in theirs]
    assert [is_job(name, str(tmp_path)) for name in here] == [True] * len(theirs)
    assert [is_job(name, str(tmp_path / "site")) for name in ("-m launcher.train", "-m pip")] == [False] * 2
    assert not is_job("-m launcher.bandwidth", ROOT)  # this very launcher, where it is worked on
    packages = tmp_path / "lib" / "site-packages"
    (packages / "pip").mkdir(parents=True)
    assert [is_job(f"{packages}/pip{end}") for end in ("", "/", "/__main__.py")] == [False] * 3


def act(before: Mapping[str, str], scope: str = "process", **after: str) -> dict[str, str]:
    """Return an environment in which the hook has acted."""
    whole = {**before, **after}
    return {**whole, marker.HOOKED: marker.render_marker(scope, before, whole)}


def test_what_the_hook_has_set_can_be_taken_out() -> None:
    """All but what somebody has changed since; the platform's own is not in it."""
    hooked = act({**RANK, "MASTER_ADDR": "a"}, MASTER_ADDR="a", MASTER_PORT="1", RANK="1")
    assert marker.list_set(hooked) == ["MASTER_PORT", "RANK"]
    assert marker.undo(hooked) == {**RANK, "MASTER_ADDR": "a"}
    assert marker.undo({**hooked, "MASTER_PORT": "2"}) == {**RANK, "MASTER_ADDR": "a", "MASTER_PORT": "2"}


def test_the_hook_acts_where_nobody_has() -> None:
    """Once for a process and its children, again for those of a starter inside, once more for torchrun."""
    hooked = act(RANK, RANK="1", WORLD_SIZE="2", LAUNCHER_LAUNCHED="x")
    inside = {**hooked, "PMI_RANK": "0", "PMI_SIZE": "8"}
    worker = {"TORCHELASTIC_RUN_ID": "x", "GROUP_RANK": "0"}
    contract = {"LAUNCHER_LAUNCHED": "x", "RANK": "1", "WORLD_SIZE": "2"}
    table: list[tuple[Mapping[str, str], bool, bool]] = [
        (RANK, True, True),
        (hooked, False, True),
        (inside, True, True),
        (act(RANK, "torchrun", PET_NNODES="2"), False, False),
        (act(RANK, marker.REFUSED), False, False),
        ({**RANK, **worker}, False, False),
        (
            {**RANK, **worker, "GROUP_WORLD_SIZE": "1", "LOCAL_RANK": "0"},
            True,
            True,
        ),  # to warn of lone worlds
        ({**RANK, **worker, "GROUP_WORLD_SIZE": "1", "LOCAL_RANK": "1"}, False, False),
        ({**RANK, "TORCHELASTIC_RUN_ID": "left over"}, True, True),
        ({**RANK, **contract}, False, False),
        ({**RANK, **contract, "WORLD_SIZE": "3"}, True, True),
    ]
    for environ, script, torchrun in table:
        found = [marker.needs_action(environ, starts_workers=starts) for starts in (False, True)]
        assert found == [script, torchrun], environ


@pytest.mark.parametrize(
    "value", ["", "x", "/", "//", "a/b/c", "process/1.2,.,./RANK", "process/1.2,.,./:,:"]
)
def test_a_marker_that_is_none_harms_nobody(value: str) -> None:
    """Somebody's own value: nothing is taken out by it."""
    environ = {**RANK, "RANK": "1", marker.HOOKED: value}
    assert marker.undo(environ) == {**RANK, "RANK": "1"}
    assert len(marker.describe_marker(environ)) == bool(value.partition("/")[0])


def test_in_process_code_repeats_what_the_launcher_has() -> None:
    """The signs of sources, the families of MPI, one line that `site` takes, and one marker for shells."""
    # A new source's variables call for the hook, too, or stand among the weak ones with a reason.
    all_of_them = {name for row in TABLE for name in row.markers}
    assert all_of_them - set(WEAK) <= set(MARKERS)
    assert set(WEAK) <= all_of_them
    assert not set(WEAK) & set(MARKERS)
    # In-process code imports nothing of the launcher: what it repeats of that table is the same.
    assert {(family.rank[0], family.size) for family in TABLE_OF_MPI} <= set(marker.NEARER)
    # ``site`` runs lines that begin with import, and leaves those with # alone.
    lines = render_pth().splitlines()
    assert [line[:7] for line in lines] == ["# The e", "# " + os.sep + lines[1][3:7], "import "]
    compile(render_line(), "line", "exec")
    # The identity that a shell makes is the one in the marker.
    text = shell.render_shell("/x")
    assert ",".join(".".join(f"${{{name}-}}" for name in pair) for pair in marker.NEARER) in text
    assert "STACKS" not in text
    # torchrun by its name and as a module; a script of that name is a script.
    names = ("/opt/conda/bin/torchrun", "-m torch.distributed.run", "torchrun.py", "-m torch", "")
    assert [starts_workers(name) for name in names] == [True, True, False, False, False]


@pytest.mark.parametrize("name", ["a\ntouch pwned\n", "a\rb", "it's; touch pwned", "$(touch pwned)"])
def test_the_path_of_the_shells_file_is_no_command(name: str, tmp_path: Path) -> None:
    """It stands in a comment, on one line."""
    path = tmp_path / name
    text = shell.render_shell(str(path))
    path.write_text(text)
    done = subprocess.run(
        ["sh", "-c", '. "$1"', "sh", str(path)], cwd=tmp_path, capture_output=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert os.listdir(tmp_path) == [name]
    assert text.splitlines()[3].startswith("if [")


def test_no_mode_is_set_by_a_path_that_may_lead_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is another user's, who puts a link in the file's place as soon as that is there."""
    secret, path = tmp_path / "secret", tmp_path / "sitecustomize.py"
    secret.write_text("x")
    secret.chmod(0o600)
    replace, modes = os.replace, []

    def replace_and_link(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        modes.append(os.stat(source, dir_fd=src_dir_fd).st_mode & 0o777)
        replace(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        os.unlink(target, dir_fd=dst_dir_fd)
        os.symlink(secret, target, dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "replace", replace_and_link)
    before = os.umask(0o077)
    try:
        assert install(str(path), "text") == "installed"
    finally:
        os.umask(before)
    assert (modes, secret.stat().st_mode & 0o777) == ([0o644], 0o600)


def test_a_launcher_that_others_cannot_reach_is_named(tmp_path: Path) -> None:
    """A job of another user would go without the hook, silently: who installs is told."""
    folder = tmp_path / "closed" / "open"
    folder.mkdir(parents=True)
    (tmp_path / "closed").chmod(0o700)
    assert find_closed_folder(str(folder / "enter.py")) == str(tmp_path / "closed")
    assert find_closed_folder("/usr/bin/env") is None
