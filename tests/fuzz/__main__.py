"""Look for faults in some subjects, one after the other: ``python -m tests.fuzz [SUBJECT ...]``."""

from __future__ import annotations

import argparse
import importlib
import random
import sys
from typing import TYPE_CHECKING, cast

from tests.fuzz.engine import HERE, Tally, bound_memory, keep, look

if TYPE_CHECKING:
    from tests.fuzz.engine import Subject

SUBJECTS = ("frames", "messages", "snapshots", "hostfiles", "redaction")


def load(name: str) -> Subject:
    """Return a subject by its name."""
    return cast("Subject", importlib.import_module(f"tests.fuzz.{name}"))


def search(name: str, seconds: float, seed: int) -> int:
    """Look for faults in one subject, print and keep what is found; return how many there are."""
    subject, tally, count = load(name), Tally(), 0
    for fault in look(subject, seconds, seed, tally):
        count += 1
        path = keep(subject, fault.case)
        print(f"{fault.text}\n{name}: {fault.where}, kept in {path.relative_to(HERE.parent.parent)}:")
        print(f"{fault.case!r}\n", flush=True)
    print(f"{name}: seed {seed}, {tally.cases} cases, {tally.outcomes} outcomes, {count} faults", flush=True)
    return count


def main() -> int:
    """Look as long as the command line says; return 1 if something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=f"of {', '.join(SUBJECTS)} (all)")
    parser.add_argument("--seconds", type=float, default=600, help="for each subject (600)")
    parser.add_argument("--seed", type=int, help="a number by which a run is made again (random)")
    words = parser.parse_args()
    unknown = set(words.subjects) - set(SUBJECTS)
    if unknown:
        parser.error(f"no such subject: {', '.join(sorted(unknown))}")
    seed = random.randrange(1 << 32) if words.seed is None else words.seed
    bound_memory()
    try:
        counts = [search(name, words.seconds, seed) for name in words.subjects or SUBJECTS]
    except KeyboardInterrupt:
        return 130
    return 1 if any(counts) else 0


if __name__ == "__main__":
    sys.exit(main())
