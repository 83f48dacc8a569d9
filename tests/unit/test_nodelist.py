"""Slurm's compressed lists: grammar and bounds; Slurm itself is asked in tests/oracles/test_nodelist.py."""

from __future__ import annotations

import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.sources.nodelist import (
    MAX_NAME_LENGTH,
    MAX_NAMES,
    MAX_RANGE,
    parse_nodelist,
    parse_tasks_per_node,
)

EXPANSIONS = {
    "nodeA": "nodeA",
    "nodeA,nodeB": "nodeA nodeB",
    "n[1-3]": "n1 n2 n3",
    "n[08-10]": "n08 n09 n10",
    "n[1-010]": "n1 n2 n3 n4 n5 n6 n7 n8 n9 n10",
    "n[098-101]": "n098 n099 n100 n101",
    "n[001-0003]": "n001 n002 n003",
    "n[00-02,3]": "n00 n01 n02 n3",
    "n[08,9,010]": "n08 n9 n010",
    "n[2-2]": "n2",
    "n[0]": "n0",
    "n[1-2,5,7-8]": "n1 n2 n5 n7 n8",
    "n[2,1]": "n2 n1",
    "n[1,1]": "n1 n1",
    "n1,n1": "n1 n1",
    "n[1-2],n[1-2]": "n1 n2 n1 n2",
    "n[1-2],m3,k[4-5]": "n1 n2 m3 k4 k5",
    "n[1-2][3-4]": "n13 n14 n23 n24",
    "n[1-2]-[3-4]": "n1-3 n1-4 n2-3 n2-4",
    "rack[1-2]node[01-02,5]": ("rack1node01 rack1node02 rack1node5 rack2node01 rack2node02 rack2node5"),
    "n[1-2]x[3],m": "n1x3 n2x3 m",
    "n[1-2]r[3-4]p[5-6]": "n1r3p5 n1r3p6 n2r3p5 n2r3p6 n1r4p5 n1r4p6 n2r4p5 n2r4p6",
    "a[1-2]b[1-2]c[1-2]d[1-2]": (
        "a1b1c1d1 a1b1c1d2 a2b1c1d1 a2b1c1d2 a1b2c1d1 a1b2c1d2 a2b2c1d1 a2b2c1d2 "
        "a1b1c2d1 a1b1c2d2 a2b1c2d1 a2b1c2d2 a1b2c2d1 a1b2c2d2 a2b2c2d1 a2b2c2d2"
    ),
    "tux[1-2]-[01-02]-[3]": "tux1-01-3 tux2-01-3 tux1-02-3 tux2-02-3",
    "[1-3]": "1 2 3",
    "n1-3": "n1-3",
    "a-b-[1-2]": "a-b-1 a-b-2",
    "node.example.com": "node.example.com",
    "10.0.0.[4-5]": "10.0.0.4 10.0.0.5",
    "fe80::1": "fe80::1",
    "gpu_node[9-11]": "gpu_node9 gpu_node10 gpu_node11",
    "n[4294967295-4294967297]": "n4294967295 n4294967296 n4294967297",
}

# Slurm refuses these too (its exit status is 0 all the same).
REFUSED_BY_SLURM = [
    *("n[3-1]", "n[]", "n[1,]", "n[,1]", "n[1,,2]", "n[a]", "n[a-b]", "n[-1]", "n[1-2-3]", "n[1:2]"),
    *("n[1-3]x", "n[1-3]-ib", "n[1-2].example.com", "n[[1-2]]", "n[1-3]]", "n[0-65536]", "n[0-999999999]"),
    "n[\u0663]",
]

# Slurm repairs or accepts these; nothing that Slurm writes looks like them.
REFUSED_BY_US = [
    *("", ",", "n1,", ",n1", "n1,,n2", "n[1-]", "n[1-3", "n1]", "n]1[", "n[1 - 2]", "n[+1-2]", "n[1-2] m3"),
    *(" n1", "n1\n", "n(x2)", "(null)", "n\u00e9", "-n1", "-[1-2]", "n\udcff", "n\x00", "n{0}", "n%s"),
    "n[99999999999999999999999]",
]


@pytest.mark.parametrize("text", EXPANSIONS)
def test_host_list_is_expanded(text: str) -> None:
    """Every form in the table has the names that stand beside it, in that order."""
    assert tuple(EXPANSIONS[text].split()) == parse_nodelist(text)


@pytest.mark.parametrize("text", REFUSED_BY_SLURM + REFUSED_BY_US)
def test_malformed_host_list_is_refused(text: str) -> None:
    """What is not a host list is a ValueError whose message is one printable line."""
    with pytest.raises(ValueError, match="host list ") as caught:
        parse_nodelist(text)
    assert str(caught.value).isprintable()


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        *("n[0-999999999]", "n[0-999999999][0-999999999]", "n[0-65535],n[0-65535],m"),
        *(",".join(["n[0-65535]"] * 10_000), "n[0-65535]" + "[0-1]" * 100, "n[0-255]" * 20, "[" * 130_000),
        *("[1" * 65_000, "]" * 130_000, "," * 130_000, "a" * 130_000, "a" * 130_000 + "[0-65535]"),
        *("[1]" * 43_000, "n[" + "9" * 130_000 + "]", "n[1-" + "9" * 130_000 + "]"),
        *("n[" + "0" * 130_000 + "-65535]", "n[" + "1," * 140_000 + "1]"),
    ],
    ids=lambda text: f"{text[:12]}..{len(text)}",
)
def test_hostile_host_list_costs_little(text: str) -> None:
    """A text as long as a variable can be, made to explode, is refused in no time or memory."""
    tracemalloc.start()
    started = time.process_time()
    with pytest.raises(ValueError, match="host list ") as caught:
        parse_nodelist(text)
    elapsed_s = time.process_time() - started
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert elapsed_s < 30
    assert peak_bytes < 64 << 20
    assert len(str(caught.value)) < 300


