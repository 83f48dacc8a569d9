"""A serving node: has ranks and runs programs for the head, until that reports how the job ended."""

from __future__ import annotations

import time

from launcher.agent.agent import Agent
from launcher.agent.coordination import Coordination
from launcher.agent.runtime import NodePlace
from launcher.core.budget import Quota
from launcher.core.errors import NotReady, Problem
from launcher.core.redact import quote
from launcher.core.signal import signal
from launcher.core.wire import LINE_LENGTH
from launcher.mpi.leftovers import end_job
from launcher.mpi.local import LocalRanks
from launcher.mpi.protocol import FROM_HEAD, Briefing, JobOver, NodeTold
from launcher.process.loop import Later
from launcher.process.signals import name_signal
from launcher.remote.programs import Member, Membership

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.agent.runtime import Runtime
    from launcher.core.model import Supervision

GONE = 75
"""Our exit status if the head is gone without a report, or has not come."""
PATIENCE_S = 30.0
"""Seconds that the head may take to end the job, in addition to the grace."""
CLOSE_S = 4.0
"""Seconds that the programs may take to end."""


class Serving(Coordination):
    """Coordination of a launcher that starts no process of its own.

    Attributes:
        status: How the job ended, for this node; None before.
        agent: The agent of this node; set before it runs.
    """

    shares_terminal = lends_terminal = has_work = False

    agent: Agent

    def __init__(self, place: Membership, timeout_s: float, rejoin_s: float) -> None:
        """Create the coordination.

        Args:
            place: Where the head is, and our rank.
            timeout_s: Seconds that the head may take to come.
            rejoin_s: Seconds that the head may take to come back; 0 if it does not start the job again.
        """
        self.status: int | None = None
        self._place, self._timeout_s, self._rejoin_s = place, timeout_s, rejoin_s
        self._wake = Later(time.monotonic() + timeout_s, self._on_late)
        self._told: int | None = None
        self._final: int | None = None
        """Status of the job, as the head has reported."""
        self._briefing: Briefing | None = None
        self._is_late = self._is_losing = False

    def attach(self, runtime: Runtime) -> None:
        """Prepare to join."""
        super().attach(runtime)
        self._quota = Quota(runtime.say)
        self._ranks = LocalRanks(runtime.loop, lambda message: self._member.send(message))

    def gather(self) -> None:
        """Serve until the job is over, and end what is left."""
        runtime, observers = self.runtime, self.agent.observers
        runtime.loop.timers[:] = [self._wake, self._ranks]
        self._member = member = Member(
            self._place,
            runtime.loop,
            runtime.group.helpers.ask,
            (runtime.environ, runtime.signals.reset),
            self.complain,
            self._on_message,
            self._on_lost,
            FROM_HEAD,
        )
        runtime.loop.timers.append(member)
        runtime.loop.guard(observers.check)
        while self.status is None or not self._ranks.is_over:
            runtime.loop.turn()
            runtime.group.reap(member.programs.pids)
            self._look()
        observers.end()
        self.close()
        self._end_programs()

    def _look(self) -> None:
        """Go on when nothing of the job is left here."""
        if not self._ranks.is_over:
            return
        if self._final is not None:
            self._end(self._final)
        elif self._is_losing:
            self._is_losing = False
            self._wait_for_head()

    def _end_programs(self) -> None:
        group, loop = self.runtime.group, self.runtime.loop
        group.stopper.grace_s = CLOSE_S
        group.stopper.begin(signal.SIGTERM)
        loop.timers[:] = [group.stopper]
        while group.is_busy:
            loop.turn()
            loop.guard(group.collect)

    def clean_up(self) -> None:
        """End what the job has left here; the watchdog calls this if the launcher was killed."""
        if self._briefing is not None:
            end_job(self._briefing.job, self._briefing.grace_s)

    # --- signals

    def takes_signal(self, number: int, *, from_terminal: bool) -> bool:
        """Handle every signal.

        SIGTERM and SIGINT are passed on to the head, which passes them on to all ranks. Without a head, or at
        a second Ctrl-C, they end this node's part.
        """
        if number in (signal.SIGTERM, signal.SIGINT):
            is_first, self._told = self._told is None, self._told or number
            typed_twice = from_terminal and number == signal.SIGINT and not is_first
            if typed_twice:
                self._ranks.end(0.0)
            if typed_twice or not self._member.is_connected:
                self._end(128 + number)
                return True
            self._member.send(NodeTold(number))
            if is_first:
                self.runtime.say(
                    f"{name_signal(number)}: passed on to the head of the job, which ends it on all nodes",
                    "signal",
                )
                self._wake.due = time.monotonic() + self.runtime.watch.grace_s + PATIENCE_S
        return True

    # --- the head

    def complain(self, why: str, event: str) -> None:
        """Print why the head is not reached, up to a limit."""
        self._quota(quote(why, LINE_LENGTH), event)

    def _on_message(self, message: object) -> None:
        """Handle a message from the head."""
        if isinstance(message, JobOver):
            self._final = message.status
            self._ranks.end()
            return
        if isinstance(message, Briefing):
            if self._told is None:
                self._wake.due = None
            self._is_losing = False
            self._watch(message)
        self._ranks.obey(message)

    def _watch(self, briefing: Briefing) -> None:
        """Have the watchdog end the job here if we are killed."""
        group, before = self.runtime.group, self._briefing
        self._briefing = briefing
        if before is None or before.job != briefing.job:
            group.dismiss_watchdog()
            group.watchdog = None
            group.start_watchdog(None, self.agent.clean_up)

    def _on_lost(self) -> None:
        """End what runs here: the head is gone without a report."""
        if self._final is None and self.status is None and self._briefing is not None:
            self._is_losing = True
            self._ranks.lose_head()

    def _wait_for_head(self) -> None:
        """Wait for the head to come back, or end this node's part."""
        if self._rejoin_s and self._told is None and (self._member.is_connected or self._wake.due):
            return  # it is back, and says when another attempt follows; or we wait already
        if self._rejoin_s and self._told is None:
            self.runtime.say(
                f"the head of the job is gone: waiting {self._rejoin_s:g} s for it to come back "
                "(--rejoin-timeout)",
                "head-lost",
            )
            self._wake.due = time.monotonic() + self._rejoin_s
        else:
            self.runtime.say("the head of the job is gone: ended what it left on this node", "head-lost")
            self._end(GONE)

    # --- the end

    def _on_late(self) -> None:
        """End this node's part: the head has not come, or was told to end the job and has not done so."""
        if self._told is not None:
            self.runtime.say("the head did not end the job in time: giving up", "gave-up")
            self._end(128 + self._told)
            return
        if self._briefing is None:
            self._is_late = True
        else:
            self.runtime.say(
                f"the head of the job has not come back within {self._rejoin_s:g} s: giving up", "gave-up"
            )
        self._end(GONE)

    def _end(self, status: int) -> None:
        """End this node's part with a status, the first one, once the ranks here have had their grace."""
        self.status = status if self.status is None else self.status
        self._ranks.lose_head()

    def close(self) -> None:
        """Leave the job."""
        self._member.close()
        self._ranks.close()

    def finish(self, report: Callable[[], int]) -> int:
        """Return the status of the job.

        Raises:
            NotReady: The head has not come in time.
        """
        self._quota.say_dropped()
        if self._is_late:
            raise NotReady(_no_head(self._timeout_s))
        return GONE if self.status is None else self.status


def serve(
    place: Membership,
    watch: Supervision,
    environ: Mapping[str, str],
    timeout_s: float,
    rejoin_s: float = 0.0,
    checks: Callable[[], Sequence[str]] | None = None,
) -> int:
    """Serve until the job is over; return its status.

    Args:
        place: Where the head is, and our rank.
        watch: How to log, and the grace.
        environ: Our environment, which the processes that the head starts here get as well.
        timeout_s: Seconds that the head may take to come.
        rejoin_s: Seconds that it may take to come back; 0 if it does not start the job again.
        checks: Run meanwhile, see `launcher.agent.agent.Agent`.

    Raises:
        NotReady: The head has not come (75).
    """
    serving = Serving(place, timeout_s, rejoin_s)
    serving.agent = agent = Agent(watch, NodePlace(), environ, serving, checks=checks)
    agent.runtime.say(f"serving node 0 ({place.host}) until it reports that the job is over", "serving")
    return agent.run()


def _no_head(timeout_s: float) -> Problem:
    return Problem(
        "no-head",
        f"the head of the job did not connect within {timeout_s:g} s",
        "this node",
        "start the same command on node 0, with the same token, or wait longer: --roll-call-timeout S",
    )
