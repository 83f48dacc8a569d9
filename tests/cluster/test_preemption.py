"""Machines that are taken back: the processes hear it in time, and all nodes end with 75."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.rehearse.cluster import Cluster
from tests.cluster.conftest import need_namespaces
from tests.cluster.metadata import Metadata, make_event
from tests.cluster.together import Job, assert_one_truth
from tests.process.looking import wait_for

pytestmark = [pytest.mark.root, pytest.mark.xdist_group("peers")]

# Trains until it is told to end, then saves a checkpoint, with what it has read about its deadline.
TRAIN = """
import json, os, signal, sys, time
folder, rank = sys.argv[1], os.environ["RANK"]
number = signal.Signals[sys.argv[2]] if len(sys.argv) > 2 else signal.SIGTERM
told = []
signal.signal(number, lambda *_: told.append(time.time()))
open(f"{folder}/trains-{rank}", "w").close()
while not told and not os.path.exists(f"{folder}/go"):
    time.sleep(0.02)
if told:
    with open(os.environ["LAUNCHER_DEADLINE"]) as file:
        deadline = json.load(file)
    with open(f"{folder}/checkpoint-{rank}.new", "w") as file:
        json.dump({"told": told[0], **deadline}, file)
    os.rename(f"{folder}/checkpoint-{rank}.new", f"{folder}/checkpoint-{rank}")
"""
AZURE = ("--preemption", "azure")
COMPLAINT = "metadata service gives no usable answer"
Start = Callable[[int], tuple[Job, list[Metadata]]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that makes so many nodes, each with a metadata service."""
    need_namespaces()
    cleanup: list[Callable[[], object]] = []

    def make(count: int) -> tuple[Job, list[Metadata]]:
        cluster = Cluster(count)
        cleanup.append(cluster.close)
        cluster.__enter__()
        services = [Metadata(cluster, node, tmp_path / f"metadata{node.index}") for node in cluster.nodes]
        cleanup.append((job := Job(cluster, tmp_path)).close)
        return job, services

    yield make
    for close in cleanup:  # with a cluster goes all that runs on it
        close()


def train(job: Job, *flags: str, number: str = "SIGTERM", per_node: int = 1) -> None:
    """Start training on all nodes, and wait until it is under way."""
    script = job.folder / "train.py"
    script.write_text(TRAIN)
    command = (sys.executable, str(script), str(job.folder), number)
    for node in job.cluster.nodes:
        record = {"LAUNCHER_FAILURE_FILE": str(job.folder / f"failure{node.index}.json")}
        job.start(node.index, *flags, "--", *command, per_node=per_node, environ=record)
    count = len(job.cluster.nodes) * per_node
    wait_for(lambda: len(list(job.folder.glob("trains-*"))) == count, "training", 120)


def read_json(path: Path) -> Any:
    """Return what a file holds."""
    return json.loads(path.read_text())


def finish_well(job: Job) -> dict[int, str]:
    """Let the job end by itself, hold that it does with 0, and return what the launchers have said."""
    (job.folder / "go").touch()
    done = job.wait()
    assert {one.status for one in done.values()} == {0}, [one.err for one in done.values()]
    return {name: one.err for name, one in done.items()}


# --- on one node


def test_a_spot_machine_that_is_taken_back_leaves_a_checkpoint_and_75(start: Start) -> None:
    """What, when and who in one line; the processes know until when; the record says that a retry helps."""
    job, (service,) = start(1)
    train(job, *AZURE, per_node=2)
    event = make_event("Preempt", 30)
    service.answer_events([event])
    done = job.wait()[0]
    assert done.status == 75, done.err
    assert "node 0 ended first: it was preempted" in done.first[0]
    said = [
        line
        for line in done.err.splitlines()
        if "reclaims this spot machine (scheduled event Preempt" in line
    ]
    assert len([line for line in said if "SIGTERM to 2 processes, SIGKILL after 2" in line]) == 1, done.err
    record = read_json(job.folder / "failure0.json")
    assert (record["retryable"], record["causes"][0]["code"], record["exit_status"]) == (
        True,
        "preempted",
        75,
    )
    assert [other["exit_status"] for other in record["others"]] == [0, 0]
    for rank in (0, 1):
        saved = read_json(job.folder / f"checkpoint-{rank}")
        assert saved["reason"] == "preempted" and saved["told"] < saved["deadline"] < saved["told"] + 31


