"""What of a verdict is right: the rank, its node, the cause, the advice on a retry, the exit code."""

from __future__ import annotations

import re
from typing import NamedTuple

from benchmarks.truth.jobs import Outcome, World
from launcher.core.blocks import Block

ROOT_CAUSE = re.compile(
    r"Root Cause \(first observed failure\):\n\[0\]:\n"
    r"\s+time\s+: (?P<time>\S+)\n.*?\n\s+rank\s+: (?P<rank>\d+)",
    re.S,
)
FIRST_FAILED = re.compile(
    r"\[(?P<time>[^\]]+)\] \[ERROR\] .* failed \(exitcode: \S+\) local_rank: (?P<rank>\d+)"
)
"""What ft_launcher's agent of a node logs, with milliseconds."""


class Verdict(NamedTuple):
    """Of each part whether it is right; None if the launcher says nothing of it.

    Attributes:
        rank, node, cause, retry: See the module.
        status: Whether no launcher ended with 0; for ours, whether all ended with one exit code.
        clean: Whether no rank was left, and no launcher ran on.
        seconds: From the fault to the end; None if a launcher ran on.
        said: The verdict in a few words.
    """

    rank: bool | None
    node: bool | None
    cause: bool | None
    retry: bool | None
    status: bool
    clean: bool
    seconds: float | None
    said: str


def judge(launcher: str, fault: Block, victim: int, world: World, outcome: Outcome) -> Verdict:
    """Return what is right."""
    known = [status for status in outcome.statuses if status is not None]
    status = bool(known) and 0 not in known and (launcher != "ours" or len(set(known)) == 1)
    clean = outcome.left == 0 and outcome.ended_s is not None
    read = {"ours": _read_ours, "torchrun": _read_torchruns, "ft_launcher": _read_ft_launchers}[launcher]
    rank, node, cause, retry, said = read(fault, victim, victim // world.each, world, outcome)
    return Verdict(rank, node, cause, retry, status, clean, outcome.ended_s, said)


Said = tuple[bool | None, bool | None, bool | None, bool | None, str]


def _read_ours(fault: Block, victim: int, node: int, world: World, outcome: Outcome) -> Said:
    """Read the record: of a node that is left, because a node that was cut off sees the others vanish."""
    others = [record for index, record in enumerate(outcome.records) if index != node]
    record = next(filter(None, [*others, outcome.records[node]]), None)
    if record is None:
        return None, None, None, None, "no record"
    causes, retryable = record["causes"], record["retryable"]
    code = causes[0]["code"] if causes else "-"
    if code == "stalled":
        what = causes[0]["what"]
        names_node = names_rank = f"rank {victim} on node {node} " in what and what.count(" on node ") == 1
    else:
        names_node = record["node_rank"] == node
        names_rank = record["rank"] == victim or (names_node and fault.fields["acts"] == "node")
    retry = None if retryable is None else retryable == (fault.fields["retry"] == "helps")
    return names_rank, names_node, code in fault.words("codes"), retry, f"{code}: {record['verdict']}"


def _read_torchruns(fault: Block, victim: int, node: int, world: World, outcome: Outcome) -> Said:
    """Read the root causes of all agents: the earliest counts, and each of one and the same second."""
    found = [
        (match["time"], int(match["rank"])) for text in outcome.outputs for match in ROOT_CAUSE.finditer(text)
    ]
    return _judge_first(found, fault, victim, node, world, outcome)


def _read_ft_launchers(fault: Block, victim: int, node: int, world: World, outcome: Outcome) -> Said:
    """Read the failures that the agents log, with the rank in the node."""
    found = [
        (match["time"], index * world.each + int(match["rank"]))
        for index, text in enumerate(outcome.outputs)
        for match in FIRST_FAILED.finditer(text)
    ]
    return _judge_first(found, fault, victim, node, world, outcome)


def _judge_first(
    found: list[tuple[str, int]], fault: Block, victim: int, node: int, world: World, outcome: Outcome
) -> Said:
    """Judge failures by their times, which have no zone, and ranks."""
    words = fault.fields["words"].split("|")
    cause = any(word in text for text in outcome.outputs for word in words) if words != ["-"] else False
    if not found:
        return None, None, cause, None, "no rank is named"
    first = min(at for at, _ in found)
    ranks = sorted({rank for at, rank in found if at == first})
    names_node = node in {rank // world.each for rank in ranks}
    names_rank = victim in ranks or (names_node and fault.fields["acts"] == "node")
    return names_rank, names_node, cause, None, f"first: rank {', '.join(map(str, ranks))}"
