"""``--events``: every line of the launcher's own, and the milestones that print none, as JSON lines."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher.core.frozen import replace
from launcher.events.feed import EventFeed, write_file
from launcher.process.helper import Helpers
from launcher.process.loop import Loop
from tests.process.looking import is_gone, wait_for
from tests.process.starting import DEADLINE_S, clean_environ, launch, open_launcher

TWO = ("run", "--nproc-per-node", "2")
BASE = ["schema", "time", "job", "run", "node", "attempt", "event", "text"]
ANSWER_S = 10.0
"""Seconds for the end of a job that nothing keeps."""
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
SECRET = "hf_abcdefghijklmnopqrstuvwxyz0123456789"
TRAINS = """
import os, sys, time
print("step 1", flush=True)
first = os.environ.get("LAUNCHER_ATTEMPT", "0") == "0"
if first and os.environ["RANK"] == "1":
    raise RuntimeError("refused: " + sys.argv[1])
time.sleep(5 if first else 0.1)
"""


def read(path: Path) -> list[dict[str, object]]:
    """Return the events of a file, each of which has what every event has."""
    events = [json.loads(line) for line in path.read_text().splitlines()]
    for event in events:
        assert list(event)[: len(BASE)] == BASE and event["schema"] == 1, event
        assert TIME.fullmatch(str(event["time"])), event
    return events


def names(events: list[dict[str, object]]) -> list[object]:
    """Return their names."""
    return [event["event"] for event in events]


def find(events: list[dict[str, object]], name: str) -> dict[str, object]:
    """Return the only event of a name."""
    (found,) = [event for event in events if event["event"] == name]
    return found


def test_a_job_that_succeeds_has_its_milestones(tmp_path: Path) -> None:
    """In their order, with what the launcher knows; nothing is printed for them."""
    path = tmp_path / "new" / "events.jsonl"
    done = launch(*TWO, "--events", str(path), "--", "sh", "-c", "echo hello")
    assert done.returncode == 0 and done.stderr == ""
    events = read(path)
    assert names(events) == ["start", "attempt-started", "training", "attempt-ended", "end"]
    assert len({event["run"] for event in events}) == 1 and events[0]["job"] == events[0]["run"]
    start, end = events[0], events[-1]
    assert start["world_size"] == 2 and start["host"] == os.uname().nodename
    assert find(events, "attempt-started")["ranks"] == [0, 1]
    assert find(events, "training")["by"] == "output"
    assert end["status"] == 0 and end["attempts"] == 1 and "cause" not in end
    times = [str(event["time"]) for event in events]
    assert times == sorted(times)


def test_every_line_is_an_event_and_a_failure_has_its_cause(tmp_path: Path) -> None:
    """Of each attempt; secrets are removed in texts and fields."""
    path, script = tmp_path / "events.jsonl", tmp_path / "train.py"
    script.write_text(TRAINS)
    flags = ("--restarts", "1", "--restart-on", "any", "--restart-delay", "0")
    done = launch(*TWO, "--events", str(path), *flags, str(script), SECRET)
    assert done.returncode == 0, done.stderr
    assert SECRET not in path.read_text()
    events = read(path)
    found = names(events)
    for name in ("stopping", "stop", "first-failure", "restart", "attempts", "end"):
        assert name in found, name
    assert found.count("attempt-started") == found.count("attempt-ended") == 2
    failure = find(events, "first-failure")
    assert (failure["attempt"], failure["failed_rank"], failure["status"]) == (0, 1, 1)
    assert str(failure["exception"]).startswith("RuntimeError: refused: <redacted>")
    assert failure["retryable"] is False or failure["retryable"] is None
    first, second = [event for event in events if event["event"] == "attempt-ended"]
    assert (first["attempt"], first["status"], first["failed_rank"]) == (0, 1, 1)
    assert (second["attempt"], second["status"]) == (1, 0) and "failed_rank" not in second
    said = [
        line.removeprefix("launcher: ") for line in done.stderr.splitlines() if line.startswith("launcher: ")
    ]
    texts = "\n".join(str(event["text"]) for event in events)
    assert [line for line in said if line not in texts] == []


def test_a_stop_by_a_signal(tmp_path: Path) -> None:
    """What stops the job, and how it ended; the file grows while the job runs."""
    path = tmp_path / "events.jsonl"
    job = open_launcher(*TWO, "--events", str(path), "--", "sleep", "600")
    wait_for(lambda: path.exists() and "attempt-started" in path.read_text(), "the job runs")
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=DEADLINE_S)
    events = read(path)
    assert job.returncode == 143
    assert find(events, "stop")["signal"] == "SIGTERM" and find(events, "end")["status"] == 143
    assert "signal" in names(events)


def test_a_job_that_cannot_start_tells_why(tmp_path: Path) -> None:
    """The code of the error is the cause."""
    path = tmp_path / "events.jsonl"
    nodes = ("--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1", "--roll-call-timeout", "0.5")
    job = open_launcher("run", *nodes, "--nproc-per-node", "1", "--events", str(path), "--", "true")
    job.communicate(timeout=DEADLINE_S)
    end = find(read(path), "end")
    assert job.returncode == 75 == end["status"] and end["cause"] == "nodes-missing", end


@pytest.mark.parametrize("place", ["full", "fifo", "folder", "below"])
def test_a_destination_that_fails_does_not_hurt_the_job(tmp_path: Path, place: str) -> None:
    """It is said once, and the job has its own status."""
    path = tmp_path / "events"
    if place == "full":
        path = Path("/dev/full")
    elif place == "fifo":
        os.mkfifo(path)
    elif place == "folder":
        path.mkdir()
    else:
        (tmp_path / "events").write_text("")
        path = tmp_path / "events" / "file"
    done = launch(*TWO, "--events", str(path), "--", "sh", "-c", "exit 7")
    assert done.returncode == 7
    lines = [line for line in done.stderr.splitlines() if str(path) in line]
    assert len(lines) == 1, done.stderr
    assert not (tmp_path / "elsewhere").exists()


def test_a_pipe_is_read_and_its_reader_may_leave(tmp_path: Path) -> None:
    """A reader gets the events as they happen; without it the job goes on."""
    path = tmp_path / "events"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    job = open_launcher(*TWO, "--events", str(path), "--", "sleep", "600")
    heard = bytearray()

    def has_begun() -> bool:
        try:
            heard.extend(os.read(reader, 1 << 16))
        except BlockingIOError:
            return False
        return b"attempt-started" in heard

    wait_for(has_begun, "the attempt has started")
    os.close(reader)
    job.terminate()
    _, err = job.communicate(timeout=DEADLINE_S)
    assert job.returncode == 143
    assert len([line for line in err.splitlines() if "Broken pipe" in line]) == 1, err


def test_a_file_that_hangs_keeps_nobody(tmp_path: Path) -> None:
    """As on a network drive that is down: the job ends as without it, and what is lost is said once."""
    path = tmp_path / "events.jsonl"
    job = open_launcher(*TWO, "--events", str(path), "--", "sleep", "600")
    wait_for(lambda: path.exists() and "attempt-started" in path.read_text(), "the job runs")
    writer = find_writer(job.pid)
    os.kill(writer, signal.SIGSTOP)  # as one that the kernel holds in a write
    before, began = path.read_text(), time.monotonic()
    job.terminate()
    _, err = job.communicate(timeout=DEADLINE_S)
    assert job.returncode == 143 and time.monotonic() - began < ANSWER_S
    assert [line for line in err.splitlines() if str(path) in line] == [
        f"launcher: {path}: the last events were lost, because it does not accept them fast enough"
    ]
    assert path.read_text() == before and is_gone(writer)


def test_events_for_a_file_that_hangs_are_dropped_and_counted(tmp_path: Path) -> None:
    """The queue has a limit, and each event is taken at once."""
    path, said = tmp_path / "events.jsonl", list[str]()
    loop = Loop(lambda text, event: said.append(text))
    helpers = Helpers(loop)
    feed = EventFeed(replace(write_file(str(path)), label="file", limit_s=0.0), loop, helpers, said.append)
    feed.open()
    feed.add(b"first\n")
    wait_for(lambda: path.exists() and path.read_text() == "first\n", "the first event is written")
    (writer,) = helpers.pids
    os.kill(writer, signal.SIGSTOP)
    for _ in range(3000):
        feed.add(b"x" * 1023 + b"\n")
    assert said == []
    feed.finish(-1)
    helpers.close()
    assert len(said) == 1 and re.fullmatch(r"file: \d{4} events were lost, because .*", said[0])


def test_a_killed_launcher_has_written_its_events(tmp_path: Path) -> None:
    """What writes them ends by itself after that."""
    path = tmp_path / "events.jsonl"
    job = open_launcher(*TWO, "--events", str(path), "--", "sleep", "600")
    wait_for(lambda: path.exists() and "attempt-started" in path.read_text(), "the job runs")
    writer = find_writer(job.pid)
    job.kill()
    job.communicate(timeout=DEADLINE_S)
    wait_for(lambda: is_gone(writer), "the writer has ended")
    assert "end" not in names(read(path))


def find_writer(launcher: int) -> int:
    """Return the pid of the process that writes a launcher's events."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    (pid,) = [pid for pid in children if Path(f"/proc/{pid}/comm").read_text() == "launcher-events\n"]
    return int(pid)


