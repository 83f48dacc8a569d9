"""What a node that serves the head of an mpirun job reports, without a connection."""

from __future__ import annotations

from collections.abc import Iterator
from errno import EADDRINUSE, EROFS
from types import SimpleNamespace

import pytest

from launcher.cluster.join import Join
from launcher.cluster.messages import Again, Over, Refuse
from launcher.cluster.settings import Shape
from launcher.core.errors import EnvironmentUntrusted, LauncherError, NotReady
from launcher.failure.arbiter import REFUSED
from launcher.job import events
from launcher.mpi import local
from launcher.mpi.protocol import Briefing
from launcher.mpi.serve import Serving
from launcher.process.loop import Loop
from tests.saying import keep

BRIEFING = Briefing("ab12", node_rank=1, grace_s=0.0)


class Played:
    """A serving node of a job of two, and what it has sent."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.sent: list[object] = []
        self.loop = Loop(keep(self.said))
        group = SimpleNamespace(
            helpers=SimpleNamespace(ask=None),
            watchdog=None,
            dismiss_watchdog=lambda: None,
            start_watchdog=lambda *_: None,
        )
        runtime = SimpleNamespace(
            say=keep(self.said), loop=self.loop, group=group, environ={},
            signals=SimpleNamespace(reset=None), watch=SimpleNamespace(grace_s=1.0),
        )  # fmt: skip
        shape = Shape(1, 2, None, "a", (1,), index=1, serves=True)
        self.serving = Serving(b"k", shape, Join(1, "one"), 5.0)
        self.serving._send = self.sent.append  # type: ignore[method-assign, assignment]
        self.serving.attach(runtime)  # type: ignore[arg-type]
        self.serving.parts = SimpleNamespace(clean_up=None)  # type: ignore[assignment]
        self.serving._on_connected()

    def turn(self) -> None:
        """Let what is due happen."""
        self.loop.timers[:] = [self.serving._ranks]
        self.loop.turn_until(lambda: self.serving._ranks.is_over, 5.0)
        self.serving._look()


@pytest.fixture
def played() -> Iterator[Played]:
    """Yield a serving node."""
    one = Played()
    yield one
    one.serving.close()
    one.loop.close()


@pytest.mark.parametrize(
    ("number", "error", "what"),
    [
        (EADDRINUSE, EnvironmentUntrusted, "another launcher of this job runs on"),
        (EROFS, NotReady, "no directory for them: /dev/shm: Read-only file system"),
    ],
)
def test_a_node_that_cannot_have_ranks_ends_the_job(
    number: int, error: type[LauncherError], what: str, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head hears why, and the node gives its own reason at the end."""

    def fail(job: str) -> None:
        raise OSError(number, "Read-only file system", "/dev/shm")

    monkeypatch.setattr(local, "make_folder", fail)
    played.serving._on_message(BRIEFING)
    (failed,) = played.sent
    assert isinstance(failed, events.Failed) and failed.event.kind == REFUSED
    assert what in failed.event.what and failed.event.status == error.exit_status
    played.serving._on_message(Over(failed.event.status))
    played.turn()
    assert played.serving.status == error.exit_status
    with pytest.raises(error, match=what):
        played.serving.finish(lambda: 0)


def test_a_node_is_ready_when_nothing_is_left(played: Played) -> None:
    """It reports that for each attempt that follows."""
    played.serving._on_message(BRIEFING)
    played.serving._on_message(Again(1, Over(1), "restart 1 of 2", "ab12"))
    played.loop.timers[:] = [played.serving._ranks]
    played.loop.turn_until(lambda: bool(played.sent), 5.0)
    assert played.sent == [events.Ready(1, 1)]


def test_a_node_whose_head_is_lost_calls_again_when_its_ranks_are_gone(played: Played) -> None:
    """As a launcher that knows no attempt, so that another head takes it."""
    played.serving._on_message(BRIEFING)
    before = played.serving._channel
    played.loop.timers.append(before)
    played.serving._on_lost()
    assert not played.serving._ranks.is_over and before.due is None
    played.loop.timers.append(played.serving._ranks)
    played.loop.turn_until(lambda: played.serving._ranks.is_over, 5.0)
    played.serving._look()
    after = played.serving._channel
    assert after is not before and after in played.loop.timers and before not in played.loop.timers
    assert not after.has_started and "waiting 5 s for it to come back" in played.said[-1]


def test_a_job_that_does_not_start_is_an_error_here_too(played: Played) -> None:
    """With the words of node 0."""
    played.serving._on_message(Refuse(75, (), "nodes-missing", "1 of 2 nodes", "roll call", "start it"))
    played.turn()
    with pytest.raises(NotReady, match="1 of 2 nodes"):
        played.serving.finish(lambda: 0)
