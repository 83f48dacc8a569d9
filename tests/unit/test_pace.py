"""Which rank differs from the others: by what it does with its time, its GPU's clock, its node's network."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from launcher.control.stragglers import find_stragglers
from launcher.observers.pace import LOOKS, LOOKS_MIN, PaceWatch, RankPace, find_apart, find_slow

HEALTHY = RankPace(running=0.2, delayed=0.1, sleeping=0.2)


@pytest.mark.parametrize(
    ("values", "least", "ranks"),
    [
        ([0.1, 0.1, 0.6, 0.2], 0.25, [2]),
        ([0.6, 0.1], 0.25, [0]),  # one of two
        ([0.6, 0.6, 0.1, 0.1], 0.25, [0, 1]),
        ([0.6, 0.6, 0.6, 0.1], 0.25, []),  # most are not what is unusual
        ([0.1, 0.2, 0.3, 0.4, 0.5], 0.25, []),  # no gap
        ([0.6], 0.25, []),
        ([], 0.25, []),
    ],
)
def test_the_ranks_above_the_widest_gap_differ(values: list[float], least: float, ranks: list[int]) -> None:
    """As long as they are a minority."""
    assert find_apart(dict(enumerate(values)), least) == ranks


@pytest.mark.parametrize(
    ("odd", "what"),
    [
        (
            RankPace(stopped=0.1, running=0.5),
            "is stopped 10 % of the time (SIGSTOP, or a paused container); others 0 %",
        ),
        (
            RankPace(delayed=0.48, running=0.9),
            "waits 48 % of the time for a CPU: a limit, or another program on its CPUs; others 10 %",
        ),
        (RankPace(sleeping=0.8), "is in sleep 80 % of the time; others 20 %"),
        (RankPace(blocked=0.5), "waits 50 % of the time for a disk or a device; others 0 %"),
        (
            RankPace(running=0.5, sleeping=0.2, delayed=0.1),
            "computes 50 % of the time, and the others wait for it; others 20 %",
        ),
        (RankPace(running=0.5), ""),  # it waits as much as the others
        (RankPace(running=0.35, sleeping=0.2, delayed=0.1), ""),  # not twice as much
    ],
)
def test_what_differs_is_named(odd: RankPace, what: str) -> None:
    """One reason for a rank, the most certain one; nothing about healthy ranks."""
    paces = dict.fromkeys(range(4), HEALTHY)
    assert find_slow(paces) == []
    assert find_slow({**paces, 2: odd}) == ([([2], what)] if what else [])


@pytest.fixture
def children() -> Iterator[dict[str, int]]:
    """Start a process for each thing that a rank may do; return the PIDs."""
    programs = {
        "sleeping": "import time; time.sleep(600)",
        "running": "exec('while True: pass')",
        "waiting": "import sys; sys.stdin.read()",
        "stopped": "exec('while True: pass')",
    }
    found = {
        name: subprocess.Popen(
            [sys.executable, "-c", f"print(1, flush=True); {text}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for name, text in programs.items()
    }
    for one in found.values():
        assert one.stdout is not None and one.stdout.readline()
    os.kill(found["stopped"].pid, signal.SIGSTOP)
    yield {name: one.pid for name, one in found.items()}
    for one in found.values():
        one.kill()
        one.communicate()


def test_a_watch_sees_what_processes_do(children: dict[str, int]) -> None:
    """It says nothing before it has looked often enough, and forgets a process that has ended."""
    ranks = list(enumerate(children.values()))
    watch = PaceWatch(lambda table: ranks)
    deadline = time.monotonic() + 60
    now = time.monotonic()
    watch.fire(now)
    assert watch.due is not None and 0.2 < watch.due - now < 0.8
    assert watch.read() == {}

    def are_seen() -> bool:
        watch.fire(time.monotonic())
        found = watch.read()
        names = dict(zip(children, found.values(), strict=False))
        return len(found) == len(ranks) and all(
            getattr(names[name], name) > least
            for name, least in (("sleeping", 0.9), ("running", 0.05), ("stopped", 0.9))
        )

    while not are_seen() and time.monotonic() < deadline:
        pass
    found = dict(zip(children, watch.read().values(), strict=True))
    assert found["stopped"].stopped > 0.9 and found["sleeping"].sleeping > 0.9
    assert found["running"].running > max(0.05, found["waiting"].running)
    assert found["waiting"].sleeping == found["waiting"].stopped == 0
    ranks = [(0, 1 << 22)]
    watch.fire(time.monotonic() + 60)
    assert watch.read() == {} and LOOKS_MIN < LOOKS


def make_node(ranks: dict[int, dict[str, object]], **more: object) -> dict[str, object]:
    """Return the answer of a node."""
    return {"ranks": [{"rank": rank, **row} for rank, row in ranks.items()], **more}


def say(*nodes: dict[str, object]) -> list[str]:
    """Return what is found in the answers of nodes."""
    return [f"{one.name} {one.what}" for one in find_stragglers(list(enumerate(nodes)))]


def test_ranks_of_all_nodes_are_compared() -> None:
    """Each node knows only its own."""
    paces = RankPace(running=0.5), RankPace(running=0.5, sleeping=0.45)
    rows: list[dict[str, object]] = [{"pace": vars(pace)} for pace in paces]
    found = find_stragglers(
        list(enumerate([make_node({0: rows[0], 1: rows[0]}), make_node({2: rows[0], 3: rows[1]})]))
    )
    assert [(one.ranks, one.nodes) for one in found] == [((3,), ())]
    assert found[0].what.startswith("is in sleep 45 %")


def test_a_gpu_with_a_lower_clock_is_named_with_its_reason() -> None:
    """Not an idle one, and not one that was set to it, as all may be."""
    busy: dict[str, object] = {"busy_percent": 95, "clock_mhz": 1980, "clock_reasons": 0}
    hot = {**busy, "clock_mhz": 1200, "clock_reasons": 1 << 5}
    node = make_node({rank: {"gpus": [rank]} for rank in range(4)}, gpus=[busy, busy, hot, busy])
    assert say(node) == ["rank 2 has a GPU at 1,200 MHz (thermal slowdown); others 1,980"]
    for other in ({**hot, "busy_percent": 0}, {**hot, "clock_reasons": 1 << 1}, {**hot, "clock_mhz": 1950}):
        node = make_node({rank: {"gpus": [rank]} for rank in range(4)}, gpus=[busy, busy, other, busy])
        assert say(node) == []


def test_a_node_whose_messages_take_long_is_named() -> None:
    """If those of all nodes do, node 0 has the slow network."""
    slow = "has a slow network: a message takes 20 ms there and back"
    near, far = make_node({}, delay_s=0.0002), make_node({}, delay_s=0.02)
    assert say(make_node({}), near, far, near) == [f"node 2 {slow}; others 0.2 ms"]
    assert say(make_node({}), far, far, far) == [f"node 0 {slow}"]
    assert say(make_node({}), far) == [f"node 1 or node 0 {slow}"]
    assert say(make_node({}), near, near) == say(make_node({}), make_node({}, delay_s=0.003)) == []


def test_a_number_below_the_rule_is_named() -> None:
    """``--slow-below 300`` with a number in the output."""
    rows: dict[int, dict[str, object]] = {0: {"value": 310.0}, 1: {"value": 287.5}, 2: {}}
    assert say(make_node(rows, slow_below=300)) == ["rank 1 prints 287.5, which is below 300 (--slow-below)"]
    assert say(make_node(rows)) == []


@pytest.mark.parametrize(
    "evil", [None, 7, "x", [], {"pace": 3}, {"pace": {"running": "x"}}, {"gpus": [9, "a"]}]
)
def test_a_malformed_answer_names_nobody(evil: object) -> None:
    """Other nodes are not trusted."""
    answer: dict[str, object] = {
        "ranks": [evil, {"rank": 1, "pace": {"running": 7}}],
        "gpus": evil,
        "delay_s": "x",
    }
    assert say(answer, answer) == []
