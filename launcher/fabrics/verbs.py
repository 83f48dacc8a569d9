"""InfiniBand and RoCE: ports of verbs, which NCCL uses by itself.

InfiniBand: ports with that link layer that a subnet manager has made ACTIVE. Names prove nothing:
``mlx5_an0`` is Azure's accelerated networking, and ``hfi1_0`` is Omni-Path although its link layer is
InfiniBand. As a prefix ``mlx5_1`` also means mlx5_10, so our list is exact (``=``).

RoCE: RDMA over Ethernet, on ports that are ACTIVE and not the fast path of a hypervisor's interface. We leave
the identifier (NCCL_IB_GID_INDEX) to NCCL, which since 2.21 finds the one for RoCE v2 on each port: a single
number for all ports and all nodes is rarely right.

A node has other ports, too: those of the front end, storage or management. Three signs tell such a port: its
interface, or the bond above it, carries the job's address or the default route; its rate is not that of most
others; no GPU shares its PCI switch while one shares another port's. The last decides alone if every GPU has
a port at its switch. Otherwise the number of ports must fit the number of GPUs (or the VM's ports) either
with the doubtful ports or without. If that does not decide either, no list is set: NCCL then chooses.

Source: NCCL "Environment Variables" (NCCL_IB_HCA, NCCL_IB_DISABLE, NCCL_IB_GID_INDEX,
NCCL_IB_ROCE_VERSION_NUM, NCCL_NET, NCCL_TOPO_FILE, NCCL_GRAPH_FILE), UCX "Frequently Asked Questions"
(UCX_NET_DEVICES), Azure/azhpc-images (/etc/nccl.conf of each family of VMs); Oracle "Compute Shapes",
NVIDIA's DGX user guides (the ports of a machine, and their use).
"""

from __future__ import annotations

from launcher.fabrics.facts import ELSEWHERE, Facts, Found, count, find_hidden, name_ports, unusable
from launcher.machine.infiniband import Port, is_omni_path, is_usable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Signs = Mapping[Port, tuple[str, ...]]
    """What speaks against each port."""

DEVICES = "docker run --device /dev/infiniband"
EXPOSE = f"{DEVICES} --cap-add IPC_LOCK --ulimit memlock=-1"
SWITCH = 2
"""Length of the path that two devices share at least if they are below one root port."""
FAR = "no GPU at its PCI switch"


def find_infiniband(facts: Facts) -> Found:
    """Return the ports to use, or what is missing."""
    fix = f"give the container its devices: {EXPOSE}"
    found = _find_usable(facts, infiniband_ports(facts), "InfiniBand", fix)
    if found is not None:
        return found
    if stated := _list_stated(facts):
        fix = "check the subnet manager and the cables of this node, or leave the node out"
        return unusable(f"no port is ACTIVE ({_name_states(stated)})", fix)
    if any(map(is_omni_path, facts.ports)):
        return unusable("it is Omni-Path, for which NCCL needs a plugin (OFI, PSM2)", ELSEWHERE)
    if facts.kind is not None and not facts.kind.has_verbs:
        return unusable(f"{facts.vm_name} has RDMA without SR-IOV: NCCL cannot use it", ELSEWHERE)
    fix = "nodes with InfiniBand, or a container that sees /sys/class/infiniband and /dev/infiniband"
    if facts.is_azure:
        fix = "a VM size with an r in its name has InfiniBand (Standard_ND96isr_H100_v5)"
    why = "this node shows no RDMA device (/sys/class/infiniband)"
    return Found(False, "the RDMA devices of this node are not InfiniBand" if facts.ports else why, fix=fix)


def find_roce(facts: Facts) -> Found:
    """Return the ports to use, or what is missing."""
    found = _find_usable(facts, roce_ports(facts), "RoCE", DEVICES)
    if found is not None:
        return found
    active = facts.ethernet_ports()
    if facts.is_azure and active:
        names = ", ".join(port.device for port in active)
        return unusable(f"{names} is Azure's accelerated networking: no RDMA between VMs")
    if any(map(facts.is_fast_path, active)):
        return unusable("the adapter is the fast path of an ordinary interface", ELSEWHERE)
    return Found(False, "no RDMA port over Ethernet is ACTIVE", fix=ELSEWHERE)


def _find_usable(facts: Facts, active: tuple[Port, ...], title: str, fix: str) -> Found | None:
    """Return the ports for GPUs among a kind's active ones, or that none is exposed; None without any."""
    usable = facts.reachable(active)
    if not usable:
        return find_hidden(active, title, fix) if active else None
    ports, others, doubt = choose_for_gpus(facts, usable)
    notes = (*others, *(_note_less(facts, len(usable)) if title == "InfiniBand" else ()))
    return Found(True, count(ports, title), ports, has_hardware=True, notes=notes, doubt=doubt)


