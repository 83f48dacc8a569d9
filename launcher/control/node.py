"""Builds the answer of one node's launcher about its part of a job, from small values that JSON can hold.

The values are read on demand: from /proc in one pass, from NVML, and from the launcher's own memory.
"""

from __future__ import annotations

import json
import os
import time
from functools import cache

from launcher.core.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND
from launcher.core.redact import quote, quote_command
from launcher.core.version import __version__
from launcher.hang.limits import TEXT_LENGTH
from launcher.hang.packing import pack
from launcher.machine.cgroup import read_memory_use
from launcher.machine.host import Host
from launcher.output.progress import Gpus
from launcher.process.families import FamilyUse, Processes, find_workers, read_table
from launcher.process.program import run_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.agent.runtime import Runtime
    from launcher.hang.model import Answer
    from launcher.observers.pace import RankPace
    from launcher.observers.stragglers import Numbers
    from launcher.process.spawn import Process

    Message = dict[str, object]

VERSION = 1
OUTPUT_LIMIT_BYTES = 48_000
"""Limit of what a program has written, as JSON."""
RANKS_MAX = 1024
"""So many ranks of a node fit into one frame of the channel."""
COMMAND_LENGTH = 200
EVENT_LENGTH = 300
LEAST_SHARE = 0.0005
TIMED_OUT = 124
"""Status of a program whose time was up, as from timeout(1)."""
VISIBLE = "CUDA_VISIBLE_DEVICES"


@cache
def open_gpus(visible: str | None) -> Gpus:
    """Return the GPUs, which are expensive to open and are kept from one question to the next."""
    return Gpus(visible)


def identify(runtime: Runtime) -> Message:
    """Return the facts that identify this launcher among several."""
    argv = runtime.command or (runtime.group.children[0].argv if runtime.group.children else ())
    return {
        "version": VERSION,
        "launcher": __version__,
        "run": runtime.run_id,
        "pid": os.getpid(),
        "host": Host().hostname(),
        "node_rank": runtime.place.node_rank,
        "world_size": runtime.place.world_size,
        "command": quote_command(argv, COMMAND_LENGTH),
        "elapsed_s": round(time.monotonic() - runtime.began_s, 1),
    }


def read_node(
    runtime: Runtime, more: Message, paces: Mapping[int, RankPace], numbers: Numbers = ()
) -> Message:
    """Return the status of this node.

    Args:
        runtime: Values and tools of the launcher.
        more: Its state, the nodes of the job, and its timings.
        paces: What each rank of this node does with its time.
        numbers: The last number of each rank, if there is a rule for it (``--slow-below``).
    """
    values = dict(numbers)
    now, table = time.monotonic(), read_table()
    gpus, memory = open_gpus(runtime.environ.get(VISIBLE)).read(now), read_memory_use(Host())
    ranks = [
        {**rank, **_read_pace(rank["rank"], paces, values)}
        for process in runtime.group.processes
        for rank in _describe(runtime, process, table, now, len(gpus))
    ]
    answer: Message = {
        **identify(runtime),
        **more,
        "at_s": now,
        "attempt": runtime.attempt + runtime.restarts_of_torchrun,
        "restarts": runtime.watch.restarts.most,
        **({} if runtime.watch.slow_below is None else {"slow_below": runtime.watch.slow_below}),
        "silence_s": round(now - runtime.output.last_s, 1) if runtime.output.sees_all else None,
        "memory_bytes": None if memory is None else memory[0],
        "memory_limit_bytes": None if memory is None else memory[1],
        "gpus": [
            {"index": index, "busy_percent": use.busy_percent, "used_bytes": use.used_bytes,
             "total_bytes": use.total_bytes, "clock_mhz": use.clock_mhz, "clock_reasons": use.reasons}
            for index, use in enumerate(gpus)
        ],
        "ranks": ranks,
        "events": [
            {"ago_s": round(now - at, 1), "what": quote(what, EVENT_LENGTH)}
            for at, what in runtime.said
        ],
    }  # fmt: skip
    return limit_ranks(answer)


def _read_pace(rank: object, paces: Mapping[int, RankPace], values: Mapping[int, float]) -> Message:
    """Return what is known about the pace of a rank: the parts of its time, and its last number."""
    found: Message = {}
    if isinstance(rank, int) and rank in paces:
        shares = vars(paces[rank]).items()  # status may have 128,000 ranks: short numbers, and no zeros
        found["pace"] = {name: round(share, 3) for name, share in shares if share >= LEAST_SHARE}
    if isinstance(rank, int) and rank in values:
        found["value"] = values[rank]
    return found


