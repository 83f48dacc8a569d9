"""What one node reports to node 0: failures, the end of its processes, and answers about them."""

from __future__ import annotations

import time

from launcher.cluster.coordinator import Coordinator
from launcher.cluster.messages import Ended, Failed, Looked, Quiet, Reached, ReadyAgain
from launcher.core.errors import EXIT_NOT_READY
from launcher.core.messages import SECONDS_MAX
from launcher.core.redact import printable, redact
from launcher.core.signal import signal
from launcher.failure.arbiter import GAVE_UP, LATENESS_NS, RANK, REFUSED, UNMET, UNPROVEN
from launcher.failure.transfer import fit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from launcher.agent.agent import Agent
    from launcher.cluster.client import CoordinatorClient
    from launcher.cluster.job_view import JobView
    from launcher.core.errors import LauncherError
    from launcher.failure.model import Verdict
    from launcher.failure.reason import Reason
    from launcher.observers.stragglers import Numbers
    from launcher.process.spawn import Process
    from launcher.stacks.answer import Answer


class Reporter:
    """Reports to node 0, which may be this node."""

    def __init__(self, agent: Agent, channel: Coordinator | CoordinatorClient, view: JobView) -> None:
        self._agent, self._channel, self._view = agent, channel, view

    def tell(self, message: object) -> None:
        """Send a message to node 0."""
        if isinstance(self._channel, Coordinator):
            self._channel.hear_own(message)
        else:
            self._channel.send(message)

    # --- events that end the attempt

    def tell_event(self, kind: str, status: int, what: str, **more: Any) -> None:
        """Report an event that ends the attempt; ``more``: fields of `Failed`."""
        attempt, offset = self._view.attempt, self._channel.offset
        attempt.has_failed = True
        add_ns, within_ns = (0, 0) if offset is None else (offset.add_ns, offset.delay_ns // 2)
        what = printable(redact(what))
        at_ns = time.monotonic_ns() + add_ns
        self.tell(Failed(kind, at_ns, status, within_ns + LATENESS_NS, what, attempt=attempt.number, **more))

    def tell_failure(self, process: Process, *, follows: bool) -> None:
        """Report the failure of a process of ours, with its time by node 0's clock."""
        child = process.child
        if child.called and self._agent.told_before is not None:
            return  # an agent that was told to stop, as we were: nothing has failed
        self.tell_event(
            RANK, process.status, f"{process.name} {process.end}",
            asked=process.passed_on in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL), follows=follows,
            rank=child.rank, local_rank=child.local_rank, pid=process.pid,
            code=process.code or 0, called=child.called,
        )  # fmt: skip

    def tell_reason(self, reason: Reason) -> None:
        """Report that this node ends the job for a reason of its own."""
        before = {UNPROVEN: "not the required fabric: ", UNMET: "--require-meeting: "}
        self.tell_event(reason.kind, reason.status, before.get(reason.kind, "") + reason.what)

    def tell_lost(self) -> None:
        """Report that we gave up node 0, which was silent for too long; it may still hear us."""
        shape = self._view.shape
        kind, after = shape.member, f"{shape.lost_after_s:g} s"
        what = f"{kind} {shape.node_rank} gave {kind} 0 up: no contact for {after}"
        self.tell_event(GAVE_UP, EXIT_NOT_READY, what)

    def tell_refused(self, error: LauncherError) -> None:
        """Report that our processes cannot be started: the other nodes would wait for them."""
        self._agent.loop.guard(lambda: self.tell_event(REFUSED, error.exit_status, error.summary))
        self.tell(self._make_end(error.exit_status, None))

    # --- the state of this node

    def tell_end(self, status: int, verdict: Verdict | None) -> None:
        """Report once how our processes ended."""
        attempt = self._view.attempt
        if not attempt.has_told_end:
            ended = self._make_end(status, verdict)
            attempt.has_told_end = True
            self.tell(ended)

    def _make_end(self, status: int, verdict: Verdict | None) -> Ended:
        progress = self._agent.restarter.progress
        progressed = None if progress is None else progress.has_progressed()
        fitting = None if verdict is None else fit(verdict)
        return Ended(status, fitting, self._view.attempt.number, progressed)

    def tell_quiet(self, what: str) -> None:
        """Report that nothing has happened here for a while; empty: that something has happened again."""
        ends = self._agent.watch.on_stall == "stop"
        self.tell(Quiet(what, ends, self._view.attempt.number))

    def tell_look(self, number: int, answers: Sequence[Answer], progress: Numbers = ()) -> None:
        """Report what this node's ranks do; ``number``: that of the `Look`, 0 before they are stopped."""
        from launcher.evidence.recorders import fit_records
        from launcher.stacks.packing import pack

        reached = tuple(Reached(rank, value) for rank, value in progress if 0 <= value <= SECONDS_MAX)
        records, attempt = fit_records(self._agent.evidence.records), self._view.attempt.number
        self.tell(Looked(pack(answers, threads=False), number, attempt, reached, records))

    def tell_health(self, attempt: int) -> None:
        """Report that this node is ready for an attempt, or what the health command found."""
        argv = self._agent.watch.restarts.health_argv
        if argv:
            from launcher.recovery.health import ask_health

            ask_health(argv, self._agent.group.helpers, lambda what: self.tell(ReadyAgain(attempt, what)))
        elif attempt:
            self.tell(ReadyAgain(attempt))
