"""``launcher --version`` says which commit was built: of a real checkout, a linked worktree, and a build."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from launcher import __version__
from launcher.core.blocks import PACKAGE
from launcher.core.version import FILE, describe_version, read_head

NO_SETTINGS = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "PATH": "/usr/bin:/bin"}
COMMIT = "1a2b3c4d5e6f" + 28 * "7"


def git(folder: Path, *words: str) -> str:
    """Run git in a folder and return what it prints."""
    line = ("git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b.c", *words)
    return subprocess.run(
        line, env=NO_SETTINGS, capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a checkout with one commit."""
    folder = tmp_path / "checkout"
    (folder / "launcher").mkdir(parents=True)
    (folder / "launcher" / FILE).write_text(Path(PACKAGE, FILE).read_text())
    git(tmp_path, "init", "-q", "-b", "main", "checkout")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "one")
    return folder


def test_a_checkout_names_its_commit(checkout: Path) -> None:
    """On a branch, with packed refs, without a branch, and in a linked worktree."""
    head = git(checkout, "rev-parse", "HEAD")
    expected = f"launcher {__version__} (commit {head[:12]}, from a checkout)"
    assert describe_version(str(checkout / "launcher")) == expected
    git(checkout, "pack-refs", "--all")
    assert not (checkout / ".git/refs/heads/main").exists()
    assert describe_version(str(checkout / "launcher")) == expected
    git(checkout, "worktree", "add", "-q", "../linked", "-b", "other")
    assert describe_version(str(checkout.parent / "linked" / "launcher")) == expected
    git(checkout, "checkout", "-q", "--detach")
    assert describe_version(str(checkout / "launcher")) == expected


def test_an_archive_of_git_names_its_commit(checkout: Path, tmp_path: Path) -> None:
    """As a release is built from, and as a forge offers it: git writes commit and time into the file."""
    (checkout / ".gitattributes").write_text(Path(PACKAGE).parent.joinpath(".gitattributes").read_text())
    git(checkout, "add", "-A")
    git(checkout, "commit", "-q", "-m", "two", "--date", "2026-11-26T23:00:00Z")
    git(checkout, "archive", "--output", str(tmp_path / "it.tar"), "HEAD")
    subprocess.run(["tar", "-xf", "it.tar", "launcher"], cwd=tmp_path, check=True)
    head, time_s = git(checkout, "log", "-1", "--format=%H %ct").split()
    assert (tmp_path / "launcher" / FILE).read_text() == f"{head} {time_s}\n"
    assert f"(commit {head[:12]} of 20" in describe_version(str(tmp_path / "launcher"))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"{COMMIT} 1795737599\n", "(commit 1a2b3c4d5e6f of 2026-11-26, from a wheel)"),
        (f"{COMMIT} 1795737600 a zipapp\n", "(commit 1a2b3c4d5e6f of 2026-11-27, from a zipapp)"),
        (f"{COMMIT}\n", "(commit 1a2b3c4d5e6f, from a wheel)"),
        ("unknown\n", "(commit unknown, from a wheel)"),
        ("", "(commit unknown, from a wheel)"),
    ],
)
def test_a_build_names_its_commit(tmp_path: Path, text: str, line: str) -> None:
    """The day is that of the commit in UTC: two builds of a commit say the same."""
    (tmp_path / FILE).write_text(text)
    assert describe_version(str(tmp_path)) == f"launcher {__version__} {line}"


@pytest.mark.parametrize("head", ["", "ref: refs/heads/gone\n", "ref: ../../etc/passwd\n", "\x1b[2J" * 10])
def test_a_broken_checkout_has_no_commit(tmp_path: Path, head: str) -> None:
    """Nothing but a commit is shown."""
    (tmp_path / "HEAD").write_text(head)
    assert read_head(str(tmp_path)) == ""
