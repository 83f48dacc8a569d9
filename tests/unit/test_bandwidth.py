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
from launcher.bandwidth.definitions import Sample, list_sizes, render_gbps, render_size, render_time
from launcher.bandwidth.expect import (
    ETHERNET,
    INFINIBAND,
    NVLINK,
    RDMA,
    Expectation,
    Ways,
    believable_gbps,
    is_telling,
    judge,
    plan_expectation,
    read_hints,
    read_ways,
)
from launcher.bandwidth.measure import foresee_s
from launcher.bandwidth.members import Member, choose_backend, list_units, name_gpus, read_members, read_node
from launcher.bandwidth.options import parse_options
from launcher.bandwidth.pairs import Pair, Slow, find_slow, merge, plan_rounds, slow_links
from launcher.bandwidth.views import Setup, pairs_json, pairs_verdict, render_pairs, render_sweep, sweep_json
from launcher.cli.entry import main
from launcher.core.errors import UsageError
from launcher.machine.gpu_facts import GpuFacts, NvLink
from launcher.machine.host import Host
from launcher.machine.network import Interface
from launcher.options.flag_values import parser_of
from launcher.planning.recorded import replay
from tests.golden.fabrics import fabric_names, read_fabric, write_fabric
from tests.golden.topologies import read_topology

RANKS = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
IB8 = (400.0,) * 8
FAST = 100.0


# --- definitions


@pytest.mark.parametrize(("ranks", "factor"), [(1, 0), (2, 1), (4, 1.5), (8, 1.75), (1024, 2 * 1023 / 1024)])
def test_the_factor_of_the_bus(ranks: int, factor: float) -> None:
    """None for one process: nothing travels; towards 2 for many."""
    sample = Sample(1000, 1e-6, ranks)
    assert sample.bus_gbps == pytest.approx(sample.algorithm_gbps * factor)


@pytest.mark.parametrize(("size", "time_s", "ranks"), [(0, 1, 2), (4, 0, 2), (4, -1, 2), (4, 1, 0)])
def test_a_measurement_of_nothing_is_none(size: int, time_s: float, ranks: int) -> None:
    """No size, no time or nobody: refused, before anything is divided by it."""
    with pytest.raises(ValueError, match="no measurement"):
        Sample(size, time_s, ranks)


@pytest.mark.parametrize(
    ("text", "size"),
    [("8", 8), ("1K", 1024), ("1k", 1024), ("64KiB", 65536), ("128M", 128 << 20), ("1GB", 1 << 30)],
)
def test_sizes_are_written_as_in_nccl_tests(text: str, size: int) -> None:
    """Units are powers of 1024, with or without iB or B."""
    assert parser_of("size 1")(text) == size


@pytest.mark.parametrize("text", ["", "K", "1.5G", "-1", "1X", "1e9", "1 2", "٤", "9" * 16])
def test_what_is_no_size(text: str) -> None:
    """Refused with an example of one."""
    with pytest.raises(ValueError, match="100M"):
        parser_of("size 1")(text)


def test_what_a_larger_size_will_take_is_not_foreseen_from_latency() -> None:
    """12 ms for 1 KiB is a busy machine, and no 3 s for 256 KiB; from two sizes on there is a slope."""
    small, large = (Sample(size, time_s, 2, 1, True) for size, time_s in ((1 << 10, 0.012), (1 << 18, 0.22)))
    assert foresee_s([], 1 << 30) == 0 == foresee_s([small], 1 << 18)
    assert foresee_s([small, large], 1 << 20) == pytest.approx(0.22 + 3 * 0.208, rel=0.01)
    assert foresee_s([large, Sample(1 << 20, 0.1, 2, 1, True)], 1 << 22) == 0.1


