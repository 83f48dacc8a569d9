"""Public libraries read in our environments what the launcher's plans say, wherever it says something."""

from __future__ import annotations

import pytest

from tests.oracles import folder
from tests.oracles.environments import processes
from tests.oracles.libraries import LIBRARIES, Library
from tests.oracles.table import (
    BEGIN,
    END,
    PAGE,
    ask,
    describe_difference,
    put,
    reasons_for,
    render_row,
)

PINS = dict(pin.split("==") for pin in folder.LIBRARIES)
ASKED = [
    pytest.param(one, id=one.title, marks=[pytest.mark.horovod] if one.package == "horovod" else [])
    for one in LIBRARIES
]


def generated() -> str:
    """Return what of the page is generated."""
    return PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]


@pytest.mark.torch
@pytest.mark.parametrize("library", ASKED)
def test_a_library_agrees_with_every_plan(library: Library) -> None:
    """In every process of every case; where it cannot, a reason is written down, and none is left over.

    And it is the version that the table names: the installed one, or the pin of its folder.

    When libraries or cases have changed: ``python -m tests.oracles.table``, and read the difference.
    """
    result = ask(library)
    if library.package != "-":
        asked = PINS.get(library.package) or (result.version or "").partition("+")[0]
        assert asked == library.version
    unexplained = [item for item in result.differences if not reasons_for(library, item)]
    assert unexplained == []
    needed = [reason for item in result.differences for reason in reasons_for(library, item)]
    assert set(needed) == set(library.reasons)
    assert render_row(library) in generated(), "docs are not up to date: python -m tests.oracles.table"


@pytest.mark.torch
@pytest.mark.parametrize("question", ["torch_env", "timm", "composer"])
def test_a_wrong_environment_is_seen(question: str) -> None:
    """The same question about a process whose rank is another's: what agrees above can disagree."""
    library = next(library for library in LIBRARIES if library.question == question)
    process = next(process for process in processes("auto") if process.facts["rank"] == 1)
    _, (right, wrong) = put(library, [process.environ, {**process.environ, "RANK": "0"}])
    assert describe_difference(process.facts, right) == ""
    assert describe_difference(process.facts, wrong) == "rank 0, not 1"
