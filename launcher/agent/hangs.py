"""Handles a stall: asks all ranks for their stacks, and reports the ranks that the others wait for.

On one node the agent asks its own processes. In a job of several nodes each node tells node 0 that it is
quiet; when all of them are, node 0 asks all (`launcher.hang.job`).
"""

from __future__ import annotations

import os

from launcher.core.redact import quote
from launcher.core.wire import LINE_LENGTH
from launcher.failure.arbiter import STALLED
from launcher.failure.reason import Reason
from launcher.hang.report import describe_hang, write_stacks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from launcher.agent.collector import Collector
    from launcher.agent.coordination import Coordination
    from launcher.agent.runtime import Runtime
    from launcher.hang.model import Answer
    from launcher.observers.stall import StallDetector
    from launcher.observers.stragglers import Numbers

IDLE_WINDOWS = 10
"""Number of windows without movement that make a stall, without ``--stall-timeout``."""


class HangHandler:
    """Watches the processes of one node for stalls, and handles them."""

    def __init__(
        self,
        runtime: Runtime,
        coordination: Coordination,
        evidence: Collector,
        end_for: Callable[[Reason], None],
        has_progressed: Callable[[], bool | None],
    ) -> None:
        self._has_progressed = has_progressed
        self._runtime, self._coordination, self._evidence = runtime, coordination, evidence
        self._end_for = end_for
        self._detector: StallDetector | None = None

    def watch(self, started: float) -> None:
        """Watch an attempt that started at this monotonic time."""
        from launcher.observers.stall import StallDetector
        from launcher.output.progress import Gpus

        runtime, watch, group = self._runtime, self._runtime.watch, self._runtime.group
        movement = phases = None
        if not watch.stall_timeout_s:  # CPU time and network count
            from launcher.observers.movement import Movement
            from launcher.process.families import list_ranks

            window_s = watch.idle_timeout_s / IDLE_WINDOWS
            movement = Movement(lambda table: list_ranks(group.processes, table), window_s)
        if watch.stall_limits:  # each phase may have its own limit
            from launcher.observers.connections import with_descendants
            from launcher.observers.phases import Phases

            phases = Phases(
                dict(watch.stall_limits),
                self._has_progressed,
                lambda: (pid for one in group.running for pid in with_descendants(one)),
                runtime.folder.path,
            )
        self._detector = StallDetector(
            watch.stall_timeout_s or watch.idle_timeout_s,
            lambda: runtime.output.last_s,
            self.on_stall,
            lambda: self._coordination.on_quiet(None),
            started=started,
            gpus=Gpus(runtime.environ.get("CUDA_VISIBLE_DEVICES")),
            movement=movement,
            phases=phases,
            sees_output=runtime.output.sees_all,
        )
        runtime.loop.timers.append(self._detector)

    def close(self) -> None:
        """Stop watching: the attempt has ended."""
        if self._detector is not None:
            self._detector.close()
            self._detector = None

    def on_stall(self, what: str) -> None:
        """Ask all ranks, and report; in a job of several nodes node 0 does."""
        runtime = self._runtime
        if runtime.is_ending or self._coordination.on_quiet(what) or not runtime.group.running:
            return
        self.ask(lambda answers, progress: self._report(what, answers, progress))

    def ask(self, then: Callable[[Sequence[Answer], Numbers], None]) -> None:
        """Ask the processes of this node what they do and how far they are."""
        self._evidence.ask(
            lambda answers: ask_progress(self._runtime, lambda progress: then(answers, progress))
        )

    def _report(self, what: str, answers: Sequence[Answer], progress: Numbers) -> None:
        runtime = self._runtime
        if runtime.is_ending:
            return
        self._evidence.join(answers)
        size, records = runtime.place.world_size, self._evidence.records
        hang = describe_hang(what, answers, size, {}, (), progress, records)
        self.show(hang.headline, hang.lines)
        if runtime.watch.on_stall == "stop":
            self._end_for(Reason(STALLED, hang.headline))

    def show(self, headline: str, lines: Sequence[str]) -> None:
        """Print the report, and write all stacks of this node to a file."""
        files = [*self._write(headline), *self._name_dumps()]
        self._runtime.output.say("\n  ".join([headline, *lines, *files]), "stall")

    def _write(self, headline: str) -> list[str]:
        """Write all stacks to a file; return a line with its path, or with the error."""
        folder, answers = self._runtime.folder, self._evidence.answers
        if folder.fd is None or not answers:
            return []
        try:
            name = write_stacks(folder.fd, headline, answers)
        except OSError as error:
            return [f"all stacks: cannot be written to {folder.path}: {error.strerror}"]
        folder.keeps = True
        return [f"all stacks: {folder.path}/{name}"]

    def _name_dumps(self) -> list[str]:
        """Return lines with the directory of the copies of dumps, and with what was left out of it."""
        own, dumps, notes = self._runtime.folder, self._evidence.dumps, self._evidence.notes
        if not dumps:
            return notes
        folder = os.path.dirname(dumps[-1])
        if own.path is not None and folder.startswith(f"{own.path}/"):
            own.keeps = True
        return [f"dumps of the flight recorders: {quote(folder, LINE_LENGTH)}", *notes]


def ask_progress(runtime: Runtime, take: Callable[[Numbers], None]) -> None:
    """Call ``take`` with the progress of each rank here by ``--progress-pattern``; none if not known."""
    pattern, ranks = runtime.watch.restarts.progress_pattern, runtime.group.processes
    if not pattern:
        take(())
        return
    from launcher.observers.stragglers import ask_numbers

    output = runtime.output
    tails = {one.child.rank: b"\n".join(output.read_tails(index)) for index, one in enumerate(ranks)
             if not (one.child.companion or one.child.called)}  # fmt: skip
    try:
        ask_numbers(pattern, tails, runtime.group.helpers, take)
    except OSError:  # the kernel is short of something
        take(())
