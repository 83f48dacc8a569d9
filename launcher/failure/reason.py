"""Why the launcher itself ends a job in which no process has failed: it hangs, or goes on wrongly."""

from __future__ import annotations

from launcher.core.errors import EXIT_HARDWARE, EXIT_UNTRUSTED
from launcher.core.frozen import frozen, replace
from launcher.failure.model import Cause

STALLED, UNPROVEN, UNMET = "stalled", "unproven", "unmet"
"""It hangs; its NCCL uses another fabric than the one that is required; its processes have not met."""
STALLED_STATUS = 1
"""Our status where a stalled job was ended and all of its processes say 0."""
NEVER_MET_FIX = (
    "have the program join its processes (torch.distributed.init_process_group, its framework's own way, "
    "--engine mpirun for mpi4py); --no-meeting where they never talk on purpose"
)


@frozen
class Reason:
    """One such reason.

    Attributes:
        kind: One of those above.
        what: In words.
        fix: What mends it.
    """

    kind: str
    what: str
    fix: str = ""

    @property
    def status(self) -> int | None:
        """The job's status, whatever the processes make of it; None for theirs."""
        return {UNPROVEN: EXIT_HARDWARE, UNMET: EXIT_UNTRUSTED}.get(self.kind)

    @property
    def cause(self) -> Cause:
        """The same as a cause; its texts are not yet made safe."""
        cause = _CAUSES[self.kind]
        what = f"the launcher ended the job ({cause.what}): {self.what}"
        return replace(cause, what=what, fix=self.fix or cause.fix)


_CAUSES = {
    STALLED: Cause(
        "stalled",
        "--on-stall stop",
        "see the stacks above for where each rank waits; raise --stall-timeout if the job was only slow",
    ),
    UNPROVEN: Cause("other-fabric", "--verify-fabric, --require-fabric", "", False),
    UNMET: Cause("never-met", "--require-meeting", NEVER_MET_FIX, False),
}
