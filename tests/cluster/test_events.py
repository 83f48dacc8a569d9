"""The events and the spans of a job on several nodes: one run, one trace, and one file if they share it."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.rehearse.cluster import Cluster
from tests.cluster.together import Job
from tests.process.looking import wait_for
from tests.process.otlp import Span
from tests.process.starting import clean_environ

pytestmark = [pytest.mark.root, pytest.mark.xdist_group("events")]

PORT = 4318
FAILS_ONCE = """
import os, time
print("step 1", flush=True)
if "LAUNCHER_ATTEMPT" not in os.environ:
    if os.environ["RANK"] == "1":
        import no_such_module_anywhere
    time.sleep(600)
"""
FLAGS = ("--restarts", "1", "--restart-on", "any", "--restart-delay", "0")
WHY = """
    SELECT DISTINCT
        json_extract(line, '$.cause'),
        json_extract(line, '$.failed_node'), json_extract(line, '$.failed_rank')
    FROM events
    WHERE json_extract(line, '$.event') = 'first-failure' AND json_extract(line, '$.attempt') = 0
"""


@pytest.fixture
def two(cluster: Cluster, tmp_path: Path) -> Iterator[Job]:
    """Return a job on two nodes."""
    yield (one := Job(cluster, tmp_path))
    one.close()


@pytest.fixture
def receiver(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """Return the file with the spans that a receiver on node 0 gets."""
    path, node = tmp_path / "spans.jsonl", cluster.nodes[0]
    line = (sys.executable, "-m", "tests.process.otlp", "0.0.0.0", str(PORT), str(path))
    process = subprocess.Popen(
        cluster.argv(node, line), env=clean_environ(), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    yield path
    cluster.kill(process.pid, 9)
    process.kill()
    process.communicate()


def test_the_nodes_of_a_job_tell_one_story(two: Job, receiver: Path, tmp_path: Path) -> None:
    """Found by one query; the spans of all nodes are one trace, whose root is the job."""
    script, path = tmp_path / "train.py", tmp_path / "events.jsonl"
    script.write_text(FAILS_ONCE)
    endpoint = f"http://{two.cluster.nodes[0].address}:{PORT}"
    two.start_all(
        "--events",
        str(path),
        *FLAGS,
        str(script),
        environ={"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_TIMEOUT": "60"},
    )
    done = two.wait()
    assert {one.status for one in done.values()} == {0}, two.describe()

    lines = path.read_text().splitlines()
    events = [json.loads(line) for line in lines]
    assert {event["node"] for event in events} == {0, 1}
    (run,) = {event["run"] for event in events} - {None}
    assert {event["run"] for event in events if event["node"] == 0} == {run}
    started = [event for event in events if event["event"] == "attempt-started"]
    assert sorted((event["node"], event["attempt"]) for event in started) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    ended = [event for event in events if event["event"] == "attempt-ended" and event["attempt"] == 0]
    assert {event["node"]: event.get("failed_rank") for event in ended} == {0: None, 1: 1}, ended
    assert {event["event"] for event in events} >= {"roll-call", "gathered", "stop", "first-failure", "end"}

    assert [event["nodes"] for event in events if event["event"] == "gathered"] == [2, 2]

    base = sqlite3.connect(":memory:")
    base.execute("CREATE TABLE events (line TEXT)")
    base.executemany("INSERT INTO events VALUES (?)", [(line,) for line in lines])
    assert base.execute(WHY).fetchall() == [("import-error", 1, 1)]

    wait_for(lambda: receiver.read_text().count('"node"') >= 1, "the spans of node 1 are written")
    spans = [Span(*json.loads(line)) for line in receiver.read_text().splitlines()]
    named = {name: [span for span in spans if span.name == name] for name in {span.name for span in spans}}
    assert len({span.trace_id for span in spans}) == 1
    (job,), (node,) = named["job"], named["node"]
    assert not job.parent_id and node.parent_id == job.span_id
    assert job.attributes["launcher.run"] == node.attributes["launcher.run"] == run
    assert node.attributes["launcher.node"] == 1
    for name, count in (("start", 1), ("roll_call", 1), ("attempt", 2)):
        parents = sorted(span.parent_id for span in named[name])
        assert parents == sorted([job.span_id, node.span_id] * count), name


@pytest.mark.thorough
def test_a_node_that_waits_tells_so(two: Job, tmp_path: Path) -> None:
    """Before the nodes are together: the file grows, and a node that is not the first knows no run yet."""
    path = tmp_path / "events.jsonl"
    two.start(1, "--events", str(path), "--roll-call-timeout", "1", "--", "true")
    (done,) = two.wait().values()
    events = [json.loads(line) for line in path.read_text().splitlines()]
    assert events[0]["event"] == "start" and events[0]["run"] is None and events[0]["job"] is None
    assert events[-1]["event"] == "end" and events[-1]["status"] == done.status == 75
