"""What bandwidth is, what it should be, who is measured when and who is slow: all without torch."""

from __future__ import annotations

import itertools
import json
import random
import types
from pathlib import Path
from typing import Any

import pytest

from launcher.bandwidth import __main__ as program
from launcher.bandwidth.expect import (
    INFINIBAND,
    NVLINK,
    RDMA,
    Expectation,
    judge,
    plan_expectation,
    read_ways,
)
from launcher.bandwidth.job import Sample, bus_gbps, foresee_s
from launcher.bandwidth.nodes import MeasuredNode, choose_backend, describe_process, list_units, read_nodes
from launcher.bandwidth.pairs import (
    Pair,
    explain_slow,
    find_slow,
    plan_rounds,
    render_gbps,
    render_pairs,
    slow_links,
)
from launcher.cli.entry import main
from launcher.machine.host import Host
from launcher.planning.recorded import replay
from tests.golden.fabrics import fabric_names, read_fabric, write_fabric
from tests.golden.topologies import read_topology

IB8 = (400.0,) * 8
FAST = 100.0


# --- definitions


@pytest.mark.parametrize(("ranks", "factor"), [(1, 0), (2, 1), (4, 1.5), (8, 1.75), (1024, 2 * 1023 / 1024)])
def test_the_factor_of_the_bus(ranks: int, factor: float) -> None:
    """None for one process: nothing travels; towards 2 for many."""
    assert bus_gbps(1000, 1e-6, ranks) == pytest.approx(8 * factor)


def test_what_a_larger_size_will_take_is_not_foreseen_from_latency() -> None:
    """12 ms for 1 KiB is a busy machine, and no 3 s for 256 KiB; from two sizes on there is a slope."""
    small, large = (Sample(size, time_s, 1) for size, time_s in ((1 << 10, 0.012), (1 << 18, 0.22)))
    assert foresee_s([], 1 << 30) == 0 == foresee_s([small], 1 << 18)
    assert foresee_s([small, large], 1 << 20) == pytest.approx(0.22 + 3 * 0.208, rel=0.01)
    assert foresee_s([large, Sample(1 << 20, 0.1, 1)], 1 << 22) == 0.1


def test_numbers_are_those_of_nccl_tests_and_for_people() -> None:
    """PERFORMANCE.md: algbw = S/t, busbw = algbw * 2(n-1)/n."""
    # 1 GB in 0.1 s: 10 GB/s, of 8 ranks 17.5.
    assert bus_gbps(10**9, 0.1, 8) / 8 == pytest.approx(17.5)
    assert [render_gbps(rate) for rate in (3200, 391.2, 18.46, 0.00931)] == ["3,200", "391", "18.5", "0.0093"]
    sample = str(Sample(1 << 20, 0.0125, 1600.0))
    assert sample.split() == ["1,048,576", "12,500", "µs", "200", "1,600"]
    assert "WRONG SUM" in str(Sample(4096, 1e-3, 1, is_right=False))


# --- who is measured when


@pytest.mark.parametrize("count", range(2, 12))
def test_every_pair_has_its_turn_once_and_nobody_is_in_two_at_once(count: int) -> None:
    """n - 1 rounds of n/2 pairs; with an odd number one node rests in each of n rounds."""
    rounds = plan_rounds(count)
    assert len(rounds) == count - 1 + count % 2
    assert sorted(itertools.chain(*rounds)) == list(itertools.combinations(range(count), 2))
    for links in rounds:
        nodes = list(itertools.chain(*links))
        assert len(nodes) == len(set(nodes)) == count - count % 2


# --- who is slow


def pairs(count: int, slow: dict[tuple[int, int], float], fast: float = FAST) -> tuple[Pair, ...]:
    """Return all pairs of some nodes, with the bandwidth of those that are slow."""
    return tuple(Pair(link, 1e-5, slow.get(link, fast)) for link in itertools.combinations(range(count), 2))


def slow_with(count: int, *nodes: int, gbps: float = 1.0) -> dict[tuple[int, int], float]:
    """Return the pairs that some nodes have with any other."""
    return {link: gbps for link in itertools.combinations(range(count), 2) if set(link) & set(nodes)}


