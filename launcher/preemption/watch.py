"""Watches for preemption of this machine: a process of ours asks, the launcher reads its answers from a pipe.

The process asks every few seconds, and nothing of that can block the launcher's loop. What is announced,
withdrawn or due follows from the answers here.
"""

from __future__ import annotations

import json
import time

from launcher.preemption.events import ANNOUNCED, DUE, LATEST_S, MARGIN_S, WITHDRAWN
from launcher.preemption.services import SERVICES, Notice, Unclear

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from launcher.core.log import Say
    from launcher.core.supervision import Preemption
    from launcher.process.helper import HelperLines, Helpers

ADDRESS, PORT = "169.254.169.254", 80
"""The same on Azure, AWS and GCP. There is no name to resolve and no proxy, and no router forwards it (RFC
3927)."""
ANSWER_S, LIMIT_BYTES = 4.0, 1 << 16
"""Limits of one answer. Azure's for a scale set of 100 machines is a tenth of that size."""
NOTICE_S = 30.0
"""Seconds that are left if the notice does not say: at least as many on Azure's spot machines, exactly on
Google's."""
RARELY_AFTER, RARELY_S = 10, 30.0
"""After this many failures in a row the service is asked only this often, in seconds: a machine without such
a service does not get one later."""
SILENT_S = 60.0
"""After so long without a line the process that asks is replaced: a service may answer byte by byte."""
NAME = "launcher-cloud"


def get(verb: str, path: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
    """Ask the metadata service, and return the status and the body.

    Raises:
        Unclear: There is no answer, or it is not a whole one.
    """
    from http.client import HTTPConnection, HTTPException

    service = HTTPConnection(ADDRESS, PORT, timeout=ANSWER_S)
    try:
        service.request(verb, path, headers={"Connection": "close", "User-Agent": "launcher", **headers})
        answer = service.getresponse()
        body = answer.read(LIMIT_BYTES + 1)
    except TimeoutError:
        raise Unclear(f"no answer within {ANSWER_S:g} s") from None
    except (OSError, HTTPException, ValueError) as error:
        raise Unclear(getattr(error, "strerror", None) or "not an HTTP answer") from None
    finally:
        service.close()
    if len(body) > LIMIT_BYTES:
        raise Unclear(f"an answer of more than {LIMIT_BYTES >> 10} KiB")
    if answer.length:
        raise Unclear("a truncated answer")
    return answer.status, body


def ask(service: str) -> Iterator[str]:
    """Yield what a service answers, forever, as JSON: the notices, or why there is no usable answer."""
    _, every_s, find = SERVICES[service]
    known: dict[str, str] = {}
    failures = 0
    while True:
        try:
            yield json.dumps([[one.key, one.what, one.at] for one in find(get, known)])
            failures = 0
        except Unclear as unclear:
            yield json.dumps(str(unclear))
            failures += 1
        time.sleep(RARELY_S if failures >= RARELY_AFTER else every_s)


class PreemptionWatch:
    """Passes on announced, withdrawn and due preemptions of this machine."""

    def __init__(
        self,
        planned: Preemption,
        grace_s: float,
        helpers: Helpers,
        say: Say,
        tell: Callable[[str, str, float], object],
    ) -> None:
        """Begin to ask at the next `fire`.

        Args:
            planned: The service, and why it is asked.
            grace_s: Seconds that the processes have between the signal and SIGKILL.
            helpers: Starts the process that asks.
            say: Writes a line to the log.
            tell: Called with (`ANNOUNCED`, `WITHDRAWN` or `DUE`, a description, seconds that are left).
        """
        self._service = planned.service
        self._title, every_s, _ = SERVICES[planned.service]
        self._lead_s, self._helpers, self._say, self._tell = grace_s + MARGIN_S, helpers, say, tell
        self._begin_at = time.monotonic()
        """When the process that asks is started, or replaced if it says nothing until then."""
        self._lines: HelperLines | None = None
        self._is_over = self._has_complained = False
        self._notice: Notice | None = None
        self._deadline = 0.0  # of the notice, in seconds since 1970
        say(f"preemption: {self._title} is asked every {every_s:g} s ({planned.why})", "preemption-watch")

    @property
    def due(self) -> float | None:
        """When `fire` has something to do (monotonic seconds); None for nothing."""
        left_s = self._deadline - self._lead_s - time.time()
        end_at = self._begin_at if self._notice is None else time.monotonic() + left_s
        return None if self._is_over else min(self._begin_at, end_at)

    def fire(self, now: float) -> None:
        """Report that the preemption is due, or start the process that asks."""
        if self._notice is not None and time.time() >= self._deadline - self._lead_s:
            self._end(self._notice)
        if self._is_over or now < self._begin_at:
            return
        self._begin_at = now + SILENT_S
        if self._lines is not None:
            self._lines.close()
            self._complain(f"no answer within {SILENT_S:g} s")
        try:
            self._lines = self._helpers.follow(lambda: ask(self._service), self._hear, name=NAME)
        except OSError as error:
            self._complain(f"no process to ask it: {error.strerror}")

    def close(self) -> None:
        """Stop asking."""
        self._is_over = True
        if self._lines is not None:
            self._lines.close()

    def _hear(self, line: str | None) -> None:
        """Handle the service's answer, the reason why there is none, or the end of the process that asks."""
        self._begin_at = time.monotonic() + SILENT_S
        if line is None:
            self._lines, self._begin_at = None, time.monotonic() + RARELY_S
        found = "the process that asks was killed" if line is None else json.loads(line)
        if isinstance(found, str):
            self._complain(found)
            return
        if self._has_complained:
            self._has_complained = False
            self._say(f"preemption: {self._title}'s metadata service answers now", "preemption-clear")
        self._take([Notice(*one) for one in found])

    def _complain(self, why: str) -> None:
        """Say once that there is no usable answer; this is a problem of the platform, not of the job."""
        if not self._has_complained:
            self._has_complained = True
            self._say(
                f"preemption: {self._title}'s metadata service gives no usable answer ({why}); "
                "the job continues, and the launcher asks again",
                "preemption-unclear",
            )

    def _take(self, found: Sequence[Notice]) -> None:
        """Compare the present notices with the last one."""
        if not found:
            if self._notice is not None:
                gone, self._notice = self._notice, None
                self._tell(WITHDRAWN, gone.what, 0.0)
            return
        notice = min(found, key=_find_deadline)
        if notice == self._notice:
            return
        is_known = self._notice is not None and self._notice.key == notice.key
        self._notice, self._deadline = notice, _find_deadline(notice)
        left_s = self._deadline - time.time()
        if notice.at is None or left_s <= self._lead_s:
            self._end(notice)
        else:
            self._tell(ANNOUNCED, f"{notice.what}{', at another time' if is_known else ''}", left_s)

    def _end(self, notice: Notice) -> None:
        """Report that the preemption is due, and stop asking: later notices change nothing."""
        self.close()
        self._tell(DUE, notice.what, max(0.0, self._deadline - time.time()))


def _find_deadline(notice: Notice) -> float:
    now = time.time()
    return now + NOTICE_S if notice.at is None else min(notice.at, now + LATEST_S)
