"""Judges plans by the truth of a job: right, refused by a named code, or wrong.

Nothing here is imported from the launcher but the chain from an environment to a plan, and its errors:
what is possible and what is true is written down again, in the terms of the job.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import launcher
from launcher.core.errors import EXIT_BUG, LauncherError
from launcher.planning.settings import render_environ
from tests.golden.jobs import words
from tests.unit.platforms_model import Job, Platform, Start, azure_batch, dealt

NAMES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK"),
    "GROUP_WORLD_SIZE",
)
ALIASES = (("GROUP_RANK", "NODE_RANK"), ("ROLE_RANK", "RANK"), ("ROLE_WORLD_SIZE", "WORLD_SIZE"))
LOOPBACKS = ("127.0.0.1", "localhost", "::1")
MPIRUN = "OMPI_COMM_WORLD_RANK"
"""Where it is set the nodes can be numbered as mpirun's daemons are: not as the ranks are."""


UNNUMBERED = (azure_batch,)
"""Platforms that name the master and number no node: the others come in any order that all agree on."""


@dataclass(frozen=True)
class Answer:
    """What the launcher makes of one start.

    Attributes:
        seen: The environment of each process that it would start; empty where it refuses, or where the
            ranks are given out at the start.
        code: The code of the first problem of a refusal, else empty.
        fault: An exception that is no refusal, else empty.
        problems: What is wrong and the fix, of each problem of a refusal.
    """

    seen: tuple[dict[str, str], ...] = ()
    code: str = ""
    fault: str = ""
    problems: tuple[tuple[str, str], ...] = ()


@dataclass
class Tally:
    """How often each verdict was given, and the first cases that were wrong."""

    right: int = 0
    blind: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def render(self, kind: str) -> str:
        """Return the counts as text that `tests.conftest` makes a row of its table of."""
        row = {"kind": kind, "right": self.right, "blind": self.blind, "wrong": len(self.wrong)}
        return json.dumps({**row, "refused": dict(self.refused.most_common())})


def answer(recording: Mapping[str, object], flags: Mapping[str, str] | None = None) -> Answer:
    """Return what the launcher makes of a recorded start, with flags that a user types."""
    environ: Any = recording["environ"]
    files: Any = recording.get("files", {})
    try:
        plan = launcher.plan([*words(flags or {}), "--", "true"], environ, files, recording)
        return Answer(tuple(render_environ(plan, process, environ) for process in plan.processes))
    except LauncherError as error:
        codes = [problem.code for problem in error.problems if problem.code]
        if codes and error.exit_status != EXIT_BUG:
            return Answer(code=min(codes), problems=tuple((p.what, p.fix) for p in error.problems))
        return Answer(fault=f"a refusal without a name: {error!r}")
    except Exception as error:  # the very fault that is looked for: status 70
        return Answer(fault=f"{type(error).__name__}: {error}")


@dataclass(frozen=True)
class Fix:
    """A command in the fix of a refusal: flags to type, variables to set and to unset.

    ``outside``: the launcher in place of the starter that runs inside of each process of the job;
    ``is_alone``: the user says that each node is a job of its own; ``one_each``: that each has one process.
    """

    flags: tuple[tuple[str, str], ...] = ()
    sets: tuple[tuple[str, str], ...] = ()
    unset: tuple[str, ...] = ()
    outside: bool = False
    is_alone: bool = False
    one_each: bool = False


FLAG = r"--([a-z]+(?:-[a-z]+)*) ([A-Za-z0-9_$]+)"
FOREIGN = ("mpiexec", "pbsdsh", "blaunch", "srun", "docker run")
"""Commands of other programs."""
ALONE = ("single node", "of its own", "separate job", "alone")
"""Words of a user for whom each node is a job."""


def read_fixes(text: str) -> list[list[Fix]]:
    """Return the commands in the fix of a problem: each item is one way out. Prose gives none.

    An item has several where the user must choose: *the wrong one* of two variables.
    """
    found: list[list[Fix]] = []
    if "the wrong one" in text:
        names = re.findall(r"\b[A-Z][A-Z0-9]*_?[A-Za-z0-9_]*\b", text)
        found.append(
            [Fix(unset=(name,)) for name in names if (len(name) > 1 and "_" in name) or name == "RANK"]
        )
    for part in re.split(r"[;,] | or | \(", text):
        if any(program in part for program in FOREIGN) or ("the wrong one" in text and "--" not in part):
            continue
        flags = tuple((name.replace("-", "_"), value) for name, value in re.findall(FLAG, part))
        sets = tuple(re.findall(r"\bset ([A-Z][A-Z0-9_]*)=([A-Za-z0-9]+)", part))
        unset = tuple(re.findall(r"\bunset ([A-Z][A-Za-z0-9_]*)", part))
        alone = any(words in part for words in ALONE) or "--nnodes 1" in part or "=1" in part
        if flags or sets or unset:
            each = f"{part} (one on each of" in text
            found.append([Fix(flags, sets, unset, is_alone=alone, one_each=each)])
    if "launcher run -- COMMAND instead of" in text:
        found.append([Fix(outside=True)])
    return [choice for choice in found if choice]


