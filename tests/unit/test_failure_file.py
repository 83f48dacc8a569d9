"""Where the record of a failure goes, and that it gets there whole or not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.core.shorten import shorten_json
from launcher.failure.model import Cause
from launcher.failure.record import IN_PLACE_BYTES, default_failure_file, render_json, write_verdict
from launcher.machine.host import Host
from tests.unit.platforms_model import deterministic
from tests.unit.test_machine import machine
from tests.unit.test_verdict import OOM, dead, judge

SMALL = render_json(judge(dead(0, 1), [], [OOM]))
LARGE = render_json(
    judge(
        dead(0, 1, stderr="x" * 900 + "\n" + "line of stderr \N{PILE OF POO}\n" * 500),
        [dead(rank, 1, 1) for rank in range(500)],
        [Cause(f"cause-{n}", "w" * 300, "f" * 300) for n in range(9)],
        leftovers=["pid"] * 100,
        host_name="h" * 5000,
    )
)


def test_kubernetes_termination_log_is_written_in_place(tmp_path: Path) -> None:
    """The kubelet holds that very file, and reads 4096 bytes: what it reads must still be JSON."""
    path = tmp_path / "termination-log"
    path.write_text("what an earlier attempt has written, and longer than this record" * 100)
    inode = path.stat().st_ino
    assert write_verdict(LARGE, str(path)) is None
    assert path.stat().st_ino == inode
    assert path.stat().st_size <= IN_PLACE_BYTES
    record = json.loads(path.read_text())
    assert record.keys() == json.loads(LARGE).keys()
    assert record["shortened"] is True and record["causes"][0]["code"] == "cause-0"
    assert write_verdict(SMALL, str(path)) is None
    assert path.read_text() == SMALL


@pytest.mark.root
def test_a_mounted_file_is_written_in_place(tmp_path: Path) -> None:
    """As a container runtime mounts it, under any name: it cannot be replaced."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False).returncode != 0:
        pytest.skip("mounting needs root")
    (tmp_path / "outside").write_text("")
    (tmp_path / "inside").write_text("")
    (tmp_path / "large.json").write_text(LARGE)
    code = (
        "import sys; from launcher.failure.record import write_verdict;"
        "sys.exit(write_verdict(open('large.json').read(), 'inside') or 0)"
    )
    script = f'mount --bind outside inside && exec "$PYTHON" -c "{code}"'
    environ = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run(["unshare", "-m", "sh", "-c", script], cwd=tmp_path, env=environ, check=True, timeout=60)
    assert json.loads((tmp_path / "outside").read_text())["shortened"] is True
    assert (tmp_path / "inside").read_text() == ""
    assert len(os.listdir(tmp_path)) == 3


def test_what_is_no_file_is_never_replaced_nor_waited_for(tmp_path: Path) -> None:
    """A device, a pipe with and without a reader, a folder."""
    assert write_verdict(LARGE, "/dev/null") is None
    assert not os.path.isfile("/dev/null")
    os.mkfifo(tmp_path / "pipe")
    begin = time.monotonic()
    assert "pipe" in (write_verdict(SMALL, str(tmp_path / "pipe")) or "")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert write_verdict(LARGE, str(tmp_path / "pipe")) is None
        assert json.loads(os.read(reader, 1 << 16))["shortened"] is True
    finally:
        os.close(reader)
    assert write_verdict(SMALL, str(tmp_path)) is not None
    assert time.monotonic() - begin < 10


@pytest.mark.parametrize("path", ["/dev/full", "/proc/none/x.json", "a\0b", "/dev/null/x", "x" * 5000])
def test_what_cannot_be_written_is_said(path: str) -> None:
    """Why, in words; nothing is raised."""
    problem = write_verdict(SMALL, path)
    assert problem is not None and problem.startswith(path)


def test_a_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    """Nothing half-written, no temporary file; a link stays a link; only a record can be shortened."""
    # Nothing half-written, no temporary file left; a folder that is missing is made.
    path = tmp_path / "new" / "failure.json"
    assert write_verdict(LARGE, str(path)) is None
    assert path.read_text() == LARGE
    inode = path.stat().st_ino
    assert write_verdict(SMALL, str(path)) is None
    assert path.read_text() == SMALL and path.stat().st_ino != inode
    assert os.listdir(path.parent) == ["failure.json"]
    # What it leads to is replaced.
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert write_verdict(SMALL, str(tmp_path / "link")) is None
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_text() == SMALL
    # Only a record can be shortened.
    (tmp_path / "termination-log").write_text("")
    for text in ("x" * 5000, "[" + "1," * 5000 + "1]"):
        assert write_verdict(text, str(tmp_path / "termination-log")) is not None


