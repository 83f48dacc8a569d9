"""One process of the job, as its parent knows it."""

from __future__ import annotations

from launcher.run.signals import name_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.run.spawn import Child
    from launcher.run.verdict import Death


class Process:
    """One process that was started.

    Attributes:
        code: As `os.waitstatus_to_exitcode` has it, None while it runs.
        ended_ns: When the kernel told of its end, nanoseconds since 1970.
        passed_on: The last signal that was passed on to it.
        error_file: Where it says why it fails.
    """

    def __init__(self, child: Child, pid: int, error_file: str | None) -> None:
        self.child = child
        self.pid = pid
        self.pidfd: int | None = None
        self.code: int | None = None
        self.ended_ns = 0
        self.passed_on: int | None = None
        self.error_file = error_file

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"{self.child.name} (pid {self.pid})"

    @property
    def status(self) -> int:
        """The status as a shell would say it; 0 while it runs."""
        code = self.code or 0
        return code if code >= 0 else 128 - code

    @property
    def end(self) -> str:
        """How it has ended, in words."""
        code = self.code or 0
        return f"exited with status {code}" if code >= 0 else f"was ended by {name_signal(-code)}"

    def death(self, stderr: bytes) -> Death:
        """Return what is known about its end; ``stderr``: the last of what it has written there."""
        from launcher.run.verdict import Death

        return Death(
            rank=self.child.rank,
            local_rank=self.child.local_rank,
            pid=self.pid,
            code=self.code or 0,
            ended_ns=self.ended_ns,
            stderr=stderr,
            error_file=self.error_file,
            asked=self.passed_on,
            called=self.child.called,
        )