def test_numbers_are_those_of_nccl_tests_and_for_people() -> None:
    """PERFORMANCE.md: algbw = S/t, busbw = algbw * 2(n-1)/n."""
    # PERFORMANCE.md: algbw = S/t, busbw = algbw * 2(n-1)/n. 1 GB in 0.1 s: 10 GB/s, of 8 ranks 17.5.
    sample = Sample(10**9, 0.1, 8)
    assert sample.algorithm_gbps / 8 == pytest.approx(10)
    assert sample.bus_gbps / 8 == pytest.approx(17.5)
    # From the smallest to the largest that fits, each a multiple of four bytes.
    assert list_sizes(1024, 1 << 30, 4) == tuple(1024 * 4**power for power in range(11))
    assert list_sizes(1000, 5000, 2) == (1000, 2000, 4000)
    assert list_sizes(7, 30, 2) == (4, 12, 28)
    assert list_sizes(64, 64, 2) == (64,)
    # Sizes, times and rates, with as many digits as a measurement has.
    assert [render_size(size) for size in (512, 1024, 1536, 1 << 30)] == [
        *("512 B", "1 KiB", "1.5 KiB", "1 GiB"),
    ]
    assert [render_time(time) for time in (4.3e-5, 0.0125, 2.13)] == ["43 µs", "12.5 ms", "2.13 s"]
    assert [render_gbps(rate) for rate in (3200, 391.2, 18.46, 0.00931)] == ["3,200", "391", "18.5", "0.0093"]


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
        found = find_slow(pairs(count, slow_with(count, node)), 0.7)
        assert (found.groups, found.links) == (((node,),), ())
        assert found.usual_gbps == FAST


@pytest.mark.parametrize("count", [3, 4, 5, 8])
def test_a_link_is_slow_if_only_that_one_is(count: int) -> None:
    """Both of its nodes are fast with others."""
    for link in itertools.combinations(range(count), 2):
        found = find_slow(pairs(count, {link: 1.0}), 0.7)
        assert (found.groups, found.links) == ((), (link,))


def test_slow_nodes_links_and_groups_are_told_apart() -> None:
    """What is slow is compared with what is usual; what is measured again, or fails, counts."""
    # Two of six nodes, and a link between two healthy ones; the pair of the slow ones counts for both.
    found = find_slow(pairs(6, {**slow_with(6, 1, 4), (0, 5): 20.0}), 0.7)
    assert (found.groups, found.links) == (((1,), (4,)), ((0, 5),))
    # Fast among themselves, slow with all others.
    across = {(a, b): 5.0 for a in (0, 1, 2, 3, 4) for b in (5, 6, 7)}
    found = find_slow(pairs(8, across), 0.7)
    assert (found.groups, found.links) == (((5, 6, 7),), ())
    # A fifth up or down is weather.
    weather = random.Random(7)
    spread = {link: FAST * weather.uniform(0.85, 1.15) for link in itertools.combinations(range(9), 2)}
    found = find_slow(pairs(9, spread), 0.7)
    assert (found.groups, found.links) == ((), ())
    # Two nodes: neither is slow, whatever they reach.
    found = find_slow(pairs(2, {(0, 1): 0.001}), 0.7)
    assert (found.groups, found.links) == ((), ())
    # A link that is dead, or changes data, is named as a slow one is; a dead node, too.
    dead = Pair((1, 2), None, 0.0, failure="gloo between ranks 1, 2 failed: timed out")
    found = find_slow(merge(pairs(4, {}), [dead]), 0.7)
    assert found.links == ((1, 2),)
    wrong = Pair((1, 2), 1e-5, FAST, failure="wrong sums at 1 MiB")
    assert find_slow(merge(pairs(4, {}), [wrong]), 0.7).links == ((1, 2),)
    alone = [Pair(link, None, 0.0, failure="x") for link in slow_with(4, 3)]
    assert find_slow(merge(pairs(4, {}), alone), 0.7).groups == ((3,),)
    # A pair that was only in the way of another is no longer slow.
    first = pairs(4, {(0, 1): 30.0})
    assert slow_links(first, 0.7) == ((0, 1),)
    assert slow_links(merge(first, [Pair((0, 1), 1e-5, 99.0, was_alone=True)]), 0.7) == ()


# --- what it should be


def ways(name: str = "node0", **fields: Any) -> Ways:
    """Return a node."""
    return Ways(name, **fields)


def machine(tmp_path: Path, name: str) -> Host:
    """Return a recorded machine's devices."""
    write_fabric(tmp_path, read_fabric(name))
    return Host(str(tmp_path))


def test_between_gpus_of_one_node_nvlinks_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """18 links of 212.5 Gb/s: 3,825 Gb/s, whatever ports the node has besides.

    The GPUs are made up, as those of an H200 with NVSwitches: NVML needs a driver.
    """
    gpus = tuple(GpuFacts(index, links=(NvLink("switch", None, 18, 212.5),)) for index in range(8))
    monkeypatch.setattr("launcher.bandwidth.members.read_gpu_facts", lambda host: gpus)
    write_fabric(tmp_path, read_fabric("nd96isr_h200_v5"))
    found = read_node(Host(str(tmp_path)), {}, "node0", None)
    expected = plan_expectation([found], "nccl", 8)
    assert (expected.gbps, expected.kind) == (3825, NVLINK)


