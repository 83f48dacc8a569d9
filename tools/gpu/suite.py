"""The tests marked ``gpu``."""

from __future__ import annotations

import sys

from part import Part

FILES = (
    "tests/unit/test_gpu.py", "tests/unit/test_progress.py", "tests/process/test_preload_gpu.py",
    "tests/process/test_recorder_gpu.py", "tests/process/test_native.py", "tests/cluster/test_bandwidth.py",
)  # fmt: skip
ALONE = "tests/process/test_restart_gpus.py"
"""Compares the GPU's memory before and after: no other test may use it meanwhile."""
PYTEST = (sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "-rs", "-v", "--tb=short")


OUTCOMES = ("PASSED", "FAILED", "ERROR", "SKIPPED")


def run(part: Part) -> None:
    """Run them; each is a check."""
    try:
        import xdist
    except ImportError:  # then "xdist_group" is not a mark
        several: tuple[str, ...] = ("-o", "addopts=")
    else:
        several = ("-n", "4", "--dist", "loadgroup") if xdist else ()
    for name, words, limit_s in (("alone", (ALONE,), 35), ("tests", (*several, *FILES), 90)):
        with part.step(name):
            done = part.run(name, (*PYTEST, *words), limit_s)
            rows = read_outcomes(done.out)
            part.check(f"{name}: tests have run", True, bool(rows))
            for test, outcome in rows.items():
                if outcome == "SKIPPED":
                    part.skip(test, "see the log")
                else:
                    part.check(test, "PASSED", outcome)
            part.figure(name, done.out[-6000:])


def read_outcomes(text: str) -> dict[str, str]:
    """Return the outcome of each test in the lines of ``pytest -v``, with or without xdist."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        outcome = next((word for word in words if word in OUTCOMES), "")
        test = next((word for word in words if "::" in word), "")
        if outcome and test:
            found[test] = outcome
    return found