@pytest.mark.parametrize("count", [3, 4, 5, 8, 33])
def test_a_node_is_slow_if_all_pairs_with_it_are(count: int) -> None:
    """Named alone, whichever it is; none of its pairs is called a slow link besides."""
    for node in range(count):
        found = find_slow(pairs(count, slow_with(count, node)))
        assert (found.groups, found.links) == (((node,),), ())
        assert found.usual_gbps == FAST


@pytest.mark.parametrize("count", [3, 4, 5, 8])
def test_a_link_is_slow_if_only_that_one_is(count: int) -> None:
    """Both of its nodes are fast with others."""
    for link in itertools.combinations(range(count), 2):
        found = find_slow(pairs(count, {link: 1.0}))
        assert (found.groups, found.links) == ((), (link,))


def test_slow_nodes_links_and_groups_are_told_apart() -> None:
    """What is slow is compared with what is usual; what is measured again, or fails, counts."""
    # Two of six nodes, and a link between two healthy ones; the pair of the slow ones counts for both.
    found = find_slow(pairs(6, {**slow_with(6, 1, 4), (0, 5): 20.0}))
    assert (found.groups, found.links) == (((1,), (4,)), ((0, 5),))
    # Fast among themselves, slow with all others.
    across = {(a, b): 5.0 for a in (0, 1, 2, 3, 4) for b in (5, 6, 7)}
    found = find_slow(pairs(8, across))
    assert (found.groups, found.links) == (((5, 6, 7),), ())
    # A fifth up or down is weather.
    weather = random.Random(7)
    spread = {link: FAST * weather.uniform(0.85, 1.15) for link in itertools.combinations(range(9), 2)}
    found = find_slow(pairs(9, spread))
    assert (found.groups, found.links) == ((), ())
    # Two nodes: neither is slow, whatever they reach.
    found = find_slow(pairs(2, {(0, 1): 0.001}))
    assert (found.groups, found.links) == ((), ())
    # A link that is dead, or changes data, is named as a slow one is; a dead node, too.
    for failed in (Pair((1, 2), failure="timed out"), Pair((1, 2), 1e-5, FAST, failure="wrong sums")):
        others = [pair for pair in pairs(4, {}) if pair.nodes != (1, 2)]
        assert find_slow([*others, failed]).links == ((1, 2),) == slow_links([*others, failed])
    alone = [Pair(link, failure="x") for link in slow_with(4, 3)]
    assert find_slow([*pairs(3, {}), *alone]).groups == ((3,),)


# --- what it should be


def ways(name: str = "node0", processes: int = 8, **fields: Any) -> MeasuredNode:
    """Return a node."""
    return MeasuredNode(name, range(processes), processes, **fields)


def machine(tmp_path: Path, name: str) -> Host:
    """Return a recorded machine's devices."""
    write_fabric(tmp_path, read_fabric(name))
    return Host(str(tmp_path))


@pytest.mark.parametrize("name", fabric_names())
def test_ports_are_counted_on_every_recorded_machine(name: str, tmp_path: Path) -> None:
    """InfiniBand where a port is usable as such; never both kinds."""
    found = ways(**read_ways(machine(tmp_path, name), {}))
    usable = [line for line in read_fabric(name)["ports"] if "not usable" not in line]
    if usable:
        assert (len(found.port_gbps), found.port_kind) == (len(usable), INFINIBAND)
    else:
        assert found.port_kind == RDMA


@pytest.mark.parametrize(
    ("nodes", "backend", "expected"),
    [
        ([ways(port_gbps=IB8)] * 2, "nccl", (3200, "8 of 8 InfiniBand ports of node0", INFINIBAND)),
        ([ways("a", 1, port_gbps=IB8)] * 2, "nccl", (400, "1 of 8 InfiniBand ports of a", INFINIBAND)),
        ([ways(port_gbps=(200.0,), port_kind=RDMA)] * 2, "nccl", (200, "1 of 1 RDMA ports of node0", RDMA)),
        (
            [ways(port_gbps=IB8), ways("node1", port_gbps=IB8[:7])],
            "nccl",
            (2800, "7 of 7 InfiniBand ports of node1", INFINIBAND),
        ),
        ([ways(port_gbps=IB8)] * 2, "gloo", (0, "gloo uses neither InfiniBand nor NVLink", "")),
        ([ways(port_gbps=IB8), ways("b")], "nccl", (0, "b has no port of InfiniBand, RoCE or EFA", "")),
        ([ways(nvlink_gbps=3600.0)], "nccl", (3600, "a GPU's NVLinks", NVLINK)),
        ([ways(port_gbps=IB8)], "nccl", (0, "one node, no NVLink", "")),
    ],
)
def test_what_a_job_should_reach(nodes: Any, backend: str, expected: object) -> None:
    """Ports for NCCL, NVLink inside of a node, the slowest node; honest where nothing tells."""
    found = plan_expectation(nodes, backend)
    assert (found.gbps, found.of, found.kind) == expected


