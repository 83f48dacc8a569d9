"""A serving node: runs ranks and programs for the head, until the head reports how the job ended.

    calling --> serving --> ending --> over
       ^           |
       +-- losing -+

It is losing a head whose connection has ended without a report: the ranks here have their grace, and then it
calls again, for the time of ``--rejoin-timeout``. A node of any other job ends with node 0 instead
(`launcher.job.node`), stops its processes by itself, and reports their end; here the head does both.
"""

from __future__ import annotations

import time

from launcher.agent.coordination import Coordination
from launcher.cluster.client import CoordinatorClient
from launcher.cluster.messages import Over, Refuse
from launcher.cluster.outcome import read_refusal
from launcher.core.errors import EXIT_NOT_READY, LauncherError, NotReady
from launcher.core.signal import signal
from launcher.failure.arbiter import REFUSED, Event
from launcher.job import events
from launcher.job.refusals import WAIT_LONGER, node_0_missing
from launcher.mpi.leftovers import end_job
from launcher.mpi.local import LocalRanks
from launcher.mpi.protocol import FROM_HEAD, FROM_NODE, Briefing
from launcher.process.loop import Later
from launcher.process.signal_file import ENDING_IDLE, name_signal
from launcher.remote.programs import Programs
from launcher.remote.protocol import FROM_NODE as TO_HEAD
from launcher.remote.protocol import TO_NODE, UNSENT_LIMIT_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.agent.agent import AgentParts
    from launcher.agent.runtime import Runtime
    from launcher.cluster.join import Join
    from launcher.cluster.settings import Shape

PATIENCE_S = 30.0
"""Seconds that the head may take to end the job, in addition to the grace."""
CLOSE_S = 4.0
"""Seconds that the programs may take to end."""


