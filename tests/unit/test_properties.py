"""For every platform and any shape of a job: what its processes get agrees, is complete, is true."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from launcher.core.errors import EnvironmentUntrusted
from launcher.machine.host import Host
from launcher.options.reading import read_options
from launcher.planning.plan import plan_job
from launcher.planning.recorded import replay
from launcher.planning.settings import render_environ
from tests.thorough import FEW_STARTERS, all_but
from tests.unit.platforms_model import (
    ALWAYS,
    NODE,
    PER_NODE,
    PER_PROCESS,
    PLATFORMS,
    WHOLE,
    Job,
    Node,
    Platform,
    Start,
    deterministic,
    jobs,
)

NONE: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Seen:
    """One process as it will run: the start it came from and the environment it gets."""

    start: Start
    environ: dict[str, str]

    def number(self, name: str) -> int:
        return int(self.environ[name])


def plan_all(platform: Platform, job: Job, **flags: str) -> list[Seen]:
    """Return every process of a job, each planned by a launcher that sees only its own start."""
    seen: list[Seen] = []
    for start in platform.start(job):
        host: Host = replay(start.recording(job.gpus))
        plan = plan_job(start.environ, host, read_options(flags, start.environ), ("true",))
        seen += [Seen(start, render_environ(plan, process, start.environ)) for process in plan.processes]
    return seen


def check_agreement(seen: list[Seen]) -> None:
    """All processes name one world and one master, and the master is where rank 0 runs."""
    for name in ("WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_ADDRESS", "MASTER_PORT"):
        assert len({process.environ[name] for process in seen}) == 1, name
    first = next(process for process in seen if process.environ["RANK"] == "0")
    own = {first.start.node.hostname, first.start.node.address}
    single = len({process.start.node.index for process in seen}) == 1
    assert first.environ["MASTER_ADDR"] in (own | {"127.0.0.1"} if single else own)
    assert first.environ["MASTER_ADDR"] == first.environ["MASTER_ADDRESS"]


def check_ranks(seen: list[Seen]) -> None:
    """Ranks cover the world once; local ranks cover each node once."""
    world = len(seen)
    assert sorted(process.number("RANK") for process in seen) == list(range(world))
    assert {process.number("WORLD_SIZE") for process in seen} == {world}
    for processes in by_node(seen).values():
        local = sorted(process.number("LOCAL_RANK") for process in processes)
        assert local == list(range(len(processes)))
        sizes = {p.number("LOCAL_WORLD_SIZE") for p in processes if "LOCAL_WORLD_SIZE" in p.environ}
        assert sizes <= {len(processes)}


def check_nodes(seen: list[Seen]) -> None:
    """Where a node rank is published it is one per node, different between nodes, below their number."""
    nodes = by_node(seen)
    owners: dict[int, int] = {}
    for index, processes in nodes.items():
        published = {p.number("NODE_RANK") for p in processes if "NODE_RANK" in p.environ}
        assert len(published) <= 1, f"node {index} publishes {published}"
        for rank in published:
            assert rank < len(nodes), f"NODE_RANK={rank} of {len(nodes)} nodes"
            assert owners.setdefault(rank, index) == index, f"NODE_RANK={rank} on two nodes"
        for process in processes:
            assert process.environ.get("GROUP_RANK") == process.environ.get("NODE_RANK")
            assert process.environ.get("GROUP_WORLD_SIZE", str(len(nodes))) == str(len(nodes))


def by_node(seen: list[Seen]) -> dict[int, list[Seen]]:
    groups: dict[int, list[Seen]] = defaultdict(list)
    for process in seen:
        groups[process.start.node.index].append(process)
    return groups


def check_complete(seen: list[Seen], names: frozenset[str]) -> None:
    for process in seen:
        assert not {name for name in names if not process.environ.get(name)}


@pytest.mark.parametrize("name", all_but(FEW_STARTERS, PER_PROCESS))
@deterministic(40)
@given(data=st.data())
def test_a_job_started_once_per_process_agrees_is_complete_and_true(name: str, data: st.DataObject) -> None:
    """Each process keeps the rank it was given; node ranks are the platform's, or not published."""
    platform = PLATFORMS[name]
    job = data.draw(jobs(platform))
    try:
        seen = plan_all(platform, job)
    except EnvironmentUntrusted:
        assert platform.may_stop and not job.even
        return
    for process in seen:
        assert process.number("RANK") == process.start.rank
        assert process.number("LOCAL_RANK") == process.start.local_rank
        assert process.environ.get("NODE_RANK") in (None, str(process.start.node.index))
    check_agreement(seen)
    check_ranks(seen)
    check_nodes(seen)
    regular = job.even and not job.cyclic
    check_complete(seen, ALWAYS | platform.publishes | (platform.publishes_even if regular else NONE))


