"""Limits on the effects of others' messages: how often, how much is printed, and how much is kept.

A host that reaches a port, or a program with the key of the job, may send anything at any rate. What can
grow with that grows in one of these: `Bucket` (events), `Quota` (lines of the log) or `Latest` (entries).
"""

from __future__ import annotations

import _socket
import time
from collections import Counter

from launcher.core.errors import attempt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Hashable
    from typing import Any

    from launcher.core.log import Say

LINES_MAX, LINES_PER_S = 512, 1.0
"""Lines of the log that other nodes can cause at once, and a second; see `Quota`."""
LINES_OF_NODE = 8
"""Lines that each node of a job may add to that: it joins, it fails, it is lost, it is back."""
ENTRIES_MAX = 1024
"""Least number of entries that `Latest` keeps."""
_V6_NETWORK_BYTES = 8
_MAPPED = bytes(10) + b"\xff\xff"


class Bucket:
    """Allows ``burst`` events at once and ``per_s`` a second; in a flood, none until it has calmed down."""

    __slots__ = ("_burst", "_left", "_per_s", "_seen")

    def __init__(self, burst: float, per_s: float) -> None:
        self._burst = self._left = burst
        self._per_s, self._seen = per_s, time.monotonic()

    @property
    def is_empty(self) -> bool:
        """Whether another event is one too many now."""
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._seen) * self._per_s)
        self._seen = now
        return self._left < 1

    def take(self) -> bool:
        """Count an event; return whether it was allowed. Others make a debt, of ``burst`` at most."""
        is_allowed = not self.is_empty
        self._left = max(self._left - 1, -self._burst)
        return is_allowed


class Quota:
    """Prints what others cause, up to a limit, and then how many lines it has dropped."""

    def __init__(self, say: Say, node_count: int = 1) -> None:
        self._say, self._dropped = say, 0
        self._bucket = Bucket(LINES_MAX + LINES_OF_NODE * node_count, LINES_PER_S)

    def __call__(self, text: str, event: str) -> None:
        """Print a line, or drop it."""
        if self.allows():
            self._say(text, event)

    def allows(self) -> bool:
        """Count a line; return whether it may be printed. The first after a flood is about the others."""
        if not self._bucket.take():
            self.drop()
            return False
        self.say_dropped()
        return True

    def drop(self) -> None:
        """Count a line that was dropped elsewhere."""
        self._dropped += 1

    def say_dropped(self) -> None:
        """Print how many lines were dropped, if any were."""
        dropped, self._dropped = self._dropped, 0
        if dropped:
            many = "s" if dropped > 1 else ""
            self._say(f"dropped {dropped} more line{many} that others caused: too many", "lines-dropped")


class Latest(dict["Any", None]):
    """A set of the entries that were added last; each further one replaces the oldest."""

    def __init__(self, most: int = ENTRIES_MAX) -> None:
        super().__init__()
        self._most = max(most, ENTRIES_MAX)

    def add(self, entry: Hashable) -> None:
        """Add an entry, or make it the newest."""
        self.pop(entry, None)
        self[entry] = None
        if len(self) > self._most:
            del self[next(iter(self))]

    def discard(self, entry: Hashable) -> None:
        """Remove an entry, if it is there."""
        self.pop(entry, None)


def network_of(address: str) -> str:
    """Return what one caller has at least: its IPv4 address, or its network of IPv6 addresses, a /64.

    A host chooses among the 2^64 addresses of its network as it likes.

    Source: RFC 6177, section 2 (no site gets less than a /64); RFC 4291, section 2.5.5.2 (mapped addresses).
    """
    packed = attempt(_socket.inet_pton, _socket.AF_INET6, address.partition("%")[0])
    if packed is None:
        return address
    if packed.startswith(_MAPPED):
        return _socket.inet_ntop(_socket.AF_INET, packed[len(_MAPPED) :])
    network = packed[:_V6_NETWORK_BYTES] + bytes(16 - _V6_NETWORK_BYTES)
    return f"{_socket.inet_ntop(_socket.AF_INET6, network)}/64"


def find_busiest(callers: Collection[tuple[str, str]]) -> tuple[str, str]:
    """Return the caller that must yield: of the network with the most connections, the busiest address.

    Args:
        callers: The network and the address of each open connection; one or more.
    """
    networks = Counter([network for network, _ in callers])
    busiest = max(networks, key=networks.__getitem__)
    addresses = Counter([address for network, address in callers if network == busiest])
    return busiest, max(addresses, key=addresses.__getitem__)