class Serving:
    """Coordination of a launcher that starts no process of its own.

    Attributes:
        status: How the job ended, for this node; None before.
        parts: The parts of the agent; set before it runs.
        runtime: Values and tools of the launcher.
    """

    parts: AgentParts
    runtime: Runtime

    def __init__(self, key: bytes, shape: Shape, join: Join, rejoin_s: float) -> None:
        """Create the coordination.

        Args:
            key: Key of the job.
            shape: The job, and where the head is.
            join: Our first message to it.
            rejoin_s: Seconds that the head may take to come back; 0 if it does not start the job again.
        """
        self.status: int | None = None
        self._key, self._shape, self._join, self._rejoin_s = key, shape, join, rejoin_s
        self._wake = Later(time.monotonic() + shape.timeout_s, self._on_late)
        self._told: int | None = None
        self._over: Over | Refuse | None = None
        """How the job has ended, as the head has reported."""
        self._refused: LauncherError | None = None
        """Why this node cannot take part, or the head has not come."""
        self._has_met = self._is_losing = False

    def coordinate(self) -> Coordination:
        """Return what the agent asks and reports."""
        return Coordination(
            self.gather, self.attach, shares_terminal=False, lends_terminal=False,
            takes_signal=self.takes_signal, clean_up=self.clean_up, finish=self.finish, close=self.close,
        )  # fmt: skip

    def attach(self, runtime: Runtime) -> None:
        """Prepare to join."""
        self.runtime = runtime
        self._channel = self._make_channel()
        self._programs = Programs(self._send, runtime.loop, runtime.environ)
        grace_s = runtime.watch.grace_s
        self._ranks = LocalRanks(runtime.loop, self._send, self._shape.index, grace_s)

    def _make_channel(self) -> CoordinatorClient:
        runtime = self.runtime
        return CoordinatorClient(
            self._key, self._shape, self._join, runtime.loop, runtime.group.helpers.ask, runtime.say,
            self._on_message, self._on_connected, on_lost=self._on_lost,
            streams=(*FROM_NODE, *FROM_HEAD, *TO_NODE, *TO_HEAD), limit_bytes=UNSENT_LIMIT_BYTES,
        )  # fmt: skip

    def _send(self, message: object) -> None:
        self._channel.send(message)

    def gather(self) -> bool:
        """Serve until the job is over, and end what is left; no process of our own follows."""
        runtime, observers = self.runtime, self.parts.observers
        runtime.loop.timers[:] = [self._wake, self._ranks, self._channel]
        runtime.loop.guard(observers.check)
        while self.status is None or not self._ranks.is_over:
            runtime.loop.turn()
            self._programs.reap()
            runtime.group.reap(self._programs.pids)
            self._look()
        observers.end()
        self.close()
        self._end_programs()
        return False

    def _look(self) -> None:
        """Go on when nothing of the job is left here."""
        if not self._ranks.is_over:
            return
        if self._over is not None:
            is_told = self._told is not None and isinstance(self._over, Refuse)
            self._end(128 + (self._told or 0) if is_told else self._over.status)
        elif self._is_losing:
            self._is_losing = False
            self._wait_for_head()

    def _end_programs(self) -> None:
        group, loop = self.runtime.group, self.runtime.loop
        group.stopper.begin(signal.SIGTERM, grace_s=CLOSE_S)
        loop.timers[:] = [group.stopper]
        group.turn_while(lambda: group.is_busy)

    def clean_up(self) -> None:
        """End what the job has left here; the watchdog calls this if the launcher was killed."""
        briefing = self._ranks.briefing
        if briefing is not None:
            end_job(briefing.job, briefing.grace_s)

    # --- signals

    def takes_signal(self, number: int, from_terminal: bool) -> bool:
        """Handle every signal.

        Those that end a launcher without processes are passed on to the head, which ends all ranks. Without a
        head, or at a second Ctrl-C, they end this node's part.
        """
        if number in ENDING_IDLE:
            is_first, self._told = self._told is None, self._told or number
            typed_twice = from_terminal and number == signal.SIGINT and not is_first
            if typed_twice:
                self._ranks.end(0.0)
            if typed_twice or not self._channel.is_connected:
                self._end(128 + number)
                return True
            self._send(events.Received(self._shape.index, int(number), name_signal(number)))
            if is_first:
                self.runtime.say(
                    f"{name_signal(number)}: passed on to the head of the job, which ends it on all nodes",
                    "signal",
                )
                self._wake.due = time.monotonic() + self.runtime.watch.grace_s + PATIENCE_S
        return True

    # --- the head

    def _on_connected(self) -> None:
        """Note that the head is there."""
        self._has_met = True
        if self._told is None:
            self._wake.due = None

    def _on_message(self, message: object) -> None:
        """Handle a message from the head.

        Raises:
            Garbled: It is about a program, and invalid.
        """
        if isinstance(message, TO_NODE):
            self._programs.obey(message)
        else:
            self.runtime.loop.guard(lambda: self._obey(message))

    def _obey(self, message: object) -> None:
        match message:
            case Over() | Refuse():
                self._over = message
                self._ranks.end()
            case Briefing():
                self._begin(message)
            case _:
                self._ranks.obey(message)

    def _begin(self, briefing: Briefing) -> None:
        """Let ranks of an attempt start here; the watchdog ends the job here if we are killed."""
        group, before = self.runtime.group, self._ranks.briefing
        try:
            self._ranks.obey(briefing)
        except LauncherError as error:
            self._refused, status, what = error, error.exit_status, error.problems[0].what
            event = Event(self._shape.index, REFUSED, time.monotonic_ns(), status, what=what)
            self._send(events.Failed(self._shape.index, event, briefing.attempt))
            return
        if before is None or before.job != briefing.job:
            group.dismiss_watchdog()
            group.watchdog = None
            group.start_watchdog(None, self.parts.clean_up)

    def _on_lost(self) -> None:
        """End what runs here, and then call again: the head is gone without a report."""
        self._programs.let_go()
        if self._has_met and self._over is None and self.status is None:
            self._channel.close()
            self._is_losing = True
            self._ranks.lose_head()

    def _wait_for_head(self) -> None:
        """Wait for the head, or another one, to come back, or end this node's part."""
        if not self._rejoin_s or self._told is not None:
            self.runtime.say("the head of the job is gone: ended its processes on this node", "head-lost")
            self._end(EXIT_NOT_READY)
            return
        self.runtime.say(
            f"the head of the job is gone: waiting {self._rejoin_s:g} s for it to come back "
            "(--rejoin-timeout)",
            "head-lost",
        )
        self._wake.due = time.monotonic() + self._rejoin_s
        timers = self.runtime.loop.timers
        timers.remove(self._channel)
        self._channel = self._make_channel()
        timers.append(self._channel)

    # --- the end

    def _on_late(self) -> None:
        """End this node's part: the head has not come, or was told to end the job and has not done so."""
        if self._told is not None:
            self.runtime.say("the head did not end the job in time: giving up", "gave-up")
            self._end(128 + self._told)
            return
        if not self._has_met:
            shape = self._shape
            reason = self._channel.explain()
            self._refused = NotReady(node_0_missing(shape.member, shape.timeout_s, reason, WAIT_LONGER))
        else:
            self.runtime.say(
                f"the head of the job has not come back within {self._rejoin_s:g} s: giving up", "gave-up"
            )
        self._end(EXIT_NOT_READY)

    def _end(self, status: int) -> None:
        """End this node's part with a status, the first one, once the ranks here have had their grace."""
        self.status = status if self.status is None else self.status
        self._ranks.lose_head()

    def close(self) -> None:
        """Leave the job."""
        self._send(events.Left(self._shape.index))
        self._channel.close()
        self._programs.let_go()
        self._ranks.close()

    def finish(self, report: Callable[[], int]) -> int:
        """Return the status of the job.

        Raises:
            LauncherError: The head has not come in time, or the job does not start.
        """
        if self._refused is not None:
            raise self._refused
        if isinstance(self._over, Refuse) and self._told is None:
            raise read_refusal(self._over)
        if isinstance(self._over, Over) and self._over.leaves:
            self.runtime.say(self._over.why, "no-restart")
        return EXIT_NOT_READY if self.status is None else self.status
