"""Connections that turned out to be none of the job's: counted and named, in bounded memory."""

from __future__ import annotations

from collections import Counter

from launcher.core.redact import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

NAMED_MAX = 20
"""Pairs of address and reason that are remembered; more of them are only counted."""


class TurnedAway:
    """The clients that were turned away, and why."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.total = 0
        self._say = say

    def note(self, address: str, why: str) -> None:
        """A client was turned away; said the first time, counted from then on.

        Args:
            address: Where it came from.
            why: The kind of reason; behind a colon what is special of this one, which makes no other kind.
        """
        self.total += 1
        kind, colon, detail = why.partition(": ")
        pair = (quote(address, 64), quote(kind, 160))
        if pair in self.counts or len(self.counts) < NAMED_MAX:
            self.counts[pair] += 1
            if self.counts[pair] == 1:
                shown = quote(colon + detail, 160)
                self._say(f"turned away {pair[0]}: {pair[1]}{shown}")

    def summary(self) -> str:
        """Return how often that happened; empty if it did not, or was said already."""
        if self.total <= len(self.counts):
            return ""
        return f"turned away {self.total} connections: {self.describe()}"

    def describe(self) -> str:
        """Return the most frequent ones; empty if there are none."""
        return ", ".join(
            f"{address} {count} x ({why})" for (address, why), count in self.counts.most_common(5)
        )

    def say_summary(self) -> None:
        """Say how often that happened, if there is something to say."""
        said = self.summary()
        if said:
            self._say(said)

    def reasons(self) -> dict[str, str]:
        """Return why it was, by address; of several reasons the last new one."""
        found = {}
        for address, why in self.counts:
            found[address] = why
        return found
