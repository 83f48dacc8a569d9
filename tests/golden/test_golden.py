"""Every case gives the golden document, whole; every recording is in a case."""

from __future__ import annotations

import pytest

from tests.golden.jobs import (
    EXPECTED,
    case_names,
    describe_case,
    read_case,
    read_expected,
    recorded_environments,
    recording_names,
    references,
    render,
)

ORIGINS = (
    *("Recorded ", "From documentation: ", "From source: ", "From a published ", "From use ", "By hand: "),
)
"""How the first note of a case begins: where it comes from."""


@pytest.mark.parametrize("name", case_names())
def test_plans_are_the_golden_ones(name: str) -> None:
    """The plan of every process, as JSON, is the document that was reviewed, in the rewriter's layout.

    To change one: ``python -m tests.golden.rewrite``, and read what it prints.
    """
    expected = read_expected(name)
    assert expected == describe_case(name)
    assert render(expected) + "\n" == (EXPECTED / f"{name}.json").read_text()
    assert read_case(name)["notes"][0].startswith(ORIGINS)


def test_no_golden_document_is_left_over() -> None:
    """A document without its case proves nothing."""
    assert sorted(path.stem for path in EXPECTED.glob("*.json")) == case_names()


@pytest.mark.parametrize("name", recording_names())
def test_every_recorded_environment_is_in_a_case(name: str) -> None:
    """A recording that nothing plans is a recording that nothing tests."""
    used = {path for case in case_names() for path in references(read_case(case))}
    assert set(recorded_environments(name)) - used == set()
