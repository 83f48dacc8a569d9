"""Other users of a machine plant what they can, under all names that the launcher writes or reads.

Everything runs as a user without rights, in a folder like /tmp in which another one has been first.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.unit.recorded_dumps import as_pickle, make_dump, make_entry

from .looking import wait_for
from .starting import DEADLINE_S, clean_environ

VICTIM, MALLORY = 1, 65533
OUT = "{out}"
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two other users"),
]

WRITE_ERROR = """
import sys
from launcher.inprocess.process import write_error_file
try:
    write_error_file(sys.argv[1], ValueError, ValueError("no"), None)
except OSError as error:
    print(error, file=sys.stderr)
"""
STACKS = (
    "import sys; from launcher.inprocess.site.sitecustomize import answer_signal; answer_signal(sys.argv[1])"
)
READER = """
import json, os, sys
from launcher.hang.dumps import read
task = {"to": sys.argv[1], "inside": "", "file": 1000, "all": 1000, "used": 0}
open(os.environ["HOME"] + "/../dump", "wb").write(b"{}")
print(read(0, os.environ["HOME"] + "/../dump", task))
"""
RUN = ("-m", "launcher", "run", "--nproc-per-node", "1")
FAIL = ("--", "sh", "-c", "echo out; echo err >&2; exit 3")
COMMANDS = {
    "events": (*RUN, "--events", OUT, *FAIL),
    "failure-file": (*RUN, "--failure-file", OUT, *FAIL),
    "attempts-file": (*RUN, "--restarts", "1", "--restart-delay", "0", "--attempts-file", OUT, *FAIL),
    "log-dir": (*RUN, "--log-dir", OUT, *FAIL),
    "snapshot": ("-m", "launcher", "snapshot", "-o", OUT),
    "evidence-dir": ("-c", READER, OUT),
    "error-file": ("-c", WRITE_ERROR, OUT),
    "stacks-file": ("-c", STACKS, OUT),
}
"""What writes, by its name: its words, with the place for the path."""
REPLACING = ("failure-file", "snapshot")
"""What replaces a file and does not write into it."""


class Shared:
    """A folder like /tmp, with the home of the victim in it."""

    def __init__(self, path: str) -> None:
        self.path, self.python = Path(path), find_python()
        self.home = self.path / "home"
        self.home.mkdir(0o755)
        (self.home / "precious").write_text("precious")
        for one in (self.home, self.home / "precious"):
            os.chown(one, VICTIM, VICTIM)

    def run(self, words: Sequence[str], user: int = VICTIM) -> subprocess.CompletedProcess[str]:
        """Run a Python as a user."""
        return subprocess.run(
            [*as_user(user), self.python, *words], env=self.environ(), capture_output=True, text=True,
            timeout=DEADLINE_S, check=False, cwd="/",
        )  # fmt: skip

    def environ(self) -> dict[str, str]:
        """Return a small environment."""
        return {**clean_environ(), "HOME": str(self.home), "TMPDIR": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"}

    def look(self, path: Path) -> dict[str, str]:
        """Return what is at a path and below it, as far as that is a file or a link."""
        found = {}
        for one in (path, *sorted(path.rglob("*"))):
            if one.is_symlink():
                found[str(one)] = f"link to {os.readlink(one)}"
            elif one.is_file():
                found[str(one)] = one.read_text()
            else:
                found[str(one)] = "fifo" if one.is_fifo() else "folder"
        return found

    def plant(self, kind: str, path: Path) -> int | None:
        """Plant something as the other user; return the descriptor of a pipe's reader."""
        precious = self.home / "precious"
        if kind == "hard link":  # where fs.protected_hardlinks is 0
            os.link(precious, path)
            return None
        reader = None
        if kind == "fifo":
            os.mkfifo(path)
            reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        elif kind == "folder":
            path.mkdir()
        elif kind == "file":
            path.write_text("")
        else:
            targets = {"link": precious, "link to a folder": self.home, "dangling link": self.home / "new"}
            path.symlink_to(targets[kind])
        os.chown(path, MALLORY, MALLORY, follow_symlinks=False)
        if not path.is_symlink():
            path.chmod(0o777)
        return reader


PLANTS = ("link", "link to a folder", "dangling link", "hard link", "fifo", "file", "folder")


def as_user(user: int) -> tuple[str, ...]:
    """Return the words before a command that run it as a user."""
    return ("setpriv", "--reuid", str(user), "--regid", str(user), "--clear-groups")


def find_python() -> str:
    """Return a Python that any user can start: that of a virtual environment may be in root's home."""
    check = "import sys; sys.exit(sys.version_info < (3, 10))"
    for python in (sys.executable, "/usr/bin/python3"):
        trial = [*as_user(VICTIM), "sh", "-c", 'exec "$0" -c "$1"', python, check]
        if subprocess.run(trial, capture_output=True, check=False).returncode == 0:
            return python
    pytest.skip("no Python here that another user can start")


@contextlib.contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """End a process afterwards."""
    try:
        yield
    finally:
        process.kill()


