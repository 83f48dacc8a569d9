"""The controller by single steps: what seeds have found, and rules that a whole run does not show."""

from __future__ import annotations

import pytest

from launcher.core.errors import EXIT_NOT_READY, EXIT_UNTRUSTED
from launcher.core.supervision import Restarts
from launcher.failure.arbiter import GAVE_UP, RANK, Event
from launcher.job.commands import (
    Blame,
    Close,
    EndAttempt,
    EndJob,
    JobCommand,
    Print,
    Probe,
    StartAttempt,
    Stop,
    To,
    TurnAway,
)
from launcher.job.controller import RULES, begin, step
from launcher.job.events import (
    Disconnected,
    Exited,
    Failed,
    Heard,
    JobEvent,
    Joined,
    Killed,
    Left,
    Ready,
    Received,
    Silent,
    Tick,
    Unable,
)
from launcher.job.settings import KILLED_S, LEAVE_S, SPARES_S
from launcher.job.state import Job, Phase, State


class Steps:
    """A job that is led step by step."""

    def __init__(
        self, nodes: int = 2, spares: int = 0, restarts: Restarts | None = None, *, serves: bool = False
    ) -> None:
        job = Job(nodes, spares, restarts=restarts or Restarts(most=3), serves=serves)
        self.state: State = begin(job, "0", 0.0)
        self.commands: tuple[JobCommand, ...] = ()

    def take(self, event: JobEvent, now: float = 1.0) -> tuple[JobCommand, ...]:
        """Take an event, and return the commands."""
        self.state, self.commands = step(self.state, event, now)
        return self.commands

    def is_in(self, phase: Phase) -> bool:
        """Whether the job is in a phase."""
        return self.state.phase is phase

    def gather(self) -> None:
        """Let all nodes join."""
        for index in range(1, len(self.state.nodes)):
            self.take(Joined(index, str(index)))

    def fail(self, node: int, now: float = 2.0) -> None:
        """Let a process of a node fail, and those of all nodes end."""
        event = Event(node, RANK, int(now * 1e9), 1, what="it exited with code 1", facts={"pid": node})
        number = self.state.attempt.number if self.state.attempt is not None else 0
        self.take(Failed(node, event, number), now)
        for index in range(self.state.job.node_count):
            self.take(Exited(index, 1, number), now)


def test_a_whole_life() -> None:
    """All join, one fails, all are ready again, one is asked to end."""
    job = Steps()
    assert any(isinstance(one, StartAttempt) for one in job.take(Joined(1, "1")))
    job.fail(1)
    assert any(isinstance(one, EndAttempt) for one in job.commands)
    job.take(Ready(0, 1), 3.0)
    assert job.take(Ready(1, 1), 3.0)[0] == StartAttempt(1, (0, 1))
    assert any(isinstance(one, Stop) and one.number == 15 for one in job.take(Received(1, 15), 4.0))
    job.take(Exited(0, 0, 1), 5.0)
    (over,) = [one for one in job.take(Exited(1, 0, 1), 5.0) if isinstance(one, EndJob)]
    assert (over.status, over.leaves) == (0, False), "all leave together"


@pytest.mark.parametrize("is_back", [True, False])
def test_node_0_stays_for_a_node_whose_link_is_down_at_the_end(is_back: bool) -> None:
    """Node 2 has succeeded, and would take node 0 for lost; it is waited for until it is lost itself."""
    job = Steps(3)
    job.gather()
    job.take(Exited(2, 0, 0), 2.0)
    job.take(Silent(2, 2.0), 6.0)
    job.take(Exited(1, 0, 0), 7.0)
    assert any(isinstance(one, EndJob) for one in job.take(Exited(0, 0, 0), 7.0))
    job.take(Left(1), 7.1)
    assert Close() not in job.take(Tick(), 12.1)
    if is_back:
        assert any(isinstance(one, To) and one.session == "2" for one in job.take(Joined(2, "2"), 13.0))
        assert Close() in job.take(Left(2), 13.1)
    else:
        assert job.state.due == 2.0 + job.state.job.given_up_s
        assert Close() in job.take(Tick(), 17.0)