def limit_ranks(answer: Message) -> Message:
    """Return an answer with at most `RANKS_MAX` ranks, and the number of those that are left out."""
    ranks = answer["ranks"]
    assert isinstance(ranks, list)  # noqa: S101 - see `read_node`
    if len(ranks) <= RANKS_MAX:
        return answer
    return {**answer, "ranks": ranks[:RANKS_MAX], "left_out": len(ranks) - RANKS_MAX}


def name_others(runtime: Runtime) -> list[str]:
    """Return a line for each process that can give no stack: it has ended, or has no workers now."""
    said = [f"{one.name}: it {one.end}" for one in runtime.group.processes if one.code is not None]
    table = read_table()
    for one in runtime.group.processes:
        if one.code is None and one.child.called and not one.child.companion:
            said += [] if find_workers(one.pid, table) else [f"{one.name}: it has no workers now"]
    return said


def pack_stacks(runtime: Runtime, answers: Sequence[Answer], *, threads: bool) -> Message:
    """Return the stacks of this node, of all threads if ``threads``, else of the main threads only."""
    others = [quote(line, TEXT_LENGTH) for line in name_others(runtime)]
    return {**identify(runtime), "others": others[:256], **pack(answers, threads=threads)}


def pack_run(argv: Sequence[str], limit_s: float, environ: Mapping[str, str]) -> str:
    """Run a program, and return the answer as JSON, with as much of its output as fits into one."""
    status: int | None
    try:
        run = run_program(argv, limit_s, OUTPUT_LIMIT_BYTES, environ)
        status, kept, size = run.status, run.output, run.size
    except (OSError, ValueError) as error:
        status = EXIT_NOT_FOUND if isinstance(error, FileNotFoundError) else EXIT_NOT_EXECUTABLE
        why = getattr(error, "strerror", None) or str(error)
        return json.dumps({"status": status, "why": f"{argv[0]}: {why}"})
    answer: Message = {"status": status}
    if status is None:
        answer = {"status": TIMED_OUT, "why": f"killed after {limit_s:g} s"}
    while True:
        answer |= {"output": kept.decode("utf-8", "replace"), "left_out": size - len(kept)}
        packed = json.dumps(answer)
        if len(packed) <= OUTPUT_LIMIT_BYTES:
            return packed
        kept = kept[: len(kept) * OUTPUT_LIMIT_BYTES // len(packed)]


def _describe(
    runtime: Runtime, process: Process, table: Processes, now: float, gpu_count: int
) -> list[Message]:
    """Return the status of a process that we have started, and of an agent's workers, which are the ranks."""
    child, ours = process.child, runtime.environ.get(VISIBLE)
    wrote_s = runtime.output.wrote_s(runtime.group.processes.index(process))
    own: Message = {
        "name": child.name,
        "rank": None if child.called else child.rank,
        "local_rank": None if child.called else child.local_rank,
        "pid": process.pid,
        "state": "running" if process.code is None else process.end,
        "silence_s": None if wrote_s is None else round(now - wrote_s, 1),
    }
    if process.code is not None:
        return [own]
    if not child.called or child.companion:
        gpus = _name_gpus(child.environ.get(VISIBLE), ours, child.local_rank, gpu_count)
        return [{**own, **_use(table.family(process.pid)), "gpus": [] if child.companion else gpus}]
    workers = find_workers(process.pid, table)
    return [{**own, **_use(table.family(process.pid, but=[worker.pid for worker in workers]))}] + [
        {
            "name": f"rank {worker.rank}",
            "rank": worker.rank,
            "local_rank": worker.local_rank,
            "pid": worker.pid,
            "state": "running",
            "silence_s": None,
            **_use(table.family(worker.pid)),
            "gpus": _name_gpus(worker.visible, ours, worker.local_rank, gpu_count),
        }
        for worker in workers
    ]


def _use(family: FamilyUse) -> Message:
    return {
        "kernel_state": family.state,
        "cpu_s": round(family.cpu_s, 2),
        "memory_bytes": family.memory_bytes,
        "process_count": family.count,
    }


def _name_gpus(names: str | None, ours: str | None, local_rank: int, count: int) -> list[int]:
    """Return the indices of a rank's GPUs: those visible to it, or the one with its local rank.

    Args:
        names: CUDA_VISIBLE_DEVICES of the rank.
        ours: CUDA_VISIBLE_DEVICES of the launcher, which gives the order of the GPUs in an answer.
        local_rank: Local rank of the rank.
        count: Number of GPUs in an answer.
    """
    if names is None or names == ours:
        return [local_rank] if 0 <= local_rank < count else []
    order: Sequence[str] = [str(index) for index in range(count)] if ours is None else ours.split(",")
    return [order.index(name) for name in names.split(",") if name in order[:count]]
