"""Readiness for an attempt: nothing of the last attempt is left on this node, and the node is healthy."""

from __future__ import annotations

import time

from launcher.core.redact import printable, redact
from launcher.job.events import Ready
from launcher.process.loop import Later
from launcher.process.watchdog import kill_marked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from launcher.process.group import ProcessGroup
    from launcher.process.loop import Loop

SURVIVORS_S, SURVIVORS_EVERY_S = 10.0, 0.25
"""How long, and how often, a node looks whether the kernel has ended the processes of the last attempt."""
KILLED_S, LOOK_AGAIN_S = 2.0, 0.02
"""How long, and how often, a launcher looks for the end of what the one before it has left."""
SURVIVORS_SHOWN = 4


class Readiness:
    """Checks whether this node is ready, and reports it."""

    def __init__(
        self,
        loop: Loop,
        group: ProcessGroup,
        health_argv: Sequence[str],
        wait_for_gpus: Callable[[Callable[[], None]], None],
        tell: Callable[[Ready], None],
        index: int,
    ) -> None:
        """Do nothing yet.

        Args:
            loop: Waits.
            group: The processes of this node.
            health_argv: The command that checks this node; empty for none.
            wait_for_gpus: Calls its argument once the GPU memory of the last attempt is free.
            tell: Takes the result of a check.
            index: Index of this node.
        """
        self._loop, self._group, self._health_argv = loop, group, health_argv
        self._wait_for_gpus, self._tell, self._index = wait_for_gpus, tell, index
        self._predecessor, self._given_up_at = b"", 0.0

    def check(self, attempt: int) -> None:
        """Look whether this node is ready for an attempt; 0: before the first there is only its health."""
        if attempt:
            self._wait_for_gpus(lambda: self._look(attempt, time.monotonic() + SURVIVORS_S))
        elif self._health_argv:
            self._check_health(attempt)

    def end_predecessor(self, mark: str) -> None:
        """Kill what a launcher before us has left on this machine: its watchdog may have been killed, too.

        Args:
            mark: Name in the mark of its processes; empty if it is not known.
        """
        self._predecessor, self._given_up_at = mark.encode(), time.monotonic() + KILLED_S
        self._has_predecessor()

    def _has_predecessor(self) -> bool:
        """Whether something of it is left: the kernel needs a moment to free the memory of a process."""
        if self._predecessor and (
            not kill_marked(self._predecessor) or time.monotonic() >= self._given_up_at
        ):
            self._predecessor = b""  # the processes of our own will have the same mark
        return bool(self._predecessor)

    def _look(self, attempt: int, until: float) -> None:
        """Look whether a process of the last attempt is left; at ``until`` (monotonic seconds) say so."""
        survivors, has_predecessor = self._group.describe_survivors(), self._has_predecessor()
        if has_predecessor or (survivors and time.monotonic() < until):
            wait_s = LOOK_AGAIN_S if has_predecessor else SURVIVORS_EVERY_S
            again = Later(time.monotonic() + wait_s, lambda: self._look(attempt, until))
            self._loop.timers.append(again)  # a process that is not our child reports no end
        elif survivors:
            what = f"{len(survivors)} survive SIGKILL: {'; '.join(survivors[:SURVIVORS_SHOWN])}"
            self._tell(Ready(self._index, attempt, printable(redact(what)), is_held=True))
        else:
            self._check_health(attempt)

    def _check_health(self, attempt: int) -> None:
        """Run the health command, if there is one, and say what it has found."""
        if not self._health_argv:
            self._tell(Ready(self._index, attempt))
            return
        from launcher.recovery.health import ask_health

        tell, index = self._tell, self._index
        ask_health(self._health_argv, self._group.helpers, lambda what: tell(Ready(index, attempt, what)))
