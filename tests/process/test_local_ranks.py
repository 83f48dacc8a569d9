"""The ranks of a node in an mpirun job: a launcher's loop in this process, real sockets and wrappers."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.channel import lines as wire
from launcher.core.errors import EnvironmentUntrusted
from launcher.core.frozen import replace
from launcher.core.wire import pack, unpack
from launcher.machine.process import find_children
from launcher.mpi import rank
from launcher.mpi.folder import find_socket
from launcher.mpi.leftovers import end_job, find_wrappers
from launcher.mpi.local import LocalRanks
from launcher.mpi.protocol import (
    Briefing,
    Gone,
    RankEnded,
    Started,
    Variable,
)
from launcher.process.loop import Loop
from launcher.process.watchdog import MARK, find_marked
from tests.process.looking import wait_for
from tests.process.starting import clean_environ
from tests.unit.test_verdict import dead, judge

WAIT_S = 10.0


class Local:
    """The ranks of this node, and what the head was sent."""

    def __init__(self, job: str = "") -> None:
        self.job, self.sent = job or os.urandom(8).hex(), list[object]()
        self.loop = Loop(lambda *_, **__: None)
        self.ranks = LocalRanks(self.loop, self.sent.append, 0, 1.0)
        self.loop.timers.append(self.ranks)

    def brief(self, **more: object) -> None:
        """Take the facts about an attempt."""
        self.ranks.obey(Briefing(**{"job": self.job, "grace_s": 1.0, **more}))  # type: ignore[arg-type]

    def clear(self) -> None:
        """End what an attempt has left, and wait for that."""
        done: list[bool] = []
        self.ranks.clear(self.job, 1.0, lambda: done.append(True))
        self.turn_until(lambda: bool(done))

    def turn_until(self, is_true: Callable[[], bool]) -> None:
        """Turn the loop until a condition holds."""
        seen = [False]

        def look() -> bool:
            seen[0] = is_true()
            return seen[0]

        self.loop.turn_until(look, WAIT_S)
        assert seen[0]

    def connect(self) -> socket.socket:
        """Return the connection of a wrapper, which is this process."""
        connected = socket.socket(socket.AF_UNIX)
        connected.connect(find_socket(self.job) or "")
        connected.setblocking(False)
        return connected

    def read(self, connected: socket.socket) -> list[dict[str, object]]:
        """Return the first messages that the launcher sends; none if it hangs up."""
        lines, found, is_open = wire.Lines(wire.WELCOME_LIMIT_BYTES), list[dict[str, object]](), [True]

        def look() -> bool:
            try:
                data = connected.recv(wire.READ_BYTES)
            except BlockingIOError:
                return False
            is_open[0] = bool(data)
            found.extend(lines.feed(data))
            return bool(found) or not is_open[0]

        self.loop.timers.append(Tick())
        self.turn_until(look)
        return found


class Tick:
    """A timer that is always due, so that the loop does not wait."""

    due = 0.0

    def fire(self, now: float) -> None:
        """Do nothing."""


@pytest.fixture
def local() -> Iterator[Local]:
    """Return the ranks of a node that has been told the facts of the first attempt."""
    one = Local()
    one.brief()
    yield one
    one.ranks.close()
    assert find_socket(one.job) is None


def test_a_rank_gets_the_facts_and_all_variables(local: Local) -> None:
    """The head sends 5 MB of them one by one, because a frame is shorter."""
    for number in range(40):
        local.ranks.obey(Variable(f"LONG{number}", "x" * 130_000))
    local.ranks.obey(Variable("GONE", None))
    local.brief(attempt=1, node_rank=3)
    with local.connect() as one:
        one.sendall(wire.pack({"is": "attached"}))
        (packed,) = local.read(one)
    briefing = unpack(packed, (Briefing,))
    assert isinstance(briefing, Briefing) and briefing.node_rank == 3
    assert len(briefing.variables) == 41 and briefing.variables["GONE"] is None


def test_a_report_that_no_pipe_holds_arrives(local: Local) -> None:
    """With the PID of the wrapper, as the kernel knows it."""
    report = RankEnded(0, 0, 1, 1, verdict=replace(judge(dead(0, 1)), stderr=("x" * 50,) * 2000))
    with local.connect() as one:
        one.setblocking(True)
        local.loop.timers.append(Tick())
        packed = memoryview(wire.pack(pack(report)))
        one.setblocking(False)
        while packed:
            try:
                packed = packed[one.send(packed) :]
            except BlockingIOError:
                local.loop.turn()
        local.turn_until(lambda: bool(local.sent))
    assert local.sent == [replace(report, pid=os.getpid())]


def test_a_rank_that_says_what_is_none_is_hung_up_on(local: Local) -> None:
    """Its node and the others go on; the head hears that it has gone."""
    wrongs: list[dict[str, object]] = [{"is": "started", "rank": -2}, {"is": 7}]
    for message in (*wrongs, {**pack(RankEnded(0, 0, 1, 1)), "status": 256}):
        with local.connect() as wrong:
            wrong.sendall(wire.pack(message))
            assert local.read(wrong) == []
        local.turn_until(lambda: bool(local.sent))
        assert local.sent == [Gone(os.getpid())]
        local.sent.clear()


def test_a_second_launcher_of_the_job_has_no_ranks(local: Local) -> None:
    """It has a name of its own in the list of hosts."""
    other = Local(local.job)
    with pytest.raises(EnvironmentUntrusted) as refused:
        other.brief()
    problem = refused.value.problems[0]
    assert problem.code == "same-node" and os.uname().nodename in problem.what
    assert find_socket(local.job) is not None


def test_nothing_of_a_lost_head_is_left_when_another_one_is_called(local: Local) -> None:
    """A head that was killed has another job name when it is back."""
    with leave(local.job) as left:
        before, local.job = local.job, os.urandom(8).hex()
        local.ranks.lose_head()
        local.turn_until(lambda: local.ranks.is_over)
        assert left.wait(WAIT_S) == -signal.SIGKILL
        local.brief()
    assert find_socket(before) is None and find_socket(local.job) is not None


def test_what_an_attempt_has_left_is_gone_before_the_next(local: Local) -> None:
    """Also what ignores SIGTERM, and what a launcher before this one has left."""
    with leave(local.job) as left:
        local.clear()
        assert left.wait(WAIT_S) == -signal.SIGKILL
    assert find_socket(local.job) is not None


@contextlib.contextmanager
def leave(job: str) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process with the mark of a job that ignores SIGTERM."""
    line = ["sh", "-c", "trap '' TERM; sleep 600"]
    with subprocess.Popen(line, env=clean_environ(**{MARK: job}), start_new_session=True) as left:
        try:
            wait_for(lambda: find_marked(job.encode()), "its environment can be read")
            yield left
        finally:
            for pid in find_marked(job.encode()):
                os.kill(pid, signal.SIGKILL)


