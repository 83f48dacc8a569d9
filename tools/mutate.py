"""Changes one comparison, constant or condition of the package at a time, and reports which the tests notice.

    python tools/mutate.py --seed 1 --count 60          # hours: most of it for what no quick test notices
    python tools/mutate.py --seed 1 --count 60 --quick  # half an hour: only tests in one process
    python tools/mutate.py --seed 1 --count 10 --rooms identity -- python -m pytest -x -q tests/unit

Each change is made in a copy of the last commit. First run those tests of one process that execute the
changed line (of a constant: the lines of its file; else all), as coverage has seen in one run of all of
them. What they do not notice, all tests of processes and clusters try. The first failure ends a change's
run. A change that survives needs a test, or a reason why it does not matter. A seed gives the same changes
for the same commit.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("planning", "identity", "process", "agent", "cluster", "failure", "job")
PYTEST = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not thorough"]
QUICK = ("tests/unit", "tests/golden", "tests/fuzz", "tests/corpus", "tests/simulate")
PROCESSES = ("-n", str(os.cpu_count()), "--dist", "loadgroup", "tests/process", "tests/cluster")
CONTEXTS = "[run]\nsource = launcher\ndynamic_context = test_function\n"
STAGE_S = 1800.0
"""Seconds of one stage. Tests that hang have noticed the change, too."""
OTHER = {
    ast.Eq: "!=", ast.NotEq: "==", ast.Lt: ">=", ast.LtE: "<", ast.Gt: "<=", ast.GtE: ">",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip


class Change(NamedTuple):
    """One change: bytes of a file, and what replaces them."""

    path: Path
    start: int
    end: int
    new: str

    def apply(self, source: bytes) -> bytes:
        """Return the file's source with this change."""
        return source[: self.start] + self.new.encode() + source[self.end :]


def find_changes(path: Path) -> Iterator[Change]:
    """Yield every change of a module: none in annotations, assertions, messages and imports for types."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    pending: list[ast.AST] = [ast.parse(source)]
    while pending:
        node = pending.pop()
        match node:
            case ast.Assert() | ast.JoinedStr() | ast.Raise():
                continue
            case (
                ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Assign(targets=[ast.Name(id="TYPE_CHECKING")])
            ):
                continue
            case ast.FunctionDef():
                pending += [*node.args.defaults, *filter(None, node.args.kw_defaults), *node.body]
                continue
            case ast.AnnAssign():
                pending += [node.value] if node.value else []
                continue
        pending += ast.iter_child_nodes(node)
        for part, last, new in _find_in(node, source, starts):
            yield Change(path, _begin(part, starts), _end(last, starts), new)


def _find_in(node: ast.AST, source: bytes, starts: Sequence[int]) -> Iterator[tuple[ast.expr, ast.expr, str]]:
    """Yield the changes of one node: its first and its last part, and the text in their place."""

    def text(part: ast.expr) -> str:
        return source[_begin(part, starts) : _end(part, starts)].decode()

    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            yield node, node, f"({text(left)}) {OTHER[type(operator)]} ({text(right)})"
        case ast.BoolOp(op=operator, values=[*parts]):
            joined = " or " if isinstance(operator, ast.And) else " and "
            yield node, node, f"({joined.join(f'({text(part)})' for part in parts)})"
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield test, test, f"(not ({text(test)}))"
        case ast.Constant(value=bool() as value):
            yield node, node, str(not value)
        case ast.Constant(value=int() | float() as value):
            yield node, node, repr(value * 2 if value not in (0, 1) else 1 - value)


def _begin(node: ast.expr, starts: Sequence[int]) -> int:
    return starts[node.lineno - 1] + node.col_offset


def _end(node: ast.expr, starts: Sequence[int]) -> int:
    assert node.end_lineno is not None and node.end_col_offset is not None  # noqa: S101 - of parsed source
    return starts[node.end_lineno - 1] + node.end_col_offset


def choose(rooms: Sequence[str], seed: int, count: int, root: Path = ROOT) -> list[Change]:
    """Return this seed's changes: a room at random, a module of it, a change in it."""
    chance, chosen = random.Random(seed), dict[Change, None]()  # noqa: S311
    paths = {room: sorted((root / "launcher" / room).rglob("*.py")) for room in rooms}
    while len(chosen) < count:
        changes = list(find_changes(chance.choice(paths[chance.choice(rooms)])))
        if changes:
            chosen[chance.choice(changes)] = None
    return list(chosen)