def test_an_event_that_is_withdrawn_is_withdrawn(start: Start) -> None:
    """Announced with time to spare, the processes can read it; gone again, the job goes on."""
    job, (service,) = start(1)
    train(job, *AZURE, "--grace", "5", "--log-dir", str(job.folder / "logs"))
    service.answer_events(
        [make_event("Reboot", 900, Description="Host server\x1b[2J is undergoing maintenance.")]
    )
    wait_for(lambda: job.says(0, "restarts this machine (scheduled event Reboot"), "the announcement")
    (file,) = (job.folder / "logs").glob("*/deadline.json")
    assert 800 < read_json(file)["deadline"] - time.time() < 900
    service.answer_events([])
    wait_for(lambda: job.says(0, "withdrawn: Azure restarts this machine"), "the withdrawal")
    assert not file.exists()
    said = finish_well(job)[0]
    assert "SIGTERM in 88" in said and "unless it is withdrawn" in said and "\x1b" not in said


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("404", "status 404"),
        ("malformed", "not JSON"),
        ("slow", "no answer within 4 s"),
        ("silent", "no answer within 4 s"),
        ("oversized", "an answer of more than 64 KiB"),
        ("absent", "Connection refused"),
    ],
)
def test_a_service_that_does_not_answer_well_is_said_once(start: Start, how: str, why: str) -> None:
    """The job knows nothing of it; when it answers again, what it says counts."""
    job, (service,) = start(1)
    train(job, *AZURE)
    wait_for(
        lambda: "GET /metadata/scheduledevents?api-version=2020-07-01" in service.requests(), "a question"
    )
    if how == "absent":
        service.close()
    service.behave(how)
    wait_for(lambda: job.says(0, COMPLAINT), "the complaint")
    before = time.monotonic()
    wait_for(lambda: how == "absent" or len(service.requests()) >= 4, "more questions")
    wait_for(lambda: time.monotonic() > before + 5, "five seconds")
    assert f"({why})" in job.errors[0].read_text()
    if how != "absent":
        service.behave("well")
        wait_for(lambda: job.says(0, "metadata service answers now"), "an answer")
    said = finish_well(job)[0]
    assert said.count(COMPLAINT) == 1 and "internal launcher error" not in said


def test_google_says_it_in_a_word(start: Start) -> None:
    """TRUE means that 30 seconds are left."""
    job, (service,) = start(1)
    train(job, "--preemption", "gcp")
    wait_for(lambda: "GET /computeMetadata/v1/instance/preempted" in service.requests(), "a question")
    service.answer_preempted()
    done = job.wait()[0]
    assert done.status == 75 and "instance/preempted is TRUE" in done.err, done.err
    assert 25 < read_json(job.folder / "checkpoint-0")["deadline"] - time.time() + 10 < 41


@pytest.mark.parametrize(
    ("flags", "dedicated", "is_asked"),
    [((), None, False), ((), "true", False), ((), "false", True), (("--preemption", "off"), "false", False)],
)
def test_nobody_is_asked_without_evidence(
    start: Start, flags: tuple[str, ...], dedicated: str | None, is_asked: bool
) -> None:
    """No connection is made to the service unless the platform, or the user, has said something."""
    job, (service,) = start(1)
    environ = {} if dedicated is None else {"AZ_BATCH_NODE_IS_DEDICATED": dedicated}
    go = job.folder / "go"
    script = f"echo ${{LAUNCHER_DEADLINE-none}}; while [ ! -e {go} ]; do sleep 0.05; done"
    job.start(0, *flags, "--", "sh", "-c", script, environ=environ)
    started = time.monotonic()
    if is_asked:
        wait_for(lambda: service.requests(), "a question")
    else:
        wait_for(lambda: time.monotonic() > started + 4, "four seconds")
    go.touch()
    done = job.wait()[0]
    assert done.status == 0 and bool(service.requests()) == is_asked
    assert done.out.strip().endswith("deadline.json" if is_asked else "none")


