"""Which ranks are behind, by the numbers in their last output."""

from __future__ import annotations

import pytest

from launcher.observers.stragglers import describe_stragglers, find_numbers


@pytest.mark.parametrize(
    ("numbers", "line"),
    [
        ([1260, 1260, 1260, 1200], "rank 3 is behind: step 1,200, the others 1,260"),
        ([7, 7, 5, 7, 6, 7], "ranks 2, 4 are behind: step 5 to 6, the others 7"),
        ([7, 7, 8, 7], "rank 2 is ahead: step 8, the others 7"),
        ([3, 4], "rank 0 is behind: step 3, the others 4"),
        ([10, 12, 13, 14], "rank 0 is behind: step 10, the others 12 to 14"),
        ([1, 1, 2, 2], "ranks 0-1 are behind: step 1, the others 2"),
        ([0.5, 1.5, 1.5], "rank 0 is behind: step 0.5, the others 1.5"),
        ([5, 5, 5], ""),
        ([5], ""),
        ([], ""),
    ],
)
def test_the_ranks_that_are_behind_are_named(numbers: list[float], line: str) -> None:
    """Most ranks are the measure; one that is ahead may have left out a collective."""
    assert describe_stragglers(list(enumerate(numbers))) == line


def test_another_thing_is_counted() -> None:
    """The pairs need not come from output, nor from ranks 0, 1, ..."""
    said = describe_stragglers([(8, 1412), (9, 1411), (12, 1412)], "collective")
    assert said == "rank 9 is behind: collective 1,411, the others 1,412"


@pytest.mark.parametrize("pattern", [r"step (\d+)", r"step \d+", r"step (?P<number>\d+)"])
def test_the_last_match_of_each_rank_counts(pattern: str) -> None:
    """With a group and without; a progress bar's line ends with a carriage return."""
    tails = {0: b"step 1\nstep 2 of 9\n", 1: b"step 2\rstep 3", 2: b"loading\n", 3: b"\xff step 12\n"}
    assert find_numbers(pattern, tails) == [(0, 2), (1, 3), (3, 12)]


def test_numbers_as_people_write_them() -> None:
    """Thousands and fractions; a group without a number is none."""
    tails = {0: b"at 1,260", 1: b"at 1_260", 2: b"at 1.5", 3: b"at x"}
    assert find_numbers(r"at (\S+)", tails) == [(0, 1260), (1, 1260), (2, 1.5)]
