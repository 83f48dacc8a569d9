"""Right or a named refusal, never a wrong rank, size, node or master, never an exception of another kind.

Thousands of jobs whose truth is known (`tests.unit.platforms_model`), made worse at random
(`tests.unit.perturbations`); every process of each is judged (`tests.unit.truth_judge`). The counts stand
at the end of pytest's output. A wrong case is shown with its seed and a command that repeats it;
LAUNCHER_TEST_EXPLORE=1 tries ten times as many, others in each run.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.thorough import FEW_STARTERS, all_but
from tests.unit import truth_judge
from tests.unit.forwarded import SETS, fill, tf_config
from tests.unit.perturbations import PERTURBATIONS, Case, firsts, is_cloud, is_silent, throw_together
from tests.unit.platforms_model import EXPLORE, Job, Node
from tests.unit.starters_model import EVERY, ONE_EACH
from tests.unit.truth_judge import (
    Answer,
    Fix,
    Tally,
    answer,
    count_per_start,
    find_impossible,
    find_others,
    read_fixes,
)

SEEDS = 35 * (10 if EXPLORE else 1)
"""Jobs of each platform and kind: 30,100 in all."""
FIRST = int.from_bytes(os.urandom(4), "big") if EXPLORE else 0
MIXES = 20_000
SHOWN = 3
Record = Callable[[str, object], None]


def judge(case: Case, tally: Tally, seed: object) -> None:
    """Plan every start of a case, and count what came out."""
    answers = [answer(start.recording(case.job.gpus)) for start in case.starts]
    wrong = _find_wrong(case, answers)
    if wrong:
        tally.wrong.append(_describe(case, answers, wrong, seed))
    elif _find_wrong(replace(case, blind=frozenset()), answers):
        tally.blind += 1
    elif any(found.code for found in answers):
        tally.refused[next(found.code for found in answers if found.code)] += 1
    else:
        tally.right += 1


def _find_wrong(case: Case, answers: Sequence[Answer]) -> str:
    if case.ends and any(found.code and s.rank == 0 for s, found in zip(case.starts, answers, strict=True)):
        return ""
    known = [
        Answer(fault=found.fault) if start.rank in case.blind else found
        for start, found in zip(case.starts, answers, strict=True)
    ]
    of_zero = [
        found if start.rank == 0 else Answer() for start, found in zip(case.starts, known, strict=True)
    ]
    if case.heads and (wrong := _judge(case, of_zero, case.aliases)):
        return wrong
    return _judge(case, known, case.aliases | case.heads)


def _judge(case: Case, answers: Sequence[Answer], aliases: frozenset[str]) -> str:
    return truth_judge.find_wrong(
        case.platform, case.job, case.starts, answers, ports=case.ports, aliases=aliases
    )


def _describe(case: Case, answers: list[Answer], wrong: str, seed: object) -> str:
    sizes = [node.size for node in case.job.nodes]
    shape = f"nodes of {sizes}{' cyclic' if case.job.cyclic else ''}, {case.job.gpus} GPUs"
    text = f"{case.name}, {case.done}; {shape}; seed {seed!r}: {wrong}"
    for start in case.starts:
        alone = [
            found if other is start else Answer() for other, found in zip(case.starts, answers, strict=True)
        ]
        if _find_wrong(case, alone):
            return f"{text}\n  {truth_judge.command(start.recording(case.job.gpus))}"
    # Two that cannot both be right: most often the first node's is, and all the others are as it is
    return f"{text}\n  {truth_judge.command(case.starts[-1].recording(case.job.gpus))}"


def check(tally: Tally, record: Record, kind: str) -> None:
    """Hand the counts to the summary, and fail where anything was wrong."""
    record("truth", tally.render(kind))
    shown = "\n".join(tally.wrong[:SHOWN])
    assert not tally.wrong, f"{len(tally.wrong)} wrong, {min(SHOWN, len(tally.wrong))} of them:\n{shown}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", PERTURBATIONS)
def test_a_job_made_worse_is_right_or_refused(kind: str, record_property: Record) -> None:
    """Every process of the job, with what is hidden, empty, forwarded, left over, around or perturbed."""
    tally = Tally()
    for name in EVERY:
        for number in range(FIRST, FIRST + SEEDS):
            seed = f"{kind} {name} {number}"
            judge(PERTURBATIONS[kind](random.Random(seed), name), tally, seed)
    check(tally, record_property, kind)


def follow(case: Case, fix: Fix) -> tuple[Case, list[Answer]]:
    """Return a job whose user has typed a fix in each start, and what the launcher makes of it."""
    zero = next(start for start in case.starts if start.rank == 0)
    count = len({start.node.index for start in case.starts})
    starts = case.outside if fix.outside and case.outside else case.starts
    typed, answers = [], []
    for start in starts:
        truth = {"N": str(count), "R": str(start.node.index), "HOST": zero.node.address}
        if ("nproc_per_node", "N") in fix.flags:
            truth["N"] = str(count_per_start(case.platform, case.job))
        flags = {name: truth.get(value, value) for name, value in fix.flags}
        if "hosts" in flags:  # HOST,...
            flags["hosts"] = ",".join(one.node.address for one in firsts(case.starts))
        environ = {name: value for name, value in start.environ.items() if name not in fix.unset}
        typed.append(replace(start, environ={**environ, **dict(fix.sets)}))
        answers.append(answer(typed[-1].recording(case.job.gpus), flags))
    return replace(case, starts=tuple(typed)), answers


def judge_fix(case: Case, fix: Fix, before: tuple[tuple[str, str], ...]) -> str:
    """Return where a fix leads: ``right``, ``next stop``, ``same stop``, or what is wrong with it."""
    typed, answers = follow(case, fix)
    per_node = case.platform.per_node
    if fix.outside and not case.outside:
        return "right"  # the user knows that nothing runs inside of another job
    if fix.one_each and len(case.starts) > len({start.node.index for start in case.starts}):
        return "right"  # the user knows that some share a node
    if ("scope", "process" if per_node else "node") in fix.flags or (
        not per_node and "node_rank" in dict(fix.flags)
    ):
        return "right"  # the user knows how often the launcher was started
    if fix.is_alone:
        answers = [Answer() if _is_alone(found) else found for found in answers]
    blind = {start.rank for start in typed.starts if is_silent(case, start)}
    wrong = _find_wrong(replace(typed, blind=case.blind | blind), answers)
    if wrong:
        return wrong
    if any(found.problems == before for found in answers):
        return "same stop"
    return "next stop" if any(found.code for found in answers) else "right"


def _is_alone(found: Answer) -> bool:
    return all(seen.get("LOCAL_WORLD_SIZE") == seen["WORLD_SIZE"] for seen in found.seen)


WAYS = ("right", "next stop", "same stop")
"""Where a fix can lead, the best first; anything else is wrong."""
BY_CHANCE = ("changed", "swapped")
"""Numbers drawn at random: their fix is the right number."""
FIXES = 3


@pytest.mark.slow
@pytest.mark.parametrize("name", all_but(FEW_STARTERS, EVERY))
def test_a_fix_typed_literally_leads_to_a_right_job_or_the_next_stop(
    name: str, record_property: Record
) -> None:
    """Each way out that the first refusal of a job names; of two variables the user knows the wrong one."""
    tally = Tally()
    for kind in PERTURBATIONS.keys() - set(BY_CHANCE):
        for number in range(FIRST, FIRST + FIXES):
            seed = f"{kind} {name} {number}"
            case = PERTURBATIONS[kind](random.Random(seed), name)
            answers = [answer(start.recording(case.job.gpus)) for start in case.starts]
            before = next((found.problems for found in answers if found.code), ())
            for what, fix in before:
                for choice in read_fixes(fix):
                    ends = [judge_fix(case, one, before) for one in choice]
                    best = min(ends, key=lambda end: WAYS.index(end) if end in WAYS else len(WAYS))
                    tally.right += best == WAYS[0]
                    tally.refused["next stop"] += best == WAYS[1]
                    if best not in WAYS[:2]:
                        tally.wrong.append(f"{what}; fix {fix!r}: {best}; {choice}; seed {seed!r}")
    check(tally, record_property, "fixes, typed")


@pytest.mark.slow
@pytest.mark.parametrize("part", all_but("0", map(str, range(MIXES // 1000))))
def test_variables_thrown_together_are_a_possible_job_or_refused(part: str, record_property: Record) -> None:
    """Whatever stands together: each plan is one that some job has, each refusal has a name."""
    tally = Tally()
    for number in range(FIRST + int(part) * 1000, FIRST + int(part) * 1000 + 1000):
        rng = random.Random(f"mix {number}")
        start = throw_together(rng)
        recording = start.recording(rng.choice((None, 0, 0, 2)))
        found = answer(recording)
        own = {start.node.hostname, start.node.address}
        asked = "LAUNCHER_MASTER_ADDR" in start.environ  # the user's word, which no list overrules
        others = set() if asked else find_others(start.environ, own)
        wrong = [find_impossible(seen, own, others) for seen in found.seen]
        reason = found.fault or next(filter(None, wrong), "")
        if reason:
            tally.wrong.append(f"seed 'mix {number}': {reason}\n  {truth_judge.command(recording)}")
        elif found.code:
            tally.refused[found.code] += 1
        else:
            tally.right += 1
    check(tally, record_property, "thrown together")


SHAPES = (
    ((1, 1), False, 0),
    ((1, 1), False, 2),
    ((2, 2), False, 2),
    ((2, 2), True, 0),
    ((3, 1), False, 0),
    ((2,), False, 0),
)
"""Processes of each node, whether they are dealt like cards, and GPUs of each node."""
STARTERS = [name for name in EVERY if not is_cloud(name)]


@pytest.mark.slow
@pytest.mark.parametrize("name", all_but(FEW_STARTERS, STARTERS))
def test_what_the_head_hands_to_every_process_makes_none_wrong(name: str, record_property: Record) -> None:
    """Each starter with each name that a shell or the head can forward: its own numbers, or a refusal."""
    tally = Tally()
    for sizes, cyclic, gpus in SHAPES:
        case = _shape(name, sizes, cyclic, gpus)
        if case is None:
            continue
        handed = [fill(names, case.job.nodes) for names in SETS]
        if not case.platform.per_node:
            handed.append(tf_config(case.job.nodes))  # one process has all GPUs of its node
        for names in handed:
            starts = tuple(replace(s, environ={**names, **s.environ}) for s in case.starts)
            words = ", ".join(f"{key}={value}" for key, value in names.items())
            handed_case = replace(case, starts=starts, done=f"{words} in all", aliases=frozenset(("algo-1",)))
            judge(handed_case, tally, sizes)
    check(tally, record_property, "table of forwarded")


def _shape(name: str, sizes: Sequence[int], cyclic: bool, gpus: int) -> Case | None:
    """Return a job of a shape; None of one that this platform does not start."""
    platform = EVERY[name]
    per_node = platform.per_node or name in ONE_EACH
    uneven = len(set(sizes)) > 1
    if (per_node and max(sizes) > 1) or (platform.blocks and cyclic) or (platform.even and uneven):
        return None
    if gpus and not platform.per_node and set(sizes) != {gpus}:
        return None
    nodes = tuple(Node(i, f"node{i}", f"10.0.0.{i + 4}", size) for i, size in enumerate(sizes))
    job = Job(nodes, cyclic, gpus, seed=1)
    starts = tuple(platform.start(job))
    if platform.per_node and gpus:  # a number in place of GPUs, where those would be counted as well
        starts = tuple(
            replace(s, environ={**s.environ, "LAUNCHER_NPROC_PER_NODE": str(gpus)}) for s in starts
        )
    return Case(name, job, starts)
