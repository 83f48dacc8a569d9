"""Dumps of flight recorders: asked for through pipes, read in a process of its own, copied, judged.

NCCL's process group needs GPUs, so that a process of the test stands in for its monitor thread, with dumps
that are made again from facts (``tests/unit/recorded_dumps.py``). gloo's recorder is real.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.hang.ask import trigger
from launcher.hang.conclude import conclude, describe_missing
from launcher.hang.recorder import Places
from launcher.machine.host import Host
from tests.process.looking import wait_for
from tests.process.recording import GLOO, ask_dumps, end, follow, start_stand_in
from tests.process.starting import launch, open_launcher
from tests.unit.recorded_dumps import as_pickle, make_dump, make_entry

STUCK = as_pickle(make_dump([make_entry(1411), make_entry(1412, state="started")]))
ABSENT = as_pickle(make_dump([make_entry(1411)]))


@pytest.fixture
def ranks() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that end with the test."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    end(processes)


def start(
    ranks: list[subprocess.Popen[str]], folder: Path, rank: int, data: bytes, how: str = "at once"
) -> Places:
    """Start a rank that dumps this; return where it dumps."""
    source = folder / f"source-{rank}"
    source.write_bytes(data)
    ranks.append(start_stand_in(folder / "0_recorder_", rank, source, how))
    return Places(f"{folder}/0_recorder_", f"{folder}/0_recorder_")


def test_all_ranks_are_asked_and_the_absent_one_is_named(
    tmp_path: Path, ranks: list[subprocess.Popen[str]]
) -> None:
    for rank in range(4):
        places = start(ranks, tmp_path, rank, ABSENT if rank == 2 else STUCK)
    request = ask_dumps(range(4), [places], evidence=str(tmp_path / "evidence" / "node0"))
    started = time.monotonic()
    records = follow(request)
    assert time.monotonic() - started < 2
    assert [(one.rank, one.backend, one.missing) for one in records] == [(n, "nccl", "") for n in range(4)]
    (found,) = conclude(records)
    assert found.ranks == (2,)
    assert "rank 2 never joined all_reduce number 1,412 of process group 0 (40 MB)" in found.sentence
    assert sorted(Path(path).name for path in request.paths) == [f"recorder_rank_{rank}" for rank in range(4)]
    assert Path(sorted(request.paths)[0]).read_bytes() == STUCK
    assert os.stat(request.paths[0]).st_mode & 0o777 == 0o600


def test_a_dump_is_read_when_it_is_whole(tmp_path: Path, ranks: list[subprocess.Popen[str]]) -> None:
    """The process writes it bit by bit, over one of an earlier request."""
    (tmp_path / "0_recorder_0").write_bytes(ABSENT)
    places = start(ranks, tmp_path, 0, STUCK, "slow")
    (record,) = follow(ask_dumps([0], [places]))
    assert record.groups[0].enqueued == 1412


@pytest.mark.parametrize(
    ("how", "why"), [("silent", "it did not dump within 0.5 s"), ("half", "it cannot be read")]
)
def test_a_rank_that_does_not_dump_is_not_waited_for(
    tmp_path: Path, ranks: list[subprocess.Popen[str]], how: str, why: str
) -> None:
    places = start(ranks, tmp_path, 0, STUCK, how)
    started = time.monotonic()
    (record,) = follow(ask_dumps([0], [places], dump_s=0.5))
    assert why in record.missing
    assert time.monotonic() - started < 2


def test_a_dump_from_a_timeout_is_read_after_the_end(
    tmp_path: Path, ranks: list[subprocess.Popen[str]]
) -> None:
    """NCCL's watchdog dumps by itself, and ends the process: nothing reads its pipe any more."""
    places = start(ranks, tmp_path, 0, STUCK)
    end(ranks)
    (tmp_path / "0_recorder_0").write_bytes(STUCK)
    (record,) = follow(ask_dumps([0], [places]))
    assert (record.missing, record.groups[0].enqueued) == ("", 1412)