def command(recording: Mapping[str, object]) -> str:
    """Return a command that shows what the launcher makes of a recorded start."""
    text = shlex.quote(
        json.dumps({name: value for name, value in recording.items() if name not in ("files", "affinity")})
    )
    return f"echo {text} | env -i PATH=$PATH python3 -m launcher env --replay /dev/stdin"


def find_impossible(seen: Mapping[str, str], own: Iterable[str], others: Iterable[str]) -> str:
    """Return why no job, however its processes are placed, has a process that sees this; empty if one can.

    Args:
        seen: The environment of the process.
        own: Names and addresses of its node.
        others: Names and addresses that surely are of other nodes.
    """
    rank, world, local, size, node, _, nodes = (_number(seen, name) for name in NAMES)
    if rank is None or world is None or local is None:
        return "RANK, WORLD_SIZE and LOCAL_RANK are not all set"
    if not 0 <= rank < world:
        return f"rank {rank} of {world}"
    for alias, name in ALIASES:
        if seen.get(alias) != seen.get(name):
            return f"{alias}={seen.get(alias)} and {name}={seen.get(name)}"
    if size is not None and not 0 <= local < size <= world:
        return f"local rank {local} of {size} in a world of {world}"
    if MPIRUN in seen and size and world % size == 0:
        orders = [dealt(size, domains) for domains in range(2, size)]
        local = rank % size if any(order[rank % size] == local for order in orders) else local
    if size is not None and not local <= rank <= world - size + local:
        return f"rank {rank} of {world} is local rank {local} of {size}"
    if local > rank:
        return f"rank {rank} is local rank {local}"
    if nodes is not None and not (1 <= nodes <= world and (node or 0) < nodes):
        return f"node rank {node} of {nodes} nodes, {world} processes"
    if nodes is not None and size is not None and (nodes == 1) != (size == world):
        return f"{nodes} nodes, {size} of {world} processes here"
    if nodes is not None and size is not None and size > world - nodes + 1:
        return f"{nodes} nodes, {size} of {world} processes here, none for one of the others"
    master = seen.get("MASTER_ADDR", "")
    if master in LOOPBACKS:
        return "" if size == world or nodes == 1 else f"{master} is the master of {world} processes"
    return _find_misplaced(seen, rank, local, node, own, others)


def find_others(environ: Mapping[str, str], own: Iterable[str]) -> set[str]:
    """Return names and addresses of which an environment itself says that they are other nodes'.

    They stand in one list with a name or an address of this node.
    """
    found: set[str] = set()
    for value in environ.values():
        items = set(re.split(r'[][",;\s{}]+', value))
        if items & set(own):
            found |= {item for item in items if "." in item or item.rstrip("0123456789") != item}
    return found - set(own)


def _find_misplaced(
    seen: Mapping[str, str],
    rank: int,
    local: int,
    node: int | None,
    own: Iterable[str],
    others: Iterable[str],
) -> str:
    """Return what is impossible where the nodes are numbered as the ranks are."""
    master = seen.get("MASTER_ADDR", "")
    # The lists of a platform around an mpirun or a torchrun may be of more nodes, and in another order
    is_inside = any(name in seen for name in (MPIRUN, "PMI_RANK", "TORCHELASTIC_RUN_ID"))
    others = () if is_inside else others
    if rank == 0 and master in others:
        return f"rank 0 is here, the master is {master}"
    if rank > 0 and local == 0 and master in own:
        return f"rank {rank} is the lowest here, and the master {master} is here, too"
    if MPIRUN in seen or node is None:
        return ""
    if (node == 0 and local == 0) != (rank == 0) or node + local > rank:
        return f"rank {rank} is local rank {local} of node {node}"
    if node == 0 and master in others:
        return f"node 0 is here, the master is {master}"
    return f"the master {master} is here, on node {node}" if node and master in own else ""


