"""All benchmarks in one dated report. ``benchmarks/run [--quick] [--only PART ...] [--folder FOLDER]``

Each part is a program of its own that prints Markdown; the report holds what they printed as it is, and
before it what a reader wants first: the ratios to the peers, and which promises were kept. The plots are
made from the report's own tables (`benchmarks.plots`), so that a picture cannot say something else than
the numbers below it. The status is 1 if a promise was broken, or a part did not end as it should.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.machine import describe_machine
from benchmarks.peers import OURS
from benchmarks.plots import PLOTS
from benchmarks.tables import Table, markdown, progress, read_tables

FOLDER = Path(__file__).parent / "reports"
PROMISE = "- promise: "


class Part(NamedTuple):
    """One program that measures.

    Attributes:
        module: Below `benchmarks`.
        title: What it answers.
        full, quick: Its arguments.
    """

    module: str
    title: str
    full: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()


PARTS = (
    Part("processes", "Running processes, beside the peers", (), ("--quick",)),
    Part("first_step", "Until the first step of a job, beside the peers", ("--rounds", "1"), ("--quick",)),
    Part("startup", "A start, beside a bare Python", ("--runs", "20"), ("--runs", "5")),
    Part("log_lines", "Passing output on"),
    Part("events", "Events, traces and metrics", (), ("--rounds", "1")),
    Part("package", "Installing the package", (), ("--rounds", "1")),
    Part("hook", "The environment hook", ("--runs", "150"), ("--runs", "20")),
    Part("planning", "Planning"),
    Part("ports", "Reading the machine"),
    Part("checks", "Checks", (), ("--rounds", "5")),
    Part("mpirun_start", "mpirun as the engine, beside a bare one", (), ("--rounds", "2")),
    Part("peers_load", "2,000 nodes and more at node 0", ("2000", "8000", "16000"), ("2000",)),
    Part("restarts", "Restarts after a failure, beside the peers", (), ("--quick",)),
    Part("status_load", "The status of 2,000 nodes", ("2000",), ("500",)),
    Part("peers_steps", "The control channel beside a healthy job", (), ("--rounds", "2")),
    Part(
        "stall_watch", "The watch for stalls beside a healthy job", (), ("--seconds", "90", "--rounds", "1")
    ),
)


COMPARED = {
    "1 process": "start, 1 process",
    "2 processes": "start, 2 processes",
    "8 processes": "start, 8 processes",
    "32 processes": "start, 32 processes",
    "of all, MiB": "memory of the parent",
    "the other obeys SIGTERM, ms": "from a death to the exit",
}
"""Columns of the tables of `benchmarks.processes`, and what they are called among the ratios."""


class Answer(NamedTuple):
    """What a part printed, and how it ended."""

    part: Part
    text: str
    status: int


def main() -> int:
    """Measure, write the report and its plots, and say where they are."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a look: few rounds, small sizes")
    parser.add_argument("--only", nargs="+", choices=[part.module for part in PARTS], help="only these parts")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"where the report goes ({FOLDER})")
    asked = parser.parse_args()
    load = "/".join(f"{value:.1f}" for value in os.getloadavg())
    answers = []
    for part in PARTS:
        if not asked.only or part.module in asked.only:
            answers.append(ask(part, part.quick if asked.quick else part.full))
    facts = f"{describe_machine()}; load {load} at the start."
    name = f"{datetime.date.today()}{'-quick' if asked.quick else ''}"
    asked.folder.mkdir(parents=True, exist_ok=True)
    path = asked.folder / f"{name}.md"
    path.write_text("\n".join(compose(facts, answers, name)) + "\n")
    drawn = draw(path)
    progress(f"{path}{'' if drawn else ', without plots: see above'}")
    return int(not drawn or any(answer.status for answer in answers))


def ask(part: Part, words: Sequence[str]) -> Answer:
    """Run a part; its progress goes where ours goes."""
    progress(f"{part.module}: {part.title}")
    argv = [sys.executable, "-m", f"benchmarks.{part.module}", *words]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False)
    return Answer(part, done.stdout.strip(), done.returncode)


def draw(path: Path) -> bool:
    """Draw the plots of a report beside it, with the Python that has matplotlib."""
    python = os.environ.get("LAUNCHER_BENCH_PLOTS", sys.executable)
    return subprocess.run([python, "-m", "benchmarks.plots", str(path)], check=False).returncode == 0


def compose(facts: str, answers: Sequence[Answer], name: str) -> list[str]:
    """Return the report's lines: ratios, promises, plots, then everything as it was printed."""
    by_module = {answer.part.module: read_tables(answer.text) for answer in answers}
    lines = [f"# Benchmarks, {name}", "", facts, ""]
    lines += ["Repeat it with `benchmarks/run`. Ratios travel between machines, milliseconds do not.", ""]
    lines += [*ratios(by_module), *promises(answers)]
    for plot in PLOTS:
        if plot.module in by_module:
            lines += [f"![{plot.title}]({name}/{plot.name}.svg)", ""]
    for answer in answers:
        command = f"python -m benchmarks.{answer.part.module}"
        lines += [f"## {answer.part.title} (`{command}`)", ""]
        if answer.status not in (0, 1):
            lines += [f"**It failed with status {answer.status}**; what it printed:", ""]
        lines += [answer.text, ""]
    return lines[:-1]


def ratios(tables: Mapping[str, Sequence[Table]]) -> list[str]:
    """Return how many times as much as the launcher each peer takes."""
    columns: dict[str, dict[str, float]] = {}
    for table in tables.get("processes", ()):
        for column, title in COMPARED.items():
            if title not in columns and column in table.head:
                found = table.numbers(column)
                if found.get(OURS):
                    columns[title] = {peer: value / found[OURS] for peer, value in found.items()}
    if not columns:
        return []
    peers = list(dict.fromkeys(peer for found in columns.values() for peer in found if peer != OURS))
    rows = [
        [peer, *(f"{found[peer]:.2g}" if peer in found else "none" for found in columns.values())]
        for peer in peers
    ]
    return [
        "How many times as much as the launcher each of them takes, in the same run (below 1: less):",
        "",
        *markdown(["", *columns], rows),
        "",
    ]


def promises(answers: Sequence[Answer]) -> list[str]:
    """Return every promise that a part has said a word about."""
    found = [
        f"{line} ({answer.part.module})"
        for answer in answers
        for line in answer.text.splitlines()
        if line.startswith(PROMISE)
    ]
    return [*found, ""] if found else []


if __name__ == "__main__":
    sys.exit(main())