class Reached:
    """Which quick tests execute which lines of a checkout."""

    def __init__(self, checkout: Path) -> None:
        """Run all quick tests once.

        Raises:
            CalledProcessError: A test fails without any change.
        """
        from coverage import CoverageData

        config, data = checkout / ".coveragerc", checkout / ".coverage"
        config.write_text(CONTEXTS)
        run = [sys.executable, "-m", "coverage", "run", f"--rcfile={config}", f"--data-file={data}"]
        subprocess.run([*run, *PYTEST, *QUICK], cwd=checkout, check=True)
        self._data = CoverageData(str(data))
        self._data.read()

    def find(self, path: Path, line: int) -> list[str]:
        """Return the tests that execute a line; of one that runs only at import, those of its file."""
        lines = self._data.contexts_by_lineno(str(path))
        tests = set(lines.get(line, ())) - {""} or {test for found in lines.values() for test in found} - {""}
        return sorted(_place(test) for test in tests)


def _place(context: str) -> str:
    """Return ``tests/unit/test_a.py::test_b`` for coverage's ``tests.unit.test_a.test_b``."""
    module, _, name = context.rpartition(".")
    return f"{module.replace('.', '/')}.py::{name}"


def try_change(
    change: Change, path: Path, stages: Sequence[Sequence[str]], checkout: Path | None = None
) -> str:
    """Return what notices a change, made in this file of a checkout: the first failed test, or nothing."""
    source = path.read_bytes()
    path.write_bytes(change.apply(source))
    try:
        return run_stages(stages, checkout)
    finally:
        path.write_bytes(source)


def run_stages(stages: Sequence[Sequence[str]], checkout: Path | None) -> str:
    """Return the first failed test of the stages; empty if all pass."""
    for stage in stages:
        done = subprocess.run(
            ["timeout", str(STAGE_S), *stage], cwd=checkout, capture_output=True, text=True, check=False
        )
        if done.returncode:
            lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
            return lines[0].partition(" - ")[0] if lines else f"status {done.returncode}"
    return ""


def show(change: Change) -> str:
    """Return a change as the line before and after it."""
    source = change.path.read_bytes()
    line = source[: change.start].count(b"\n") + 1
    old = source[change.start : change.end].decode()
    place = f"{change.path.relative_to(ROOT)}:{line}"
    return f"{place}: {' '.join(old.split())}  ->  {' '.join(change.new.split())}"


def main() -> int:
    """Make the changes, print a line for each and the total; fail if any survives."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--quick", action="store_true", help="no tests of processes and clusters")
    parser.add_argument("--rooms", default=",".join(ROOMS))
    parser.add_argument("tests", nargs="*", metavar="-- COMMAND", help="instead of the stages")
    asked = parser.parse_args()
    changes = choose(asked.rooms.split(","), asked.seed, asked.count)
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        subprocess.run(["git", "clone", "-q", str(ROOT), folder], check=True)
        reached = None if asked.tests else Reached(copy)
        for change in changes:
            began = time.monotonic()
            path = copy / change.path.relative_to(ROOT)
            stages = [asked.tests]
            if reached is not None:
                tests = reached.find(path, path.read_bytes()[: change.start].count(b"\n") + 1)
                stages = [[sys.executable, *PYTEST, *(tests or QUICK)]]
                stages += [] if asked.quick else [[sys.executable, *PYTEST, *PROCESSES]]
            by = try_change(change, path, stages, copy)
            survived += not by
            print(f"{time.monotonic() - began:5.0f} s  {by or 'SURVIVED'}", flush=True)
            print(f"         {show(change)}", flush=True)
    print(f"seed {asked.seed}: {len(changes) - survived} of {len(changes)} changes noticed")
    return bool(survived)


if __name__ == "__main__":
    sys.exit(main())
