"""Checks the user's network variables against this node, and finds one that keeps NCCL from a fabric. Pure.

The one rule for plan, check and verdict.

Source: NCCL "Environment Variables" (NCCL_SOCKET_IFNAME: prefixes, whole names after ``=``, ``^`` excludes;
NCCL_SOCKET_FAMILY; NCCL_NET: case does not matter; NCCL_IB_DISABLE; NCCL_IB_HCA: the same syntax, a port
follows a colon) and src/misc/socket.cc (no interface is left: "no socket interface found"); PyTorch
"torch.distributed" (GLOO_SOCKET_IFNAME: whole names), gloo/transport/tcp/device.cc ("Unable to find address
for"), TensorPipe (TP_SOCKET_IFNAME).
"""

from __future__ import annotations

import ipaddress

from launcher.core.blocks import read_blocks
from launcher.core.environ import NETWORK_NAMES
from launcher.core.frozen import frozen
from launcher.machine.network import Interface, find_interface, leads_out

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from launcher.fabrics.facts import Facts
    from launcher.machine.infiniband import Port

    Told = Callable[[str], str | None]
    """Function from the name of a variable to the user's value."""

NCCL, GLOO, TENSORPIPE, FAMILY, HCA = NETWORK_NAMES
WHOLE_NAMES = {GLOO: "gloo", TENSORPIPE: "TensorPipe"}
FAMILIES = {"AF_INET": 4, "AF_INET6": 6}
SHOWN_MAX = 8
VERBS = ("ib", "roce")
NETWORKS = read_blocks("fabrics/networks.txt")
TITLES = {block.name: block.fields["title"] for block in NETWORKS if "title" in block.fields}
NETS = {name: block.words("nets") for block in NETWORKS if (name := block.name) in TITLES}


@frozen
class Fault:
    """A variable whose value this node cannot follow.

    Attributes:
        name: Its name.
        value: The user's value.
        what: What is wrong with it, and what this node has instead.
        fix: What to set.
        is_partial: Whether only a part of the value is wrong.
    """

    name: str
    value: str
    what: str
    fix: str
    is_partial: bool = False

    def __str__(self) -> str:
        return f"{self.name}={self.value!r}: {self.what}; fix: {self.fix}"


def find_faults(facts: Facts, *, spans_nodes: bool) -> tuple[Fault, ...]:
    """Return what is wrong with the user's variables.

    Args:
        facts: Interfaces, ports, and the user's variables and files.
        spans_nodes: Whether other nodes must reach this one.
    """
    if not facts.interfaces:  # the kernel did not tell
        return ()
    found = []
    for name in NETWORK_NAMES:
        value = facts.told(name) or ""
        what = next(_judge(facts, name, value, spans_nodes), "") if value else ""
        if what:
            is_partial = name == HCA and bool(choose_ports(value, facts.ports))
            found.append(Fault(name, value, what, _fix(facts, name), is_partial))
    return tuple(found)


def describe_interfaces(interfaces: Sequence[Interface]) -> str:
    """Return e.g. ``lo, eth0 (10.0.0.4)``."""
    shown, more = interfaces[:SHOWN_MAX], len(interfaces[SHOWN_MAX:])
    first = {item: f" ({item.addresses[0][0]})" for item in shown if item.addresses and not item.is_loopback}
    names = ", ".join(f"{item.name}{first.get(item, '')}" for item in shown)
    return names + (f" and {more} more" if more else "")


def _fix(facts: Facts, name: str) -> str:
    if name in (HCA, FAMILY):
        return f"unset {name}: NCCL then finds out by itself"
    usable = [item.name for item in facts.interfaces if item.addresses and leads_out(item)]
    best = facts.interface or (usable[0] if len(usable) == 1 else "")
    others = f", or name one of {', '.join(usable)}" if usable else ""
    return f"{name}={'=' if name == NCCL else ''}{best}, or unset it" if best else f"unset {name}{others}"


def _judge(facts: Facts, name: str, value: str, spans_nodes: bool) -> Iterator[str]:
    """Yield what is wrong with a value; the first text says the most."""
    if value.endswith("\r"):
        yield "it ends with a carriage return, as of a file from Windows"
    if value != "".join(value.split()) or not value.isprintable():
        yield "it has blanks or control characters, which count as part of a name"
    by_name = {HCA: _judge_devices, FAMILY: _judge_family}
    judge = by_name.get(name)
    yield from judge(facts, value) if judge else _judge_names(facts, name, value, spans_nodes)


