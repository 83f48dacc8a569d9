"""Version of the messages between launchers, and which versions can run one job together. Pure.

A launcher states two numbers when it joins: its own channel, and the oldest that it understands. A release
understands the one before it (docs/compatibility.md). The rules for a change:

- A new field has a default, and an unknown field is ignored: neither needs a new number.
- A new kind of message, or another meaning of a field, needs the next `CHANNEL`. It is only sent to launchers
  that know it, because an unknown kind ends the connection.
- `OLDEST` rises when the release with that channel is no longer the one before.
"""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.core.redact import quote
from launcher.core.version import __version__

CHANNEL = 3
OLDEST = 2
UNSTATED = 2
"""Channel of a launcher that states none: builds of 0.2.0 from before it did ..."""
UNSTATED_BY_RELEASE = {"0.1.0": 1}
"""... and the release before them, which knows neither restarts of several nodes nor their evidence."""
VERSION_LENGTH = 40
SAME_VERSION = "the same image on all nodes; a release also runs with the release before it"


@frozen
class Spoken:
    """A launcher, and the channels that it understands.

    Attributes:
        launcher: Its version.
        channel: Version of the messages that it sends.
        oldest: The oldest version that it understands.
    """

    launcher: str = __version__
    channel: int = CHANNEL
    oldest: int = OLDEST

    def fits(self, other: Spoken) -> bool:
        """Whether each of the two understands the other."""
        return self.channel >= other.oldest and other.channel >= self.oldest

    def describe(self) -> str:
        """Return e.g. ``launcher 0.2.0 (channel 3, understands 2 and later)``."""
        version = quote(self.launcher, VERSION_LENGTH)
        heard = f"{self.oldest} and later" if self.oldest < self.channel else "only that"
        return f"launcher {version} (channel {self.channel}, understands {heard})"


def read_spoken(launcher: object, channel: object, oldest: object) -> Spoken:
    """Return what another launcher says of itself; one that states no channel is older than the statement."""
    version = launcher if isinstance(launcher, str) else "of an unknown version"
    if isinstance(channel, int):
        return Spoken(version, channel, oldest if isinstance(oldest, int) else channel)
    stated = UNSTATED_BY_RELEASE.get(version, UNSTATED)
    return Spoken(version, stated, stated)