def test_the_ways_of_a_node_are_read(tmp_path: Path) -> None:
    """Its eight InfiniBand ports, and not the one of accelerated networking; 18 NVLinks of 212.5 Gb/s."""
    found = read_ways(machine(tmp_path, "nd96isr_h200_v5"), {})
    assert (found["port_gbps"], found["port_kind"]) == (list(IB8), INFINIBAND)
    found = read_ways(replay(read_topology("nd96isr_h200_v5")), {})
    assert found["nvlink_gbps"] == pytest.approx(3825, rel=1e-3)


def test_hints_say_what_keeps_nccl_from_its_ports(tmp_path: Path) -> None:
    """Switches of the environment, without secrets, and device files that the container lacks."""
    host = machine(tmp_path, "nd96isr_h200_v5")
    switches = {"NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket", "NCCL_P2P_DISABLE": "token=hunter2secret"}
    *settings, last = ways(**read_ways(host, switches)).hints
    assert settings == ["NCCL_IB_DISABLE=1 is set", "NCCL_NET=Socket is set"]
    assert "NCCL_P2P_DISABLE" in last and "hunter2" not in last
    for path in (tmp_path / "dev/infiniband").iterdir():
        path.unlink()
    (hint,) = ways(**read_ways(host, {"NCCL_IB_DISABLE": "0"})).hints
    assert "--device /dev/infiniband" in hint


# --- verdicts

PORTS = Expectation(3200.0, "8 ports", INFINIBAND)
LINKS = Expectation(3825.0, "a GPU's NVLinks", NVLINK)


@pytest.mark.parametrize(
    ("gbps", "expectation", "text"),
    [
        (2.9, PORTS, "2.9 of 3,200 Gb/s (8 ports): this is not InfiniBand"),
        (3050, PORTS, "3,050 of 3,200 Gb/s (8 ports): as it should be"),
        (1600, PORTS, "1,600 of 3,200 Gb/s (8 ports): slower than it should be"),
        (2800, LINKS, "2,800 of 3,825 Gb/s (a GPU's NVLinks): as it should be"),
        (1900, LINKS, "1,900 of 3,825 Gb/s (a GPU's NVLinks): slower than it should be"),
        (160, LINKS, "160 of 3,825 Gb/s (a GPU's NVLinks): this is not NVLink"),
        (9.1, Expectation(0, "because"), "9.1 Gb/s: nothing to compare with (because)"),
        (0, PORTS, "one process, so there is nothing to measure; start two or more"),
    ],
)
def test_verdicts(gbps: float, expectation: Expectation, text: str) -> None:
    """Plain words; what is not known is not judged."""
    assert judge(gbps, expectation)[0] == f"verdict: {text}"


def test_a_verdict_says_where_to_look() -> None:
    """The nodes' own hints first; a good result needs none."""
    nodes = [ways(hints=["NCCL_IB_DISABLE=1 is set"])]
    _, first, *rest = judge(2.9, PORTS, nodes)
    assert first == "look at: node0: NCCL_IB_DISABLE=1 is set" and "NCCL_DEBUG=INFO" in rest[-1]
    assert "--pairs" in judge(1600, PORTS, nodes)[-1]
    assert len(judge(3000, PORTS, nodes)) == 1


# --- who takes part