def test_ranks_without_a_recorder_are_said(tmp_path: Path) -> None:
    records = follow(ask_dumps([0, 1], [Places(f"{tmp_path}/0_recorder_", f"{tmp_path}/0_recorder_")]))
    assert describe_missing(records) == (
        "no flight recorder (ranks 0-1): available only with NCCL, after init_process_group"
    )
    assert follow(ask_dumps([], [])) == []


def test_only_a_pipe_of_ours_is_written_to(tmp_path: Path) -> None:
    """A rank's folder may have links and devices in place of pipes."""
    target = tmp_path / "victim"
    target.write_text("whole")
    file = tmp_path / "file.pipe"
    os.mkfifo(tmp_path / "real")
    file.symlink_to(target)
    assert trigger(str(target)) == trigger(str(file)) == trigger("/dev/null") == "its pipe: not a pipe"
    assert target.read_text() == "whole"
    assert trigger(str(tmp_path / "real")) == "its pipe: No such device or address"  # no reader: it is gone


class Hostile:
    """A pickle that runs a program when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.path}",)


def test_a_hostile_dump_does_nothing(tmp_path: Path, ranks: list[subprocess.Popen[str]]) -> None:
    """It is refused, kept under another name, and the other ranks are read all the same."""
    hostile = pickle.dumps(Hostile(tmp_path / "was-run"))
    places = start(ranks, tmp_path, 0, hostile)
    start(ranks, tmp_path, 1, STUCK)
    request = ask_dumps([0, 1], [places], evidence=str(tmp_path / "evidence"))
    first, second = follow(request)
    assert first.missing == "its dump is refused: it names posix.system"
    assert second.groups[0].enqueued == 1412
    assert not (tmp_path / "was-run").exists()
    assert sorted(os.listdir(tmp_path / "evidence")) == ["recorder_rank_1", "recorder_refused_rank_0"]


@pytest.mark.parametrize(
    "bomb",
    [
        b"\x80\x04N\x96" + (1 << 40).to_bytes(8, "little") + b"0.",  # a bytearray of 1 TiB
        b"\x80\x02Nr\xff\xff\xff\x7f.",  # a memo of two billion entries
        b"\x80\x02" + b"(" * 1000 + b"t" * 999 + b".",
        b"\x80\x02" + b"]" * 3_000_000 + b"a" * 2_999_999 + b".",
        b"\x80\x02}" + b")" + b"\x85" * 3_000_000 + b"Ns.",  # the hash of a tuple of tuples of tuples ...
    ],
    ids=["bytearray", "memo", "tuples", "deep", "hash"],
)
def test_a_bomb_harms_only_the_reader(
    tmp_path: Path, ranks: list[subprocess.Popen[str]], bomb: bytes
) -> None:
    places = start(ranks, tmp_path, 0, bomb)
    (record,) = follow(ask_dumps([0], [places]))
    assert record.missing


def test_a_dump_that_is_too_large_is_left_out(tmp_path: Path, ranks: list[subprocess.Popen[str]]) -> None:
    places = start(ranks, tmp_path, 0, STUCK)
    start(ranks, tmp_path, 1, ABSENT)
    limit = len(STUCK) - 1
    request = ask_dumps([0, 1], [places], evidence=str(tmp_path / "evidence"), file_bytes=limit)
    first, second = follow(request)
    assert first.missing == "its dump is larger than 0 MiB"
    assert not second.missing
    assert request.notes == ["the dump of rank 0 was left out: too large"]
    request = ask_dumps([0, 1], [places], evidence=str(tmp_path / "second"), all_bytes=len(STUCK))
    assert not any(one.missing for one in follow(request))
    (note,) = request.notes
    assert note.endswith(" was left out: the limit of 0 MiB")
    assert len(os.listdir(tmp_path / "second")) == 1


def test_evidence_that_cannot_be_written_is_said(tmp_path: Path, ranks: list[subprocess.Popen[str]]) -> None:
    (tmp_path / "file").write_text("")
    places = start(ranks, tmp_path, 0, STUCK)
    request = ask_dumps([0], [places], evidence=str(tmp_path / "file" / "node0"))
    (record,) = follow(request)
    assert not record.missing
    assert request.notes == [f"the dump of rank 0 was left out: {tmp_path}/file/node0: Not a directory"]


def test_a_request_that_is_closed_leaves_no_process(
    tmp_path: Path, ranks: list[subprocess.Popen[str]]
) -> None:
    places = start(ranks, tmp_path, 0, STUCK)
    request = ask_dumps([0], [places])

    def reads() -> bool:
        request.go_on(time.monotonic())
        return bool(request.helpers())

    wait_for(reads, "the reader")
    (pid,) = request.helpers()
    request.close()
    assert request.complete
    assert request.helpers() == ()
    os.waitpid(pid, 0)


# --- the launcher's part

SHOW = """
import json
import os
print(sorted(name for name in os.environ if name.startswith("TORCH_")))
"""


@pytest.mark.torch
def test_ranks_get_the_variables_of_their_torch() -> None:
    ended = launch("run", "--nproc-per-node", "2", "--", sys.executable, "-c", SHOW)
    assert ended.returncode == 0, ended.stderr
    expected = "['TORCH_FR_DUMP_TEMP_FILE', 'TORCH_NCCL_DEBUG_INFO_PIPE_FILE', 'TORCH_NCCL_DUMP_ON_TIMEOUT']"
    assert ended.stdout.count(expected) == 2


@pytest.mark.torch
def test_a_buffer_of_0_switches_it_off() -> None:
    environ = {"TORCH_FR_BUFFER_SIZE": "0"}
    ended = launch("run", "--nproc-per-node", "2", "--", sys.executable, "-c", SHOW, environ=environ)
    assert ended.stdout.count("['TORCH_FR_BUFFER_SIZE']") == 2, ended.stdout


HANGS = {
    "skips": "rank 1 never joined all_reduce number 4 of process group 0 (4 kB); the others waited",
    "other": "rank 1 called broadcast at train.py:",
    "group": "ranks wait for each other in a circle: rank 0 in all_reduce number 1 of process group 1",
}


@pytest.mark.torch
@pytest.mark.thorough
@pytest.mark.xdist_group("torch")
@pytest.mark.parametrize("how", ["skips", "other", "group"])
def test_gloos_recorder_names_the_rank_on_all_nodes(tmp_path: Path, how: str) -> None:
    """A real recorder of a real hang on two nodes; only the pipe is the test's, because gloo has none."""
    (tmp_path / "train.py").write_text(GLOO)
    port = str(Host().free_port())
    nodes = []
    for index in range(2):
        flags = ("--nnodes", "2", "--node-rank", str(index), "--master-addr", "127.0.0.1")
        watch = ("--stall-timeout", "30", "--on-stall", "stop", "--evidence-dir", str(tmp_path / "evidence"))
        words = ("run", *flags, "--master-port", port, "--nproc-per-node", "2", *watch, "--", sys.executable)
        nodes.append(open_launcher(*words, str(tmp_path / "train.py"), how, environ={"OMP_NUM_THREADS": "1"}))
    try:
        logs = [node.communicate(timeout=150)[1] for node in nodes]
    finally:
        for node in nodes:
            if node.poll() is None:
                os.killpg(node.pid, signal.SIGKILL)
    for log in logs:
        assert f"flight recorder: {HANGS[how]}" in log, log
    copies = sorted(path.name for path in (tmp_path / "evidence").glob("node*/recorder_rank_*"))
    assert copies == [f"recorder_rank_{rank}" for rank in range(4)]


