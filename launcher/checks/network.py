"""Checks of the port and the names of the job, and proxies between its nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from launcher.checks.case import KUBERNETES, CheckedNode
from launcher.checks.finding import Finding, Findings, fail, ok, warn
from launcher.core.environ import is_loopback
from launcher.core.ranks import is_number
from launcher.frameworks.jax import MPIRUN_4
from launcher.machine.host import Host
from launcher.machine.sockets import LISTEN, find_holder, find_sockets
from launcher.planning.parts import GLOO_INTERFACE
from launcher.sources.tensorflow import TF_CONFIG

RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
RESERVED = "/proc/sys/net/ipv4/ip_local_reserved_ports"
PROXIES = ("grpc_proxy", "https_proxy", "http_proxy", "all_proxy")
EXCEPTIONS = ("no_proxy", "NO_PROXY", "no_grpc_proxy")
READERS = (TF_CONFIG, "COORDINATOR_ADDRESS", "JAX_COORDINATOR_ADDRESS", "RAY_ADDRESS")
"""Variables of frameworks whose nodes communicate by gRPC."""
PLANNED = (TF_CONFIG, MPIRUN_4)
"""Variables that the launcher sets for jobs of these frameworks only."""
PROXY = "proxy variables"
LISTED = 4


def check_port(case: CheckedNode) -> Findings:
    """Check MASTER_PORT on the node of rank 0: if another process uses it, no rank can join.

    Look for sockets on the port; on other nodes, or without a fixed port, there is nothing to check.

    Source:
        ip(7) (ip_local_port_range, ip_local_reserved_ports).
    """
    port = case.master_port
    sockets = find_sockets(case.host, port) if port and case.is_master else None
    if sockets is None:
        return
    what, fix = f"MASTER_PORT {port}", "pass --master-port N with a free port, the same on all nodes"
    listening = [inode for state, inode in sockets if state == LISTEN]
    busy = [inode for state, inode in sockets if state != LISTEN]
    if listening or busy:
        holder = find_holder(case.host, frozenset(listening or busy))
        end = f"end process {holder[0]}, or " if holder else ""
        by = f"process {holder[0]} ({holder[1]})" if holder else "a process that the launcher cannot inspect"
        use = "listens there" if listening else "has a connection from there"
        yield fail(what, "free", f"{by} {use}", end + fix)
    elif case.spans_nodes and _is_ephemeral(case.host, port):
        bounds = " to ".join((case.host.read_text(RANGE) or "").split())
        found = f"a port that the kernel gives to outgoing connections ({bounds})"
        fix = "pass --master-port N below that range, on all nodes"
        yield warn(what, "a port outside that range", found, fix)
    else:
        yield ok(what, "free")


def _is_ephemeral(host: Host, port: int) -> bool:
    """Whether the kernel may give the port to an outgoing connection."""
    bounds = (host.read_text(RANGE) or "").split()
    if len(bounds) != 2 or not all(is_number(bound, 5) for bound in bounds):
        return False
    reserved = (host.read_text(RESERVED) or "").strip().split(",")
    pairs = [(first, last or first) for first, _, last in (item.partition("-") for item in reserved)]
    known = [(int(first), int(last)) for first, last in pairs if is_number(first, 5) and is_number(last, 5)]
    is_reserved = any(first <= port <= last for first, last in known)
    return int(bounds[0]) <= port <= int(bounds[1]) and not is_reserved


def check_proxies(case: CheckedNode) -> Findings:
    """Check proxy variables: with them gRPC, etcd and HTTP clients would reach other nodes through a proxy.

    TensorFlow, JAX, Ray and an etcd rendezvous read them; NCCL, gloo and torch's own store do not. Compare
    the nodes of the job with no_proxy; values are not shown, as a proxy's may hold a password.

    Source:
        gRPC environment variables (grpc_proxy, https_proxy, http_proxy, no_grpc_proxy, no_proxy); Python
        urllib.request.getproxies.
    """
    names = [name for base in PROXIES for name in (base, base.upper()) if case.environ.get(name)]
    hosts = list(dict.fromkeys(host for host in (case.master_addr, *case.hosts) if host))
    if not names:
        yield ok(PROXY, "none")
        return
    if not case.spans_nodes or not hosts:
        yield ok(PROXY, f"{', '.join(names)}, and no other node to reach")
        return
    entries = (entry for name in EXCEPTIONS for entry in case.environ.get(name, "").split(","))
    is_excepted = read_exceptions(entries)
    caught = [host for host in hosts if not is_excepted(host)]
    if not caught:
        yield ok(PROXY, f"{', '.join(names)}, not for the nodes of the job")
        return
    more = len(caught) - LISTED
    shown = ", ".join(caught[:LISTED]) + (f" and {more} more" if more > 0 else "")
    fix = f'export no_proxy="$no_proxy,{",".join(caught)}" NO_PROXY="$no_proxy"'
    if more > 0:  # a list of all nodes would fill the screen
        unset = " ".join(f"-u {name}" for name in names)
        all_of_them = f"add all {len(caught)} nodes to no_proxy and NO_PROXY"
        fix = f"{all_of_them}; or, for a job that needs no proxy: env {unset} launcher ..."
    is_read = any(case.environ.get(name) for name in READERS) or not case.planned.isdisjoint(PLANNED)
    report = fail if is_read else warn
    found = f"{', '.join(names)} set, and no_proxy without {shown}"
    yield report(PROXY, "no_proxy for all nodes of the job", found, fix)


def read_exceptions(entries: Iterable[str]) -> Callable[[str], bool]:
    """Return whether a host is excepted by no_proxy: by name, domain, address or network, or by ``*``.

    The entries are indexed, so that a host need not be compared with each of them. Those that are no name or
    network match nothing.
    """
    import ipaddress  # takes 3 ms, and is needed only with a proxy

    words = {entry.strip().lower() for entry in entries} - {""}
    domains = {domain for word in words for domain in (word, word.removeprefix("*").removeprefix("."))} - {""}
    networks: dict[tuple[int, int], set[int]] = {}
    for word in words:
        with contextlib.suppress(ValueError):
            network = ipaddress.ip_network(word, strict=False)
            starts = networks.setdefault((network.version, network.prefixlen), set())
            starts.add(int(network.network_address))

    def covers(host: str) -> bool:
        name = host.strip("[]").lower()
        labels = name.split(".")
        if "*" in words or any(".".join(labels[first:]) in domains for first in range(len(labels))):
            return True
        if not networks:
            return False
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        bits = address.max_prefixlen
        return any(
            version == address.version and int(address) >> (bits - length) << (bits - length) in starts
            for (version, length), starts in networks.items()
        )

    return covers


def check_names(case: CheckedNode) -> Findings:
    """Check that the names of this node and of the master resolve to their addresses.

    gloo resolves the node's own name. If that fails, gloo listens on the loopback address, where other nodes
    cannot reach it. If the master's name resolves differently on each node, the job has several masters.
    Resolve both names, within some seconds.

    Source:
        PyTorch torch/csrc/distributed/c10d/ProcessGroupGloo.cpp (createDefaultDevice: hostname, else the
        loopback; GLOO_SOCKET_IFNAME goes first).
    """
    own = case.host.hostname()
    asked = {own, case.master_addr} - {""}
    answers = case.host.look_up(tuple(asked))
    ours = case.host.own_addresses()
    yield _judge_own(case, own, answers.get(own), ours)
    if case.master_addr and case.spans_nodes:
        yield _judge_master(case, answers.get(case.master_addr), ours)


def _judge_own(case: CheckedNode, name: str, found: frozenset[str] | None, ours: frozenset[str]) -> Finding:
    what = f"hostname {name!r}"
    usable = sorted(address for address in found or () if address in ours and not is_loopback(address))
    if usable:
        return ok(what, ", ".join(usable))
    told = "no answer" if found is None else ", ".join(sorted(found)) or "nothing: the name is not known"
    if not case.spans_nodes:
        return ok(what, f"{told} (fine for one node)")
    if case.gloo_interface:
        return ok(what, f"{told}, and gloo uses {GLOO_INTERFACE}={case.gloo_interface}")
    by_variable = f"set {GLOO_INTERFACE}=eth0 (or the interface that leads to the others)"
    fix = f"{by_variable}, or add {name} with its address to /etc/hosts"
    if case.runtime == KUBERNETES:
        fix += ", or use hostNetwork with a DNS policy that knows it"
    report = warn if case.environ.get(GLOO_INTERFACE) else fail
    return report(what, "an address that other nodes reach it by", told, fix)


def _judge_master(case: CheckedNode, found: frozenset[str] | None, ours: frozenset[str]) -> Finding:
    what, expected = f"the master, {case.master_addr!r}", "an address of node 0"
    fix = "set MASTER_ADDR (or --master-addr) to the address of node 0"
    if case.runtime == KUBERNETES:
        fix += ", or add a headless Service for the name"
    if not found:
        told = "nothing: the name is not known" if found is not None else "no answer in time"
        return fail(what, expected, told, fix)
    shown = ", ".join(sorted(found))
    is_here = any(address in ours or is_loopback(address) for address in found)
    if is_here and not case.is_master and case.node_rank:
        told = f"{shown}, which is this node, and this is node {case.node_rank}"
        return fail(what, expected, told, fix)
    if case.is_master and not is_here:
        told = f"{shown}, which is not this node, and rank 0 is here"
        return warn(what, "an address of this node, or one that leads here", told, fix)
    if case.is_master and all(map(is_loopback, found)):
        return warn(what, "the same address on all nodes", f"{shown}, here", fix)
    return ok(what, shown)
