"""What follows for the other processes of a node when one has exited."""

from __future__ import annotations

import pytest

from launcher.job.exits import Action, Exit, NodeProcesses, counts, decide

FAILED, ENDED, LOST = Exit(True), Exit(False), Exit(True, follows=True)
COMPANION = Exit(True, companion=True)


@pytest.mark.parametrize(
    ("end", "state", "action"),
    [
        (ENDED, NodeProcesses(1), Action.NOTHING),
        (FAILED, NodeProcesses(1), Action.STOP),
        (FAILED, NodeProcesses(0), Action.NOTHING),
        (FAILED, NodeProcesses(1, stopping=True), Action.NOTHING),
        (LOST, NodeProcesses(1), Action.SETTLE),
        (LOST, NodeProcesses(1, settling=True), Action.NOTHING),
        (FAILED, NodeProcesses(1, settling=True), Action.STOP),
        (COMPANION, NodeProcesses(1), Action.STOP),
        (COMPANION, NodeProcesses(0, 1), Action.STOP_COMPANIONS),
        (ENDED, NodeProcesses(0, 1), Action.STOP_COMPANIONS),
        (ENDED, NodeProcesses(0, 1, elsewhere=True), Action.KEEP_COMPANIONS),
        (ENDED, NodeProcesses(0, 1, finishing=True), Action.WAIT_FOR_COMPANIONS),
        (Exit(False, companion=True), NodeProcesses(0, 1, finishing=True), Action.NOTHING),
        (FAILED, NodeProcesses(0, 1, has_ranks=False), Action.STOP),
    ],
)
def test_what_an_exit_does_to_the_others(end: Exit, state: NodeProcesses, action: Action) -> None:
    """A failure stops them, at once unless it may only follow another one; companions end after the ranks."""
    assert decide(end, state) is action


def test_how_a_companion_ends_after_the_ranks_does_not_matter() -> None:
    assert counts(COMPANION, NodeProcesses(1)) and not counts(COMPANION, NodeProcesses(0))
    assert counts(FAILED, NodeProcesses(0)) and not counts(ENDED, NodeProcesses(1))