# --- in a report

RANK = """
import os, sys, time
rank, stem = os.environ["RANK"], os.environ["TORCH_FR_DUMP_TEMP_FILE"]
pipe = f"{os.environ['TORCH_NCCL_DEBUG_INFO_PIPE_FILE']}{rank}.pipe"
os.mkfifo(pipe)
fd = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
began = time.monotonic()
while time.monotonic() < began + 60:
    try:
        if os.read(fd, 128):
            data = open(f"{sys.argv[1]}/source-{rank}", "rb").read()
            open(f"{stem}{rank}", "wb").write(data)
    except BlockingIOError:
        pass
    if sys.argv[2] == "watchdog" and time.monotonic() > began + 2:
        data = open(f"{sys.argv[1]}/source-{rank}", "rb").read()
        open(f"{stem}{rank}", "wb").write(data)
        os.abort()
    if sys.argv[2] == "fails" and rank == "0" and time.monotonic() > began + 2:
        sys.exit(3)
    time.sleep(0.02)
"""
"""A rank whose NCCL is this loop."""


def run_job(folder: Path, how: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run four ranks of which rank 2 does not join a collective."""
    (folder / "train.py").write_text(RANK)
    for rank in range(4):
        (folder / f"source-{rank}").write_bytes(ABSENT if rank == 2 else STUCK)
    words = ("run", "--nproc-per-node", "4", *flags, "--", sys.executable, str(folder / "train.py"))
    return launch(*words, str(folder), how, environ={"TMPDIR": str(folder / "tmp")})


@pytest.mark.torch
def test_a_stall_report_names_the_rank_and_the_collective(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    flags = ("--stall-timeout", "2", "--on-stall", "stop", "--evidence-dir", str(tmp_path / "evidence"))
    done = run_job(tmp_path, "hangs", *flags)
    sentence = "rank 2 never joined all_reduce number 1,412 of process group 0 (40 MB); the others waited"
    assert f"flight recorder: {sentence}" in done.stderr
    assert f"dumps of the flight recorders: {tmp_path}/evidence/node0" in done.stderr
    names = sorted(os.listdir(tmp_path / "evidence" / "node0"))
    assert names == [f"recorder_rank_{rank}" for rank in range(4)]


@pytest.mark.torch
def test_the_folder_of_the_run_has_the_dumps_and_no_pipes(tmp_path: Path) -> None:
    """Without a folder for evidence and without a failure record; it is kept."""
    (tmp_path / "tmp").mkdir()
    done = run_job(tmp_path, "hangs", "--stall-timeout", "2", "--on-stall", "stop")
    assert "dumps of the flight recorders: " in done.stderr, done.stderr
    (kept,) = (tmp_path / "tmp").iterdir()
    assert len(list((kept / "launcher-evidence").glob("*/recorder_rank_*"))) == 4
    assert not [path for path in kept.rglob("*") if path.is_fifo()]


@pytest.mark.torch
def test_a_failure_report_has_what_the_survivors_recorded(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    record = tmp_path / "out" / "failure.json"
    record.parent.mkdir()
    done = run_job(tmp_path, "fails", "--failure-file", str(record))
    assert done.returncode == 3, done.stderr
    texts = [one["doing"] for one in json.loads(record.read_text())["evidence"]]
    assert any("flight recorder: rank 2 never joined all_reduce number 1,412" in text for text in texts), (
        texts
    )
    assert (tmp_path / "out" / "launcher-evidence" / "node0" / "recorder_rank_1").exists()
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.torch
def test_a_job_without_torch_is_not_missing_a_recorder(tmp_path: Path) -> None:
    """The Python has torch, and the script does not import it: the report says nothing of recorders."""
    (tmp_path / "sleeps.py").write_text("import time; time.sleep(60)\n")
    words = (
        *("run", "--nproc-per-node", "2", "--stall-timeout", "1", "--on-stall", "stop", "--"),
        sys.executable,
    )
    done = launch(*words, str(tmp_path / "sleeps.py"))
    assert "stalled" in done.stderr
    assert "recorder" not in done.stderr


@pytest.mark.torch
def test_dumps_of_nccls_watchdog_are_read_when_all_ranks_have_ended(tmp_path: Path) -> None:
    """It dumps and aborts all ranks at about the same time, so that none may be left to be asked."""
    (tmp_path / "tmp").mkdir()
    record = tmp_path / "failure.json"
    done = run_job(tmp_path, "watchdog", "--failure-file", str(record))
    assert done.returncode == 134, done.stderr
    assert len(list((tmp_path / "launcher-evidence" / "node0").glob("recorder_rank_*"))) == 4, done.stderr
    texts = [one["doing"] for one in json.loads(record.read_text())["evidence"]]
    assert any("rank 2 never joined all_reduce number 1,412" in text for text in texts), texts