@pytest.mark.thorough
def test_a_failure_that_came_first_is_the_verdict(start: Start) -> None:
    """An event of a machine whose job has failed already changes nothing about that."""
    job, (service,) = start(1)
    script = "[ $RANK = 1 ] && exit 9; trap '' TERM; while :; do sleep 0.05; done"
    service.answer_events([make_event("Reboot", 900)])
    job.start(0, *AZURE, "--grace", "8", "--", "sh", "-c", script, per_node=2)
    wait_for(lambda: job.says(0, "stopping the other"), "the failure")
    service.answer_events([make_event("Preempt", 20)])
    done = job.wait()[0]
    assert done.status == 9 and "rank 1 of 2 failed first" in done.first[0], done.err


# --- on several


def test_all_nodes_end_when_the_machine_of_one_is_taken_back(start: Start) -> None:
    """All processes save their checkpoint; one verdict, one status, one record."""
    job, services = start(2)
    train(job, *AZURE, per_node=2)
    services[1].answer_events([make_event("Preempt", 30)])
    done = job.wait()
    assert_one_truth(done, 75, "node 1 ended first: it was preempted")
    assert "node1" in done[0].err and "SIGTERM to 2 processes" in done[0].err
    records = [read_json(job.folder / f"failure{node}.json") for node in (0, 1)]
    own = ("started", "seconds", "timings")  # each node's own
    assert [{**one, **dict.fromkeys(own)} for one in records] == [{**records[0], **dict.fromkeys(own)}] * 2
    assert (records[0]["retryable"], records[0]["causes"][0]["code"]) == (True, "preempted")
    saved = [read_json(job.folder / f"checkpoint-{rank}") for rank in range(4)]
    assert max(one["told"] for one in saved) - min(one["told"] for one in saved) < 3
    assert max(one["deadline"] for one in saved) - min(one["deadline"] for one in saved) < 3


def test_keep_going_stops_only_the_node_that_goes(start: Start) -> None:
    """The others are told, and end by themselves; the verdict is the same."""
    job, services = start(2)
    train(job, *AZURE, "--keep-going")
    services[1].answer_events([make_event("Preempt", 30)])
    wait_for((job.folder / "checkpoint-1").exists, "the checkpoint of the node that goes")
    wait_for(lambda: job.says(0, "--keep-going: this node goes on"), "node 0 is told")
    assert job.launchers[0].poll() is None and not (job.folder / "checkpoint-0").exists()
    (job.folder / "go").touch()
    assert_one_truth(job.wait(), 75, "node 1 ended first: it was preempted")


# --- restarts


@pytest.mark.parametrize("count", [1, 2])
def test_a_machine_that_is_taken_back_before_a_restart_ends_the_job_with_75(start: Start, count: int) -> None:
    """Nothing runs while the restart waits; the platform is to start the job again all the same."""
    job, services = start(count)
    flags = (*AZURE, "--restarts", "9", "--restart-delay", "50")
    for node in job.cluster.nodes:
        job.start(node.index, *flags, "--", "sh", "-c", "exit 3")
    wait_for(lambda: job.says(0, "restart 2 of 9 in"), "the wait for a restart")
    services[-1].answer_events([make_event("Preempt", 20)])
    done = job.wait()
    assert {one.status for one in done.values()} == {75}, [one.err for one in done.values()]
    what = "the platform is reclaiming this node" if count == 1 else "node 1 (node1) is being reclaimed"
    assert f"no restart: {what}" in done[0].err, done[0].err