def _judge_devices(facts: Facts, value: str) -> Iterator[str]:
    if value.startswith("^"):
        return
    exact = value.startswith("=")
    entries = [entry for entry in value.removeprefix("=").split(",") if entry]
    lost = [entry for entry in entries if not choose_ports(f"{'=' * exact}{entry}", facts.ports)]
    if lost:
        names = ", ".join(entry if exact or ":" in entry else f"{entry}..." for entry in lost)
        there = ", ".join(dict.fromkeys(port.device for port in facts.ports)) or "it shows none"
        yield f"no RDMA device of this node is called {names}: {there}"


def _judge_family(facts: Facts, value: str) -> Iterator[str]:
    version = FAMILIES.get(value)
    named = _choose(facts, facts.told(NCCL) or "")
    used = [item for item in named if item.addresses and leads_out(item)]
    if facts.interface and not facts.told(NCCL):
        used = [item for item in used if item.name == facts.interface]
    has = any(version == ipaddress.ip_address(text).version and not text.startswith("fe80:")
              for item in used for text, _ in item.addresses)  # fmt: skip
    if version and used and not has:
        yield f"{describe_interfaces(used)} has no IPv{version} address"


def _judge_names(facts: Facts, name: str, value: str, spans_nodes: bool) -> Iterator[str]:
    library = WHOLE_NAMES.get(name)
    if library and value.startswith(("^", "=")):
        yield f"{library} knows whole names alone, without ^ and ="
    plain = value.removeprefix("^").removeprefix("=")
    entries = [entry for entry in plain.split(",") if entry]
    for entry in entries:
        if _is_address(entry):
            own = find_interface(facts.interfaces, entry)
            where = f"; its interface is {own.name}" if own else ", and not of this node"
            yield f"{entry} is an address{where}"
    known = {item.name for item in facts.interfaces}
    chosen = [item for item in facts.interfaces if item.name in entries] if library else _choose(facts, value)
    lost = [entry for entry in entries if entry not in known] if library else [] if chosen else entries
    if value.startswith("^") and not chosen:
        yield f"it leaves no interface of {describe_interfaces(facts.interfaces)}"
    elif lost:
        names = ", ".join(entry if library or value.startswith("=") else f"{entry}..." for entry in lost)
        yield f"no interface of this node is called {names}: {describe_interfaces(facts.interfaces)}"
    elif not any(item.addresses for item in chosen):
        yield f"{describe_interfaces(chosen)} has no address"
    elif spans_nodes and not any(leads_out(item) and item.addresses for item in chosen):
        of = "this node" if all(item.is_loopback for item in chosen) else "containers of this node"
        yield f"{', '.join(item.name for item in chosen)} leads to {of} alone"


def _choose(facts: Facts, value: str) -> list[Interface]:
    """Return the interfaces that NCCL_SOCKET_IFNAME allows; all if it is empty."""
    return [item for item in facts.interfaces if _allows(value, item.name)]


def choose_ports(listed: str, ports: Sequence[Port]) -> tuple[Port, ...]:
    """Return the ports that NCCL_IB_HCA allows."""
    return tuple(port for port in ports if _allows(listed, port.device, str(port.number)))


def _allows(listed: str, name: str, number: str | None = None) -> bool:
    """Whether a list of NCCL's (``^=name:port,...``) allows an interface, or a port of a device."""
    names = listed.removeprefix("^")
    pairs = [item.partition(":") for item in names.removeprefix("=").split(",") if item]
    fits = [only for one, _, only in pairs if name == one or (names[0] != "=" and name.startswith(one))]
    is_listed = any(number is None or only in ("", number) for only in fits)
    return not pairs or is_listed != listed.startswith("^")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def find_exclusion(told: Told, fabric: str, ports: Sequence[Port]) -> str:
    """Return the variable that keeps NCCL from a fabric, in words; empty if none does.

    Args:
        told: Function that returns the user's value of a variable.
        fabric: One of `launcher.fabrics.NAMES`.
        ports: Ports of this fabric.
    """
    net = told("NCCL_NET")
    if net and not net.lower().startswith(NETS[fabric]):
        return f"NCCL_NET={net} is set"
    if fabric not in VERBS:
        return ""
    disabled = told("NCCL_IB_DISABLE") or "0"
    if disabled != "0":
        return f"NCCL_IB_DISABLE={disabled} is set"
    listed = told("NCCL_IB_HCA")
    if listed and ports and not choose_ports(listed, ports):
        return f"NCCL_IB_HCA={listed} excludes all of {', '.join(port.device for port in ports)}"
    return ""
