"""From a node's last process to its good-bye: wait until node 0 tells how the job ended, or is lost."""

from __future__ import annotations

import time

from launcher.peers.hub import Hub
from launcher.peers.link import Link
from launcher.peers.roll import FAREWELL_S as HUB_FAREWELL_S
from launcher.peers.roll import LATE_COMERS_S
from launcher.peers.tidings import lose_hub

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.errors import LauncherError
    from launcher.peers.together import Together

FAREWELL_S = 1.0
"""For our last word to be on its way."""
HUB_PATIENCE_S = max(HUB_FAREWELL_S, LATE_COMERS_S) + FAREWELL_S
SAY_AFTER_S = 15.0
"""How long a node whose processes have ended well waits without a word."""


class Parting:
    """What one node waits for in the end; as a timer it notices that node 0 is gone while processes run."""

    def __init__(self, together: Together) -> None:
        self._together = together

    @property
    def has_lost_hub(self) -> bool:
        """Whether node 0 is gone."""
        channel = self._together.channel
        return isinstance(channel, Link) and channel.is_lost

    @property
    def due(self) -> float | None:
        """At once, when node 0 is gone and nothing was made of it yet."""
        return 0.0 if self.has_lost_hub and self._together.over is None else None

    def fire(self, now: float) -> None:
        """Node 0 is gone: nobody is left to agree with."""
        together = self._together
        if together.over is not None:
            return
        what, together.over = lose_hub(together.shape)
        if together.shape.keep_going:
            together.say(f"{what} (--keep-going: this node goes on)")
        else:
            together.on_stop({"is": "stop", "what": what, "by": -1})

    def wait_for_end(self, own: int) -> None:
        """Wait until node 0 has told how the job ended; it knows when that can be known.

        Args:
            own: The status of this node.
        """
        together = self._together
        say_at = time.monotonic() + SAY_AFTER_S
        while together.over is None:
            if self.has_lost_hub:
                self.fire(time.monotonic())
                break
            together.loop.turn()
            together.loop.guard(together.look_after_orphans)
            if time.monotonic() > say_at and not own and together.stop_message is None:
                say_at = float("inf")
                together.say(
                    "the processes of this node have ended well; waiting for those of the other nodes"
                )
        self.say_good_bye()

    def wait_for_word(self) -> None:
        """Give the others the time to end, where our processes could not be started."""
        together = self._together
        together.loop.turn_until(lambda: together.over is not None, together.shape.grace_s + FAREWELL_S)
        self.say_good_bye()

    def leave_refused(self, error: LauncherError) -> None:
        """Leave a job that does not start; node 0 says why at once if it stays for nodes that come late."""
        together, hub = self._together, self._together.channel
        if not isinstance(hub, Hub) or not hub.roster.missing():
            self.say_good_bye()
            return
        for problem in error.problems:
            together.say(f"the job does not start: [{problem.code}] {problem.what}")
        together.say(f"this node stays {LATE_COMERS_S:g} s to tell those that come late")
        together.loop.turn_until(lambda: hub.may_leave or together.relay.told is not None, HUB_PATIENCE_S)

    def say_good_bye(self) -> None:
        """Hang up: at once on a node, on node 0 when all have heard the end."""
        channel = self._together.channel
        if isinstance(channel, Hub):
            self._together.loop.turn_until(lambda: channel.may_leave, HUB_PATIENCE_S)
        else:
            channel.send({"is": "bye"})