@pytest.mark.parametrize("name", fabric_names())
def test_ports_are_counted_on_every_recorded_machine(name: str, tmp_path: Path) -> None:
    """InfiniBand where a port is usable as such; never both kinds."""
    fabric = read_fabric(name)
    found = read_ways(machine(tmp_path, name), {}, "node0", None)
    usable = [line for line in fabric["ports"] if "not usable" not in line]
    if usable:
        assert (len(found.port_gbps), found.port_kind) == (len(usable), INFINIBAND)
    else:
        assert found.port_kind == RDMA or found.port_gbps == ()


@pytest.mark.parametrize(
    ("nodes", "backend", "processes", "expected"),
    [
        ([ways(port_gbps=IB8)] * 2, "nccl", 8, (3200, "8 InfiniBand ports", INFINIBAND)),
        (
            [ways(port_gbps=IB8)] * 2,
            "nccl",
            1,
            (400, "1 InfiniBand port of 8, one for each process", INFINIBAND),
        ),
        ([ways(port_gbps=(200.0,), port_kind=RDMA)] * 2, "nccl", 8, (200, "1 RDMA port", RDMA)),
        ([ways(interface="eth0", interface_gbps=25.0)] * 2, "nccl", 8, (25, "eth0", ETHERNET)),
        (
            [ways(port_gbps=IB8, interface="eth0", interface_gbps=100.0)] * 2,
            "gloo",
            8,
            (100, "eth0", ETHERNET),
        ),
        ([ways(interface="eth0")] * 2, "gloo", 1, (None, "eth0 of node0 does not tell its speed", "")),
        ([ways()] * 2, "nccl", 1, (None, "node0 does not tell which interface leads to the others", "")),
        ([ways(nvlink_gbps=3600.0)], "nccl", 8, (3600, "a GPU's NVLinks", NVLINK)),
        ([ways(port_gbps=IB8)], "nccl", 8, (None, "one node: between its GPUs, no network is used", "")),
    ],
)
def test_what_a_job_should_reach(nodes: Any, backend: str, processes: int, expected: object) -> None:
    """Ports for NCCL, the interface for gloo, NVLink inside of a node; honest where nothing tells."""
    found = plan_expectation(nodes, backend, processes)
    assert (found.gbps, found.of, found.kind) == expected


def test_the_ways_of_a_node_are_read(tmp_path: Path) -> None:
    """Ports, NVLinks, the interface of the job; the slowest node counts."""
    # Its eight InfiniBand ports, and not the one of accelerated networking.
    found = read_ways(machine(tmp_path, "nd96isr_h200_v5"), {}, "node0", None)
    assert (found.port_gbps, found.port_kind) == (IB8, INFINIBAND)
    expected = plan_expectation([found, found], "nccl", 8)
    assert (expected.gbps, expected.of, expected.kind) == (3200, "8 InfiniBand ports", INFINIBAND)
    # The one with the master's network, or the one that the user names; its speed, if it is hardware's.
    files = {
        "/sys/class/net/eth0/speed": "100000",
        "/sys/class/net/eth0/type": "1",
        "/sys/class/net/ib0/speed": "400000",
        "/sys/class/net/ib0/type": "32",
    }
    host = replay({"files": files, "addresses": {"eth0": ["10.0.0.4/24"], "ib0": ["10.1.0.4/24"]}})
    assert read_ways(host, {}, "n", "10.0.0.4").interface_gbps == 100
    assert read_ways(host, {"GLOO_SOCKET_IFNAME": "ib0"}, "n", "10.0.0.4").interface == "ib0"
    assert read_ways(host, {"NCCL_SOCKET_IFNAME": "=ib0"}, "n", "10.0.0.4").interface == "ib0"
    assert read_ways(replay({}), {}, "n", None).interface is None
    # The kernel writes 10,000 for each.
    assert believable_gbps(Interface("eth0", speed_mbps=10000, kind="virtual")) is None
    assert believable_gbps(Interface("eth0", speed_mbps=25000, kind="ethernet")) == 25
    assert believable_gbps(Interface("eth0", kind="ethernet")) is None
    # NVML is asked only where the processes have GPUs.
    host = replay(read_topology("nd96isr_h200_v5"))
    assert read_ways(host, {}, "n", None).nvlink_gbps is None
    assert read_node(host, {}, "n", None).nvlink_gbps == pytest.approx(3825, rel=1e-3)
    # Seven ports beside eight: all go at that pace.
    nodes = [ways("node0", port_gbps=IB8), ways("node1", port_gbps=IB8[:7]), ways("node2", port_gbps=IB8)]
    expected = plan_expectation(nodes, "nccl", 8)
    assert expected.gbps == 2800
    (note,) = expected.notes
    assert note.startswith("node1 has 7 usable InfiniBand ports, node0 has 8")


