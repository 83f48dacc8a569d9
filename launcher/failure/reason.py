"""Reasons for which the launcher ends a job without a failed process: it hangs, or is set up wrongly."""

from __future__ import annotations

from launcher.core.errors import EXIT_HARDWARE, EXIT_NOT_READY, EXIT_UNTRUSTED
from launcher.core.frozen import frozen
from launcher.failure.arbiter import STALLED, UNMET, UNPROVEN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.failure.model import Cause

LEFT_WITHIN_S = 5.0
"""A shell that ends with 0 within this time has not waited for a training."""
LEFT_WORK_S, LEFT_WORK_CPU_S = 0.5, 0.1
"""Unless it ran other work, of this time and CPU time, after it had put the last one into the background."""
LEFT_RANKS_FIX = (
    "find what ended the processes between it and its ranks (`kill`, or memory: `dmesg | grep -i oom`); "
    "DeepSpeed's command exits with 0 if a signal ended its launcher"
)
STALLED_STATUS = EXIT_NOT_READY
"""Exit code of a job that we ended because it hung: 137 or 143 would look like an OOM kill, or a stop."""


@frozen
class Reason:
    """One such reason.

    Attributes:
        kind: A kind of `launcher.failure.arbiter`, which has a row in ``symptoms.txt``.
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
        from launcher.failure.symptoms import make_cause, read_conclusions

        why = read_conclusions()[self.kind].why
        what = f"the launcher ended the job ({why}): {self.what}"
        return make_cause(self.kind, self.fix or None, what=what)
