"""Look for cases that break a promise: change one that is known, try it, keep it if what came of it is new.

There is no coverage of lines: what came of a case in words (its error without numbers and names, the shape of
its plan) tells cases apart, costs nothing and works with every Python.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import re
import resource
import signal
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Protocol

import launcher

HERE = Path(__file__).parent
OURS = (str(HERE), str(Path(launcher.__file__).parent))
CORPUS = HERE / "corpus"
CASE_S = 5.0
"""CPU time of a case; the longest that a subject makes takes a tenth of it."""
WAIT_S = 60.0
"""Time of a case on the clock, also on a busy machine: nothing that is tried waits for anything."""
SHRINK_S = 20.0
FOUND_MAX = 4000
"""Outcomes of which a case is remembered, and changed again."""
MEMORY_BYTES = 1 << 31
"""Address space of a process that looks: what no bound holds ends in a MemoryError."""


class Subject(Protocol):
    """A module of this folder."""

    __name__: str

    def seeds(self) -> list[bytes]:
        """Return cases to begin with, besides those in the corpus."""

    def mutate(self, case: bytes, other: bytes, dice: random.Random) -> bytes:
        """Return a case like one that is known, perhaps with something of another."""

    def try_one(self, case: bytes) -> str:
        """Try a case; return in few words what came of it, and raise if a promise is broken."""


class TooSlow(BaseException):
    """A case takes longer than any should. No `Exception`: code under test must not catch it."""


class Found(AssertionError):
    """A broken promise that another case shows better: what is made of a number changes with the fuzzer."""

    def __init__(self, what: str, case: bytes) -> None:
        super().__init__(what)
        self.case = case


@dataclass(frozen=True)
class Fault:
    """A broken promise.

    Attributes:
        case: By which it is seen, as short as it could be made.
        where: The kind of error and the line of the launcher, or of the fuzzer, that raised it.
        text: The traceback.
    """

    case: bytes
    where: str
    text: str


@dataclass
class Tally:
    """What a run has seen."""

    cases: int = 0
    outcomes: int = 0


def name_of(subject: Subject) -> str:
    """Return what a subject is called."""
    return subject.__name__.rpartition(".")[2]


def folder_of(subject: Subject) -> Path:
    """Return where the kept cases of a subject are."""
    return CORPUS / name_of(subject)


def kept(subject: Subject) -> dict[str, bytes]:
    """Return the kept cases of a subject, by name."""
    return {path.name: path.read_bytes() for path in sorted(folder_of(subject).glob("*"))}


def keep(subject: Subject, case: bytes) -> Path:
    """Put a case into the corpus."""
    path = folder_of(subject) / f"found-{hashlib.sha256(case).hexdigest()[:12]}"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(case)
    return path


def pattern_of(text: str) -> str:
    """Return what a message is about, without the names and numbers in it."""
    return re.sub(r"'.*'|\".*\"|\d+", "#", text)[:300]


def bound_memory() -> None:
    """Bound the address space of this process."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


@contextlib.contextmanager
def bounded_time() -> Iterator[None]:
    """Raise `TooSlow` in what takes longer than `CASE_S` of CPU time, or waits for `WAIT_S`."""

    def end(number: int, frame: FrameType | None) -> None:
        was_busy = number == signal.SIGPROF
        raise TooSlow(f"more than {CASE_S:g} s of CPU time" if was_busy else f"waits for {WAIT_S:g} s")

    clocks = ((signal.SIGPROF, signal.ITIMER_PROF, CASE_S), (signal.SIGALRM, signal.ITIMER_REAL, WAIT_S))
    before = [(number, signal.signal(number, end)) for number, _, _ in clocks]
    for _, clock, limit_s in clocks:
        signal.setitimer(clock, limit_s)
    try:
        yield
    finally:
        for _, clock, _ in clocks:
            signal.setitimer(clock, 0)
        for number, handler in before:
            signal.signal(number, handler)


def attempt(subject: Subject, case: bytes) -> str | Fault:
    """Return what came of a case, or what is wrong."""
    try:
        with bounded_time():
            return subject.try_one(case)
    except (Exception, SystemExit, TooSlow) as error:
        case = error.case if isinstance(error, Found) else case
        return Fault(case, _place(error), "".join(traceback.format_exception(error, limit=-12)))


def _place(error: BaseException) -> str:
    """Return by which two faults are told apart."""
    if isinstance(error, TooSlow):
        return type(error).__name__  # where it is interrupted is chance
    frames = traceback.extract_tb(error.__traceback__)
    last = [one for one in frames if one.filename.startswith(OURS)][-1]
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"


def look(subject: Subject, seconds: float, seed: int, tally: Tally | None = None) -> Iterator[Fault]:
    """Yield the faults that are found in so many seconds, each once."""
    dice, tally = random.Random(seed), tally or Tally()
    until = time.monotonic() + seconds
    places, faults = dict[str, int](), set[str]()
    waiting = [*kept(subject).values(), *subject.seeds()]
    known, found = list(waiting), list[bytes]()

    def choose() -> bytes:
        # A third of what is tried is made of what is known from the start, however much was found on the way
        return dice.choice(found if found and dice.random() < 0.66 else known)

    while time.monotonic() < until:
        case = waiting.pop() if waiting else subject.mutate(choose(), choose(), dice)
        came = attempt(subject, case)
        tally.cases += 1
        if isinstance(came, Fault):
            if came.where not in faults:
                faults.add(came.where)
                yield shrink(subject, came)
        elif came not in places and len(found) < FOUND_MAX:
            places[came] = len(found)
            found.append(case)
        elif came in places and len(case) < len(found[places[came]]):
            found[places[came]] = case
        tally.outcomes = len(found)


def shrink(subject: Subject, fault: Fault) -> Fault:
    """Return the same fault, by a shorter case."""
    until = time.monotonic() + SHRINK_S
    size = len(fault.case) // 2
    while size and time.monotonic() < until:
        start, shorter = 0, False
        while start < len(fault.case) and time.monotonic() < until:
            came = attempt(subject, fault.case[:start] + fault.case[start + size :])
            if isinstance(came, Fault) and came.where == fault.where:
                fault, shorter = came, True
            else:
                start += size
        size = size if shorter and size == 1 else size // 2
    return fault