def test_hints_say_what_keeps_nccl_from_its_ports(tmp_path: Path) -> None:
    """Switches of the environment, and device files that the container lacks."""
    host = machine(tmp_path, "nd96isr_h200_v5")
    switches = {"NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket", "NCCL_P2P_DISABLE": "1"}
    told = read_ways(host, switches, "n", None).hints
    assert [hint.partition(" ")[0] for hint in told[:3]] == [f"{name}={switches[name]}" for name in switches]
    for path in (tmp_path / "dev/infiniband").iterdir():
        path.unlink()
    told = read_ways(host, {"NCCL_IB_DISABLE": "0"}, "n", None).hints
    assert [hint for hint in told if "--device /dev/infiniband" in hint] == list(told) != []


# --- verdicts

PORTS = Expectation(3200.0, "8 InfiniBand ports", INFINIBAND)
WIRE = Expectation(25.0, "eth0", ETHERNET)
LINKS = Expectation(3825.0, "a GPU's NVLinks", NVLINK)


@pytest.mark.parametrize(
    ("gbps", "expectation", "telling", "level", "text"),
    [
        (2.9, PORTS, True, "other-fabric", "2.9 of 3,200 Gb/s: this is not InfiniBand"),
        (3050, PORTS, True, "good", "3,050 of 3,200 Gb/s: as it should be"),
        (1600, PORTS, True, "slow", "1,600 of 3,200 Gb/s: slower than it should be"),
        (2.9, WIRE, True, "slow", "2.9 of 25.0 Gb/s: slower than it should be"),
        (23, WIRE, True, "good", "23.0 of 25.0 Gb/s: as it should be"),
        (2800, LINKS, True, "good", "2,800 of 3,825 Gb/s: as it should be"),
        (1900, LINKS, True, "slow", "1,900 of 3,825 Gb/s: slower than it should be"),
        (160, LINKS, True, "other-fabric", "160 of 3,825 Gb/s: this is not NVLink"),
        (2.9, PORTS, False, "unknown", "2.9 of 3,200 Gb/s: too little data to tell"),
        (9.1, Expectation(None, "because"), True, "unknown", "9.1 Gb/s: nothing to compare with (because)"),
        (0, PORTS, True, "unknown", "one process: nothing travels"),
    ],
)
def test_verdicts(gbps: float, expectation: Expectation, telling: bool, level: str, text: str) -> None:
    """Plain words; what is not known is not judged."""
    found = judge(gbps, telling, expectation)
    assert found.level == level and found.text.startswith(text)


def test_a_verdict_says_where_to_look() -> None:
    """The nodes' own hints first; too little data is not judged."""
    # The nodes' own hints first.
    found = judge(2.9, True, PORTS, ["node0: NCCL_IB_DISABLE=1 is set"])
    assert found.hints[0] == "node0: NCCL_IB_DISABLE=1 is set" and "NCCL_DEBUG=INFO" in found.hints[-1]
    assert judge(10, True, WIRE).hints == ("which node or link it is: --pairs",)
    # A megabyte in a millisecond is; a kilobyte that takes a second is bandwidth, too.
    assert is_telling(8 << 20, 0.001) and is_telling(1024, 1.0)
    assert not is_telling(1 << 20, 0.001)


# --- who takes part