def test_largest_host_list_is_accepted() -> None:
    """The bound itself is allowed: as many names as Slurm takes, and as long as DNS takes."""
    ranges = (f"{first}-{first + MAX_RANGE - 1}" for first in range(0, MAX_NAMES, MAX_RANGE))
    names = parse_nodelist(f"n[{','.join(ranges)}]")
    assert (MAX_NAMES, "n0", f"n{MAX_NAMES - 1}") == (len(names), names[0], names[-1])
    longest = "a" * MAX_NAME_LENGTH
    assert (longest,) == parse_nodelist(longest)


@given(st.text(alphabet="n1[]-,0x.", max_size=30) | st.text(max_size=30))
def test_any_text_is_names_or_value_error(text: str) -> None:
    """No text gives another exception, an empty result or an empty name."""
    try:
        names = parse_nodelist(text)
    except ValueError:
        return
    assert names
    assert all(names)


literals = st.text(alphabet="abzAZ09-_.", min_size=1, max_size=5)


@st.composite
def ranges(draw: st.DrawFn) -> tuple[str, list[str]]:
    """Return a range as text, and its numbers."""
    first = draw(st.integers(0, 2000))
    width = draw(st.integers(0, 6))
    count = draw(st.integers(1, 5))
    numbers = [f"{first + i:0{width}}" for i in range(count)]
    if count == 1:
        return numbers[0], numbers
    return f"{numbers[0]}-{first + count - 1}", numbers


@st.composite
def groups(draw: st.DrawFn) -> tuple[str, list[str]]:
    """Return a bracket group as text, and its numbers."""
    chosen = draw(st.lists(ranges(), min_size=1, max_size=3))
    return f"[{','.join(text for text, _ in chosen)}]", [n for _, some in chosen for n in some]


@st.composite
def items(draw: st.DrawFn, *, groups_max: int = 2) -> tuple[str, list[str]]:
    """Return an item with at most `groups_max` bracket groups, and its names in written order."""
    text = draw(literals.filter(lambda literal: literal[0] != "-"))
    names = [text]
    for index in range(draw(st.integers(0, groups_max))):
        between = draw(literals | st.just("")) if index else ""
        group, numbers = draw(groups())
        text += between + group
        names = [name + between + number for name in names for number in numbers]
    return text, names


@given(st.lists(items(), min_size=1, max_size=4))
def test_host_list_round_trip(chosen: list[tuple[str, list[str]]]) -> None:
    """Names that are written as a list (up to two groups each) come back, order included."""
    expected = tuple(name for _, names in chosen for name in names)
    assert expected == parse_nodelist(",".join(text for text, _ in chosen))


@given(st.lists(items(groups_max=4), min_size=1, max_size=2))
def test_every_combination_is_there(chosen: list[tuple[str, list[str]]]) -> None:
    """With any number of groups the names are the cartesian product, whatever its order."""
    expected = sorted(name for _, names in chosen for name in names)
    assert expected == sorted(parse_nodelist(",".join(text for text, _ in chosen)))


TASK_COUNTS = {
    "1": (1,),
    "2(x2)": (2, 2),
    "2(x2),1": (2, 2, 1),
    "3,1": (3, 1),
    "8(x3),4,8(x1)": (8, 8, 8, 4, 8),
}


@pytest.mark.parametrize("text", TASK_COUNTS)
def test_task_counts_are_expanded(text: str) -> None:
    """One count per node, repetitions written out."""
    assert TASK_COUNTS[text] == parse_tasks_per_node(text)


@given(st.lists(st.tuples(st.integers(1, 512), st.integers(1, 99), st.booleans()), min_size=1))
def test_task_counts_round_trip(chosen: list[tuple[int, int, bool]]) -> None:
    """Counts that are written with or without repetition come back."""
    text = ",".join(f"{n}(x{times})" if repeat else f"{n}" for n, times, repeat in chosen)
    expected = [n for n, times, repeat in chosen for _ in range(times if repeat else 1)]
    assert tuple(expected) == parse_tasks_per_node(text)


@pytest.mark.parametrize(
    "text",
    [
        *["", ",", "2,", ",2", "0", "-1", " 2", "2\n", "\u0663", "x2"],
        *["2(x0)", "2(x", "2(x2", "2(x2)3", "2(2)", "2 (x2)", "2(x131073)", "2(x999999999)"],
        *["9" * 10, "9" * 130_000, "2(x9)," * 20_000, "1," * 131_072 + "1"],
    ],
    ids=lambda text: f"{text[:12]}..{len(text)}",
)
def test_malformed_task_counts_are_refused(text: str) -> None:
    """What is not a list of counts, or too long a list, is a ValueError with a short message."""
    with pytest.raises(ValueError, match="task counts ") as caught:
        parse_tasks_per_node(text)
    assert len(str(caught.value)) < 300
