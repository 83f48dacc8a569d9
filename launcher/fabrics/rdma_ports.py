"""Chooses the RDMA ports for GPUs among the usable ones: not those of the front end, storage or management.

Three signs tell another port: its interface, or the bond above it, carries the job's address or the default
route; its rate is not that of most others; no GPU shares its PCI switch while one shares another port's. The
last decides alone if every GPU has a port at its switch. Otherwise the number of ports must fit the number of
GPUs (or the VM's ports) either with the doubtful ports or without. If that does not decide either, no list is
set: NCCL then chooses.

Source: NCCL "Environment Variables" (NCCL_IB_HCA, NCCL_NET), UCX "Frequently Asked Questions"
(UCX_NET_DEVICES); Oracle "Compute Shapes", NVIDIA's DGX user guides (the ports of a machine, and their use).
"""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.fabrics.facts import name_ports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from launcher.fabrics.facts import Facts
    from launcher.machine.infiniband import Port

    Signs = Mapping[Port, tuple[str, ...]]
    """What speaks against each port."""

SWITCH = 2
"""Length of the path that two devices share at least if they are below one root port."""
FAR = "no GPU at its PCI switch"


@frozen
class Choice:
    """The ports for GPUs, notes about the others, and what cannot be decided; empty if all is."""

    ports: tuple[Port, ...]
    notes: tuple[str, ...] = ()
    doubt: str = ""


def choose_for_gpus(facts: Facts, ports: tuple[Port, ...]) -> Choice:
    """Return the ports for GPUs among the usable ports of a fabric."""
    signs = _find_signs(facts, ports)
    near = _near(facts, ports)
    is_served = _switches(facts) <= {port.pci_path[:SWITCH] for port in near}
    out = [port for port in ports if FAR in signs[port] and is_served]
    kept = [port for port in ports if not signs[port]]
    suspects = [port for port in ports if signs[port] and port not in out]
    doubtful: list[Port] = []
    if suspects:
        fits = [_fits(facts, count) for count in (len(kept), len(kept) + len(suspects))]
        if fits == [True, False]:
            out += suspects
        elif fits != [False, True]:
            out += [port for port in suspects if len(signs[port]) > 1]
            doubtful = [port for port in suspects if len(signs[port]) == 1 and port not in near]
    doubtful = list(ports) if len(out) == len(ports) else doubtful
    notes = (f"not for GPUs: {_describe(signs, ports, out)}",) if out else ()
    if not doubtful:
        return Choice(tuple(port for port in ports if port not in out), notes)
    what = f"{_describe(signs, ports, doubtful)} {'is' if len(doubtful) == 1 else 'are'} for GPUs"
    return Choice(ports, (), f"no list of ports is set: undecided whether {what}; to decide: NCCL_IB_HCA")


def _describe(signs: Signs, ports: Sequence[Port], chosen: Sequence[Port]) -> str:
    return ", ".join(f"{name_ports((port,))} ({'; '.join(signs[port])})" for port in ports if port in chosen)


def _find_signs(facts: Facts, ports: tuple[Port, ...]) -> dict[Port, tuple[str, ...]]:
    rates = [port.rate_gbps for port in ports]
    usual = next((rate for rate in rates if rate and rates.count(rate) * 2 > len(rates)), None)
    near = _near(facts, ports)
    carried = {port: _find_carrier(facts, port) for port in ports}
    if all(carried.values()):
        carried = {}  # the only network there is
    found = {}
    for port in ports:
        of = [carried.get(port, "")]
        if usual and port.rate_gbps and port.rate_gbps != usual:
            of.append(f"{port.rate_gbps:g} Gb/s, most others {usual:g}")
        if near and port not in near:
            of.append(FAR)
        found[port] = tuple(filter(None, of))
    return found


def _near(facts: Facts, ports: Sequence[Port]) -> list[Port]:
    """Return the ports that share a PCI switch with a GPU; none where /sys shows no switch (in a VM)."""
    switches = _switches(facts)
    return [port for port in ports if len(port.pci_path) > SWITCH and port.pci_path[:SWITCH] in switches]


def _switches(facts: Facts) -> set[tuple[str, ...]]:
    """Return the root ports below which the machine's GPUs are."""
    return {path[:SWITCH] for path in facts.gpu_paths if len(path) > SWITCH}


def _find_carrier(facts: Facts, port: Port) -> str:
    """Return what the interface of an Ethernet port, or one above it, carries; empty for nothing.

    InfiniBand has no front end: there the job's address may well be one of IP over InfiniBand.
    """
    if port.link_layer == "Ethernet":
        for name in _climb(facts, port.interface):
            if name in facts.default_interfaces:
                return f"{name} has the default route"
            if name == facts.interface:
                return f"{name} has the job's address"
    return ""


def _climb(facts: Facts, name: str | None) -> Iterator[str]:
    """Yield an interface, the bond or bridge that it is a member of, and the VLANs on each."""
    by_name = {item.name: item for item in facts.interfaces}
    seen: set[str] = set()
    while name and name not in seen:
        seen.add(name)
        yield name
        yield from (item.name for item in facts.interfaces if item.name.startswith(f"{name}."))
        name = by_name[name].master if name in by_name else None


def _fits(facts: Facts, count: int) -> bool | None:
    """Whether so many ports can serve all GPUs alike, or are the VM's; None if both numbers are unknown."""
    of_vm, gpus = facts.kind.port_count if facts.kind else 0, len(facts.gpu_paths)
    if not of_vm and not gpus:
        return None
    return count == of_vm if of_vm else count > 0 and (count % gpus == 0 or gpus % count == 0)
