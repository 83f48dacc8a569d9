"""The launcher's own lines in the log: each is an event with a stable name, see docs/events.md.

An agent prints its lines between those of its processes (`launcher.output.router`). `say` prints the lines of
a launcher that has no agent, or none yet. All of them look the same, so their style is set once.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Say = Callable[[str, str], None]
    """Prints a message of the launcher: its text, and the name of its event from docs/events.md."""

PREFIX = "launcher: "
FORMAT, TIMESTAMPS = "--log-format", "--timestamps"
FORMAT_VARIABLE, TIMESTAMPS_VARIABLE = "LAUNCHER_LOG_FORMAT", "LAUNCHER_TIMESTAMPS"
PLATFORM_ATTEMPTS = ("JOBSET_RESTART_ATTEMPT", "SLURM_RESTART_COUNT", "BATCH_TASK_RETRY_ATTEMPT")
"""Variables with the number of times that the platform has started the job again, in order of precedence.

JobSet's is an annotation of the pod, which a manifest gives to a variable of this name.
"""


class UtcClock:
    """Tells the time as RFC 3339 in UTC with microseconds."""

    def __init__(self) -> None:
        self._second, self._date = -1, ""

    def read(self) -> str:
        """Return the time of now."""
        return self.render(time.time_ns())

    def render(self, time_ns: int) -> str:
        """Return a time in nanoseconds since 1970, e.g. as ``2026-11-26T09:08:07.654321Z``."""
        second, nanoseconds = divmod(time_ns, 1_000_000_000)
        if second != self._second:  # a log has many lines in a second
            self._second, self._date = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._date}.{nanoseconds // 1000:06d}Z"


class _Style:
    """How our own lines look.

    Attributes:
        as_json: Whether each is a JSON object.
        timestamps: Whether the time stands before each line of a text.
        node: Rank of this node; None if unknown.
    """

    as_json, timestamps = False, False
    node: int | None = None


STYLE, CLOCK = _Style(), UtcClock()


def read_platform_attempt(environ: Mapping[str, str]) -> int | None:
    """Return how often the platform has started this job again; None if it does not say."""
    texts = (environ.get(name, "") for name in PLATFORM_ATTEMPTS)
    return next((int(text) for text in texts if text.isascii() and text.isdecimal() and len(text) < 10), None)


def identify_line() -> dict[str, object]:
    """Return what every line of a JSON log has: the node, and the platform's attempt, if it counts them."""
    attempt = read_platform_attempt(os.environ)
    return {"node": STYLE.node, **({} if attempt is None else {"platform_attempt": attempt})}


def use_style(*, as_json: bool, timestamps: bool, node: int | None = None) -> None:
    """Set how our own lines look from now on."""
    STYLE.as_json, STYLE.timestamps, STYLE.node = as_json, timestamps, node


def guess_style(argv: Sequence[str], environ: Mapping[str, str]) -> None:
    """Set the style for an error that was found before the options were read."""
    words = list(argv[: argv.index("--")] if "--" in argv else argv)
    asked = environ.get(FORMAT_VARIABLE, "")
    for word, after in zip(words, [*words[1:], ""]):  # noqa: B905 - as long as each other
        name, equals, value = word.partition("=")
        if name == FORMAT:
            asked = value if equals else after
    as_json = asked == "json"
    timestamps = TIMESTAMPS in words or environ.get(TIMESTAMPS_VARIABLE) in ("1", "true")
    use_style(as_json=as_json, timestamps=timestamps)


def render(text: str, event: str, fields: Mapping[str, object] | None = None) -> bytes:
    """Return a message as it stands in the log, safe for a terminal.

    Args:
        text: One or more lines. The caller must redact secrets.
        event: The name of its event.
        fields: Facts about the event, which only JSON shows; those that are None are left out.
    """
    from launcher.core.redact import printable

    lines = [printable(line) for line in text.split("\n")]
    if STYLE.as_json:
        from json import dumps

        found: dict[str, object] = {"time": CLOCK.read(), **identify_line(), "rank": None}
        known = {name: value for name, value in (fields or {}).items() if value is not None}
        found |= {"stream": "launcher", "event": event, **known, "text": "\n".join(lines)}
        return dumps(found, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"
    moment = f"{CLOCK.read()} " if STYLE.timestamps else ""
    return "".join(f"{moment}{PREFIX}{line}\n" for line in lines).encode()


def say(text: str, event: str) -> None:
    """Print a message on standard error, without the secrets in it; if that fails, it is lost, and no more.

    A job outlives the reader of its log. What a buffer kept would fail again when Python ends (status 120).
    """
    from launcher.core.redact import redact

    encoded = render(redact(text), event)
    raw = getattr(getattr(sys.stderr, "buffer", None), "raw", None)
    try:
        if raw is None:
            sys.stderr.write(encoded.decode())
        else:
            raw.write(encoded)
    except OSError:
        pass
