"""What a signal that arrives at one launcher of a job of several nodes means for all of it."""

from __future__ import annotations

from launcher.process.signals import ENDING, name_signal, signal
from launcher.run.relay import Relay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.peers.together import Together


class PeerRelay(Relay):
    """Signals to a launcher mean the whole job: the other nodes hear of those that end it."""

    def __init__(self, together: Together) -> None:
        super().__init__(together.watch, shares_terminal=together.shares_terminal, say=together.say)
        self._together = together
        self._still_to_come: int | None = None

    def pass_on_for_job(self, number: int) -> None:
        """Another node was told to end. Who ends a job tells all nodes: we, too, were or will be told."""
        if self.told is not None:
            return
        self._still_to_come = number
        ending = number if number in ENDING else signal.SIGTERM
        if self._together.has_begun:
            super().pass_on(ending, from_terminal=False)
        else:
            self.told = ending

    def pass_on(self, number: int, *, from_terminal: bool) -> None:
        """Do with a signal what its sender wants to happen to the job."""
        if not self._together.has_begun:
            if number in ENDING:
                self.told = self.told or number
            return
        if number == self._still_to_come:
            self._still_to_come = None
            self._say(f"{name_signal(number)}: the processes have it already, as those of the other nodes do")
            return
        before = self.told
        super().pass_on(number, from_terminal=from_terminal)
        if before is None and self.told is not None:
            self._together.tell_signal(self.told)
