"""Reads the corpus of failures, and asks the launcher's classifier about each."""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import tomllib

from launcher.failure.causes import find_causes
from launcher.failure.counters import Counters
from launcher.failure.model import ProcessExit
from launcher.failure.stderr import STDERR_BYTES
from launcher.machine.host import Host

HERE = Path(__file__).parent
NONE = "none"
"""The class of a failure whose message says all there is: `python-exception`, or nothing."""


@dataclass(frozen=True)
class Case:
    """One failure: what the process wrote, how it ended, and the cause that a person named."""

    name: str
    kind: str
    source: str
    code: int
    stderr: str

    def classify(self) -> str:
        """Return the code of the first cause, found as after the failure of a rank."""
        text = self.stderr.encode()[-STDERR_BYTES:]
        found = find_causes(ProcessExit(0, 0, 1, self.code, 0, text), Counters(), Host("/nonexistent"))
        return simple(found[0].code if found else NONE)


def simple(kind: str) -> str:
    """Return a class, with one name for failures without a cause of their own."""
    return NONE if kind in ("", "python-exception") else kind


def read_cases(part: str) -> list[Case]:
    """Return the cases of one part: ``provoked``, ``public-rules`` or ``public-check``."""
    found = []
    for path in sorted((HERE / part).glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["case"]:
            code = -signal.Signals[entry["signal"]] if "signal" in entry else entry["status"]
            found.append(Case(entry["name"], simple(entry["class"]), entry["source"], code, entry["stderr"]))
    return found


@dataclass(frozen=True)
class Score:
    """How many cases of a class the classifier names.

    Attributes:
        right: Number of cases that it names with their class.
        named: Number of cases that it names with this class, rightly or not.
        there: Number of cases of this class.
    """

    right: int
    named: int
    there: int

    @property
    def precision(self) -> float:
        """Share of the named that are right; 1 if none are named."""
        return self.right / self.named if self.named else 1.0

    @property
    def recall(self) -> float:
        """Share of those there that are named."""
        return self.right / self.there if self.there else 1.0


def score(answers: list[tuple[Case, str]]) -> dict[str, Score]:
    """Return the score of each class, and of all classes as ``""``, without failures that have no cause."""
    kinds = sorted({case.kind for case, _ in answers} | {answer for _, answer in answers})
    scores = {}
    for kind in kinds:
        right = sum(case.kind == kind == answer for case, answer in answers)
        named = sum(answer == kind for _, answer in answers)
        scores[kind] = Score(right, named, sum(case.kind == kind for case, _ in answers))
    real = [one for kind, one in scores.items() if kind != NONE]
    scores[""] = Score(*(sum(getattr(one, name) for one in real) for name in ("right", "named", "there")))
    return scores


def render(part: str, answers: list[tuple[Case, str]], *, missed: bool = False) -> str:
    """Return a table of precision and recall, and with ``missed`` a line for each wrong answer."""
    rows = [f"{part}: {len(answers)} cases", f"{'class':28} {'precision':>9} {'recall':>7} {'cases':>6}"]
    for kind, one in sorted(score(answers).items(), key=lambda item: (not item[0], item[0])):
        rows.append(f"{kind or 'all':28} {one.precision:9.2f} {one.recall:7.2f} {one.there:6}")
    if missed:
        for case, answer in answers:
            if case.kind != answer:
                last = next((line for line in reversed(case.stderr.splitlines()) if line.strip()), "")
                rows.append(f"{case.name}: {case.kind}, named {answer}: {last[:140]}")
    return "\n".join(rows)


if __name__ == "__main__":  # python -m tests.corpus.corpus provoked
    for name in sys.argv[1:]:
        print(render(name, [(case, case.classify()) for case in read_cases(name)], missed=True))
