"""Lists what docs/compatibility.md promises, by name: ``python tools/promises.py`` adds what is new.

The list is tests/unit/promises.txt, one promise a line; a test compares it with the program. A promise that
the program has lost stays in the list, and the test fails, until it was deprecated and its line is removed
by hand.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # run from anywhere, installed or not

from launcher.cli.help import COMMANDS  # noqa: E402
from launcher.control import node as node_status  # noqa: E402
from launcher.control import render as stacks  # noqa: E402
from launcher.control import table as status  # noqa: E402
from launcher.core import errors  # noqa: E402
from launcher.events import writer  # noqa: E402
from launcher.failure import record  # noqa: E402
from launcher.failure.symptoms import read_conclusions, read_signals, read_symptoms  # noqa: E402
from launcher.planning import recorded  # noqa: E402
from launcher.recovery import history  # noqa: E402
from launcher.views import check, plan_json, topology  # noqa: E402
from tests.unit.test_docs import blocks, codes  # noqa: E402
from tests.unit.test_events import rows as event_rows  # noqa: E402
from tests.unit.test_failure_docs import causes_in_code, rows  # noqa: E402
from tools.parsers import find_parser  # noqa: E402
from tools.reference import variable_rows  # noqa: E402

LIST = ROOT / "tests" / "unit" / "promises.txt"
DOCUMENTS = {
    "launcher plan --format json": ("version", plan_json.VERSION),
    "launcher check --json": ("version", check.VERSION),
    "launcher status --json": ("version", status.VERSION),
    "launcher status --json, nodes": ("version", node_status.VERSION),
    "launcher stacks --json": ("version", stacks.VERSION),
    "launcher topology --format json": ("version", topology.VERSION),
    "launcher snapshot": ("version", recorded.VERSION),
    "--failure-file": ("schema", record.SCHEMA),
    "--attempts-file": ("schema", history.SCHEMA),
    "--events": ("schema", writer.SCHEMA),
}
"""The JSON documents for tools: the key of their number, and the number."""


def read() -> set[str]:
    """Return the promises that were made."""
    return set(LIST.read_text(encoding="utf-8").splitlines())


@cache
def find() -> set[str]:
    """Return the promises that the program keeps."""
    return {*names(), *documents()}


def names() -> Iterator[str]:
    """Yield flags, variables, exit codees and codes."""
    for command in COMMANDS:
        yield f"command {command}"
        for action in find_parser(command)._actions:
            if action.help != argparse.SUPPRESS:  # the spelling with underscores
                yield from (f"flag {command} {name}" for name in action.option_strings)
    for name, *_ in variable_rows():
        if name.startswith("`LAUNCHER_"):
            yield f"variable {name.strip('`')}"
    for name, value in vars(errors).items():
        if name.startswith("EXIT_"):
            yield f"status {value}"
    yield from (f"cause {code}" for code in read_symptoms())
    yield from (f"cause {cause.code}" for cause in (*read_signals().values(), *read_conclusions().values()))
    yield from (f"cause {code}" for code, _ in causes_in_code())
    yield from (f"error {code}" for code, _ in codes())
    yield from (f"event {name}" for name in event_rows("events.md"))


def documents() -> Iterator[str]:
    """Yield the JSON documents with their numbers, and the keys of two of them."""
    for name, (key, number) in DOCUMENTS.items():
        yield f"document {name}: {key} {number}"
    (example,) = blocks("plan-json.md", "json")  # a real one, by another test
    for key in find_keys(json.loads(example)):
        yield f"key plan {plan_json.VERSION}: {key}"
    for row in rows("The record"):
        if row[0].startswith("`"):
            yield f"key record {record.SCHEMA}: {row[0].strip('`')}"


def find_keys(document: object, path: str = "") -> Iterator[str]:
    """Yield the paths of all keys; those of objects that are named by the job are left out."""
    if isinstance(document, dict) and path not in ("facts", "environ"):
        for name, value in document.items():
            yield f"{path}.{name}".lstrip(".")
            yield from find_keys(value, f"{path}.{name}".lstrip("."))
    elif isinstance(document, list):
        for item in document:
            yield from find_keys(item, f"{path}[]")


def main() -> int:
    """Add what is new to the list."""
    made, kept = read() if LIST.exists() else set[str](), find()
    lines = made | kept
    LIST.write_text("".join(f"{line}\n" for line in sorted(lines)), encoding="utf-8")
    print(f"{LIST.relative_to(ROOT)}: {len(kept - made)} more; {len(lines - kept)} are gone from the program")
    return 0


if __name__ == "__main__":
    sys.exit(main())
