"""What all ranks did, joined over the nodes: groups, their size in a message, and the screen."""

from __future__ import annotations

import json
import time

import pytest

from launcher.core.shorten import ROOM_BYTES, fit
from launcher.core.wire import render
from launcher.failure.model import Cause, RankGroup, Verdict
from launcher.failure.report import SCREEN_LINES_OF_MANY, render_text
from launcher.hang.job import JobEvidence
from launcher.hang.limits import LINES_MAX
from launcher.hang.model import Answer, Frame, Hung, Look, Looked, Quiet, Seen, Thread
from launcher.hang.packing import pack
from launcher.hang.report import describe_hang, make_groups
from tests.unit.test_verdict import PYTHON, TRACEBACK, dead, judge

REDUCE = Frame("/opt/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", 2501, "all_reduce")


def answer(rank: int, *frames: Frame, state: str = "S") -> Answer:
    """Return what the process of a rank has answered."""
    return Answer(
        rank, 100 + rank, "python train.py", state, "futex", "", "/job", True, (Thread("main", frames),)
    )


def script(line: int, function: str = "step") -> Frame:
    """Return a frame of the user's code."""
    return Frame("/job/train.py", line, function)


def with_evidence(verdict: Verdict, groups: tuple[RankGroup, ...]) -> Verdict:
    """Return a verdict with what the ranks did."""
    return Verdict(**{**vars(verdict), "evidence": groups})


def test_ranks_of_all_nodes_in_one_place_are_one_group() -> None:
    """And the one for which they wait comes last, with its whole stack."""
    ranks = [answer(rank, REDUCE, script(88)) for rank in (0, 1, 2, 4, 5, 6, 7)]
    waiting, missing = make_groups(
        [*ranks[:3], answer(3, script(41, "load"), script(9), state="D"), *ranks[3:]]
    )
    assert (waiting.ranks, waiting.differs) == ("0-2, 4-7", False)
    assert waiting.doing == (
        "ranks 0-2, 4-7 wait in all_reduce (torch/distributed/distributed_c10d.py:2501) <- train.py:88"
    )
    assert (missing.ranks, missing.differs) == ("3", True)
    assert missing.doing == "rank 3 waits for a device or a file system (state D) in load (train.py:41)"
    assert missing.stack == ("/job/train.py:41 load", "/job/train.py:9 step")


@pytest.mark.slow
def test_eight_thousand_ranks_are_joined_at_once_and_fit_into_a_message() -> None:
    """Each in a place of its own is the worst case; the one that differs is kept."""
    deep = [script(line) for line in range(60)]
    answers = [answer(rank, REDUCE, script(rank), *deep) for rank in range(8000) if rank != 4711]
    began = time.process_time()
    groups = make_groups([*answers, answer(4711, *deep, state="T")])
    assert time.process_time() - began < 30  # it is linear: a quadratic one needs minutes
    kept = fit(Seen(groups)).groups
    assert len(json.dumps([render(one) for one in kept])) <= ROOM_BYTES
    assert next(one.ranks for one in kept if one.differs) == "4711"


def test_the_report_of_a_thousand_ranks_is_one_screen_and_names_the_one_that_differs() -> None:
    """A long traceback, many ends and many places: under 40 lines with the path of the record."""
    groups = make_groups(
        [answer(rank, REDUCE, script(rank % 20)) for rank in range(999)] + [answer(999, script(3), state="T")]
    )
    others = [dead(rank, rank % 120 + 1, 1) for rank in range(1, 1000)]
    verdict = judge(dead(0, 1, stderr="x\n" * 50 + TRACEBACK * 9), others, [PYTHON])
    verdict = Verdict(**{**vars(with_evidence(verdict, groups)), "world_size": 1000})
    lines = render_text(verdict).splitlines()
    assert len(lines) <= SCREEN_LINES_OF_MANY < 39
    assert any("stacks: rank 999 is stopped (state T)" in line for line in lines)


def test_a_job_that_hung_has_its_stacks_once() -> None:
    """They stand in the stall report, right above the failure report."""
    cause = Cause("stalled", "no output for 8 s", "see the stacks above", None)
    groups = make_groups([answer(0, REDUCE, script(7)), answer(1, script(9))])
    verdict = with_evidence(judge(dead(0, -15), [], []), groups)
    assert "stacks: rank 0 waits in all_reduce" in render_text(verdict)
    stalled = Verdict(**{**vars(verdict), "causes": (cause,)})
    assert "stacks: " not in render_text(stalled)


def test_a_record_with_stacks_fits_into_a_frame() -> None:
    """Also one with many long ones."""
    groups = make_groups(
        [answer(rank, *[script(n, "f" * 300) for n in range(rank, rank + 60)]) for rank in range(60)]
    )
    verdict = fit(with_evidence(judge(dead(0, 1), [], [PYTHON]), groups))
    assert verdict.evidence and len(json.dumps(render(verdict))) <= ROOM_BYTES


