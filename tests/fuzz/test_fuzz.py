"""Each fuzzer for a short time, with a new seed each time; what they have found; that they can find."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from tests.fuzz import engine
from tests.fuzz.__main__ import SUBJECTS, load
from tests.fuzz.engine import HERE, attempt, kept, look
from tests.fuzz.mutate import mutate_bytes
from tests.fuzz.snapshots import WATCH

if TYPE_CHECKING:
    from tests.fuzz.engine import Subject

KEPT = [(name, case) for name in SUBJECTS for case in kept(load(name))]


@pytest.mark.parametrize(("name", "case"), KEPT, ids=map("-".join, KEPT))
def test_what_is_kept_breaks_no_promise(name: str, case: str) -> None:
    """Every fault that was ever found, and cases of each kind."""
    subject = load(name)
    came = attempt(subject, kept(subject)[case])
    assert isinstance(came, str), came.text


@pytest.mark.parametrize("seconds", [2, pytest.param(300, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", SUBJECTS)
def test_a_look_finds_nothing(name: str, seconds: int) -> None:
    """What is found is printed, and kept in the corpus: commit it with what mends it."""
    line = [sys.executable, "-m", "tests.fuzz", name, "--seconds", str(seconds)]
    done = subprocess.run(
        line, cwd=HERE.parents[1], capture_output=True, text=True, timeout=60 + 10 * seconds, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_a_replay_reads_of_this_machine_is_noticed() -> None:
    """By Python's own events, which tell of each file that is opened."""
    with WATCH.on("/snapshot"):
        Path("/proc/self/stat").read_text()
    assert WATCH.seen == ("open '/proc/self/stat'",)


def _refuse_colons(case: bytes) -> str:
    assert b":" not in case
    return f"{min(len(case), 9)} bytes"


def _never_end(case: bytes) -> str:
    while True:
        pass


def _wait_for_ever(case: bytes) -> str:
    one, other = socket.socketpair()
    with one, other:
        return one.recv(1).decode()


@pytest.mark.parametrize(
    ("try_one", "where", "case"),
    [
        (_refuse_colons, "AssertionError at test_fuzz.py", b":"),
        (_never_end, "TooSlow", b""),
        (_wait_for_ever, "TooSlow", b""),
    ],
)
def test_faults_are_found_and_shown_by_a_short_case(
    try_one: object, where: str, case: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look that finds nothing proves nothing unless it could."""
    monkeypatch.setattr(engine, "CASE_S", 0.02)
    monkeypatch.setattr(engine, "WAIT_S", 0.3)

    def mutate(case: bytes, other: bytes, dice: random.Random) -> bytes:
        return mutate_bytes(case, other, dice)

    subject = SimpleNamespace(__name__="nothing", seeds=lambda: [b"abc"], mutate=mutate, try_one=try_one)
    found = next(look(cast("Subject", subject), 60, seed=1))
    assert found.where.startswith(where) and found.case == case