def test_node_0_stays_for_a_node_whose_connection_was_reset_at_the_end() -> None:
    """What is between them resets its calls, too; it is waited for as long as it calls."""
    job = Steps()
    job.gather()
    for index in (1, 0):
        job.take(Exited(index, 0, 0), 7.0)
    job.take(Disconnected(1, 7.1, why="Connection reset by peer"), 7.1)
    assert Close() not in job.take(Tick(), 7.0 + job.state.job.given_up_s)
    assert Close() in job.take(Tick(), 7.1 + job.state.job.given_up_s)


def test_node_0_stays_for_a_node_that_is_not_yet_known_to_be_silent() -> None:
    """Its link was cut just before the end, or node 0 is late to notice; it cannot wait for ever."""
    job = Steps(3)
    job.gather()
    for index in (2, 1, 0):
        job.take(Exited(index, 0, 0), 7.0)
    job.take(Left(1), 7.1)
    assert Close() not in job.take(Tick(), 7.0 + LEAVE_S)
    job.take(Silent(2, 7.0), 12.5)
    assert Close() in job.take(Tick(), 7.0 + job.state.job.given_up_s)
    job = Steps(2)
    job.gather()
    for index in (1, 0):
        job.take(Exited(index, 0, 0), 7.0)
    assert Close() in job.take(Tick(), 7.0 + LEAVE_S + job.state.job.given_up_s)


def test_a_job_that_was_told_to_end_waits_no_longer_for_a_silent_node() -> None:
    """The platform kills what has not ended in time."""
    job = Steps(3)
    job.gather()
    job.take(Received(0, 15), 2.0)
    job.take(Exited(2, 143, 0), 2.0)
    job.take(Silent(2, 2.0), 6.0)
    job.take(Exited(1, 143, 0), 7.0)
    job.take(Exited(0, 143, 0), 7.0)
    job.take(Left(1), 7.1)
    assert Close() in job.take(Tick(), 7.0 + LEAVE_S)


@pytest.mark.parametrize("is_heard", [True, False])
def test_no_attempt_starts_while_a_node_is_silent(is_heard: bool) -> None:
    """It would fail, and use a restart: soon the node is heard again, or lost, and then waited for."""
    job = Steps(3)
    job.gather()
    job.fail(1)
    job.take(Ready(2, 1), 3.0)
    job.take(Silent(2, 3.0), 6.5)
    job.take(Ready(0, 1), 7.0)
    assert not any(isinstance(one, StartAttempt) for one in job.take(Ready(1, 1), 7.0))
    if is_heard:
        assert StartAttempt(1, (0, 1, 2)) in job.take(Heard(2), 9.0)
    else:
        lost_at = 3.0 + job.state.job.given_up_s
        assert job.state.due == lost_at
        job.take(Tick(), lost_at)
        assert job.state.holders[2] is None and job.is_in(Phase.BETWEEN)


@pytest.mark.parametrize("has_successor", [False, True])
def test_a_closed_connection_alone_does_not_show_that_a_launcher_has_ended(has_successor: bool) -> None:
    """What is between two nodes may have closed it, and the node's ranks still have their grace."""
    job = Steps(3, spares=1)
    job.gather()
    job.take(Disconnected(2, 1.5, has_exited=True, why="closed"), 1.5)
    job.take(Tick(), 11.6)
    job.take(Exited(0, 143, 0), 12.0)
    job.take(Exited(1, 143, 0), 12.0)
    job.take(Ready(0, 1), 12.5)
    job.take(Ready(1, 1), 12.5)
    assert job.state.pause is not None and job.state.holders[2] == 3
    if has_successor:
        job.take(Joined(2, "new"), 13.0)
        assert job.state.pause.starts_at < 16.0
    else:
        assert job.state.pause.starts_at == 1.5 + job.state.job.lease_s + KILLED_S
    found = job.take(Tick(), job.state.pause.starts_at - 0.1)
    assert not any(isinstance(one, StartAttempt) for one in found)
    assert StartAttempt(1, (0, 1, 3)) in job.take(Tick(), job.state.pause.starts_at)


