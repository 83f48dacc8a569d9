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
    from collections.abc import Callable, Iterable

    from launcher.cluster.messages import Over
    from launcher.cluster.settings import Shape
    from launcher.core.budget import Quota
    from launcher.job.state import State
    from launcher.recovery.policy import Decision
    from launcher.recovery.recovery import Recovery

REPORT_S = 2.0
"""Within this time node 0 has reported a failed attempt, although it may not be ready yet."""


class Attempts:
    """What node 0 remembers and prints about attempts; the controller decides about them."""

    def __init__(
        self,
        shape: Shape,
        recovery: Callable[[], Recovery],
        say: Quota,
    ) -> None:
        """Wait for the first failure.

        Args:
            shape: The job.
            recovery: Returns the record of attempts; it is loaded after the first failure.
            say: Prints one line.
        """
        self._shape, self._recovery, self._say = shape, recovery, say
        self._started_mono_ns = time.monotonic_ns()
        self._held: list[tuple[str, str]] | None = None
        """Lines that follow the report of the attempt that has failed; None if it is printed."""
        self.report_by = 0.0

    def note_start(self) -> None:
        """Note that the processes of an attempt start now."""
        self._started_mono_ns = time.monotonic_ns()

    # --- decisions

    def note(
        self,
        over: Over,
        decision: Decision,
        attempt: int,
        progressed: bool | None,
        hosts: Iterable[str],
        machine: str,
    ) -> None:
        """Remember an attempt that has failed.

        Args:
            over: How it has ended.
            decision: What follows.
            attempt: Its number.
            progressed: Whether any node saw progress; None if none watches for it.
            hosts: The host name of each node.
            machine: The platform's name of the node that failed first; empty if unknown.
        """
        started_ns = time.time_ns() - (time.monotonic_ns() - self._started_mono_ns)
        verdict = read_verdict(over, None, self._shape, started_ns, attempt)
        failed = describe_attempt(
            verdict, attempt, over.status, started_ns, time.time_ns(), progressed, lambda rank: machine
        )
        if over.first is not None:  # the verdict has the time by the clock of its node
            failed = replace(failed, ended_ns=max(over.first.wall_ns - over.first.ago_ns, started_ns))
        self.note_hosts(hosts)
        self._recovery().note(failed, decision)

    def give_up(self, why: str) -> None:
        """Note that the attempt that was to follow does not."""
        self._recovery().give_up(why)

    # --- nodes

    def note_hosts(self, hosts: Iterable[str]) -> None:
        """Note which host names do not tell nodes apart."""
        for host, number in Counter(hosts).items():
            if number > 1:
                self._recovery().history.shared_hosts.add(host)

    def blame(self, cause: str, what: str, rank: int, host: str, machine: str) -> None:
        """Remember what is wrong with a node, for the last screen."""
        self._recovery().note_node(cause, what, rank, host, machine)

    # --- the log

    def hold(self) -> None:
        """Hold lines back until node 0 has reported the attempt that has failed."""
        self._held, self.report_by = [], time.monotonic() + REPORT_S

    def say(self, text: str, event: str) -> None:
        """Print a line; the report of the attempt that has failed comes first."""
        if self._held is None:
            self._say(text, event)
        elif len(self._held) < LINES_MAX + LINES_OF_NODE * self._shape.node_count:
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
    """Return an error of ours between two attempts as one line without secrets."""
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"internal launcher error on node 0 between two attempts: {printable(redact(what))}"
