"""Responds to a preemption: reports it, gives the processes time for a checkpoint, exits with 75."""

from __future__ import annotations

import os
import time

from launcher.core.errors import EXIT_NOT_READY
from launcher.core.files import remove_file, replace_file
from launcher.core.frozen import replace
from launcher.core.signal import signal
from launcher.machine.host import Host
from launcher.output.folder import DEADLINE_NAME
from launcher.preemption.events import ANNOUNCED, MARGIN_S, STATUS_WORDS, WITHDRAWN
from launcher.process.signal_file import name_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.agent.runtime import Runtime
    from launcher.failure.model import Verdict
    from launcher.preemption.watch import PreemptionWatch

REASON = "preempted"
LEAST_GRACE_S = 3.0
LAST_WORD_S = 2.0
"""Seconds reserved before the machine goes, for our verdict, its record, and our exit status."""


def plan_grace(grace_s: float, left_s: float) -> float:
    """Return the grace period of the processes in seconds, at most the time that the machine lasts.

    A machine that lasts less than `LEAST_GRACE_S` does not shorten it below that.
    """
    return min(grace_s, max(LEAST_GRACE_S, left_s - LAST_WORD_S))


def render_deadline(what: str, deadline: float) -> str:
    """Return the content of the file in LAUNCHER_DEADLINE: the time in seconds since 1970, and the reason."""
    import json

    return json.dumps({"deadline": round(deadline, 3), "reason": REASON, "what": what}) + "\n"


class PreemptionResponse:
    """Preemption of this node, and of others as far as it concerns this one.

    Attributes:
        is_due: Whether the time of a node has come, even if nothing ran when it came: no attempt may follow.
        has_begun: Whether the processes were told to end because of it, before anything had failed.
    """

    def __init__(self, runtime: Runtime, report: Callable[[str, str, float, bool], None]) -> None:
        """Watch for nothing yet.

        Args:
            runtime: Values and tools of the launcher.
            report: Takes an event of this node, and whether the processes end because of it; see
                `launcher.agent.coordination.Coordination.on_preemption`.
        """
        self.is_due = self.has_begun = False
        self._runtime, self._report = runtime, report
        self._watch: PreemptionWatch | None = None
        self._what = ""
        self._begun_ns = 0
        self._notices: dict[int | None, tuple[float, str]] = {}

    def watch(self) -> None:
        """Watch for preemption of this node, in all attempts, if that is planned."""
        runtime = self._runtime
        planned, grace_s = runtime.watch.preemption, runtime.watch.grace_s
        if planned is None:
            return
        if self._watch is None:
            from launcher.preemption.watch import PreemptionWatch

            helpers = runtime.group.helpers
            self._watch = PreemptionWatch(planned, grace_s, helpers, runtime.say, self._on_event)
        runtime.loop.timers.append(self._watch)

    def _on_event(self, kind: str, what: str, left_s: float) -> None:
        ends = self.respond(kind, what, left_s)
        self._report(kind, what, left_s, ends)

    def close(self) -> None:
        """Stop watching."""
        if self._watch is not None:
            self._watch.close()

    def respond(self, kind: str, what: str, left_s: float, node: int | None = None) -> bool:
        """Apply an event to the processes here; return whether they have now been told to end.

        Args:
            kind: One of `launcher.preemption.events`.
            what: Description for users.
            left_s: Seconds that the machine lasts.
            node: Node rank of the machine; None for ours. Each node has one notice at a time.
        """
        runtime = self._runtime
        if kind == WITHDRAWN:
            self._withdraw(what, node)
            return False
        number = runtime.forwarder.translate(signal.SIGTERM)
        when, name = _when(left_s), name_signal(number)
        if kind == ANNOUNCED:
            self._note(what, left_s, node)
            wait_s = max(0.0, left_s - runtime.watch.grace_s - MARGIN_S)
            text = f"{what}; {when}: {name} in {wait_s:.0f} s unless it is withdrawn"
            self._say(text, "preemption-announced")
            return False
        self.is_due = True
        running = len(runtime.group.running)
        if not running or runtime.group.stopper.begun:
            why = "the processes are ending already" if running else "nothing runs here anymore"
            self._say(f"{what}; {when}: {why}", "preempted")
            return False
        self._note(what, left_s, node)
        self.has_begun, self._what, self._begun_ns = True, what, time.monotonic_ns()
        grace_s = plan_grace(runtime.watch.grace_s, left_s)
        to = f"{name} to {running} process{'es' if running > 1 else ''}"
        self._say(f"{what}; {when}: {to}, SIGKILL after {grace_s:.0f} s", "preempted")
        runtime.group.stopper.begin(number, grace_s=grace_s)
        return True

    def _withdraw(self, what: str, node: int | None) -> None:
        """Forget the notice of this node; the notices of other nodes stay."""
        self._notices.pop(node, None)
        if self._notices:
            self._write()
        elif self._runtime.deadline_file is not None:
            try:  # noqa: SIM105 - contextlib would be one more module
                remove_file(DEADLINE_NAME, at=self._runtime.folder.fd)
            except OSError:
                pass  # it could not be written
        self._say(f"withdrawn: {what}; the job continues", "preemption-withdrawn")

    def make_verdict(self) -> Verdict | None:
        """Return the verdict that a node was preempted; None if the job did not end for that.

        The preemption is the cause, however the processes reacted to the signal.
        """
        if not self.has_begun:
            return None
        from launcher.agent.ends import describe_exit
        from launcher.failure.model import ProcessExit
        from launcher.failure.symptoms import make_cause
        from launcher.failure.verdict import make_verdict

        runtime = self._runtime
        node = runtime.place.node_rank or 0
        begun_ns = runtime.at_ns(self._begun_ns)
        ours = ProcessExit(0, 0, os.getpid(), EXIT_NOT_READY, begun_ns, called=f"node {node}")
        verdict = make_verdict(
            ours,
            [describe_exit(runtime, one) for one in runtime.group.ended],
            host_name=Host().hostname(),
            node_rank=runtime.place.node_rank,
            world_size=runtime.place.world_size,
            attempt=runtime.attempt,
            started_ns=runtime.started_ns,
            told=None,
            causes=[make_cause("preempted", what=self._what)],
            leftovers=runtime.group.describe_survivors(),
        )
        return replace(verdict, first=replace(verdict.first, status=STATUS_WORDS))

    def _say(self, text: str, event: str) -> None:
        self._runtime.say(f"preemption: {text}", event)

    def _note(self, what: str, left_s: float, node: int | None) -> None:
        self._notices[node] = (time.time() + left_s, what)
        self._write()

    def _write(self) -> None:
        """Write the earliest of all notices to the file of LAUNCHER_DEADLINE."""
        if self._runtime.deadline_file is None:
            return
        deadline, what = min(self._notices.values())
        try:
            replace_file(render_deadline(what, deadline), DEADLINE_NAME, at=self._runtime.folder.fd)
        except OSError as error:
            why = f"no file for LAUNCHER_DEADLINE ({error.strerror}): the processes get only the signal"
            self._say(why, "no-deadline-file")


def _when(left_s: float) -> str:
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + left_s))
    return f"{moment}, in {left_s:.0f} s"