@pytest.fixture
def shared() -> Iterator[Shared]:
    """Return a folder like /tmp."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        os.chmod(path, 0o1777)
        yield Shared(path)


@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_goes_through_what_is_planted(shared: Shared, name: str) -> None:
    """What is planted stays as it is, and so does what it leads to; where nothing is, a file is written."""
    command = COMMANDS[name]
    before = shared.look(shared.home)
    for place, kind in enumerate(PLANTS):
        path = shared.path / f"planted-{place}"
        reader = shared.plant(kind, path)
        planted = shared.look(path)
        done = shared.run([word.replace(OUT, str(path)) for word in command])
        assert shared.look(shared.home) == before, (kind, done.stderr)
        if kind == "hard link" and name in REPLACING:  # it is replaced: the victim's file has lost a name
            assert path.stat().st_ino != (shared.home / "precious").stat().st_ino
        else:
            assert shared.look(path) == planted, (kind, done.stderr)
        if reader is not None:
            assert os.read(reader, 100) == b"", name
            os.close(reader)
        assert "Traceback" not in done.stderr or name in ("stacks-file", "evidence-dir"), (kind, done.stderr)
    path = shared.path / "not-planted"
    done = shared.run([word.replace(OUT, str(path)) for word in command])
    assert path.exists() and path.stat().st_uid == VICTIM, done.stderr


ATTEMPTS = """
echo attempt >>$HOME/starts
if [ $(wc -l <$HOME/starts) = 1 ]; then
    until [ -e $HOME/go ]; do sleep 0.02; done
fi
i=0
while [ $i -lt 3000 ]; do printf "%070d\\n" $i; i=$((i + 1)); done
exec "$PYTHON" -c "import launcher; launcher.setup(); raise ValueError"
"""


def test_a_folder_that_is_moved_away_keeps_its_run(shared: Shared) -> None:
    """Another user renames the log folder while the job runs, and puts a link in its place.

    Rotated logs, those of the next attempt and all else go on in the folder; nothing follows the link.
    """
    opened, trap = shared.path / "opened", shared.home / "trap"
    opened.mkdir()
    opened.chmod(0o777)
    flags = ("--restarts", "1", "--restart-on", "any", "--redirects", "3", "--log-rotate", "64K")
    words = (*RUN, *flags, "--log-dir", str(opened / "logs"), "--", "sh", "-c", ATTEMPTS)
    launched = subprocess.Popen(
        [*as_user(VICTIM), shared.python, *words],
        env={**shared.environ(), "PYTHON": shared.python}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with launched, ended(launched):
        wait_for(lambda: (shared.home / "starts").exists() or launched.poll() is not None, "the job runs")
        for folder in [path for path in (opened / "logs").rglob("*") if path.is_dir()]:
            mirrored = trap / folder.relative_to(opened / "logs")
            mirrored.mkdir(parents=True)
            (mirrored.parent.parent / "attempt_1/0").mkdir(parents=True, exist_ok=True)
        for path in (trap, *trap.rglob("*")):
            os.chown(path, VICTIM, VICTIM)
        before = shared.look(trap)
        (opened / "logs").rename(opened / "moved")
        (opened / "logs").symlink_to(trap)
        os.chown(opened / "logs", MALLORY, MALLORY, follow_symlinks=False)
        (shared.home / "go").touch()
        _, said = launched.communicate(timeout=DEADLINE_S)
    assert shared.look(trap) == before
    written = {f"{path.parent.parent.name}/{path.name}" for path in (opened / "moved").rglob("*.log*")}
    assert written >= {f"attempt_{n}/stdout.log{ending}" for n in (0, 1) for ending in ("", ".1", ".3")}, said
    assert launched.returncode == 1, said


EVIDENCE = """
import json, sys, time
from launcher.failure.stderr import add_fatal_stacks, read_error_file
from launcher.hang.recorder import Places
from launcher.hang.ask import Inquiry, read_from
folder, count = sys.argv[1], int(sys.argv[2])
request = Inquiry((), None)
request.want_dumps(range(count), [Places(folder + "/dump-")], dump_s=0.1)
while not request.complete:
    request.go_on(time.monotonic())
    time.sleep(0.01)
print(json.dumps({
    "dump": [request.records[rank].missing for rank in range(count)],
    "error": [read_error_file(f"{folder}/error-{rank}")[0] is not None for rank in range(count)],
    "fatal": [add_fatal_stacks(b"x", f"{folder}/stacks-{rank}", -11) != b"x" for rank in range(count)],
    "stacks": [read_from(f"{folder}/stacks-{rank}", 0) != b"" for rank in range(count)],
}))
"""


def test_only_what_our_user_has_made_is_evidence(shared: Shared) -> None:
    """Neither another user's file, nor her link or hard link to an old one of ours."""
    contents = {
        "dump": as_pickle(make_dump([make_entry(1411), make_entry(1412, state="started")])),
        "error": json.dumps({"message": "RuntimeError: NCCL"}).encode(),
        "stacks": b"Fatal Python error: Segmentation fault\n",
    }
    kinds = ("ours", "hers", "her link", "her hard link")
    for name, data in contents.items():
        old = shared.home / f"old-{name}"
        ours, hers = shared.path / f"{name}-0", shared.path / f"{name}-1"
        for path, user in ((old, VICTIM), (ours, VICTIM), (hers, MALLORY)):
            path.write_bytes(data)
            os.chown(path, user, user)
        (shared.path / f"{name}-2").symlink_to(old)
        os.chown(shared.path / f"{name}-2", MALLORY, MALLORY, follow_symlinks=False)
        os.link(old, shared.path / f"{name}-3")
    (shared.home / "old-error").unlink()  # the last name: it is as good as ours
    done = shared.run(["-c", EVIDENCE, str(shared.path), str(len(kinds))])
    found = json.loads(done.stdout or "null")
    assert found is not None, done.stderr
    assert [not missing for missing in found["dump"]] == [True, False, False, False]
    assert found["dump"][1] == "its dump: another user owns it"
    assert found["error"] == [True, False, False, True]
    assert found["fatal"] == found["stacks"] == [True, False, False, False]
