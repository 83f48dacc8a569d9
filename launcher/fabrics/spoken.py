"""Reads NCCL's debug output about its network, and compares that network with the planned one. Pure.

The wording is the same from 2.6 to 2.32 except for details; older versions name no network. From 2.27 on
``NET/IB : Using`` also appears without a port if there is none. Everything from a line is shortened and made
printable before it is shown.

Source: NCCL src/init.cc, src/transport/net_ib.cc, net_socket.cc; aws-ofi-nccl src/nccl_ofi_net.c; logs in
public issues (NVIDIA/nccl 226, 302, 352, 676, 952, 1357, 1925, NVIDIA/nccl-tests 185, 373, aws-ofi-nccl 24).
"""

from __future__ import annotations

import re

from launcher.core.frozen import frozen, replace
from launcher.core.redact import quote
from launcher.fabrics.variables import NETS, NETWORKS, SHOWN_MAX, TITLES, VERBS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.core.supervision import Network

LINE = re.compile(r"NCCL (?:INFO|WARN) (.*)")
NETWORK = re.compile(r"Using network (.+)")
PORT = re.compile(r"([\w.-]{1,64}):([0-9]{1,3})/(IB|RoCE)\b")
INTERFACE = re.compile(r"\[[0-9]+\]([^:\s\[]+):")
PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is ([^\s,]+)")
NAME_CHARS = 64
NAMES_LIMIT = 64
SIGNS = tuple(block for block in NETWORKS if "fix" in block.fields)
"""Reasons for another network, the surest first."""
LOOK = "its NET/ lines say why: NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,ENV"
KINDS = {"IB": "InfiniBand", "RoCE": "RoCE"}


@frozen
class Spoken:
    """What NCCL has written so far.

    Attributes:
        network: Name of the network that NCCL uses; empty until that is certain.
        ports: RDMA ports that it found, as ``mlx5_0:1``, each with its kind, ``IB`` or ``RoCE``.
        interfaces: Interfaces of its sockets.
        provider: Provider of libfabric.
        signs: Indices in `SIGNS` of the texts that occurred.
    """

    network: str = ""
    ports: tuple[tuple[str, str], ...] = ()
    interfaces: tuple[str, ...] = ()
    provider: str = ""
    signs: frozenset[int] = frozenset()


@frozen
class Comparison:
    """Whether NCCL uses the planned network; None if it names an unknown one.

    ``fix`` says what to change if it uses another one.
    """

    holds: bool | None
    text: str
    fix: str = ""


def hear(spoken: Spoken, line: str) -> Spoken:
    """Return what is known after one more line of output; a line that is not NCCL's changes nothing."""
    match = LINE.search(line)
    if match is None or spoken.network:
        return spoken
    text = match[1].strip()
    signs = {place for place, sign in enumerate(SIGNS) if sign.name in text}
    news: dict[str, object] = {"signs": spoken.signs | signs}
    if text.startswith("NET/IB : Using"):
        pairs = [(f"{_short(name)}:{number}", kind) for name, number, kind in PORT.findall(text)]
        news["ports"] = tuple(pairs[:NAMES_LIMIT])
    elif text.startswith("NET/Socket : Using"):
        news["interfaces"] = tuple(_short(name) for name in INTERFACE.findall(text)[:NAMES_LIMIT])
    for name, pattern in (("provider", PROVIDER), ("network", NETWORK)):
        if found := pattern.match(text):
            news[name] = _short(found[1].strip())
    return replace(spoken, **news)


def _short(name: str) -> str:
    return quote(name, NAME_CHARS)


def compare(network: Network, spoken: Spoken) -> Comparison:
    """Return whether NCCL uses the planned network, with a text that names both, and the fix.

    Args:
        network: The planned network.
        spoken: What NCCL has written, including its network.
    """
    found, expected = _find_fabric(spoken), TITLES.get(network.fabric, network.fabric)
    if network.port_count is not None:
        expected = _count(network.port_count, expected)
    text = f"expected {expected}, NCCL uses {_describe(spoken)}"
    if not found:
        return Comparison(None, f"{text}: a network that cannot be compared")
    if found == network.fabric:
        names = [name for name, _ in spoken.ports]
        lost = [name for name in network.ports if name not in names]
        more = [name for name in names if name not in network.ports] if network.ports else []
        if found not in VERBS or not (lost or more):
            return Comparison(True, f"NCCL uses {_describe(spoken)}, as planned")
        both = [f"without {', '.join(lost)}"] * bool(lost) + [f"with {', '.join(more)}"] * bool(more)
        text = f"{text}, {' and '.join(both)}"
    signs = [SIGNS[place] for place in sorted(spoken.signs)]
    fits = (sign for sign in signs if network.fabric in sign.words("keeps") or not sign.words("keeps"))
    return Comparison(False, text, next((sign.fields["fix"] for sign in fits), LOOK))


def _find_fabric(spoken: Spoken) -> str:
    """Return the fabric of NCCL's network; empty if it is unknown.

    A word that is no fabric stands for a mixture: ``both`` kinds of RDMA ports, or another provider of
    libfabric.
    """
    kinds = {kind for _, kind in spoken.ports}
    if _is_rdma(spoken):
        return "ib" if kinds == {"IB"} else "roce" if kinds == {"RoCE"} else "both" if kinds else ""
    name = spoken.network.lower()
    found = next((fabric for fabric, nets in NETS.items() if name.startswith(nets)), "")
    return found if found != "efa" else spoken.provider or found


def _is_rdma(spoken: Spoken) -> bool:
    return spoken.network.lower().startswith(NETS["roce"])


def _describe(spoken: Spoken) -> str:
    """Return the network that NCCL uses in words, e.g. ``NET/Socket (eth0)``."""
    kinds = [kind for _, kind in spoken.ports]
    details: Sequence[str] = (f"provider {spoken.provider}",) if spoken.provider else ()
    if _is_rdma(spoken):
        details = [_count(kinds.count(kind), KINDS[kind]) for kind in dict.fromkeys(kinds)]
    elif spoken.network == "Socket":
        details = spoken.interfaces
    more = f" and {len(details) - SHOWN_MAX} more" if len(details) > SHOWN_MAX else ""
    shown = f" ({', '.join(details[:SHOWN_MAX])}{more})" if details else ""
    return f"NET/{spoken.network}{shown}"


def _count(number: int, title: str) -> str:
    return f"{number} {title} port{'' if number == 1 else 's'}"
