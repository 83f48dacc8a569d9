"""Polls a metadata service every few seconds, and passes on announced, withdrawn and due preemptions."""

from __future__ import annotations

import time

from launcher.preemption.answers import ServiceAnswer, Unclear
from launcher.preemption.events import ANNOUNCED, DUE, LATEST_S, MARGIN_S, WITHDRAWN
from launcher.preemption.exchange import Exchange
from launcher.preemption.services import Notice, make_service

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.core.log import Say
    from launcher.core.supervision import Preemption
    from launcher.process.loop import Loop

NOTICE_S = 30.0
"""Seconds that are left if the notice does not say: at least as many on Azure's spot machines, exactly on
Google's."""
RARELY_AFTER, RARELY_S = 10, 30.0
"""After this many failures in a row the service is asked only this often, in seconds: a machine without such
a service does not get one later."""
STEPS_MAX = 3
"""Maximum number of requests without a pause: for a name, or a token, and for the notice."""


class PreemptionWatch:
    """Watches for preemption of this machine, as a timer of the supervisor's loop.

    Attributes:
        due: When `fire` has something to do; None once the watch is over.
    """

    def __init__(
        self,
        planned: Preemption,
        grace_s: float,
        loop: Loop,
        say: Say,
        tell: Callable[[str, str, float], object],
    ) -> None:
        """Begin to ask at the next `fire`.

        Args:
            planned: The service, and why it is asked.
            grace_s: Seconds that the processes have between the signal and SIGKILL.
            loop: Loop that waits for the answers.
            say: Writes a line to the log.
            tell: Called with (`ANNOUNCED`, `WITHDRAWN` or `DUE`, a description, seconds that are left).
        """
        self.due: float | None = time.monotonic()
        self._service = make_service(planned.service)
        self._lead_s, self._loop, self._say, self._tell = grace_s + MARGIN_S, loop, say, tell
        self._ask_at = self.due
        self._exchange: Exchange | None = None
        self._steps = self._failures = 0
        self._complaint = ""
        self._notice: Notice | None = None
        self._deadline = 0.0  # of the notice, in seconds since 1970
        say(
            f"preemption: {self._service.title} is asked every {self._service.every_s:g} s ({planned.why})",
            "preemption-watch",
        )

    def fire(self, now: float) -> None:
        """Ask, give up an answer that is late, or report that the preemption is due."""
        if self._notice is not None and time.time() >= self._deadline - self._lead_s:
            self._end(self._notice)
            return
        if self._exchange is not None:
            if now >= self._exchange.until:
                self._exchange.give_up()
        elif now >= self._ask_at:
            self._steps = 0
            self._ask()
        self._set_due()

    def close(self) -> None:
        """Stop asking."""
        self.due = None
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None

    def _ask(self) -> None:
        self._steps += 1
        self._exchange = Exchange(self._service.request(), self._loop, self._on_outcome)
        self._exchange.begin()

    def _on_outcome(self, outcome: ServiceAnswer | str) -> None:
        """Handle the service's answer, or the reason why there is none."""
        self._exchange = None
        self._ask_at = time.monotonic() + self._service.every_s
        try:
            if isinstance(outcome, str):
                raise Unclear(outcome)
            found = self._service.read(outcome)
        except Unclear as unclear:
            self._complain(str(unclear))
        else:
            if found is None and self._steps < STEPS_MAX:
                self._ask()
            elif found is not None:
                self._clear_complaint()
                self._take(found)
        self._set_due()

    def _complain(self, why: str) -> None:
        """Say once that there is no usable answer; this is a problem of the platform, not of the job."""
        self._failures += 1
        if self._failures >= RARELY_AFTER:
            self._ask_at = time.monotonic() + RARELY_S
        if not self._complaint:
            self._complaint = why
            self._say(
                f"preemption: {self._service.title}'s metadata service gives no usable answer ({why}); "
                "the job continues, and the launcher asks again",
                "preemption-unclear",
            )

    def _clear_complaint(self) -> None:
        if self._complaint:
            self._complaint = ""
            self._say(f"preemption: {self._service.title}'s metadata service answers now", "preemption-clear")
        self._failures = 0

    def _take(self, found: list[Notice]) -> None:
        """Compare the present notices with the last one."""
        if not found:
            if self._notice is not None:
                gone, self._notice = self._notice, None
                self._tell(WITHDRAWN, gone.what, 0.0)
            return
        notice = min(found, key=self._find_deadline)
        if notice == self._notice:
            return
        deadline = self._find_deadline(notice)
        is_known = self._notice is not None and self._notice.key == notice.key
        self._notice, self._deadline = notice, deadline
        left_s = deadline - time.time()
        if notice.at is None or left_s <= self._lead_s:
            self._end(notice)
        else:
            self._tell(ANNOUNCED, f"{notice.what}{', at another time' if is_known else ''}", left_s)

    def _find_deadline(self, notice: Notice) -> float:
        now = time.time()
        return now + NOTICE_S if notice.at is None else min(notice.at, now + LATEST_S)

    def _end(self, notice: Notice) -> None:
        """Report that the preemption is due, and stop asking: later notices change nothing."""
        self.close()
        self._tell(DUE, notice.what, max(0.0, self._deadline - time.time()))

    def _set_due(self) -> None:
        if self.due is None:
            return
        times = [self._ask_at if self._exchange is None else self._exchange.until]
        if self._notice is not None:
            times.append(time.monotonic() + self._deadline - self._lead_s - time.time())
        self.due = min(times)
