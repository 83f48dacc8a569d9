"""Reasons for which the launcher ends a job without a failed process: it hangs, or is set up wrongly."""

from __future__ import annotations

from launcher.core.errors import EXIT_HARDWARE, EXIT_NOT_READY, EXIT_UNTRUSTED
from launcher.core.frozen import frozen, replace
from launcher.failure.arbiter import LEFT, STALLED, UNMET, UNPROVEN
from launcher.failure.model import Cause

LEFT_WITHIN_S = 5.0
"""A shell that ends with 0 within this time has not waited for a training."""
LEFT_WORK_S, LEFT_WORK_CPU_S = 0.5, 0.1
"""Unless it ran other work, of this time and CPU time, after it had put the last one into the background."""
LEFT_FIX = "have the script wait: `python train.py & wait $!`, or without `&`, `nohup` and `setsid`"
STALLED_STATUS = EXIT_NOT_READY
"""Exit code of a job that we ended because it hung: 137 or 143 would look like an OOM kill, or a stop."""
NEVER_MET_FIX = (
    "have the program join its processes (torch.distributed.init_process_group, its framework's own way, "
    "--engine mpirun for mpi4py); if the command starts processes itself (torchrun in a file, mp.spawn), "
    "give the launcher what it starts, or pass --nproc-per-node 1 and on several nodes the script's own "
    "flags for them (--expand-args); --no-meeting if they never communicate on purpose"
)


REASONS = {
    STALLED: Cause(
        "stalled",
        "",
        "see the stacks above for where each rank waits; raise --stall-timeout if the job was only slow",
    ),
    UNPROVEN: Cause("other-fabric", "", "see that node's earlier messages for the fix", False),
    LEFT: Cause("left-running", "", LEFT_FIX, False),
    UNMET: Cause("never-met", "", NEVER_MET_FIX, False),
}
"""The cause of each kind, without its text."""
WHY = {
    STALLED: "--on-stall stop",
    UNPROVEN: "--verify-fabric, --require-fabric",
    LEFT: "its command had ended",
    UNMET: "--require-meeting",
}
"""Why the launcher ends a job for each kind: mostly a flag."""


@frozen
class Reason:
    """One such reason.

    Attributes:
        kind: A kind of `launcher.failure.arbiter`.
        what: Description of what was seen.
        fix: How to fix it; empty for the usual fix of its kind.
    """

    kind: str
    what: str
    fix: str = ""

    @property
    def status(self) -> int:
        """The job's exit status, whatever that of the processes."""
        return {UNPROVEN: EXIT_HARDWARE, UNMET: EXIT_UNTRUSTED, STALLED: STALLED_STATUS}.get(self.kind, 1)

    @property
    def cause(self) -> Cause:
        """The reason as a cause, whose texts are not yet made safe for a terminal."""
        cause = REASONS[self.kind]
        what = f"the launcher ended the job ({WHY[self.kind]}): {self.what}"
        return replace(cause, what=what, fix=self.fix or cause.fix)
