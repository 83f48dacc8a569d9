"""The prefix of each process's lines, and all else that decides how its lines look in the log."""

from __future__ import annotations

from launcher.core.log import CLOCK, identify_line
from launcher.core.supervision import STDERR, STDOUT, Supervision

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.output.console import Screen
    from launcher.output.dedupe import SharedLines
    from launcher.output.formats import JsonLines, PlainLines
    from launcher.output.streams import LineFormat
    from launcher.output.tracebacks import SharedTracebacks
    from launcher.process.spawn import Child

NAMES = {STDOUT: "stdout", STDERR: "stderr"}
PALETTE = (31, 130, 28, 162, 63, 64, 30, 133)
"""Colours of xterm-256 for prefixes.

Neighbours differ clearly, and each has a contrast of at least 4 to black and to white.
There is no plain red, which looks like an error.
"""


def make_prefix(text: str, number: int, colour: bool) -> bytes:
    r"""Return the prefix of a process's lines, e.g. ``b"[rank 3] "``.

    Args:
        text: The prefix as printable text.
        number: Chooses one of the colours of `PALETTE`; consecutive numbers differ clearly.
        colour: Whether to add a colour.
    """
    if not colour:
        return text.encode()
    label = text.rstrip(" ")
    gap = text[len(label) :]
    return b"\x1b[38;5;%dm%s\x1b[0m%s" % (PALETTE[number % len(PALETTE)], label.encode(), gap.encode())


def fill_template(template: str, role: str, rank: int, local_rank: int) -> str:
    """Return the prefix of one rank from a template of torchrun, made printable.

    Source:
        torch/distributed/elastic/agent/server/local_elastic_agent.py (2.13), log_line_prefix_template.
    """
    from string import Template

    from launcher.core.redact import printable

    filled = Template(template).safe_substitute(role_name=role, rank=rank, local_rank=local_rank)
    return printable(filled)


class LineFormats:
    """Chooses the format of each stream, and shows the lines that wait for the same of other processes.

    Attributes:
        several: Whether there are several processes.
    """

    def __init__(self, watch: Supervision, template: str, *, several: bool, has_colour: bool) -> None:
        """Make no format yet.

        Args:
            watch: The flags.
            template: torchrun's template for prefixes; empty for ours.
            several: Whether there are several processes.
            has_colour: Whether prefixes have colours.
        """
        self.several = several
        self._watch, self._log, self._template, self._has_colour = watch, watch.log, template, has_colour
        self._shared_lines: dict[Screen, SharedLines] = {}
        self._shared_tracebacks: dict[Screen, SharedTracebacks] = {}
        self._bars_of = -1

    @property
    def keeps_lines(self) -> bool:
        """Whether lines must be whole: they change on their way, or could be torn by another process."""
        return self.several or self._watch.prefix or self._log.as_json or self._log.timestamps

    def choose(self, child: Child, bit: int, screen: Screen, attempt: int) -> LineFormat | None:
        """Return how the lines of a process look on a screen; None: as they come.

        Args:
            child: The process.
            bit: ``STDOUT`` or ``STDERR``.
            screen: The destination of its lines.
            attempt: Number of the attempt, which JSON shows.
        """
        if not self.keeps_lines:
            return None
        from launcher.output.formats import JsonLines, PlainLines

        form: PlainLines | JsonLines
        if self._log.as_json:
            facts = {**identify_line(), "rank": None if child.called else child.rank}
            named = {"process": child.called} if child.called else {}
            form = JsonLines(CLOCK, {**facts, "attempt": attempt, "stream": NAMES[bit], **named})
        else:
            prefix = b""
            if self._watch.prefix:
                prefix = make_prefix(self._label(child), child.rank, self._has_colour)
            has_bars = not self.several or not screen.console.is_terminal or self._has_bars(child)
            form = PlainLines(prefix, CLOCK if self._log.timestamps else None, bars=has_bars)
        if child.called or not self.several or self._log.dedupe is False:
            return form
        if self._log.dedupe is None:
            if bit != STDERR or screen.console.is_terminal or not isinstance(form, PlainLines):
                return form
            from launcher.output.tracebacks import SharedTracebacks, Tracebacks

            tracebacks = self._shared_tracebacks.setdefault(screen, SharedTracebacks(screen))
            return Tracebacks(form, tracebacks, child.rank)
        from launcher.output.dedupe import Deduped, SharedLines

        count = sum(bool(route.to_console & bit) for route in self._watch.routes)
        lines = self._shared_lines.setdefault(screen, SharedLines(screen, count))
        return Deduped(form, lines, child.rank, bit)

    def _label(self, child: Child) -> str:
        """Return the prefix of a process's lines; the user's template is only for processes with a rank."""
        if not self._template or child.called:
            return f"[{child.name}] "
        return fill_template(self._template, child.environ.get("ROLE_NAME", ""), child.rank, child.local_rank)

    def _has_bars(self, child: Child) -> bool:
        """Whether the progress bars of a process are shown where several share a terminal: the first's."""
        if self._bars_of < 0 and not child.called and child.route.to_console:
            self._bars_of = child.rank
        return self._bars_of == child.rank and not child.called

    @property
    def _shared(self) -> list[SharedLines | SharedTracebacks]:
        """What waits for the same lines of other processes, for each screen."""
        return [*self._shared_lines.values(), *self._shared_tracebacks.values()]

    @property
    def dues(self) -> list[float | None]:
        """When to call `release`: for each screen, in monotonic seconds."""
        return [one.due for one in self._shared]

    def release(self, now: float | None = None) -> None:
        """Show the lines that have waited long enough; without a time, those before what is written now."""
        for one in self._shared:
            one.release(now)

    def finish(self) -> None:
        """Show all that waits, because the processes have ended."""
        self.release()
        for tracebacks in self._shared_tracebacks.values():
            tracebacks.finish()
