"""What a library says, beside what the plan says: a row of docs/frameworks.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from textwrap import TextWrapper
from typing import Any, NamedTuple

from tests.oracles.environments import SOURCES, Process, processes, source_of
from tests.oracles.folder import oracles_folder
from tests.oracles.libraries import LIBRARIES, Library, Reason
from tests.process.starting import ROOT

PAGE = Path(ROOT) / "docs" / "frameworks.md"
BEGIN, END = "<!-- begin: consumers -->\n", "<!-- end: consumers -->"
WHY = "where-a-library-does-not-agree"
DEADLINE_S = 240.0
_PROSE = TextWrapper(120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


class Difference(NamedTuple):
    """One process of which a library says something else than the plan, or fails."""

    case: str
    text: str


class Result(NamedTuple):
    """What came of asking a library: in which cases it was asked, and where it does not agree."""

    version: str | None
    cases: tuple[str, ...]
    differences: tuple[Difference, ...]


def asked_of(library: Library) -> list[Process]:
    """Return the processes of which a library can say something."""
    found = processes(library.framework, library.words)
    return [process for process in found if any(fnmatchcase(process.case, name) for name in library.cases)]


@lru_cache
def ask(library: Library) -> Result:
    """Ask a library who it is in every environment that we plan."""
    questions = asked_of(library)
    version, answers = put(library, [process.environ for process in questions])
    differences = [
        Difference(process.case, text)
        for process, answer in zip(questions, answers, strict=True)
        if (text := describe_difference(process.facts, answer))
    ]
    return Result(version, tuple(process.case for process in questions), tuple(differences))


def put(library: Library, environs: list[dict[str, str]]) -> tuple[str | None, list[dict[str, Any]]]:
    """Ask a library, in one process, who it is in each of these environments.

    Returns:
        The version of its package, if that is installed, and one answer per environment.
    """
    # Nothing of the job that runs the tests; one thread, because there is nothing to calculate.
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    own = {"LAUNCHER_TEST_ORACLES": str(oracles_folder()), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-m", "tests.oracles.ask", library.question, library.package],
        input=json.dumps(environs),
        env={**kept, **own, "PYTHONPATH": ROOT},
        cwd=ROOT,
        text=True,
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, f"{library.question}: {done.stderr[-3000:]}"
    said = json.loads(done.stdout)
    return said["version"], said["answers"]


def describe_difference(facts: dict[str, Any], answer: dict[str, Any]) -> str:
    """Return in what an answer differs from a plan, as far as both know; nothing if in nothing."""
    if "error" in answer:
        return str(answer["error"])
    assert answer.keys() <= facts.keys(), answer
    return "; ".join(
        f"{name} {value!r}, not {facts[name]!r}"
        for name, value in answer.items()
        if value is not None and facts[name] is not None and not _same(value, facts[name])
    )


def _same(one: Any, other: Any) -> bool:
    """Compare; names of hosts have no case, and Python's reader of URLs makes them small."""
    return str(one).lower() == str(other).lower()


def reasons_for(library: Library, difference: Difference) -> list[Reason]:
    """Return why a library does not agree, as far as that is written down."""
    return [
        reason
        for reason in library.reasons
        if reason.says in difference.text
        and any(fnmatchcase(difference.case, pattern) for pattern in reason.cases)
    ]


def render_row(library: Library) -> str:
    """Return the row of one library, from what it says now."""
    result = ask(library)
    cells = [library.title, library.version, f"`{library.function}`"]
    for source in SOURCES:
        asked = sum(source_of(case) == source for case in result.cases)
        wrong = sum(source_of(item.case) == source for item in result.differences)
        cells.append(f"[{wrong} of {asked} differ](#{WHY})" if wrong else "agrees" if asked else "-")
    return _row(cells)


def render_head() -> str:
    """Return the head of the table."""
    cells = ["library", "version", "asked", *SOURCES]
    return _row(cells) + _row(["---"] * len(cells))


def render_reasons() -> str:
    """Return the list of what does not agree, and why."""
    points = [
        f"- **{library.title}** ({', '.join(f'`{name}`' for name in reason.cases)}): {reason.why}"
        for library in LIBRARIES
        for reason in library.reasons
    ]
    return "".join(f"{_PROSE.fill(point)}\n" for point in points)


def render() -> str:
    """Return all that is generated of the page."""
    rows = "".join(render_row(library) for library in LIBRARIES)
    title = WHY.replace("-", " ").capitalize()
    return f"{render_head()}{rows}\n### {title}\n\n{render_reasons()}"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |\n"


def main() -> int:
    """Write the page anew, and print every difference for which no reason is written down."""
    page = PAGE.read_text(encoding="utf-8")
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(f"{head}{BEGIN}{render()}{END}{tail}", encoding="utf-8")
    for library in LIBRARIES:
        for item in ask(library).differences:
            if not reasons_for(library, item):
                print(f"{library.title}: {item.case}: {item.text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
