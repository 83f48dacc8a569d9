"""What programs that start others (mpirun, srun, a shell, DeepSpeed) say of a child that a signal ended.

Their own exit status does not tell the signal, and their children's output is mixed with theirs.
"""

from __future__ import annotations

import re

from launcher.core.signal import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

OWN_ERRORS = ("ChildFailedError", "CalledProcessError", "ProcessExitedException")
OWN_WORDS = ("Horovod detected that one or more processes exited",)
"""Exceptions that a starter raises when a child has failed: the child's own words stand above."""
SUMMARY = re.compile(r"^(?:mpirun|prterun|mpiexec|RuntimeError: Horovod) (?:noticed|detected) that ")
"""A line of a starter that has seen a child fail: the text above is of several processes."""
WORDS = {
    "Killed": signal.SIGKILL,
    "Segmentation fault": signal.SIGSEGV,
    "segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Illegal instruction": signal.SIGILL,
    "Floating point exception": signal.SIGFPE,
}
_WORDS = "|".join(WORDS)
_TOLD = (
    re.compile(r"exited on signal (\d{1,2})\b"),  # Open MPI
    re.compile(r"KILLED BY SIGNAL: (\d{1,2})\b"),  # Intel MPI
    re.compile(r"\(signal (\d{1,2})\)"),  # MPICH
    re.compile(r"exits with return code = -(\d{1,2})$"),  # DeepSpeed
    re.compile(r"died with <Signals\.\w+: (\d{1,2})>"),  # subprocess
    re.compile(r"\(exitcode: -(\d{1,2})\)"),  # torchrun
    re.compile(r"terminated with signal (SIG[A-Z]+)"),  # torch.multiprocessing.spawn
    re.compile(rf"^srun: error: .*: ({_WORDS})(?: \(core dumped\))?$"),
    re.compile(rf"^(?:.*: line \d+: +\d+ )?({_WORDS})(?: +\(core dumped\))?(?:  .*)?$"),  # a shell
    re.compile(rf"^Fatal Python error: ({_WORDS})$"),  # faulthandler
    re.compile(rf"Signal: ({_WORDS}) \("),  # Open MPI, of its own process
    re.compile(r"Caught signal (\d{1,2}) \("),  # UCX
    re.compile(r"(?:by|with|received) signal:? (SIG[A-Z]+|\d{1,2})\b"),
)


def read_told_signal(lines: Sequence[str]) -> tuple[int, str] | None:
    """Return (signal, line) of the last line that names the signal that ended a child; None without one.

    SIGTERM does not count: a starter sends it to the children that still run when one has failed.
    """
    for line in reversed(lines):
        for pattern in _TOLD:
            found = pattern.search(line)
            number = _number(found[1]) if found else None
            if number not in (None, signal.SIGTERM):
                return number, line
    return None


def is_own_error(exception: str) -> bool:
    """Whether an exception only tells that a child of a starter has failed."""
    name, _, words = exception.partition(": ")
    return name.rstrip(":").rpartition(".")[2] in OWN_ERRORS or words.startswith(OWN_WORDS)


def _number(text: str) -> int | None:
    if text.isdecimal():
        return int(text) if 0 < int(text) < signal.NSIG else None
    return WORDS.get(text) or getattr(signal, text, None)
