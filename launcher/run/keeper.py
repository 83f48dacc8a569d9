"""The parent of processes that knows when they have to end.

One that fails ends the others, the last rank ends their companions; and the observers of stalls, of
NCCL's network and of contact end a job that goes nowhere, over the wrong network, or not together.
"""

from __future__ import annotations

import time

from launcher.errors import EXIT_HARDWARE, EXIT_UNTRUSTED
from launcher.output.folder import NCCL_FILE
from launcher.process.loop import Later
from launcher.process.signals import signal
from launcher.run.parent import Parent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.process.spawn import Child, Process
    from launcher.run.watching import Watching


class Keeper(Parent):
    """A parent that ends its processes where they cannot go on.

    Attributes:
        watching: The observers of this attempt.
        told_before: The signal by which we were told to end before anything had failed.
        stalled: Why the job was ended that hung.
        mismatch: Which network NCCL uses that it must not use, and what mends that.
        unmet: That the processes do not meet that have to, and what mends that.
        nccl_path: Where rank 0's NCCL writes, if it is to be heard.
    """

    watching: Watching | None = None
    told_before: int | None = None
    stalled: str | None = None
    mismatch: tuple[str, str] | None = None
    unmet: tuple[str, str] | None = None
    nccl_path: str | None = None

    def begin_attempt(self) -> None:
        """Be ready to start everybody: nothing of an attempt before counts any more."""
        super().begin_attempt()
        self.told_before = None

    def spared(self) -> tuple[int, ...]:
        """Our own children that are none of the job."""
        return (*super().spared(), *(() if self.watching is None else self.watching.helpers()))

    # --- who has failed, who is left

    def act_on_end(self, process: Process) -> None:
        """A process has ended: with the first failure the others end, with the last rank their companions."""
        if process.status and self.first is None and not (process.child.companion and self.ranks_have_ended):
            self.first = process
            self.relay.note_end()
            self.told_before = self.relay.told
            if self.watching is not None:
                self.loop.guard(self.watching.note_failure)
            if not self.stopper.begun and self.refused is None:
                self.stop_others(process)
        if self.watching is not None:
            self.watching.note_end()
        if self.ranks_have_ended and not self.stopper.begun:
            self.end_companions(asked=not process.child.companion)

    def stop_others(self, process: Process) -> None:
        """One has failed: the others would wait for it forever."""
        others = len(self.running)
        if others:
            self.say(f"{process.name} {process.end}; stopping the other {others}")
            self.stopper.begin(signal.SIGTERM)

    @property
    def ranks_have_ended(self) -> bool:
        """Whether all ranks of this node have ended; what becomes of their companions does not count then."""
        return self.has_ranks and all(process.child.companion for process in self.running.values())

    def end_companions(self, *, asked: bool = False) -> None:
        """The ranks have ended: tell their companions to, but leave those time that end by themselves.

        Args:
            asked: The last rank has just ended, and the time begins.
        """
        if any(process.child.finishes for process in self.running.values()):
            if asked:
                due = time.monotonic() + self.watch.grace_s
                self.loop.timers.append(Later(due, self.stop_companions))
        elif self.running:
            self.stopper.begin(signal.SIGTERM)

    def stop_companions(self) -> None:
        """The time is over of companions that end by themselves."""
        if self.running and not self.stopper.begun:
            names = ", ".join(process.name for process in self.running.values())
            self.say(f"{names}: still there {self.watch.grace_s:g} s after the last rank; SIGTERM")
            self.stopper.begin(signal.SIGTERM)

    # --- stalls, NCCL's network, and contact

    def watch_progress(self) -> None:
        """Watch for progress, and for a stand."""
        from launcher.run.watching import Watching

        before = None if self.watching is None else self.watching.before
        self.watching = Watching(self.watch, self.loop, self.output, self.environ, self.running, before)
        self.watching.begin(
            self.stop_stalled, lambda: self.stopper.begun, self.folder.path, self.node.world_size
        )

    def listen_to_nccl(self) -> None:
        """Hear which network NCCL uses, if that is to be proven."""
        if self.watching is not None:
            self.watching.listen(self.nccl_path, self.stop_unproven, keeps=self.folder.keeps)

    def watch_no_more(self) -> None:
        """The processes of an attempt have ended."""
        if self.watching is not None:
            self.loop.guard(self.watching.end)
            self.folder.keeps = self.folder.keeps or bool(self.watching.stall_reports)
            self.judge_contact(self.watching.never_met)

    def plan_witness(self, child: Child) -> dict[str, str]:
        """Return what makes rank 0's NCCL write where we read, if it is to be heard."""
        proof = self.watch.proof
        if proof is None or child.rank:
            return {}
        self.nccl_path = self.folder.make_file(self.attempt, child.folder, "nccl.log")
        if self.nccl_path is None:
            self.say("the fabric is not verified: there is no folder for what NCCL writes")
            return {}
        return {**dict(proof.settings), NCCL_FILE: self.nccl_path}

    def stop_stalled(self, reason: str) -> None:
        """The job hangs, and is to end as a failure."""
        self.stalled = self.stalled or reason
        self.stopper.begin(signal.SIGTERM)

    def stop_unproven(self, reason: str, fix: str) -> None:
        """NCCL uses another network than the one that must be used: the job is to end as a failure."""
        self.mismatch = self.mismatch or (reason, fix)
        self.say(f"not the fabric that is required, the job ends: {reason}; fix: {fix}")
        self.stopper.begin(signal.SIGTERM)

    def watch_contact(self) -> None:
        """Look whether the processes meet, where they can."""
        planned = self.watch.contact
        if planned is not None and self.watching is not None and self.refused is None:
            self.watching.look_for_contact(
                planned, self.processes, self.fail_unmet, lambda: self.stopper.begun
            )

    def judge_contact(self, never_met: str | None) -> None:
        """All processes have ended; ``never_met``: without having met."""
        is_whole = self.first is None and self.relay.told is None and not self.stopper.gave_up
        planned = self.watch.contact
        if is_whole and never_met is not None and planned is not None and self.unmet is None:
            from launcher.run.contact import FIX

            if planned.required:
                self.fail_unmet(never_met, FIX)
            else:
                said = self.watching is not None and self.watching.unmet is not None
                self.say(f"warning: [never-met] all have ended; {never_met}{'' if said else f'; fix: {FIX}'}")
        if is_whole and self.unmet is not None:
            self.first = next(one for one in self.ended if not one.child.companion)

    def fail_unmet(self, reason: str, fix: str) -> None:
        """The processes do not meet, and have to: the job is to end as a failure."""
        self.unmet = self.unmet or (reason, fix)
        self.say(f"the job ends (--require-meeting): {reason}; fix: {fix}")
        if self.running:
            self.stopper.begin(signal.SIGTERM)

    def find_status(self, first: Process) -> int:
        """Return the status of a job of which a process has failed, or that we have ended."""
        if self.mismatch is not None:
            return EXIT_HARDWARE
        return first.status if self.unmet is None else EXIT_UNTRUSTED