def process(host: str, node: str | None, *gpus: str, ways: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return what a process says of itself."""
    return {"host": host, "node": node, "gpus": list(gpus), "ways": ways}


def test_nccl_is_for_processes_with_a_gpu_each() -> None:
    """All see all, or each its own; one that two share is none for NCCL."""
    for gpus in ((("g0", "g1"), ("g0", "g1")), (("g0",), ("g1",))):
        nodes = read_nodes([process("a", "0", *gpus[0]), process("a", "0", *gpus[1])])
        assert choose_backend(nodes) == "nccl"
    shared = read_nodes([process("a", "0", "g0"), process("a", "0", "g0")])
    assert choose_backend(shared) == "gloo"


@pytest.mark.parametrize(("has_nccl", "gpus"), [(True, ["3:0"]), (False, [])])
def test_gpus_are_told_apart_by_what_is_visible(has_nccl: bool, gpus: list[str]) -> None:
    """A stand-in for torch on a GPU machine."""
    torch = types.SimpleNamespace(
        cuda=types.SimpleNamespace(is_available=lambda: True, device_count=lambda: 1),
        distributed=types.SimpleNamespace(is_nccl_available=lambda: has_nccl),
    )
    assert describe_process(torch, {"CUDA_VISIBLE_DEVICES": "3"}, None)["gpus"] == gpus


def test_processes_are_grouped_by_the_index_of_their_node() -> None:
    """In whatever order ranks were dealt; a hostname that two nodes share gets their index."""
    found = read_nodes([process("a", "0"), process("b", "1"), process("a", "0"), process("b", "1")])
    assert [(node.name, node.ranks) for node in found] == [("a", [0, 2]), ("b", [1, 3])]
    found = read_nodes([process("pod", "0"), process("pod", "1")])
    assert [node.name for node in found] == ["pod:0", "pod:1"]
    found = read_nodes([process("a", None), process("b", "1"), process("a", "0")])
    assert [(node.name, node.ranks) for node in found] == [("a", [0, 2]), ("b", [1])]
    # What a node says survives JSON.
    said = json.loads(json.dumps(read_ways(replay({}), {"NCCL_NET": "Socket"})))
    found = read_nodes([process("a", "0", ways=said), process("b", "1")])
    assert [node.hints for node in found] == [["NCCL_NET=Socket is set"], ()]
    # Of one node, its processes.
    two = read_nodes([process("a", "0"), process("a", "0"), process("b", "1")])
    assert list_units(two) == {"a": [0, 1], "b": [2]}
    assert list_units(two[:1]) == {"rank 0": (0,), "rank 1": (1,)}


# --- the command line


def test_without_ranks_it_says_how_to_be_started(capsys: pytest.CaptureFixture[str]) -> None:
    """Started by hand: status 64 and the line to type; torch is not even looked for."""
    assert program.main([], {"RANK": "0"}) == 64
    err = capsys.readouterr().err
    assert "RANK='0'" in err and "launcher run --nproc-per-node 2 -- python -m launcher.bandwidth" in err


def test_the_command_of_the_launcher_checks_words_before_it_starts_anything(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """One message, not one per process."""
    assert main(["bandwidth", "--nnodes", "2"], {}) == 64
    assert capfd.readouterr().err.count("[usage]") == 1


# --- views


def test_verdicts_on_pairs_name_nodes() -> None:
    """Who, how slow, and what is usual; for many nodes only the slowest pairs."""
    names = [f"node{index}" for index in range(20)]

    def verdicts(measured: tuple[Pair, ...]) -> list[str]:
        return explain_slow(names, measured, find_slow(measured))

    (line,) = verdicts(pairs(4, slow_with(4, 2, gbps=0.0094)))
    assert line == "verdict: node2: slow with all others, 0.0094 Gb/s at most, 100 Gb/s is usual"
    (line,) = verdicts(pairs(4, {(1, 3): 12.0}))
    link = "node1 - node3: 12.0 Gb/s, 10 µs"
    assert line == f"verdict: slow link, both nodes are fast with others: {link}"
    (line,) = verdicts(pairs(8, {(a, b): 5.0 for a in range(5) for b in (5, 6, 7)}))
    assert "node5, node6, node7: slow with all others" in line and "switch" in line
    assert verdicts(pairs(4, {})) == ["verdict: no node and no link is slow: 100 Gb/s is usual"]
    (line,) = verdicts(pairs(2, {}))
    assert "one pair" in line
    _, *lines = render_pairs(names, pairs(20, {(1, 3): 12.0}))
    assert lines[0].strip() == link and len(lines) == 10