def test_the_first_sentence_of_a_hang_names_rank_node_and_line() -> None:
    """Whichever node it is on; a node that does not answer comes before all."""
    answers = [answer(0, REDUCE, script(8)), answer(1, REDUCE, script(8)), answer(2, script(5, "load"))]
    places = {0: "node 0 (a)", 1: "node 0 (a)", 2: "node 1 (b)"}
    hang = describe_hang("no output for 10 min", answers, 3, places)
    assert hang.headline == (
        "stalled: no output for 10 min; rank 2 on node 1 (b) waits for a lock or a thread "
        "(train.py:5 in load), and the others wait"
    )
    assert hang.rank == 2
    hang = describe_hang("no output for 10 min", answers[:2], 3, places, ["node 1 (b)"])
    assert hang.headline.endswith("; node 1 (b) does not answer, and the others wait")


def test_a_report_has_limits() -> None:
    """A thousand ranks, a long name of a file, and what a node may answer."""
    # A thousand ranks in a thousand places are in the file with all stacks.
    hang = describe_hang("no output", [answer(rank, script(rank)) for rank in range(1000)], 1000, {})
    assert len(hang.lines) == LINES_MAX and hang.lines[-1] == "and 971 more"
    # A name of a file is the script's choice.
    ranks = [answer(0, REDUCE, Frame("/job/" + "x" * 9000 + ".py", 1, "f")), answer(1, script(40))]
    hang = describe_hang("no output for 10 min", ranks, 2, {})
    assert max(map(len, (hang.headline, *hang.lines))) <= 800


# --- on node 0


class Told:
    """What node 0 needs of the others: one more node that can be heard."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def make(self) -> JobEvidence:
        """Return the evidence of their job."""
        name = lambda node: f"node {node}"  # noqa: E731
        return JobEvidence(lambda: ([0, 1], []), name, name, 2, self.told.append, lambda *end: None)


def looked(line: int, number: int = 0) -> Looked:
    """Return what a node says about its rank."""
    return Looked(pack([answer(1, script(line))], threads=False), number)


def test_a_node_answers_once_so_that_what_is_kept_has_a_limit() -> None:
    job = Told()
    evidence = job.make()
    for line in range(1, 500):
        evidence.take(1, looked(line))
    assert len(evidence._threads) == 1
    evidence.share()
    (seen,) = job.told
    assert isinstance(seen, Seen)
    assert seen.groups[0].stack == ("/job/train.py:1 step",)


@pytest.mark.slow
def test_nodes_are_asked_only_when_all_are_quiet() -> None:
    """One that has work, or is quiet by turns, causes few questions."""
    job = Told()
    evidence = job.make()
    evidence.note_quiet(0, Quiet("no output for 10 min"))
    evidence.fire(1000, is_ending=False)
    assert job.told == []
    evidence.note_quiet(1, Quiet("no output for 10 min"))
    evidence.fire(1001, is_ending=False)
    assert [type(one) for one in job.told] == [Look]
    job = Told()
    evidence = job.make()
    evidence.note_quiet(0, Quiet("no output for 10 min"))
    for step in range(6000):  # ten minutes
        evidence.note_quiet(1, Quiet("no output for 10 min"))
        evidence.fire(1000 + step / 10, is_ending=False)
        evidence.take(0, looked(1, evidence._number))
        evidence.take(1, looked(step + 1, evidence._number))
        evidence.fire(1000 + step / 10, is_ending=False)
        evidence.note_quiet(1, Quiet())
    assert 10 < sum(isinstance(one, Look) for one in job.told) < 50
    assert len(evidence._threads) <= 2


def test_before_the_first_progress_of_any_node_a_longer_silence_is_no_stall() -> None:
    """The pattern matches where rank 0 prints: a node without it does not wait for a match of its own."""
    began = time.monotonic()
    for more_s, after_s, said in ((52.0, 60, " and 52 s more, before the first progress"), (0.0, 1, "")):
        job = Told()
        evidence = job.make()
        evidence.note_quiet(0, Quiet("no output for 8 s", more_s=more_s))
        evidence.note_quiet(1, Quiet("no output for 8 s", more_s=52.0))
        evidence.fire(began + after_s - 10, is_ending=False)
        assert [type(one) for one in job.told] == ([] if more_s else [Look])
        evidence.fire(began + after_s, is_ending=False)
        for node in (0, 1):
            evidence.take(node, looked(1, evidence._number))
        evidence.fire(began + after_s, is_ending=False)
        hung = job.told[-1]
        assert isinstance(hung, Hung) and hung.headline.startswith(f"stalled: no output for 8 s{said}")
