"""Whether a name or an address is this node's."""

from __future__ import annotations

from launcher.core.errors import make_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.machine.host import Host


def is_called(host: Host, *names: str) -> bool:
    """Whether one of these names and addresses is literally this node's, without resolving it.

    Of a host name only the part before the first dot must be the same.
    """
    return bool(
        names and _literal_places(host, names)
    )  # without names: reading the addresses costs an import


def is_elsewhere(host: Host, address: str) -> bool:
    """Whether an IP address is in a network of this node, and not its own; False for a name.

    An address of another network may be translated on the way, and lead here.
    """
    from launcher.machine.addresses import is_near

    pairs = [pair for pairs in host.networks().values() for pair in pairs]
    return address not in host.own_addresses() and any(is_near(address, *pair) for pair in pairs)


def own_places(host: Host, names: Sequence[str]) -> list[int]:
    """Return the indices of this node in a list of names and addresses, literally or by what they resolve to.

    If a name or an address is literally ours, nothing is resolved: a resolver that is down takes seconds for
    each name.

    Raises:
        NotReady: The resolver has not answered for all names in time. A guess could start another job.
    """
    places = _literal_places(host, names)
    if places or not names:
        return places
    found, own = host.look_up(names), host.own_addresses()
    left = [name for name in names if name not in found]
    if left:
        seconds, total = host.look_up_s, len(names)
        raise make_error("resolver-silent", seconds=seconds, left=len(left), total=total, first=left[0])
    return [place for place, name in enumerate(names) if not own.isdisjoint(found[name])]


def address_of(host: Host, name: str) -> str:
    """Return our address behind a name of ours; the name itself if it is an address, or if unknown."""
    own = host.own_addresses()
    found = sorted(address for address in host.resolve(name) if address in own and address != name)
    return name if name in own - {host.hostname()} or not found else found[0]


def _literal_places(host: Host, names: Sequence[str]) -> list[int]:
    if not names:
        return []  # reading the addresses costs an import
    own, hostname = host.own_addresses(), host.hostname()
    called = hostname.partition(".")[0]
    return [
        place
        for place, name in enumerate(names)
        if name in own or (not name.replace(".", "").isdecimal() and name.partition(".")[0] == called != "")
    ]
