"""Files that a process of the job writes for the launcher, where other users have been there first."""

from __future__ import annotations

import faulthandler
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.guest.process import arm_process, write_error_file
from launcher.guest.site.sitecustomize import STACK_SIGNAL
from launcher.machine.process import has_signal
from launcher.output.console import LogFile
from launcher.output.folder import RunFolder

MALLORY = 65534


@pytest.fixture
def shared() -> Iterator[Path]:
    """Return a folder to which all may write, with a file of ours beside it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        os.chmod(path, 0o1777)
        yield Path(path)


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """Return a file that no other user may change."""
    path = tmp_path / "precious"
    path.write_text("precious")
    return path


def fail(path: Path) -> None:
    """Write an exception down, as the hook does."""
    write_error_file(str(path), ValueError, ValueError("no"), None)


def plant(link: Path, target: Path) -> None:
    """Make a link of another user, where that can be."""
    link.symlink_to(target)
    if os.geteuid() == 0:
        os.lchown(link, MALLORY, MALLORY)


def test_no_planted_name_is_written_through(
    shared: Path, precious: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a link in the place of the file, not one in that of the file that it becomes."""
    plant(shared / f"error.json.{os.getpid()}", precious)
    fail(shared / "error.json")
    assert json.loads((shared / "error.json").read_text())["message"]["message"] == "ValueError: no"
    monkeypatch.setattr(os, "urandom", bytes)
    plant(shared / f"other.json.{bytes(8).hex()}", precious)
    with pytest.raises(FileExistsError):
        fail(shared / "other.json")
    plant(shared / "link.json", precious)
    with pytest.raises(OSError, match=r"link|Too many levels|Permission"):
        fail(shared / "link.json")
    assert precious.read_text() == "precious" and (shared / "link.json").is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make links of another user")
def test_no_planted_folder_is_entered(shared: Path, precious: Path) -> None:
    """A link of another user that stands for one."""
    plant(shared / "job", precious.parent)
    with pytest.raises(PermissionError, match=r"a symbolic link of another user"):
        fail(shared / "job" / "error.json")
    assert os.listdir(precious.parent) == ["precious"]


def test_a_planted_pipe_is_not_waited_for(shared: Path) -> None:
    """Nor replaced: it is no file of ours."""
    os.mkfifo(shared / "error.json")
    fail(shared / "error.json")
    assert (shared / "error.json").is_fifo() and os.listdir(shared) == ["error.json"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_planted_file_leaves_nothing_behind(shared: Path) -> None:
    """One that looks like ours, of another user, which we may not replace."""
    planted = shared / "error.json"
    planted.write_text("")
    os.seteuid(MALLORY)
    try:
        with pytest.raises(PermissionError):
            fail(planted)
    finally:
        os.seteuid(0)
    assert os.listdir(shared) == ["error.json"] and planted.read_text() == ""


def test_stacks_go_to_a_regular_file_alone(shared: Path, precious: Path) -> None:
    """A pipe that a process of another user reads is none, nor is a link."""
    faulthandler.unregister(STACK_SIGNAL)
    os.mkfifo(shared / "pipe")
    plant(shared / "link", precious)
    for name in ("pipe", "link"):
        with pytest.raises(OSError, match=r"No such device|Too many levels|Permission denied"):
            arm_process(str(shared / name), None)
    reader = os.open(shared / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(OSError, match=r"no regular file"):
            arm_process(str(shared / "pipe"), None)
    finally:
        os.close(reader)
    assert not has_signal(os.getpid(), STACK_SIGNAL, "SigCgt")


def test_log_files_are_not_written_through_links(shared: Path, precious: Path) -> None:
    """In a folder of logs to which others may write."""
    folder = RunFolder(str(shared), "r" * 16, 0, {})
    logs = Path(folder.log_path(0, "0", "stdout"))
    plant(logs, precious)
    with pytest.raises(OSError, match=r"Too many levels|Permission denied"):
        LogFile(str(logs))
    plant(logs.parent / "nccl.log", precious)
    assert folder.make_file(0, "0", "nccl.log") is None
    os.mkfifo(logs.parent / "stderr.log")
    with pytest.raises(OSError, match=r"No such device"):
        LogFile(str(logs.parent / "stderr.log"))
    assert precious.read_text() == "precious"