def test_the_place_of_the_record_is_the_platforms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes' termination log first, then Azure ML's outputs, per node, where the job began."""
    # The file is there in every container of a pod; one that cannot be written does not count.
    host = machine(tmp_path, {"dev/termination-log": ""})
    assert default_failure_file({}, host) == str(tmp_path / "dev/termination-log")
    assert default_failure_file({"AZUREML_RUN_ID": "x"}, host, 1) == str(tmp_path / "dev/termination-log")
    (tmp_path / "dev/termination-log").unlink()
    (tmp_path / "dev/termination-log").mkdir()
    assert default_failure_file({}, host) is None
    # All nodes share the folder; it is made when there is something to write.
    monkeypatch.chdir(tmp_path)
    host = Host(str(tmp_path / "none"))
    run = {"AZUREML_RUN_ID": "run_1"}
    expected = str(tmp_path / "outputs" / "launcher-failure-node3.json")
    assert default_failure_file(run, host, 3) == expected
    assert not (tmp_path / "outputs").exists()
    assert write_verdict(SMALL, expected) is None
    assert default_failure_file(run, host, 3) == expected
    name = os.path.basename(default_failure_file(run, host) or "")
    assert name.startswith("launcher-failure-") and name.endswith(".json") and "/" not in name
    assert default_failure_file({}, host, 3) is None
    assert default_failure_file({"AZUREML_RUN_ID": ""}, host, 3) is None
    # The command may have gone elsewhere; a folder that is not there is not believed.
    job, elsewhere = tmp_path / "job", tmp_path / "elsewhere"
    job.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    run = {"AZUREML_RUN_ID": "run_1", "AZUREML_CR_EXECUTION_WORKING_DIR_PATH": str(job)}
    assert default_failure_file(run, Host(), 0) == str(job / "outputs/launcher-failure-node0.json")
    run["AZUREML_CR_EXECUTION_WORKING_DIR_PATH"] = "relative"
    assert default_failure_file(run, Host(), 0) == str(elsewhere / "outputs/launcher-failure-node0.json")
    (elsewhere / "outputs").write_text("a file")
    assert write_verdict(SMALL, str(elsewhere / "outputs/launcher-failure-node0.json")) is not None


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=2000)),
    lambda inner: st.lists(inner, max_size=100) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=30,
)


@deterministic(100)
@given(
    record=st.fixed_dictionaries({f"key{n}": JSON for n in range(5)}), limit=st.sampled_from([4096, 10_000])
)
def test_shortened_records_fit_and_parse(record: dict[str, object], limit: int) -> None:
    """The same keys, in at most so many bytes."""
    short = shorten_json(json.dumps(record, ensure_ascii=True), limit)
    assert len(short.encode()) <= limit
    assert json.loads(short).keys() - {"shortened"} == record.keys()


MALLORY, VICTIM = 65534, 12345


@pytest.fixture
def shared() -> Iterator[Path]:
    """Return a folder like /tmp: all may write to it, and none may remove what is another's."""
    if os.geteuid() != 0:
        pytest.skip("only root can make files of another user")
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        os.chmod(path, 0o1777)
        yield Path(path)


def write_as(user: int, path: Path) -> str | None:
    """Write a record as a user; return the complaint."""
    os.seteuid(user)
    try:
        return write_verdict(SMALL, str(path))
    finally:
        os.seteuid(0)


def give(path: Path, mode: int | None = None, user: int = MALLORY) -> None:
    """Make something a user's."""
    os.chown(path, user, user, follow_symlinks=False)
    if mode is not None:
        path.chmod(mode)


@pytest.mark.parametrize("user", [0, VICTIM])
def test_no_link_of_another_user_is_followed(shared: Path, user: int) -> None:
    """Neither in the place of the file, nor in that of a folder above it: it leads to a file of ours."""
    home = shared / "home"
    home.mkdir(0o700)
    (home / "failure.json").write_text("precious")
    for path in (home, home / "failure.json"):
        give(path, user=user)
    (shared / "failure.json").symlink_to(home / "failure.json")
    (shared / "job").symlink_to(home)
    for name in ("failure.json", "job"):
        give(shared / name)
    for path in (shared / "failure.json", shared / "job/failure.json", shared / "job/../home/failure.json"):
        assert "a symbolic link of another user" in (write_as(user, path) or "")
    assert [path.name for path in home.iterdir()] == ["failure.json"]
    assert (home / "failure.json").read_text() == "precious"


def test_a_file_of_another_user_is_not_written_into(shared: Path) -> None:
    """Where anybody can have put it: it stays that user's, who reads it and takes it away."""
    for name in ("failure.json", "termination-log"):
        (shared / name).write_text("mallory's")
        give(shared / name, 0o666)
        complaint = write_as(VICTIM, shared / name)
        assert (
            complaint == f"{shared / name}: a file of another user, in a directory that others may write to"
        )
        assert (shared / name).read_text() == "mallory's"


def test_root_puts_a_file_of_its_own_in_its_place(shared: Path) -> None:
    """It may: the other user's is gone, and was not written into."""
    planted = shared / "failure.json"
    planted.write_text("mallory's")
    give(planted, 0o666)
    with planted.open() as opened:
        assert write_as(0, planted) is None
        assert opened.read() == "mallory's"
    assert (planted.stat().st_uid, planted.read_text()) == (0, SMALL)


@pytest.mark.parametrize("user", [0, VICTIM])
def test_a_pipe_of_another_user_is_not_written_to(shared: Path, user: int) -> None:
    """Though its owner reads."""
    os.mkfifo(shared / "pipe")
    give(shared / "pipe", 0o666)
    reader = os.open(shared / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert "a pipe of another user" in (write_as(user, shared / "pipe") or "")
        assert os.read(reader, 100) == b""
    finally:
        os.close(reader)


def test_a_second_name_of_a_file_is_not_written_into(shared: Path) -> None:
    """Where hard links are not restricted (fs.protected_hardlinks), it can be that of any file of ours."""
    precious = shared / "precious"
    precious.write_text("precious")
    os.link(precious, shared / "termination-log")
    assert "a file with several names" in (write_as(0, shared / "termination-log") or "")
    assert precious.read_text() == "precious"


@pytest.mark.parametrize("owner", [0, MALLORY])
def test_the_termination_log_is_written_whoever_runs(shared: Path, owner: int) -> None:
    """The kubelet makes it as root, 0666, in a folder of root's; in a user namespace it may be anybody's."""
    folder = shared / "dev"
    folder.mkdir(0o755)
    path = folder / "termination-log"
    path.touch()
    give(path, 0o666, owner)
    assert write_as(VICTIM, path) is None
    assert path.read_text() == SMALL and path.stat().st_uid == owner
