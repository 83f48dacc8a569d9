"""The record of a job's attempts on node 0, and the lines that wait for the report of a failed one."""

from __future__ import annotations

import time
from collections import Counter

from launcher.cluster.outcome import read_verdict
from launcher.core.budget import LINES_MAX, LINES_OF_NODE
from launcher.core.frozen import replace
from launcher.core.redact import printable, redact
from launcher.job import events
from launcher.job.state import Phase
from launcher.recovery.policy import describe_attempt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.cluster.members import Members
    from launcher.cluster.messages import Over
    from launcher.core.budget import Quota
    from launcher.failure.arbiter import Event
    from launcher.job.commands import Blame
    from launcher.job.state import State
    from launcher.recovery.history import History
    from launcher.recovery.policy import Decision

REPORT_S = 2.0
"""Within this time node 0 has reported a failed attempt, although it may not be ready yet."""


class Attempts:
    """What node 0 remembers and prints about attempts; the controller decides about them."""

    def __init__(
        self,
        members: Members,
        history: Callable[[], History],
        say: Quota,
    ) -> None:
        """Wait for the first failure.

        Args:
            members: The nodes.
            history: Returns the record of attempts; it is loaded after the first failure.
            say: Prints one line.
        """
        self._members, self._history, self._say = members, history, say
        self._started_mono_ns = time.monotonic_ns()
        self._held: list[tuple[str, str]] | None = None
        """Lines that follow the report of the attempt that has failed; None if it is printed."""
        self.report_by = 0.0

    def note_start(self) -> None:
        """Note that the processes of an attempt start now."""
        self._started_mono_ns = time.monotonic_ns()

    # --- decisions

    def note(self, over: Over, decision: Decision, first: Event | None) -> None:
        """Remember the attempt that has failed.

        Args:
            over: How it has ended.
            decision: What follows.
            first: What came first, with the index of its node; None if nothing has failed.
        """
        members, attempt = self._members, self._members.state.attempt
        assert attempt is not None  # noqa: S101 - it has failed
        started_ns = time.time_ns() - (time.monotonic_ns() - self._started_mono_ns)
        verdict = read_verdict(over, None, members.shape, started_ns, attempt.number)
        failed = describe_attempt(
            verdict, attempt.number, over.status, started_ns, time.time_ns(), attempt.progressed,
            lambda rank: "" if first is None else members.machine(first.node),
        )  # fmt: skip
        if over.first is not None:  # the verdict has the time by the clock of its node
            failed = replace(failed, ended_ns=max(over.first.wall_ns - over.first.ago_ns, started_ns))
        self._note_hosts()
        self._history().note(failed, decision)

    def give_up(self, why: str) -> None:
        """Note that the attempt that was to follow does not."""
        self._history().give_up(why)

    # --- nodes

    def _note_hosts(self) -> None:
        """Note which host names several nodes share."""
        for host, number in Counter(one.host for one in self._members.by_index.values()).items():
            if number > 1:
                self._history().shared_hosts.add(host)

    def blame(self, command: Blame) -> None:
        """Remember what is wrong with a node, for the last screen."""
        member, machine = self._members.by_index.get(command.node), self._members.machine(command.node)
        if member is not None:
            self._note_hosts()
            self._history().note_node(command.cause, command.what, command.rank, member.host, machine)

    # --- the log

    def hold(self) -> None:
        """Hold lines back until node 0 has reported the attempt that has failed."""
        self._held, self.report_by = [], time.monotonic() + REPORT_S

    def say(self, text: str, event: str) -> None:
        """Print a line; the report of the attempt that has failed comes first."""
        if self._held is None:
            self._say(text, event)
        elif len(self._held) < LINES_MAX + LINES_OF_NODE * self._members.shape.node_count:
            self._held.append((text, event))
        else:
            self._say.drop()

    def release(self) -> None:
        """Print the lines that were held back."""
        held, self._held = self._held, None
        for text, event in held or ():
            self._say(text, event)

    @property
    def holds(self) -> bool:
        """Whether lines are held back."""
        return self._held is not None


def rescue(state: State, event: events.JobEvent, error: Exception) -> events.Unable | None:
    """Return the event that the next attempt cannot be prepared: the nodes would wait for it for ever."""
    is_between = state.phase is Phase.BETWEEN and not isinstance(event, events.Unable)
    return events.Unable(0, describe_error(error)) if is_between else None


def describe_error(error: Exception) -> str:
    """Return our own error between two attempts as one line without secrets."""
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"internal launcher error on node 0 between two attempts: {printable(redact(what))}"
