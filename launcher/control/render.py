"""Renders what the nodes of a job have answered: their stacks, or what a program has written there. Pure.

Of stacks: where each rank waits, then each stack once.
"""

from __future__ import annotations

import json

from launcher.control.received import Message, number, words
from launcher.control.table import View
from launcher.core.errors import EXIT_NOT_READY
from launcher.core.ranks import name_ranks
from launcher.core.redact import printable, redact
from launcher.hang.packing import unpack
from launcher.hang.places import Group, find_speakers
from launcher.hang.report import name_processes, render_report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.hang.model import Answer

VERSION = 1
LINES_MAX = 20_000
"""Maximum number of lines of stacks: a malicious sender could make many lines from little data."""
OTHERS_MAX = 256


def render_text(view: View, *, threads: bool) -> str:
    """Return all stacks as text, and the ranks without a stack, with the reason."""
    answers = read_answers(view)
    world = number(view.nodes[0][1], "world_size") if view.nodes else None
    lines = render_report(answers, None if world is None else int(world)) if answers else []
    lines += name_missing(view)
    lines += [line for item in group(answers, threads=threads) for line in ("", *item)][:LINES_MAX]
    return "".join(f"{printable(redact(line))}\n" for line in lines)


def read_answers(view: View) -> list[Answer]:
    """Return the processes of all nodes, sorted by rank."""
    found = [answer for _, message in view.nodes for answer in unpack(message)]
    return sorted(found, key=lambda answer: answer.rank)


def name_missing(view: View) -> list[str]:
    """Return lines on the ranks without a stack, and on incomplete answers."""
    lines = [f"node {node}: {why}" for node, why in view.silent]
    for node, message in view.nodes:
        others = message.get("others")
        for line in (others if isinstance(others, list) else [])[:OTHERS_MAX]:
            lines += [f"{line} (node {node})"] if isinstance(line, str) else []
        error = words(message, "error")
        lines += [f"node {node}: {error}"] if error else []
        if message.get("cut") is True:
            lines.append(f"node {node}: its stacks are cut: they are too long for one answer")
    return [*lines, *([view.note] if view.note else [])]


def group(answers: Sequence[Answer], *, threads: bool) -> list[list[str]]:
    """Return the lines of each distinct stack, with all processes in it; the stacks of ranks come first."""
    speakers = {(answer.rank, answer.pid) for answer in find_speakers(answers)}
    found: dict[object, list[Answer]] = {}
    for answer in answers:
        below = (answer.rank, answer.pid) not in speakers
        if below and not answer.threads:
            continue  # a shell around a rank
        shown = answer.threads if threads else answer.threads[:1]
        same: object = (
            (below, tuple(thread.frames for thread in shown)) if shown else (answer.rank, answer.pid)
        )
        found.setdefault(same, []).append(answer)
    ordered = sorted(found.values(), key=lambda one: (one[0].rank, one[0].pid) not in speakers)
    return [_render(members, threads=threads, speakers=speakers) for members in ordered]


def _render(members: Sequence[Answer], *, threads: bool, speakers: set[tuple[int, int]]) -> list[str]:
    first = members[0]
    is_rank = (first.rank, first.pid) in speakers
    names = name_ranks(answer.rank for answer in members) if is_rank else name_processes("below", members)
    if not first.threads:
        return [Group(tuple(members), None).render(names)]
    lacks = f"; no C functions: {first.why}" if first.why else ""
    lines = [f"{names}, innermost first ({first.means}{lacks}):"]
    for thread in first.threads if threads else first.threads[:1]:
        lines += [*([f"  {thread.name}"] if threads else []), *thread.render()]
    return lines


def render_json(view: View) -> str:
    """Return the stacks as JSON for tools; characters that are not ASCII are escaped."""
    processes: list[Message] = [
        {
            **{name: value for name, value in vars(answer).items() if name != "threads"},
            "threads": [
                {"name": thread.name, "frames": [dict(vars(frame)) for frame in thread.frames]}
                for thread in answer.threads
            ],
        }
        for answer in read_answers(view)
    ]
    document = {"version": VERSION, "processes": processes, "missing": name_missing(view)}
    return json.dumps(document, indent=1) + "\n"


def render_run(view: View, nodes: Sequence[int]) -> tuple[str, list[str], int]:
    """Return the output of a program, remarks on its nodes, and the exit status of ``launcher exec``.

    Args:
        view: The answers.
        nodes: The nodes that were asked; empty for all.
    """
    lines, remarks, statuses, silent = list[str](), list[str](), list[int](), dict(view.silent)
    for node, answer in view.nodes:
        status, output = number(answer, "status"), answer.get("output")
        if status is None:
            silent[node] = words(answer, "error") or "no answer"
            continue
        statuses.append(min(255, max(0, int(status))))
        if isinstance(output, str) and output:
            for line in output.removesuffix("\n").split("\n"):
                shown = "\t".join(map(printable, line.split("\t")))
                lines.append(f"node {node}: {shown}\n")
        left, why = number(answer, "left_out"), words(answer, "why")
        remarks += [f"node {node}: {left:.0f} more bytes of output are left out"] if left else []
        remarks += [f"node {node}: exit status {status:.0f}{f': {why}' if why else ''}"] if status else []
    known = {*silent, *(node for node, _ in view.nodes)}
    silent |= {node: view.note or "the job has no such node" for node in nodes if node not in known}
    remarks += [f"node {node}: no result: {why}" for node, why in sorted(silent.items())]
    remarks += [view.note] if view.note and not nodes else []
    asked_all = statuses and not silent and (nodes or not view.note)
    return "".join(lines), remarks, max(statuses) if asked_all else EXIT_NOT_READY