def test_a_launcher_whose_watchdog_says_that_it_was_killed_is_lost_at_once() -> None:
    """Nothing of it runs any more: the spare node need not wait until its lease has ended."""
    job = Steps(3, spares=1)
    job.gather()
    found = job.take(Killed(2), 1.5)
    assert any(
        isinstance(one, Stop) and one.why == "node 2 is lost: its launcher was killed" for one in found
    )
    job.take(Disconnected(2, 1.6, has_exited=True, why="closed"), 1.6)
    for index in (0, 1):
        job.take(Exited(index, 143, 0), 2.0)
    job.take(Ready(0, 1), 2.5)
    assert StartAttempt(1, (0, 1, 3)) in job.take(Ready(1, 1), 2.5)


def test_a_launcher_that_was_killed_in_the_roll_call_is_forgotten() -> None:
    """Its successor joins, and a spare one that was killed is no spare one any more."""
    job = Steps(3, spares=1)
    job.take(Joined(1, "a"), 1.0)
    job.take(Joined(3, "c"), 1.0)
    job.take(Killed(1), 1.5)
    assert tuple(job.state.holders) == (0, None, None) and job.state.nodes[1] is None
    job.take(Killed(3), 1.5)
    assert job.state.nodes[3] is None and job.is_in(Phase.GATHERING)


def test_all_nodes_that_are_lost_at_once_are_bad_nodes() -> None:
    """The failed attempt names the first of them."""
    job = Steps(4)
    job.gather()
    job.take(Disconnected(1, 1.5, has_exited=True, why="closed"), 1.5)
    job.take(Disconnected(3, 1.6, has_exited=True, why="reset"), 1.6)
    job.take(Tick(), 11.7)
    found = (*job.take(Exited(0, 143, 0), 12.0), *job.take(Exited(2, 143, 0), 12.0))
    (again,) = (one for one in found if isinstance(one, EndAttempt))
    assert again.over.first is not None and again.over.first.node == 1
    assert [(one.node, one.cause) for one in found if isinstance(one, Blame)] == [(3, "node-lost")]


def test_nodes_that_node_0_has_lost_because_it_was_cut_off_are_no_bad_nodes() -> None:
    job = Steps(4)
    job.gather()
    for index in (1, 2, 3):
        job.take(Silent(index, 1.0), 4.5)
    found = (*job.take(Tick(), 16.5), *job.take(Exited(0, 143, 0), 18.0))
    assert any(isinstance(one, EndJob) for one in found)
    assert not any(isinstance(one, Blame) for one in found)


@pytest.mark.parametrize(
    ("third", "has_exited", "blamed"),
    [(21.4, False, 0), (31.4, False, 1), (21.4, True, 1), (None, False, 1)],
    ids=["all", "one later", "by their ends", "not all"],
)
def test_a_node_0_that_loses_all_nodes_that_serve_blames_itself(
    third: float | None, has_exited: bool, blamed: int
) -> None:
    """Their connections end one by one, and they wait for node 0; each of them may be all right."""
    job = Steps(4, serves=True)
    job.gather()
    for index, at in ((1, 21.3), (2, 21.3), (3, third)):
        if at is not None:
            why = "closed" if has_exited else "it sent nothing for 20 s"
            job.take(Disconnected(index, at - 20.0, has_exited, why), at)
            job.take(Exited(index, EXIT_NOT_READY, 0), at)
        else:
            job.take(Exited(index, 143, 0), 22.0)
    found = job.take(Exited(0, EXIT_NOT_READY, 0), 40.0)
    (again,) = (one for one in found if isinstance(one, EndAttempt))
    first = again.over.first
    assert first is not None and first.node == blamed and job.is_in(Phase.BETWEEN)
    bad = {one.node for one in found if isinstance(one, Blame)}
    assert bad == (set() if blamed == 0 else {2} if third is None else {2, 3})
    (over,) = (one for one in job.take(Tick(), 4000.0) if isinstance(one, EndJob))
    assert over.first is not None and over.first.node == blamed, "that they do not come back blames no other"


