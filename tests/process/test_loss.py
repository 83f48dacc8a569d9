"""A job that ends with 0 although its loss was NaN gets one line that says so."""

from __future__ import annotations

import sys

import pytest

from tests.process.starting import launch

TRAIN = """
import os, sys
for step in range(200):
    loss = float("nan") if step >= 120 and os.environ["RANK"] == "1" else 0.5
    print(f"step {step} loss {loss}", file=sys.stdout if step % 2 else sys.stderr, flush=True)
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("flags", [(), ("--no-prefix",)])
def test_a_loss_that_was_nan_is_noted_at_the_end(flags: tuple[str, ...]) -> None:
    """The status stays 0: the job has not failed."""
    done = launch("run", "--nproc-per-node", "2", *flags, "--", sys.executable, "-c", TRAIN, "0")
    assert done.returncode == 0
    (line,) = [line for line in done.stderr.splitlines() if "[loss-nan]" in line]
    assert line.startswith("launcher: note: [loss-nan] the loss of rank 1 has been NaN since 'step 12")
    assert "; fix: " in line


def test_a_failure_has_a_report_instead() -> None:
    """The note is only for jobs whose status does not tell."""
    done = launch("run", "--nproc-per-node", "2", "--", sys.executable, "-c", TRAIN, "3")
    assert done.returncode == 3 and "note: [loss-nan]" not in done.stderr