def start_rank(job: str, *command: str) -> subprocess.Popen[bytes]:
    """Start a wrapper as mpirun would; the process is its placeholder."""
    line = [sys.executable, "-I", rank.__file__, job, "--scope=process", "--engine=process", "--", *command]
    place = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    return subprocess.Popen(line, env=clean_environ(**place), stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("part", ["wrapper", "placeholder"])
def test_a_rank_whose_launcher_does_not_answer_can_be_ended(part: str, local: Local) -> None:
    """SIGTERM ends it long before it gives up: the launcher is stopped."""
    with start_rank(local.job, "true") as placeholder:
        wait_for(lambda: find_children(placeholder.pid), "the wrapper is there")
        (wrapper,) = find_children(placeholder.pid)
        os.kill({"wrapper": wrapper, "placeholder": placeholder.pid}[part], signal.SIGTERM)
        assert placeholder.wait(WAIT_S) == 128 + signal.SIGTERM


SAVER = """
import os, signal, sys, time
def save(*_):
    time.sleep(0.5)
    open(sys.argv[1] + "/saved", "w").close()
    os._exit(0)
signal.signal(signal.SIGTERM, save)
open(sys.argv[1] + "/ready", "w").close()
while True:
    time.sleep(1)
"""


def start_saver(local: Local, folder: Path) -> subprocess.Popen[bytes]:
    """Start a rank that needs a while to save its state, and return once it runs."""
    local.ranks.obey(Variable(MARK, local.job))
    local.brief(attempt=1, grace_s=5.0)
    placeholder = start_rank(local.job, sys.executable, "-c", SAVER, str(folder))
    local.loop.timers.append(Tick())
    local.turn_until((folder / "ready").exists)
    assert any(isinstance(one, Started) for one in local.sent)
    return placeholder


def test_ranks_of_a_lost_head_have_their_grace(local: Local, tmp_path: Path) -> None:
    """Then nothing is left, and the launcher may leave."""
    with start_saver(local, tmp_path) as placeholder:
        local.ranks.lose_head()
        assert not local.ranks.is_over
        local.turn_until(lambda: local.ranks.is_over)
        assert (tmp_path / "saved").exists() and placeholder.wait(WAIT_S) == 0


LAUNCHER = """
import sys
from launcher.mpi.local import LocalRanks
from launcher.mpi.protocol import Briefing, Variable
from launcher.process.loop import Loop
loop = Loop(lambda *_, **__: None)
ranks = LocalRanks(loop, lambda message: None, 0, 1.0)
ranks.obey(Variable("LAUNCHER_RUN_ID", sys.argv[1]))
ranks.obey(Briefing(job=sys.argv[1], grace_s=5.0))
print("ready", flush=True)
while True:
    loop.turn()
"""


def test_ranks_of_a_killed_launcher_have_their_grace(tmp_path: Path) -> None:
    """The watchdog waits for them; then it ends what they have left, and their folder goes."""
    job, environ = os.urandom(8).hex(), clean_environ()
    with (
        leave(job) as left,
        subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, job], env=environ, stdout=subprocess.PIPE
        ) as launcher,
    ):
        assert launcher.stdout is not None and launcher.stdout.readline() == b"ready\n"
        with start_rank(job, sys.executable, "-c", SAVER, str(tmp_path)) as placeholder:
            wait_for((tmp_path / "ready").exists, "the rank runs")
            assert sorted(find_wrappers(job)) == [placeholder.pid, *find_children(placeholder.pid)]
            launcher.kill()
            launcher.wait(WAIT_S)  # as the watchdog does, which else may find the socket of the killed one
            end_job(job, WAIT_S)
            assert (tmp_path / "saved").exists()
            assert left.wait(WAIT_S) == -signal.SIGKILL
            assert placeholder.wait(WAIT_S) == 0
    assert find_socket(job) is None and find_wrappers(job) == []


def test_the_watchdog_leaves_ranks_to_a_new_launcher(local: Local) -> None:
    """It is in the place of the one that was killed, and ends what that has left itself."""
    with leave(local.job) as new:
        end_job(local.job, 0.0)
        assert new.poll() is None and find_socket(local.job) is not None
