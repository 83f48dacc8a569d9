"""What can wait until the processes run, and is loaded meanwhile: the observers of an attempt."""

from __future__ import annotations

import time

from launcher.host import Host
from launcher.process.loop import Later

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.failure.causes import Counters
    from launcher.model import Contact as PlannedContact
    from launcher.model import Supervision
    from launcher.output.progress import Progress
    from launcher.output.router import Output
    from launcher.process.loop import Loop
    from launcher.process.spawn import Process
    from launcher.run.contact import Contact
    from launcher.run.stall import Stall
    from launcher.run.witness import Witness

STATUS_AFTER_S = 1.0
"""On a terminal a status line appears after this."""
SILENCE_AFTER_S = 59.0
"""In a log nothing is said about progress before this."""


class Watching:
    """The observers of one attempt.

    Attributes:
        before: The node's counters when it began.
        after: The same right after the first failure: the memory that it held is about to be freed.
        stall_reports: Paths of what was written about stalls.
        unmet: That the processes have not met, where that was said while they ran.
        never_met: The same, where all have ended so.
    """

    def __init__(
        self,
        watch: Supervision,
        loop: Loop,
        output: Output,
        environ: Mapping[str, str],
        running: Mapping[int, Process],
        before: Counters | None,
    ) -> None:
        self.before = before
        self.after: Counters | None = None
        self.stall_reports: list[str] = []
        self.unmet: str | None = None
        self.never_met: str | None = None
        self._watch, self._loop, self._output = watch, loop, output
        self._environ, self._running = environ, running
        self._progress: Progress | None = None
        self._stall: Stall | None = None
        self._witness: Witness | None = None
        self._contact: Contact | None = None

    def listen(self, path: str | None, end: Callable[[str, str], None], *, keeps: bool) -> None:
        """Hear what rank 0's NCCL writes to a file of its network; ``end`` ends the job if it is wrong."""
        if self._watch.proof is None or path is None:
            return
        from launcher.run.witness import Witness

        self._witness = Witness(self._watch.proof, path, self._loop, self._output.say, end, keeps=keeps)

    def look_for_contact(
        self,
        planned: PlannedContact,
        processes: Sequence[Process],
        end: Callable[[str, str], None],
        is_ending: Callable[[], bool],
    ) -> None:
        """Look whether the processes meet; ``end`` ends the job that has to."""
        from launcher.run.contact import Contact

        now = time.monotonic()
        self._contact = Contact(planned, processes, self._output.say, end, is_ending, now)
        self._loop.timers.append(self._contact)

    def note_end(self) -> None:
        """A process has ended."""
        if self._contact is not None:
            self._contact.note_end()

    def begin(
        self,
        stop: Callable[[str], None],
        is_ending: Callable[[], bool],
        folder: str | None,
        world_size: int | None,
    ) -> None:
        """Begin; ``stop`` ends the job because it hangs, ``folder`` is where processes have their files."""
        from launcher.failure.causes import read_counters

        self.before = self.before or read_counters(Host())
        now = time.monotonic()
        if self._watch.progress is not False and self._output.sees_all:
            wait_s = STATUS_AFTER_S if self._output.screen.console.is_terminal else SILENCE_AFTER_S
            self._loop.timers.append(Later(now + wait_s, lambda: self._start_progress(now)))
        if self._watch.stall_timeout_s:
            wait_s = min(STATUS_AFTER_S, self._watch.stall_timeout_s / 10)
            self._loop.timers.append(
                Later(now + wait_s, lambda: self._start_stall(now, stop, is_ending, folder, world_size))
            )

    def helpers(self) -> tuple[int, ...]:
        """Return the pids of children of ours that help here: they are none of the job."""
        return () if self._stall is None else self._stall.helpers()

    def note_failure(self) -> None:
        """Look at the counters again."""
        from launcher.failure.causes import read_counters

        self.after = read_counters(Host(), self.before)

    def end(self) -> None:
        """The processes have ended: neither progress nor stalls are worth a word."""
        if self._stall is not None:
            self.stall_reports = list(self._stall.reports)
            self._stall.close()
        if self._progress is not None:
            self._progress.close()
        if self._witness is not None:
            self._witness.close()
        if self._contact is not None:
            self.unmet = self._contact.unmet
            self.never_met = self._contact.end()
        self._stall = self._progress = self._witness = self._contact = None

    def _start_progress(self, started: float) -> None:
        from launcher.output.progress import Gpus, Progress

        self._progress = Progress(
            enabled=self._watch.progress,
            is_terminal=self._output.screen.console.is_terminal,
            started=started,
            count_up=lambda: len(self._running),
            last_output=lambda: self._output.last_s,
            show=self._output.show,
            notice=self._output.say,
            gpus=Gpus(self._environ.get("CUDA_VISIBLE_DEVICES")),
        )
        self._loop.timers.append(self._progress)

    def _start_stall(
        self,
        started: float,
        stop: Callable[[str], None],
        is_ending: Callable[[], bool],
        folder: str | None,
        world_size: int | None,
    ) -> None:
        from launcher.output.progress import Gpus
        from launcher.run.stall import Stall

        def list_processes() -> list[tuple[int, int]]:
            """Return rank and pid of those that are to make progress."""
            ranks = ((pid, one.child) for pid, one in self._running.items() if not one.child.companion)
            return [] if is_ending() else [(child.rank, pid) for pid, child in ranks]

        self._stall = Stall(
            self._watch.stall_timeout_s,
            list_processes,
            lambda: self._output.last_s,
            self._output.say,
            stop if self._watch.on_stall == "stop" else None,
            folder,
            started=started,
            gpus=Gpus(self._environ.get("CUDA_VISIBLE_DEVICES")),
            world_size=world_size,
        )
        self._loop.timers.append(self._stall)