@pytest.mark.parametrize("silent_s", [14.0, 4.0])
def test_a_node_0_whose_link_is_back_just_in_time_for_some_nodes_blames_none_of_them(silent_s: float) -> None:
    """Unless one of them was heard for most of the time; the job goes on if the lost ones come back."""
    job = Steps(4)
    job.gather()
    for index, heard in ((1, 1.0), (2, 2.0)):
        job.take(Silent(index, heard), heard + 3.5)
    job.take(Silent(3, 15.5 - silent_s), 15.0)
    job.take(Heard(3), 15.5)
    found = [*job.take(Tick(), 16.1), *job.take(Tick(), 17.1)]
    for index in (0, 3):
        found += job.take(Exited(index, 143, 0), 18.0)
    (again,) = (one for one in found if isinstance(one, EndAttempt))
    first = again.over.first
    assert first is not None and job.is_in(Phase.BETWEEN)
    bad = {first.node, *(one.node for one in found if isinstance(one, Blame))}
    assert bad == ({0} if silent_s > 10 else {1, 2})


@pytest.mark.parametrize("later_s", [0.0, 20.0])
def test_a_node_0_that_all_others_give_up_or_lose_blames_itself(later_s: float) -> None:
    """Although it hears of some that they gave it up; unless that was long after the first loss."""
    job = Steps(4)
    job.gather()
    job.take(Silent(1, 1.0), 4.5)
    found = [*job.take(Tick(), 16.1), *job.take(Tick(), 17.1)]
    for index in (2, 3):
        gave_up = Event(index, GAVE_UP, int((16.0 + later_s + index) * 1e9), EXIT_NOT_READY, what="gave up")
        found += job.take(Failed(index, gave_up, 0), 19.0 + later_s)
        found += job.take(Exited(index, EXIT_NOT_READY, 0), 19.0 + later_s)
    found += job.take(Exited(0, EXIT_NOT_READY, 0), 20.0 + later_s)
    (over,) = (one for one in found if isinstance(one, EndJob))
    assert over.first is not None and over.first.node == (1 if later_s else 0)
    assert over.decision is not None and "cut off" in over.decision.why


@pytest.mark.parametrize("is_silent", [True, False])
def test_a_node_that_gives_node_0_up_while_no_other_is_heard_is_not_to_blame(is_silent: bool) -> None:
    """They are heard again just in time. If node 0 has heard them, it is that node."""
    job = Steps(4)
    job.gather()
    for index in (1, 2, 3) if is_silent else (1,):
        job.take(Silent(index, 1.0), 4.5)
        job.take(Heard(index), 15.5)
    gave_up = Event(1, GAVE_UP, int(15.4e9), EXIT_NOT_READY, what="gave up")
    found = list(job.take(Failed(1, gave_up, 0), 15.6))
    for index in range(4):
        found += job.take(Exited(index, EXIT_NOT_READY, 0), 16.0)
    (again,) = (one for one in found if isinstance(one, EndAttempt))
    assert again.over.first is not None and again.over.first.node == (0 if is_silent else 1)


def test_a_spare_node_that_is_told_to_end_once_it_has_a_place_is_no_bad_node() -> None:
    """It does not know of its place before the start, and just leaves; another launcher may take it."""
    job = Steps(3, spares=1)
    job.gather()
    job.take(Disconnected(2, 1.5, has_exited=True, why="closed"), 1.5)
    job.take(Tick(), 11.6)
    job.take(Exited(0, 143, 0), 12.0)
    job.take(Exited(1, 143, 0), 12.0)
    assert job.is_in(Phase.BETWEEN) and job.state.holders[2] == 3
    left = (*job.take(Left(3), 12.5), *job.take(Disconnected(3, 12.5, has_exited=True, why="closed"), 12.5))
    assert not any(isinstance(one, Blame) for one in left)
    assert any(isinstance(one, Print) and "node 2 has left" in one.text for one in left), left
    assert job.state.holders[2] is None
    job.take(Joined(2, "new"), 13.0)
    job.take(Ready(0, 1), 13.0)
    job.take(Ready(1, 1), 13.0)
    assert StartAttempt(1, (0, 1, 2)) in job.take(Tick(), 40.0)


