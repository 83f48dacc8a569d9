"""Counts and names connections that do not belong to the job, in bounded memory."""

from __future__ import annotations

from collections import Counter

from launcher.core.budget import network_of
from launcher.core.redact import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.log import Say

NAMED_MAX = 20
"""Maximum number of pairs of address and reason that are kept; others are only counted."""
OF_NETWORK_MAX = NAMED_MAX // 2
"""Maximum number of these pairs for one caller, see `network_of`: others are named as well."""


class TurnedAway:
    """The clients that were turned away, and why."""

    def __init__(self, say: Say) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.total = 0
        self._networks: Counter[str] = Counter()
        self._say = say

    def note(self, address: str, why: str) -> None:
        """Record a client that was turned away; report each kept pair of address and reason once.

        Args:
            address: Address of the client.
            why: The kind of reason; after a colon, details that do not make another kind.
        """
        self.total += 1
        kind, colon, detail = why.partition(": ")
        pair = (quote(address, 64), quote(kind, 160))
        if pair not in self.counts:
            network = network_of(address)
            if len(self.counts) >= NAMED_MAX or self._networks[network] >= OF_NETWORK_MAX:
                return
            self._networks[network] += 1
            shown = quote(colon + detail, 160)
            self._say(f"turned away {pair[0]}: {pair[1]}{shown}", "turned-away")
        self.counts[pair] += 1

    def summary(self) -> str:
        """Return how many connections were turned away; empty if each of them was reported already."""
        if self.total <= len(self.counts):
            return ""
        return f"turned away {self.total} connections: {self.describe()}"

    def describe(self) -> str:
        """Return the most frequent pairs; empty if there are none."""
        return ", ".join(
            f"{address} {count} x ({why})" for (address, why), count in self.counts.most_common(5)
        )

    def say_summary(self) -> None:
        """Print the summary, if it is not empty."""
        said = self.summary()
        if said:
            self._say(said, "turned-away")

    def reasons(self) -> dict[str, str]:
        """Return the reason by address; of several reasons, the last new one."""
        found = {}
        for address, why in self.counts:
            found[address] = why
        return found