def process(host: str, node: str | None, *gpus: str, ways: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return what a process says of itself."""
    return {"host": host, "node": node, "gpus": list(gpus), "ways": ways}


def test_nccl_is_for_processes_with_a_gpu_each() -> None:
    """All see all, or each its own; one that two share is none for NCCL."""
    for gpus in ((("g0", "g1"), ("g0", "g1")), (("g0",), ("g1",))):
        members = read_members([process("a", "0", *gpus[0]), process("a", "0", *gpus[1])])
        assert choose_backend(members) == "nccl"
    shared = read_members([process("a", "0", "g0"), process("a", "0", "g0")])
    assert choose_backend(shared) == "gloo"


def test_gpus_are_told_apart_by_their_uuid() -> None:
    """A stand-in for torch on a GPU machine: UUIDs where torch has them, else what is visible, by index."""
    for properties, expected in (
        (types.SimpleNamespace(uuid="GPU-7"), ["GPU-7"]),
        (types.SimpleNamespace(), ["3:0"]),
    ):
        cuda = types.SimpleNamespace(
            is_available=lambda: True,
            device_count=lambda: 1,
            get_device_properties=lambda index, found=properties: found,
        )
        distributed = types.SimpleNamespace(is_nccl_available=lambda: True)
        assert name_gpus(types.SimpleNamespace(cuda=cuda, distributed=distributed), "3") == expected
        distributed = types.SimpleNamespace(is_nccl_available=lambda: False)
        assert name_gpus(types.SimpleNamespace(cuda=cuda, distributed=distributed), "3") == []


def test_processes_are_grouped_by_the_index_of_their_node() -> None:
    """In whatever order ranks were dealt; what a node says survives JSON."""
    # In whatever order ranks were dealt; a hostname that two nodes share gets their index.
    found = read_members([process("a", "0"), process("b", "1"), process("a", "0"), process("b", "1")])
    assert [(member.name, member.ranks) for member in found] == [("a", (0, 2)), ("b", (1, 3))]
    found = read_members([process("pod", "0"), process("pod", "1")])
    assert [member.name for member in found] == ["pod:0", "pod:1"]
    found = read_members([process("a", None), process("b", "1"), process("a", "0")])
    assert [(member.name, member.ranks) for member in found] == [("a", (0, 2)), ("b", (1,))]
    # Tuples again where JSON has lists; a node whose first process is missing says nothing.
    told = json.loads(json.dumps(vars(ways("x", port_gbps=IB8, interface="eth0"))))
    found = read_members([process("a", "0", ways=told), process("b", "1")])
    assert found[0].ways == ways("a", port_gbps=IB8, interface="eth0")
    assert found[1].ways == ways("b")
    # Of one node, its processes.
    two = read_members([process("a", "0"), process("a", "0"), process("b", "1")])
    assert list_units(two) == {"a": (0, 1), "b": (2,)}
    assert list_units(two[:1]) == {"rank 0": (0,), "rank 1": (1,)}


# --- the command line


def test_options_have_defaults_for_each_kind_of_measurement() -> None:
    """1 KiB to 1 GiB; for pairs fewer and smaller."""
    every, two = parse_options([]), parse_options(["--pairs"])
    assert (every.sizes[0], every.sizes[-1]) == (1 << 10, 1 << 30)
    assert two.sizes == (1 << 10, 1 << 18, 1 << 26)
    assert (every.limit_s, two.limit_s) == (10, 2)
    assert parse_options(["--max-bytes", "4K"]).sizes == (1 << 10, 4 << 10)


@pytest.mark.parametrize(
    "words", [("--max-bytes", "x"), ("--max-bytes", "2"), ("--nnodes", "2"), ("--format", "xml")]
)
def test_words_that_are_no_options(words: tuple[str, ...]) -> None:
    """Our own message, status 64."""
    with pytest.raises(UsageError, match="usage"):
        parse_options(words)


def test_without_ranks_it_says_how_to_be_started(capsys: pytest.CaptureFixture[str]) -> None:
    """Started by hand: status 64 and the line to type; torch is not even looked for."""
    assert program.main([], RANKS) == 64  # nobody says where to meet
    assert "MASTER_ADDR" in capsys.readouterr().err
    assert program.main([], {"RANK": "0"}) == 64
    err = capsys.readouterr().err
    assert "RANK='0'" in err and "launcher run --nproc-per-node 2 -- python -m launcher.bandwidth" in err


def test_the_command_of_the_launcher_checks_words_before_it_starts_anything(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """One message, not one per process."""
    assert main(["bandwidth", "--max-bytes", "none"], {}) == 64
    assert capfd.readouterr().err.count("[usage]") == 1


# --- views

NODES = read_members([process("node0", "0", ways=vars(ways(port_gbps=IB8))), process("node1", "1")])
SETUP = Setup("nccl", "NCCL 2.27.3", NODES)
SAMPLES = (Sample(1024, 3e-5, 2), Sample(1 << 30, 0.003, 2))


def test_what_other_nodes_say_is_text_without_secrets() -> None:
    """Their names and their variables: neither a terminal nor a file gets more of them than what is seen."""
    evil = "\x1b]0;PWN\x07 token=hunter2secret"
    hints = read_hints({"NCCL_IB_DISABLE": evil, "NCCL_NET": "socket", "NCCL_P2P_DISABLE": evil}, ())
    expected = Expectation(400.0, f"eth0{evil}", INFINIBAND, (f"{evil} has no ports",))
    member = Member(evil, (0,), 0, Ways(name=evil, hints=hints))
    setup = Setup("gloo", f"gloo {evil}", (member, member))
    verdict = judge(1.0, True, expected, hints)
    measured = [Pair((0, 1), None, 0.0, failure=evil)]
    texts = (
        render_sweep(setup, SAMPLES, evil, expected, verdict),
        render_pairs(setup, (evil, "b"), measured, Slow(1.0), evil),
        render_pairs(setup, [evil] * 20, measured, Slow(1.0), evil),
    )
    for text in texts:
        assert "hunter2" not in text and "PWN" in text
        assert all(line.isprintable() for line in text.split("\n"))
    assert "hunter2" not in json.dumps(hints)


def test_a_sweep_is_a_table_and_a_verdict() -> None:
    """Each size on a line, what was expected; wrong sums cannot be overlooked; JSON says the same."""
    # Each size on a line, rates in GB/s and Gb/s; what was expected; wrong sums cannot be overlooked.
    text = render_sweep(SETUP, SAMPLES, "", PORTS, judge(2863, True, PORTS))
    lines = text.splitlines()
    assert lines[0] == "all-reduce of float32, 2 processes on 2 nodes, NCCL 2.27.3"
    assert "     1 GiB       3 ms       358       358     2,863" in lines
    assert lines[-1] == "verdict        2,863 of 3,200 Gb/s: as it should be"
    wrong = (Sample(4096, 1e-3, 2, is_right=False),)
    assert "WRONG SUMS     at 4 KiB" in render_sweep(SETUP, wrong, "", PORTS, judge(1, True, PORTS))
    # Numbers as numbers; nodes with what they have to talk through.
    found = json.loads(sweep_json(SETUP, SAMPLES, "", PORTS, judge(2863, True, PORTS)))
    assert found["version"] == 1 and found["verdict"]["level"] == "good"
    assert found["samples"][1]["bus_gbps"] == found["best_bus_gbps"] == pytest.approx(2863.3, rel=1e-4)
    assert found["nodes"][0]["ways"]["port_gbps"] == list(IB8)


def test_pairs_are_a_matrix_and_a_verdict_that_names_nodes() -> None:
    """Symmetric, with nothing on the diagonal; for many nodes only the slowest pairs."""
    # In words: who, how slow, and what is usual.
    names = [f"node{index}" for index in range(4)]
    measured = pairs(4, slow_with(4, 2, gbps=0.0094))
    (line,) = pairs_verdict(names, measured, find_slow(measured, 0.7))
    assert line == "node2 is slow with all others: 0.0094 Gb/s at most, 100 Gb/s is usual"
    measured = pairs(4, {(1, 3): 12.0})
    (line,) = pairs_verdict(names, measured, find_slow(measured, 0.7))
    assert line == "the link node1 - node3 is slow: 12.0 Gb/s, 100 Gb/s is usual; both are fast with others"
    measured = pairs(4, {})
    (line,) = pairs_verdict(names, measured, find_slow(measured, 0.7))
    assert line == "no node and no link is slow: 100 Gb/s is usual"
    few = pairs(4, slow_with(4, 2))
    names = [f"node{index}" for index in range(4)]
    text = render_pairs(SETUP, names, few, find_slow(few, 0.7), "somehow")
    assert "node2        1.0     1.0       -     1.0" in text.splitlines()
    many = pairs(20, slow_with(20, 2))
    names = [f"node{index}" for index in range(20)]
    text = render_pairs(SETUP, names, many, find_slow(many, 0.7), "somehow")
    assert text.count(" - ") == 10 and "verdict: node2 is slow with all others" in text
    found = json.loads(pairs_json(SETUP, names, many, find_slow(many, 0.7), "somehow"))
    assert found["slow_nodes"] == ["node2"] and found["slow_links"] == [] and len(found["pairs"]) == 190