def _list_stated(facts: Facts) -> list[Port]:
    return [port for port in facts.ports if port.link_layer == "InfiniBand" and not is_omni_path(port)]


def _name_states(ports: Sequence[Port]) -> str:
    return ", ".join(f"{port.device}:{port.number} {port.state or 'in no known state'}" for port in ports)


def _note_less(facts: Facts, usable_count: int) -> Iterator[str]:
    """Yield what is less than it should be: dead ports, hidden ports, too few ports for the VM's size."""
    if dead := [port for port in _list_stated(facts) if port.state != "ACTIVE"]:
        yield f"InfiniBand ports that are not used: {_name_states(dead)}"
    if hidden := set(infiniband_ports(facts)) - set(facts.reachable(infiniband_ports(facts))):
        names = ", ".join(sorted(f"{port.device}:{port.number}" for port in hidden))
        yield f"InfiniBand ports without a device file in this container: {names}"
    if facts.kind is not None and facts.kind.port_count > usable_count:
        yield f"{facts.vm_name} has {facts.kind.port_count} InfiniBand ports, {usable_count} can be used here"


def infiniband_ports(facts: Facts) -> tuple[Port, ...]:
    """Return the active InfiniBand ports, exposed or not."""
    return tuple(port for port in facts.ports if is_usable(port))


def roce_ports(facts: Facts) -> tuple[Port, ...]:
    """Return the active ports with link layer Ethernet that a job can use for RDMA.

    It leaves out ports that are the fast path of an ordinary interface (accelerated networking: the
    ``master`` is the interface with the address, and not a bond). It leaves out all ports on Azure, which has
    no RoCE between VMs, and ports in software (rxe, siw), which are slower than TCP.
    """
    if facts.is_azure:
        return ()
    return tuple(port for port in facts.ethernet_ports() if port.pci_path and not facts.is_fast_path(port))


def choose_for_gpus(facts: Facts, ports: tuple[Port, ...]) -> tuple[tuple[Port, ...], tuple[str, ...], str]:
    """Choose the ports for GPUs among the usable ports of a fabric.

    Returns:
        The ports, notes about the others, and what cannot be decided; empty if all is.
    """
    switches = {path[:SWITCH] for path in facts.gpu_paths if len(path) > SWITCH}  # with GPUs below them
    # None where /sys shows no switch (in a VM)
    near = [port for port in ports if len(port.pci_path) > SWITCH and port.pci_path[:SWITCH] in switches]
    signs = _find_signs(facts, ports, near)
    is_served = switches <= {port.pci_path[:SWITCH] for port in near}
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
        return tuple(port for port in ports if port not in out), notes, ""
    what = f"{_describe(signs, ports, doubtful)} {'is' if len(doubtful) == 1 else 'are'} for GPUs"
    return ports, (), f"no list of ports is set: undecided whether {what}; to decide: NCCL_IB_HCA"


def _describe(signs: Signs, ports: Sequence[Port], chosen: Sequence[Port]) -> str:
    return ", ".join(f"{name_ports((port,))} ({'; '.join(signs[port])})" for port in ports if port in chosen)


def _find_signs(facts: Facts, ports: Sequence[Port], near: Sequence[Port]) -> dict[Port, tuple[str, ...]]:
    rates = [port.rate_gbps for port in ports]
    usual = next((rate for rate in rates if rate and rates.count(rate) * 2 > len(rates)), None)
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


def _find_carrier(facts: Facts, port: Port) -> str:
    """Return what the interface of an Ethernet port, or one above it, carries; empty for nothing.

    InfiniBand has no front end: there the job's address may well be one of IP over InfiniBand.
    """
    for name in _climb(facts, port.interface) if port.link_layer == "Ethernet" else ():
        if name in facts.default_interfaces:
            return f"{name} has the default route"
        if name == facts.interface:
            return f"{name} has the job's address"
    return ""


def _climb(facts: Facts, name: str | None) -> Iterator[str]:
    """Yield an interface, the bond or bridge that it is a member of, and the VLANs on each."""
    seen: set[str] = set()
    while name and name not in seen:
        seen.add(name)
        yield name
        yield from (item.name for item in facts.interfaces if item.name.startswith(f"{name}."))
        above = facts.above(name)
        name = above.name if above else None


def _fits(facts: Facts, count: int) -> bool | None:
    """Whether so many ports can serve all GPUs alike, or are the VM's; None if both numbers are unknown."""
    of_vm, gpus = facts.kind.port_count if facts.kind else 0, len(facts.gpu_paths)
    if of_vm or not gpus:
        return count == of_vm if of_vm else None
    return count > 0 and (count % gpus == 0 or gpus % count == 0)
