"""Whole jobs drawn from seeds: in none of them may an invariant be broken."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from launcher.job import between, node
from launcher.job.turn import Turn
from tests.simulate.draw import simulate

BLOCK = 500


def find_wrong(seeds: range) -> Iterator[str]:
    """Yield the seeds whose run breaks an invariant, and how."""
    for seed in seeds:
        wrong = simulate(seed).wrong
        if wrong:
            yield f"seed {seed}: {wrong}"


@pytest.mark.parametrize("first", range(0, 2_000, BLOCK))
def test_no_run_of_known_seeds_breaks_an_invariant(first: int) -> None:
    assert list(find_wrong(range(first, first + BLOCK))) == []


def test_no_run_of_random_seeds_breaks_an_invariant() -> None:
    """`python -m tests.simulate --runs 1 --seed N --story` shows one of them."""
    first = random.SystemRandom().randrange(10**9)
    print(f"seeds {first} to {first + BLOCK - 1}")
    assert list(find_wrong(range(first, first + BLOCK))) == []


def test_a_seed_is_a_whole_run() -> None:
    """The same seed gives the same story, to the last digit."""
    assert [simulate(seed).story for seed in range(40)] == [simulate(seed).story for seed in range(40)]


def test_a_next_attempt_that_waits_for_no_lease_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two attempts run at once if the next one starts as soon as a node counts as lost."""

    def drop(turn: Turn, index: int) -> None:
        between.set_ready(turn, index, ready=False)
        between.wait_for(turn, index)
        turn.drop(index)

    monkeypatch.setattr(between, "drop", drop)
    assert any("ran on" in one for one in find_wrong(range(2_000)))


def test_events_that_are_not_repeated_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job waits for ever for what was sent on a connection that broke."""
    monkeypatch.setitem(node.RULES, node.Connected, lambda turn, event: None)
    assert any("wait for ever" in one for one in find_wrong(range(2_000)))
