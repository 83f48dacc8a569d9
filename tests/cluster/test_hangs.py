"""Jobs that hang, and jobs of which one rank fails: the rank that differs and its line, said on all nodes.

PyTorch and gloo on 2 simulated nodes with 2 ranks each; see `tests.cluster.hanging.hang` for what the
rank that differs does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from tests.cluster.hanging import jobs
from tests.cluster.together import Done, Job

pytestmark = [pytest.mark.root, pytest.mark.torch, pytest.mark.thorough]

HANGS = {
    "skip": ("skip", "others"),
    "elsewhere": ("elsewhere", "others"),
    "spin": ("spin", "others"),
    "fifo": ("fifo", "others"),
    "stopped": ("stopped", "others"),
    "loader": ("loader", "others"),
    "absent": ("skip", "init"),
    "barrier": ("skip", "barrier"),
    "monitored": ("skip", "monitored"),
    "ddp": ("skip", "ddp"),
}
"""What the rank that differs does: the marks of its line and of the line of the others in hang.py."""
LINES_MAX = 24


def assert_named(job: Job, done: Mapping[int, Done], kind: str, rank: int) -> None:
    """The report on node 0 and the records of all nodes name the rank that differs, its line, the others'."""
    own, others = (jobs.find_line(mark) for mark in HANGS[kind])
    count = jobs.PER_NODE * len(job.cluster.nodes)
    report = jobs.read_stall(done[0].err)
    assert report and jobs.names_rank(report[0], rank), done[0].err
    text = "\n".join(report)
    assert re.search(own, text) and re.search(others, text), text
    assert f"ranks {jobs.others_than(rank, count)} " in text, text
    assert len(report) <= LINES_MAX
    for node in job.cluster.nodes:
        record = jobs.read_record(job, node.index)
        assert jobs.names_rank(record["verdict"], rank), record["verdict"]
        assert re.search(own, record["verdict"]), record["verdict"]
        assert re.search(own, jobs.find_evidence(record, str(rank))), record["evidence"]
        assert re.search(others, jobs.find_evidence(record, jobs.others_than(rank, count)))


@pytest.mark.parametrize(
    "kind",
    ["skip", "spin", "fifo", "stopped", "ddp", "elsewhere", "loader", "absent", "barrier", "monitored"],
)
def test_the_rank_that_differs_is_named_on_two_nodes(pair: Job, kind: str) -> None:
    """Rank 3 of 4, which is on node 1: the first sentence on node 0, and all records."""
    jobs.start(pair, kind, 3, *jobs.STOPS)
    done = pair.wait()
    assert {one.status for one in done.values()} == {75}, pair.describe()
    assert_named(pair, done, kind, 3)


@pytest.mark.parametrize(("kind", "rank"), [("skip", 3), ("spin", 1), ("loader", 2)])
def test_a_report_ends_nothing(pair: Job, kind: str, rank: int) -> None:
    """Without --on-stall stop: the same first sentence and lines, and the job runs on."""
    jobs.start(pair, kind, rank, *jobs.REPORTS)
    own, others = (jobs.find_line(mark) for mark in HANGS[kind])

    def is_reported() -> bool:
        text = "\n".join(jobs.read_stall(pair.errors[0].read_text()))
        return bool(re.search(own, text) and re.search(others, text))

    pair.wait_until(is_reported, "the stall is reported", 30)
    (first, *_) = jobs.read_stall(pair.errors[0].read_text())
    assert jobs.names_rank(first, rank), first
    assert all(one.poll() is None for one in pair.launchers.values())
    jobs.end(pair)


@pytest.mark.thorough
def test_a_worker_of_a_loader_is_shown_with_its_rank(pair: Job) -> None:
    """The rank waits for it in the DataLoader: the line in the worker's code is what a user needs."""
    jobs.start(pair, "loader", 3, *jobs.STOPS)
    done = pair.wait()
    assert re.search(jobs.find_line("worker"), "\n".join(jobs.read_stall(done[0].err))), done[0].err


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["shorter", "longer"])
def test_tensors_of_two_lengths_end_the_job(pair: Job, kind: str) -> None:
    """gloo ends a rank that receives more than it expects: rank 3 if its tensor is shorter, else another one.

    Who has sent too much cannot be seen then: the others lose their connections at once, and end, too.
    """
    jobs.start(pair, kind, 3, *jobs.STOPS)
    done = pair.wait()
    assert {one.status for one in done.values()} == {134}, pair.describe()
    rank = jobs.read_record(pair, 0)["rank"]
    assert (rank == 3) == (kind == "shorter")
    line = jobs.find_line("shorter" if rank == 3 else "others")
    for index, one in done.items():
        (first,) = one.first
        assert jobs.names_rank(first, rank), first
        report = "\n".join(jobs.read_failure(one.err))
        assert "Received data size doesn't match expected size" in report and re.search(line, report), report
        record = jobs.read_record(pair, index)
        assert record["rank"] == rank and re.search(line, record["traceback"]), record


def assert_survivors(job: Job, done: Mapping[int, Done], rank: int, mark: str) -> None:
    """The reports and records of all nodes show where the others were when this rank failed."""
    others = jobs.others_than(rank, jobs.PER_NODE * len(job.cluster.nodes))
    line = jobs.find_line(mark)
    for index, one in done.items():
        (first,) = one.first
        assert jobs.names_rank(first, rank), first
        report = jobs.read_failure(one.err)
        assert re.search(rf"ranks {others} wait.*{line}", "\n".join(report)), one.err
        assert len(report) <= LINES_MAX, one.err
        assert report[-1].endswith(str(jobs.failure_file(job, index))), one.err
        record = jobs.read_record(job, index)
        assert record["rank"] == rank
        assert re.search(line, jobs.find_evidence(record, others)), record["evidence"]


FAILURES = {"killed": "others", "early": "init"}
"""What the rank that fails does, and where the others wait; most others of gloo fail with it at once."""


@pytest.mark.parametrize("kind", FAILURES)
def test_a_failure_shows_where_the_others_were_on_two_nodes(pair: Job, kind: str) -> None:
    """Without --stall-timeout: rank 1, on node 0, fails."""
    jobs.start(pair, kind, 1)
    assert_survivors(pair, pair.wait(), 1, FAILURES[kind])


def test_a_paused_node_is_named_before_it_is_lost(job: Job) -> None:
    """Its launcher and ranks are stopped: no rank of the others differs, and it does not answer."""
    done = jobs.run_paused(job, 2)
    report = jobs.read_stall(done[0].err)
    assert report and "node 2" in report[0], done[0].err
    assert re.search(jobs.find_line("others"), "\n".join(report)), done[0].err
    for index, one in done.items():
        (first,) = one.first
        assert "node 2" in first, first
        record = jobs.read_record(job, index)
        assert record["node_rank"] == 2
        assert re.search(jobs.find_line("others"), jobs.find_evidence(record, "0-3, 6-7")), record
