"""Kubeflow Trainer's view of a job: progress and metrics of rank 0's output, in the status of the TrainJob.

The controller gives each pod the address of its status server, the file of a token and that of a certificate
(`KUBEFLOW_TRAINER_SERVER_*`). The named groups of ``--progress-pattern`` are the metrics; ``step`` and
``total``, or ``percent``, are the progress. A fork searches the last output and sends, so that neither a
pattern nor a silent server can block the launcher. Nothing is sent twice, and nothing depends on it.

Source: kubeflow/trainer, docs/user-guides/trainjob-progress.md (since 2.2, feature gate TrainJobStatus).
"""

from __future__ import annotations

import json
import math
import time

from launcher.core.redact import quote
from launcher.machine.whole import read_whole
from launcher.observers.stragglers import find_last, read_numbers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from launcher.core.log import Say
    from launcher.process.helper import Helpers

URL, TOKEN, CERTIFICATE = (f"KUBEFLOW_TRAINER_SERVER_{name}" for name in ("URL", "TOKEN", "CA_CERT"))
EVERY_S = 30.0
"""Seconds between two looks. The server asks for five at least."""
SEND_S, LIMIT_S, LAST_S = 5.0, 8.0, 2.0
"""Seconds of one request, of the fork that searches and sends, and of the last one at the end of the job."""
TOKEN_BYTES, METRICS_MAX = 1 << 16, 32
SENT, NONE = "sent", "none"


def find_metrics(pattern: str, tail: bytes) -> dict[str, float]:
    """Return the finite numbers in the named groups of the last match of an output; empty without any."""
    last = find_last(pattern, tail)
    groups = {} if last is None else last.groupdict()
    numbers = {name: read_numbers(text)[:1] for name, text in groups.items()}
    found = {name: one for name, some in numbers.items() for one in some if math.isfinite(one)}
    return dict(list(found.items())[:METRICS_MAX])


def make_status(metrics: Mapping[str, float], left_s: float | None) -> dict[str, object]:
    """Return the status that the server takes.

    Args:
        metrics: Numbers by name.
        left_s: Seconds until the job is expected to end; None if unknown.
    """
    percent = metrics.get("percent")
    if percent is None and metrics.get("total"):
        percent = 100 * metrics.get("step", 0.0) / metrics["total"]
    status: dict[str, object] = {
        "metrics": [{"name": name, "value": f"{value:.10g}"} for name, value in metrics.items()],
        "lastUpdatedTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    if percent is not None:
        status["progressPercentage"] = int(min(100.0, max(0.0, percent)))
    if left_s is not None:
        status["estimatedRemainingSeconds"] = int(left_s)
    return {"trainerStatus": status}


def send(environ: Mapping[str, str], status: Mapping[str, object]) -> None:
    """Post a status. The address must be https: the token goes there, through no proxy and no redirection.

    Raises:
        OSError, ValueError: It cannot be sent, or the server refuses it.
    """
    import http.client
    import ssl
    from urllib.parse import urlsplit

    address = urlsplit(environ[URL])
    if address.scheme != "https" or not address.hostname:
        raise ValueError(f"{URL} is not an https address")
    token = read_whole(environ[TOKEN], TOKEN_BYTES).decode("ascii").strip()
    context = ssl.create_default_context(cafile=environ.get(CERTIFICATE) or None)
    server = http.client.HTTPSConnection(address.hostname, address.port, timeout=SEND_S, context=context)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    try:
        server.request("POST", address.path or "/", json.dumps(status), headers)
        answer = server.getresponse()
    except http.client.HTTPException as error:
        raise ValueError(f"{type(error).__name__}") from error
    finally:
        server.close()
    if answer.status >= 300:
        raise ValueError(f"the server answers {answer.status}")


class TrainerStatus:
    """Reports the progress of rank 0.

    Attributes:
        due: When to call `fire`.
    """

    def __init__(
        self,
        pattern: str,
        environ: Mapping[str, str],
        read_tail: Callable[[], bytes],
        helpers: Helpers,
        say: Say,
    ) -> None:
        """Begin; ``read_tail`` returns the last output of rank 0."""
        self.due: float | None = time.monotonic() + EVERY_S
        self._pattern, self._environ, self._read_tail = pattern, environ, read_tail
        self._helpers, self._say = helpers, say
        self._last: dict[str, float] = {}
        self._first: tuple[float, float] | None = None
        """The first step that was seen, and when (monotonic seconds)."""
        self._has_complained = self._is_busy = False

    def fire(self, now: float) -> None:
        """Look at the output, and send what is new."""
        self.due = now + EVERY_S
        if not self._is_busy:
            self._ask(now, LIMIT_S)

    def _ask(self, now: float, limit_s: float) -> None:
        tail, last, first = self._read_tail(), self._last, self._first

        def work() -> Iterable[str]:
            metrics = find_metrics(self._pattern, tail)
            if not metrics or metrics == last:
                return [NONE]
            try:
                send(self._environ, make_status(metrics, estimate(metrics, first, now)))
            except (OSError, ValueError, KeyError, UnicodeError) as error:
                return ["", quote(str(error) or type(error).__name__, 200)]
            return [SENT, json.dumps(metrics)]

        try:
            self._helpers.ask(work, lambda lines: self._take(lines, now), limit_s, name="launcher-trainer")
            self._is_busy = True
        except OSError:
            pass  # the kernel is short of something, and the job may need it more

    def _take(self, lines: Sequence[str], now: float) -> None:
        self._is_busy = False
        if lines[:1] == [SENT]:
            self._last = json.loads(lines[1])
            if self._first is None and "step" in self._last:
                self._first = self._last["step"], now
        elif lines[:1] != [NONE] and not self._has_complained:
            self._has_complained = True
            why = lines[1] if len(lines) > 1 else f"no answer within {LIMIT_S:g} s"
            self._say(f"the TrainJob's status is not updated: {why}", "trainer-status")

    def finish(self, turn_until: Callable[[Callable[[], bool], float], None]) -> None:
        """Send the last numbers, if any were sent before; for at most `LAST_S`."""
        self.due = None
        if self._last and not self._is_busy:
            self._ask(time.monotonic(), LAST_S)
            turn_until(lambda: not self._is_busy, LAST_S)


def estimate(metrics: Mapping[str, float], first: tuple[float, float] | None, now: float) -> float | None:
    """Return the seconds until the last step at the present rate; None if unknown.

    Args:
        metrics: Numbers by name, with ``step`` and ``total``.
        first: An earlier step, and when it was seen.
        now: When the step of ``metrics`` was seen.
    """
    step, total = metrics.get("step"), metrics.get("total")
    if first is None or step is None or total is None or step <= first[0]:
        return None
    return max(0.0, (total - step) * (now - first[1]) / (step - first[0]))