def test_jobs_that_share_a_file_write_whole_lines(tmp_path: Path) -> None:
    """Each event is one write at the file's end, after what was there."""
    path = tmp_path / "events.jsonl"
    path.write_text('{"before": true}\n')
    flags = ("--restarts", "3", "--restart-on", "any", "--restart-delay", "0", "--restart-delay-max", "0")
    line = [sys.executable, "-m", "launcher", *TWO, "--events", str(path), *flags, "--", "false"]
    jobs = [
        subprocess.Popen(line, env=clean_environ(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(4)
    ]
    assert [job.wait(DEADLINE_S) for job in jobs] == [1, 1, 1, 1]
    first, *lines = path.read_text().splitlines()
    assert json.loads(first) == {"before": True}
    events = [json.loads(line) for line in lines]
    assert len({event["run"] for event in events}) == 4
    assert [event["event"] for event in events].count("end") == 4


def test_a_file_is_named_after_node_and_job(tmp_path: Path) -> None:
    """The node may be in its name; the platform's job is in each event."""
    # For file systems on which two nodes cannot append to one file.
    done = launch(*TWO, "--events", f"{tmp_path}/events-%n.jsonl", "--", "true")
    assert done.returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["events-0.jsonl"]
    # Two runs of one job are told apart.
    path = tmp_path / "events.jsonl"
    for _ in range(2):
        launch(*TWO, "--events", str(path), "--", "true", environ={"AZUREML_RUN_ID": "sunny_cat_42"})
    events = read(path)
    assert {event["job"] for event in events} == {"sunny_cat_42"} and len({e["run"] for e in events}) == 2


def test_without_the_flag_nothing_of_it_is_loaded() -> None:
    """It costs a job nothing."""
    code = (
        "import os, sys\nfrom launcher.cli.entry import main\nstatus = main(['run', '--', 'true'])\n"
        "os.write(1, ' '.join(sys.modules).encode())\nos._exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env=clean_environ(), capture_output=True, text=True, check=True
    )
    loaded = done.stdout.split()
    assert "launcher.agent.agent" in loaded
    assert [name for name in loaded if name.startswith("launcher.events") or name == "json"] == []
    assert "launcher.agent.milestones" not in loaded