def _number(seen: Mapping[str, str], name: str) -> int | None:
    return int(seen[name]) if name in seen else None


def count_per_start(platform: Platform, job: Job) -> int:
    """Return how many processes each start of a job has: a launcher per node starts one per GPU."""
    return max(1, job.gpus or 0) if platform.per_node else 1


def find_wrong(
    platform: Platform,
    job: Job,
    starts: Sequence[Start],
    answers: Sequence[Answer],
    *,
    ports: bool = True,
    aliases: frozenset[str] = frozenset(),
) -> str:
    """Return what is untrue in the answers to the starts of one job; empty if nothing is.

    What is not set is no fault; neither is a refusal. But where one process starts with something that is
    untrue, the refusals of the others do not help it. ``aliases``: what another platform calls the node of
    rank 0.
    """
    each = count_per_start(platform, job)
    places = {item.node.index: item for item in starts}
    firsts = {index: min(s.rank for s in starts if s.node.index == index) for index in places}
    (zero,) = {item.node for item in starts if item.rank == 0}
    masters = {_short(name) for name in (zero.hostname, zero.address, *aliases)}
    masters |= set(LOOPBACKS) if len(places) == 1 else set()
    numbers: dict[int, set[str]] = defaultdict(set)
    met: set[str] = set()
    for start, found in zip(starts, answers, strict=True):
        if found.fault:
            return found.fault
        if found.seen and len(found.seen) != each:
            return f"{len(found.seen)} processes on {start.node.hostname}, expected {each}"
        for index, seen in enumerate(found.seen):
            fault = _find_untrue(platform, job, start, index, seen, masters, len(places))
            if fault:
                return f"{fault} (rank {start.rank}, node {start.node.index})"
            numbers[start.node.index] |= {seen["NODE_RANK"]} if "NODE_RANK" in seen else set()
            met.add(seen["MASTER_PORT"])
    if ports and len(met) > 1:
        return f"MASTER_PORT is {' and '.join(sorted(met))}"
    daemons = any(MPIRUN in start.environ for start in platform.start(job))
    return _find_mixed_up(numbers, firsts, any_order=daemons or platform.start in UNNUMBERED)


def _find_untrue(
    platform: Platform,
    job: Job,
    start: Start,
    index: int,
    seen: Mapping[str, str],
    masters: set[str],
    nodes: int,
) -> str:
    each = count_per_start(platform, job)
    size = each if platform.per_node else start.node.size
    world = nodes * each if platform.per_node else job.world
    node = start.node.index
    if platform.start in UNNUMBERED and node > 0:
        node = int(seen.get("NODE_RANK", node)) or node
    rank = node * each + index if platform.per_node else start.rank
    local = index if platform.per_node else start.local_rank
    truth = {
        "RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_RANK": local,
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world,
    }
    known = {"LOCAL_WORLD_SIZE": size, "GROUP_WORLD_SIZE": nodes}
    for name, value in {**truth, **known}.items():
        if seen.get(name, str(value) if name in known else None) != str(value):
            return f"{name}={seen.get(name)}, expected {value}"
    if seen.get("GROUP_RANK") != seen.get("NODE_RANK"):
        return f"GROUP_RANK={seen.get('GROUP_RANK')} but NODE_RANK={seen.get('NODE_RANK')}"
    for name in ("MASTER_ADDR", "MASTER_ADDRESS"):
        if _short(seen.get(name, "")) not in masters:
            return f"{name}={seen.get(name)}, expected {' or '.join(sorted(masters))}"
    return ""


def _short(host: str) -> str:
    """Return a name without its domain; an address as it is."""
    return host if host.replace(".", "").isdecimal() else host.partition(".")[0]


def _find_mixed_up(numbers: Mapping[int, set[str]], firsts: Mapping[int, int], *, any_order: bool) -> str:
    """Return what is wrong with the published numbers of nodes; ``firsts``: the lowest rank of each node."""
    for found in numbers.values():
        if len(found) > 1:
            return f"one node has the numbers {' and '.join(sorted(found))}"
    order = {index: rank for rank, index in enumerate(sorted(firsts, key=firsts.__getitem__))}
    owners: dict[int, int] = {}
    for index, found in numbers.items():
        for number in map(int, found):
            if number >= len(firsts):
                return f"NODE_RANK={number} of {len(firsts)} nodes"
            if owners.setdefault(number, index) != index:
                return f"NODE_RANK={number} on two nodes"
            if number != order[index] and not any_order:
                return f"NODE_RANK={number}, expected {order[index]}"
    return ""
