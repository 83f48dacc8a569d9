"""The classifier names the causes of real failures: those that were made, and those of public bug reports.

``pytest -s`` prints precision and recall of each class. The rules were written with the parts ``provoked``
and ``public-rules`` in sight. ``public-check`` is of other sources, and no rule was written for it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from launcher.failure.symptoms import read_signals, read_symptoms
from tests.corpus.corpus import HERE, NONE, read_cases, render, score
from tests.corpus.provoke import read_programs

FLOORS = {"provoked": (0.997, 0.994), "public-rules": (1.0, 1.0), "public-check": (0.94, 0.91)}
"""Least precision and recall over all classes of each part."""
LEAST_CASES, LEAST_KINDS = 600, 60
TYPED = re.compile(r"`[^`]+`")


@pytest.mark.parametrize("part", FLOORS)
def test_the_causes_of_real_failures_are_named(part: str) -> None:
    """A wrong cause is worse than none, so precision comes first."""
    answers = [(case, case.classify()) for case in read_cases(part)]
    print(render(part, answers))
    whole = score(answers)[""]
    missed = render(part, answers, missed=True)
    assert (whole.precision, whole.recall) >= FLOORS[part] and whole.recall >= FLOORS[part][1], missed


def test_the_corpus_is_large_and_its_names_are_unique() -> None:
    """Many failures of many kinds, each with its source; checks and rules share none."""
    cases = {part: read_cases(part) for part in FLOORS}
    names = [case.name for part in cases.values() for case in part]
    assert len(names) == len(set(names)) >= LEAST_CASES
    assert len({case.kind for part in cases.values() for case in part} - {NONE}) >= LEAST_KINDS
    assert len({case.kind for case in cases["provoked"]} - {NONE}) >= LEAST_KINDS
    assert not {case.source for case in cases["public-rules"]} & {
        case.source for case in cases["public-check"]
    }


def test_each_provoked_failure_has_its_program() -> None:
    """So that it can be made again."""
    assert {case.name for case in read_cases("provoked")} <= {one.called for one in read_programs()}


def test_the_corpus_names_no_machine() -> None:
    """Paths and addresses are neutral."""
    for path in Path(HERE).glob("*/*.toml"):
        text = path.read_text(encoding="utf-8")
        own = r"/root/|/tmp/job-|" if path.parent.name == "provoked" else ""
        assert not re.search(rf"{own}cluster-launcher", text), path


@pytest.mark.parametrize("code", list(read_symptoms()))
def test_each_fix_has_something_to_type(code: str) -> None:
    """A command, a flag, a variable or a line of code, in backticks."""
    fix = read_symptoms()[code].fix
    assert TYPED.search(fix)


def test_each_fix_of_a_signal_has_something_to_type() -> None:
    """The same for the causes that the kernel tells."""
    assert [cause.code for cause in read_signals().values() if not TYPED.search(cause.fix)] == []
