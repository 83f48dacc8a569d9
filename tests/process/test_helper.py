"""Helpers: what may take long is asked in a process of its own, and the loop goes on meanwhile."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from launcher.process.helper import Helpers
from launcher.process.loop import Loop
from launcher.process.tool import Tool
from tests.process.looking import is_gone, wait_for
from tests.saying import keep

WAIT_S = 20.0


@pytest.fixture
def loop() -> Iterator[Loop]:
    """Return a loop that says no fault."""
    said: list[str] = []
    yield (one := Loop(keep(said)))
    one.close()
    assert said == []


@pytest.fixture
def helpers(loop: Loop) -> Iterator[Helpers]:
    """Return the helpers of that loop, which leaves none behind."""
    yield (several := Helpers(loop))
    pids = list(several.pids)
    several.close()
    assert list(several.pids) == []
    for pid in pids:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def slowly(*lines: str) -> Callable[[], Iterator[str]]:
    """Return work that says something, and then hangs."""

    def work() -> Iterator[str]:
        yield from lines
        time.sleep(1000)

    return work


def test_an_answer_arrives_in_a_later_turn(loop: Loop, helpers: Helpers) -> None:
    """Line by line, whatever is in them; a fault of the work is an answer that ends early."""
    heard: list[Sequence[str]] = []
    helpers.ask(lambda: ["one", "", "zwei \u00fc"], heard.append, WAIT_S)
    assert heard == []
    loop.turn_until(lambda: bool(heard), WAIT_S)
    helpers.ask(lambda: ["fine", 1 / 0], heard.append, WAIT_S)  # type: ignore[list-item]
    loop.turn_until(lambda: len(heard) == 2, WAIT_S)
    assert heard == [["one", "", "zwei \u00fc"], []]


def test_work_has_its_time_and_no_more(loop: Loop, helpers: Helpers) -> None:
    """What it has said until then counts; nothing here has to look at a clock."""
    heard: list[Sequence[str]] = []
    helpers.ask(slowly("early"), heard.append, 0.2)
    loop.turn_until(lambda: bool(heard), WAIT_S)
    assert heard == [["early"]]


def test_a_tool_has_its_time_and_no_more() -> None:
    tool = Tool(["/bin/sleep", "600"], 100.0)
    try:
        assert not tool.is_over(99.0) and not tool.was_killed
        assert not is_gone(tool.pid)
        tool.is_over(100.5)
        wait_for(lambda: tool.is_over(100.5), "it has ended")
        assert tool.was_killed
    finally:
        tool.close()


def test_what_is_not_wanted_any_more_is_not_heard(loop: Loop, helpers: Helpers) -> None:
    """Its process ends at once."""
    heard: list[Sequence[str]] = []
    helper = helpers.ask(slowly("early"), heard.append, WAIT_S)
    (pid,) = helpers.pids
    helper.close()
    wait_for(lambda: is_gone(pid), "it has ended")
    loop.turn(wait=False)
    assert heard == []


def test_what_there_is_of_an_answer_can_be_taken_at_once(helpers: Helpers) -> None:
    """At the end of a job the loop turns no more."""
    heard: list[Sequence[str]] = []
    helper = helpers.ask(lambda: ["one", "two"], heard.append, WAIT_S)
    wait_for(lambda: is_gone(helper.pid or 0), "it has ended")
    helper.finish()
    assert heard == [["one", "two"]]


def test_it_may_stay_after_its_answer_and_its_end_is_told(loop: Loop, helpers: Helpers) -> None:
    """As the one that serves metrics does."""
    heard: list[Sequence[str]] = []
    ended: list[str] = []
    helper = helpers.ask(
        lambda: ["open"],
        heard.append,
        WAIT_S,
        then=lambda: time.sleep(1000),
        on_end=lambda: ended.append("it"),
    )
    loop.turn_until(lambda: bool(heard), WAIT_S)
    assert heard == [["open"]] and helper.pid is not None and not is_gone(helper.pid)
    pid = helper.pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    helpers.forget(pid)
    assert ended == ["it"] and helper.pid is None
