"""A node by single steps: what it repeats to node 0, and what ends what still runs."""

from __future__ import annotations

from launcher.core.signal import signal
from launcher.core.supervision import Restarts
from launcher.failure.arbiter import EVENTS_OF_NODE, GAVE_UP, RANK, Event
from launcher.job import commands, events, node
from launcher.job.state import Job
from launcher.recovery.policy import Decision

AGAIN = commands.EndAttempt(1, commands.EndJob(1), Decision(True, ""))


class Steps:
    """A node that is led step by step; node 0 has started the first attempt."""

    def __init__(self, **more: object) -> None:
        self.state = node.begin(Job(2, restarts=Restarts(most=3), **more), 1, 0.0)  # type: ignore[arg-type]
        self.take(node.Answered(0.5))
        self.take(node.Begin(0, 1))

    def take(self, event: object, now: float = 1.0) -> tuple[node.Command, ...]:
        """Take an event, and return the commands."""
        self.state, found = node.step(self.state, event, now)
        return found

    def repeated(self) -> list[events.JobEvent]:
        """Return what it sends on a new connection."""
        return [one.event for one in self.take(node.Connected()) if isinstance(one, node.Send)]


def test_the_end_is_told_again_however_many_ranks_have_failed() -> None:
    """The connection is gone while forty ranks fail; node 0 hears the first of them, and the end."""
    one = Steps()
    for rank in range(40):
        one.take(node.Broke(Event(1, RANK, rank, 1, facts={"rank": rank})))
    one.take(node.Broke(Event(1, GAVE_UP, 41, 75)))
    one.take(node.Done(1))
    kept = one.repeated()
    kinds = [event.event.kind if isinstance(event, events.Failed) else "" for event in kept]
    assert kinds == [RANK] * EVENTS_OF_NODE + [GAVE_UP, ""] and isinstance(kept[-1], events.Exited)


def test_the_end_of_an_attempt_is_sent_until_the_next_one_starts() -> None:
    """Each connection may end before it has delivered it, and node 0 tells of the running attempt on each."""
    one = Steps()
    one.take(node.Done(0))
    assert one.take(node.Begin(0, 1)) == ()
    assert len(one.repeated()) == len(one.repeated()) == 1
    one.take(node.Begin(1, 1))
    assert one.repeated() == []


def test_companions_are_ended_gently_once_the_ranks_of_all_nodes_have() -> None:
    """Node 0 hears once that this node has ended, and not of the companions."""
    one = Steps()
    sent = one.take(node.Succeeded())
    assert [type(one.event) for one in sent if isinstance(one, node.Send)] == [events.Exited]
    assert one.take(AGAIN) == (node.EndProcesses(signal.SIGTERM),)
    assert one.take(node.Done(0)) == (node.Check(1),)


def test_a_node_whose_ranks_still_run_when_another_attempt_follows_kills_them() -> None:
    assert node.Kill("late") in Steps().take(AGAIN)


def test_a_node_that_loses_node_0_goes_on_only_with_keep_going() -> None:
    """It ends with its own status then."""
    one, other = Steps(), Steps(keep_going=True)
    late = one.state.answered + one.state.job.given_up_s + 0.1
    assert node.EndProcesses(signal.SIGTERM) in one.take(events.Tick(), late)
    assert not any(isinstance(found, node.EndProcesses) for found in other.take(events.Tick(), late))
    assert [one.status for one in other.take(node.Done(0), late) if isinstance(one, node.ExitLauncher)] == [
        75
    ]


def test_a_node_that_was_told_to_stop_does_not_wait_for_those_that_go_on() -> None:
    """With --keep-going, or if torchrun decides: its platform ends it soon; the others may run for hours."""
    one, other = Steps(keep_going=True), Steps()
    for node_of_two in (one, other):
        node_of_two.take(events.Received(1, int(signal.SIGTERM), "SIGTERM"))
    found = one.take(node.Done(143))
    assert [type(sent.event) for sent in found if isinstance(sent, node.Send)] == [events.Exited, events.Left]
    assert one.state.phase is node.NodePhase.OVER
    other.take(node.Done(143))
    assert other.state.phase is node.NodePhase.ENDED  # node 0 stops them all, and has the status


def test_a_node_that_has_given_node_0_up_and_ended_says_so_on_a_last_connection() -> None:
    """Otherwise the others would take the job for a success."""
    one = Steps()
    late = one.state.answered + one.state.job.given_up_s + 0.1
    one.take(events.Tick(), late)
    one.take(node.Done(0), late)
    assert one.state.phase is node.NodePhase.OVER
    assert [type(event) for event in one.repeated()] == [events.Failed, events.Exited]


def test_a_node_that_stood_still_hears_first_what_node_0_has_sent_meanwhile() -> None:
    """It was this node that was away: node 0 may have gone on without it, and says so."""
    one = Steps()
    late = one.state.answered + one.state.job.given_up_s + 20.0
    one.take(commands.Stop(0, "x", 0), late)
    assert not one.state.gave_up
    over = commands.EndJob(75, why="this node leaves", leaves=True)
    one.take(over, late)
    assert one.state.over == over


def test_a_preemption_that_crosses_the_start_is_of_the_attempt_that_starts() -> None:
    """The node is ready for it, and its machine is taken back."""
    one = Steps()
    one.take(node.Done(1))
    one.take(AGAIN)
    one.take(node.Broke(Event(1, "preempted", 9, 75)))
    one.take(node.Begin(1, 1))
    (kept,) = one.repeated()
    assert isinstance(kept, events.Failed) and kept.attempt == 1


def test_an_answer_that_is_late_does_not_prolong_the_lease() -> None:
    """What counts is when the heartbeat was sent that node 0 has answered."""
    one = Steps()
    (lease,) = one.take(node.Answered(0.9), 5.0)
    assert lease == node.Lease(0.9 + one.state.job.lease_s)
    assert one.take(node.Answered(0.7), 6.0) == ()