@pytest.mark.parametrize("name", all_but(FEW_STARTERS, PER_NODE))
@deterministic(40)
@given(data=st.data())
def test_a_job_started_once_per_node_agrees_is_complete_and_true(name: str, data: st.DataObject) -> None:
    """One process per GPU on every node, ranks in blocks, and everything about the nodes known."""
    platform = PLATFORMS[name]
    job = data.draw(jobs(platform))
    note(str(job))
    asks = platform.may_stop and len(job.nodes) > 2
    if asks and (job.gpus or 0) > 1:
        with pytest.raises(EnvironmentUntrusted, match=f"pass --nnodes {len(job.nodes)} "):
            plan_all(platform, job)
    seen = plan_all(platform, job, **{"nnodes": str(len(job.nodes))} if asks else {})
    assert len(seen) == len(job.nodes) * max(1, job.gpus or 0)
    check_agreement(seen)
    check_ranks(seen)
    check_nodes(seen)
    check_complete(seen, ALWAYS | WHOLE)
    for process in seen:
        size = process.number("LOCAL_WORLD_SIZE")
        if process.environ.keys() >= NODE:
            assert process.number("RANK") == process.number("NODE_RANK") * size + process.number("LOCAL_RANK")


SHAPES = [
    ([1, 1, 2], False),  # node 2 looks like the second of two nodes of two
    ([2, 1, 1], True),  # rank 3 on node 0 looks like node 1 in blocks
    ([3, 1], False),
    ([1, 3, 2], True),
    ([4, 1, 1, 1, 1, 8, 8, 8], True),  # as many processes as eight nodes of four would have
    ([2, 2, 2], True),  # rank 3 on node 0: 3 // 2 is another node
]


@pytest.mark.parametrize(("sizes", "cyclic"), SHAPES)
@pytest.mark.parametrize("name", ["open-mpi-4", "open-mpi-5", "mpich", "slurm", "tf-config"])
def test_shapes_that_look_like_others_from_one_process(name: str, sizes: list[int], cyclic: bool) -> None:
    """No process sees the whole placement: a node rank that could be another's is not published."""
    nodes = tuple(Node(i, f"node{i}", f"fd00:1::{i + 1}", size) for i, size in enumerate(sizes))
    job = Job(nodes, cyclic)
    try:
        seen = plan_all(PLATFORMS[name], job)
    except EnvironmentUntrusted:
        assert PLATFORMS[name].may_stop
        return
    for process in seen:
        assert process.environ.get("NODE_RANK") in (None, str(process.start.node.index))
    check_agreement(seen)
    check_ranks(seen)
    check_nodes(seen)


def test_gpus_beside_uneven_processes_start_nothing_twice() -> None:
    """Three and one on nodes of four GPUs: the one alone on its node starts no second job of its own."""
    nodes = (Node(0, "node0", "10.0.0.4", 3), Node(1, "node1", "10.0.0.5", 1))
    for name in ("open-mpi-4", "open-mpi-5", "slurm"):
        seen = plan_all(PLATFORMS[name], Job(nodes, gpus=4))
        assert len(seen) == 4
        check_agreement(seen)
        check_ranks(seen)