def test_what_a_health_command_found_moves_no_node_that_runs() -> None:
    """A node repeats its answer on a new connection, and a spare one has come meanwhile."""
    job = Steps(spares=1, restarts=Restarts(most=3, health_argv=("check",)))
    job.gather()
    job.take(Ready(0, 0))
    job.take(Ready(2, 0))
    job.take(Ready(1, 0))
    assert job.is_in(Phase.RUNNING)
    job.take(Ready(1, 0, "ill"), 5.0)
    assert tuple(job.state.holders) == (0, 1)


def test_a_node_that_has_not_come_back_ends_the_job_and_node_0_has_not_to() -> None:
    """Node 0 may need longer than --rejoin-timeout to free the memory of its GPUs."""
    job = Steps(restarts=Restarts(most=3, rejoin_timeout_s=5.0))
    job.gather()
    job.fail(1)
    job.take(Ready(1, 1), 3.0)
    job.take(Tick(), 300.0)
    assert job.is_in(Phase.BETWEEN)
    job.take(Ready(0, 1), 301.0)
    assert job.is_in(Phase.RUNNING)


def test_a_second_launcher_of_a_node_refuses_the_job_before_the_start_and_is_sent_away_after_it() -> None:
    job = Steps(nodes=3)
    job.take(Joined(1, "1"))
    job.take(Joined(1, "other"))
    assert job.state.over is not None and job.state.over.status == EXIT_UNTRUSTED
    job = Steps()
    job.gather()
    assert job.take(Joined(1, "other")) == (TurnAway("other"),)


def test_a_launcher_of_an_older_job_leaves() -> None:
    """Node 0 was started again: a launcher that has begun is no part of the new job."""
    job = Steps()
    (sent,) = (one for one in job.take(Joined(1, "1", begun=True)) if isinstance(one, To))
    assert isinstance(sent.what, EndJob) and sent.what.leaves and sent.what.status == EXIT_NOT_READY


def test_a_next_attempt_that_cannot_start_ends_the_job_as_the_last_one_ended() -> None:
    job = Steps()
    job.gather()
    job.fail(1)
    job.take(Unable(0, "there is no port"), 3.0)
    over = job.state.over
    assert over is not None and over.status == 1
    assert over.decision is not None and over.decision.describe() == "no restart: there is no port"


@pytest.mark.parametrize(("number", "is_stopped"), [(15, True), (2, True), (1, False)])
def test_a_signal_between_two_attempts_ends_the_job(number: int, is_stopped: bool) -> None:
    """By SIGTERM or SIGINT it was stopped: without it another attempt had followed."""
    job = Steps()
    job.gather()
    job.fail(1)
    job.take(Received(1, number), 3.0)
    over = job.state.over
    assert over is not None and (over.status, over.is_stopped) == (1, is_stopped)


def test_a_signal_that_only_keeps_a_failed_job_from_restarting_stops_it() -> None:
    """Not if no attempt had followed anyway: what failed before the signal keeps its status."""
    for most, is_stopped in ((3, True), (0, False)):
        job = Steps(restarts=Restarts(most=most))
        job.gather()
        event = Event(1, RANK, 2 * 10**9, 1, what="it exited with code 1", facts={"pid": 1})
        job.take(Failed(1, event, 0), 2.0)
        job.take(Received(0, 15), 2.1)
        for index in range(2):
            job.take(Exited(index, 1, 0), 2.2)
        over = job.state.over
        assert over is not None and (over.status, over.is_stopped) == (1, is_stopped)


