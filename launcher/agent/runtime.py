"""State shared by the parts of a node's agent: the job's values, the tools, and the history so far.

It decides nothing, and knows none of the parts: they get it, and callbacks for the rest.
"""

from __future__ import annotations

import os
import time

from launcher.agent.timings import Timings
from launcher.core.frozen import frozen
from launcher.output.folder import DEADLINE_NAME, STARTS_FILE, RunFolder
from launcher.output.router import OutputRouter
from launcher.process.loop import Loop
from launcher.process.signal_file import SignalFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.agent.signals import SignalForwarder, Target
    from launcher.agent.template import Template
    from launcher.core.supervision import Supervision
    from launcher.failure.model import Verdict
    from launcher.failure.reason import Reason
    from launcher.process.group import ProcessGroup
    from launcher.process.spawn import Child, Process

EVENTS_MAX = 16
"""Number of the launcher's latest messages that are kept for later questions."""
CLOCK_SET_NS = 100_000_000
"""A wall clock that differs by more from what it was has been set."""
TORCHRUN = "torchrun"


@frozen
class NodePlace:
    """Place of this node in the job, for messages and records."""

    node_rank: int | None = None
    world_size: int | None = None


@frozen
class Outcome:
    """How the processes of this node ended.

    Attributes:
        status: The exit status that results.
        verdict: Why they failed; None without a failure of a process.
        shown: Whether to show the verdict, besides writing it to a file.
    """

    status: int
    verdict: Verdict | None = None
    shown: bool = True


class Runtime:
    """The values and tools of one launcher, from its start to its end.

    Attributes:
        watch: How to watch, stop and report the processes.
        place: Node rank and world size.
        environ: The launcher's own environment.
        command: The user's command, if the processes run something else.
        run_id: Name of this run, for its directory and for the mark of the processes that it starts.
        shares_terminal: Whether a single process has the terminal for itself.
        loop: Waits for everything.
        signals: The signals that arrive; read from now on.
        folder: The private directory, and that of the logs.
        output: Passes on what the processes write, and prints our own lines.
        group: The processes; set by the agent, which handles their ends.
        target: What signals are for: the processes here, or all ranks of the job.
        forwarder: Passes signals on.
        template: Forks the ranks (``--preload``); None to start each by itself.
        timings: The moments of this job.
        said: The launcher's latest messages, each with its time (monotonic seconds).
        began_s: When the launcher began, monotonic seconds.
        attempt: 0 for the first attempt, plus one for each restart.
        started_mono_ns: Start time of the attempt, monotonic nanoseconds.
        first: The process that failed first.
        failed: The processes that failed before any was stopped.
        told_before: The signal that told us to stop before any process had failed.
        told_by: ``node 2 (gpu-7) received SIGTERM`` if another node received it; empty if we did.
        reason: The launcher's own reason for ending the job.
        asks: Whether the processes are asked what they do because they are about to be stopped.
    """

    group: ProcessGroup
    target: Target
    forwarder: SignalForwarder

    def __init__(
        self,
        watch: Supervision,
        place: NodePlace,
        environ: Mapping[str, str],
        *,
        single: bool,
        shares_terminal: bool,
        lends_terminal: bool,
        log_id: str,
        run_id: str,
        command: Sequence[str],
    ) -> None:
        """Make the tools, and read signals from now on; see `Agent`."""
        self.watch, self.place, self.environ, self.command = watch, place, environ, command
        self.run_id = run_id or os.urandom(8).hex()
        self.began_s, self.started_mono_ns, self.attempt = time.monotonic(), time.monotonic_ns(), 0
        self._wall_ahead_ns = 0
        self._starts: str | None = None
        self.said: list[tuple[float, str]] = []
        self.timings = Timings(self.began_s)
        self.template: Template | None = None
        self.clear()
        self.signals = SignalFile()
        # A single process at a terminal decides by itself what a Ctrl-C means, and writes to the terminal.
        self.shares_terminal = shares_terminal and single and os.isatty(0)
        self.folder = RunFolder(watch.log_dir, log_id or self.run_id, place.node_rank, environ)
        self.loop = Loop(self.say)
        self.output = OutputRouter(
            watch, self.loop, environ, several=not single, shares_terminal=self.shares_terminal,
            lends_terminal=lends_terminal, node=place.node_rank,
        )  # fmt: skip

    def clear(self) -> None:
        """Forget the failures of the previous attempt."""
        self.first: Process | None = None
        self.told_before: int | None = None
        self.told_by = ""
        self.reason: Reason | None = None
        self.failed: list[Process] = []
        self.asks = False

    def say(self, text: str, event: str, **fields: object) -> None:
        """Print a message on standard error, between the lines of the processes; see `Say`."""
        self.output.say(text, event, **fields)
        self.said.append((time.monotonic(), text))
        del self.said[:-EVENTS_MAX]

    @property
    def is_ending(self) -> bool:
        """Whether the processes are being stopped, or are asked what they do because they are to be."""
        return self.group.stopper.begun or self.asks

    # --- times

    @property
    def started_ns(self) -> int:
        """Start time of the attempt in nanoseconds since 1970, by the clock as it is set now.

        The clock may have been set since the start, so times after it are given in seconds after the start.
        """
        ahead_ns = time.time_ns() - time.monotonic_ns()
        if abs(ahead_ns - self._wall_ahead_ns) > CLOCK_SET_NS:  # less is the time between the two calls
            self._wall_ahead_ns = ahead_ns
        return self.started_mono_ns + self._wall_ahead_ns

    def at_ns(self, mono_ns: int) -> int:
        """Return a time of the monotonic clock as nanoseconds since 1970, right against `started_ns`."""
        return self.started_ns + mono_ns - self.started_mono_ns

    # --- files of the run

    @property
    def deadline_file(self) -> str | None:
        """Path of the file with the preemption deadline for the processes; None without a folder."""
        return None if self.folder.path is None else f"{self.folder.path}/{DEADLINE_NAME}"

    def count_starts(self, child: Child) -> dict[str, str]:
        """Return the variable that counts torchrun's workers; none for other processes."""
        if child.called == TORCHRUN:
            self._starts = self.folder.make_file(self.attempt, child.folder, "starts")
        return {} if child.called != TORCHRUN or self._starts is None else {STARTS_FILE: self._starts}

    @property
    def restarts_of_torchrun(self) -> int:
        """How often torchrun has restarted its processes on this node; it alone restarts them."""
        try:
            return max(0, os.stat(self._starts).st_size - 1) if self._starts else 0
        except OSError:
            return 0