@pytest.mark.parametrize("is_between", [False, True])
def test_a_node_that_is_taken_back_before_a_restart_ends_the_job_with_75(is_between: bool) -> None:
    """The platform is to start the job again, whatever had failed before."""
    job = Steps()
    job.gather()
    taken = Event(1, "preempted", 3 * 10**9, EXIT_NOT_READY, what="the cloud reclaims it")
    if is_between:
        job.fail(1)
        job.take(Failed(1, taken, 0), 3.0)
    else:
        event = Event(0, RANK, 2 * 10**9, 1, what="it exited with code 1", facts={"pid": 1})
        job.take(Failed(0, event, 0), 2.0)
        job.take(Failed(1, taken, 0), 2.1)
        for index in range(2):
            job.take(Exited(index, 1, 0), 2.2)
    assert job.state.over is not None and job.state.over.status == EXIT_NOT_READY


HEALTH = Restarts(most=3, health_argv=("check",))


def test_an_unhealthy_node_waits_for_a_spare_one_that_is_examined() -> None:
    """The spare node is here, and its health command has not answered yet."""
    job = Steps(spares=1, restarts=HEALTH)
    job.gather()
    job.take(Ready(0, 0))
    job.take(Ready(1, 0, "no GPU"), 2.0)
    assert job.is_in(Phase.GATHERING)
    job.take(Ready(2, 0), 2.1)
    assert job.is_in(Phase.RUNNING) and tuple(job.state.holders) == (0, 2)


def test_an_unhealthy_node_takes_part_if_no_spare_one_comes() -> None:
    """The time for that ends in the roll call, too."""
    job = Steps(spares=1, restarts=HEALTH)
    job.take(Joined(1, "1"))
    job.take(Ready(0, 0))
    job.take(Ready(1, 0, "no GPU"), 2.0)
    assert job.state.due == 2.0 + SPARES_S
    job.take(Tick(), 2.0 + SPARES_S)
    assert job.is_in(Phase.RUNNING)


@pytest.mark.parametrize("is_held", [False, True])
def test_an_unhealthy_node_takes_part_again_unless_a_process_survives_there(is_held: bool) -> None:
    job = Steps()
    job.gather()
    job.fail(1)
    job.take(Ready(0, 1), 3.0)
    job.take(Ready(1, 1, "no GPU", is_held) if is_held else Ready(1, 1, "no GPU"), 3.0)
    assert job.is_in(Phase.OVER if is_held else Phase.RUNNING)


def test_a_probe_that_was_overtaken_ends_no_time_limit() -> None:
    """A node has joined while its host was probed, and has left again."""
    job = Steps(restarts=HEALTH)
    assert any(isinstance(one, Probe) for one in job.take(Tick(), 1000.0))
    job.take(Joined(1, "1"), 1001.0)
    job.take(Disconnected(1, 1002.0), 1002.0)
    assert any(isinstance(one, Probe) for one in (*job.commands, *job.take(Tick(), 1003.0)))


def test_a_node_0_that_stood_still_reads_what_has_come_before_it_loses_a_node() -> None:
    job = Steps(nodes=3)
    job.gather()
    job.take(Disconnected(1, 4.0), 4.0)
    job.take(Tick(), 17.0)
    job.take(Joined(1, "1", begun=True, attempt=0), 17.1)
    assert job.is_in(Phase.RUNNING)


def test_node_0_stays_until_every_node_knows_the_end_a_waiting_spare_one_too() -> None:
    job = Steps(spares=1)
    job.gather()
    for index in (0, 1):
        job.take(Exited(index, 0, 0), 3.0)
    assert job.is_in(Phase.OVER)
    assert Close() not in job.take(Left(1), 3.1)
    assert Close() in job.take(Disconnected(2, 3.2), 3.2)


def test_each_rule_is_described() -> None:
    """The page shows the first lines."""
    assert all(rule.__doc__ for rules in RULES.values() for rule in rules.values())
