"""Checks proxy variables: with them gRPC, etcd and HTTP clients would reach other nodes through a proxy.

TensorFlow, JAX, Ray and an etcd rendezvous read them; NCCL, gloo and torch's own store do not.

Source: gRPC environment variables (grpc_proxy, https_proxy, http_proxy, no_grpc_proxy, no_proxy); Python
urllib.request.getproxies.
"""

from __future__ import annotations

from launcher.checks.finding import Findings, fail, ok, warn
from launcher.core.frozen import frozen
from launcher.frameworks.jax import MPIRUN_4
from launcher.sources.tensorflow import TF_CONFIG

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from launcher.checks.case import CheckedNode

PROXIES = ("grpc_proxy", "https_proxy", "http_proxy", "all_proxy")
EXCEPTIONS = ("no_proxy", "NO_PROXY", "no_grpc_proxy")
READERS = (TF_CONFIG, "COORDINATOR_ADDRESS", "JAX_COORDINATOR_ADDRESS", "RAY_ADDRESS")
"""Variables of frameworks whose nodes communicate by gRPC."""
PLANNED = (TF_CONFIG, MPIRUN_4)
"""Variables that the launcher sets for jobs of these frameworks only."""
WHAT = "proxy variables"
LISTED = 4


def look(case: CheckedNode) -> Findings:
    """Compare the nodes of the job with no_proxy; values are not shown, as a proxy's may hold a password."""
    names = [name for base in PROXIES for name in (base, base.upper()) if case.environ.get(name)]
    hosts = list(dict.fromkeys(host for host in (case.master_addr, *case.hosts) if host))
    if not names:
        yield ok(WHAT, "none")
        return
    if not case.spans_nodes or not hosts:
        yield ok(WHAT, f"{', '.join(names)}, and no other node to reach")
        return
    entries = (entry for name in EXCEPTIONS for entry in case.environ.get(name, "").split(","))
    exceptions = read_exceptions(entries)
    caught = [host for host in hosts if not exceptions.cover(host)]
    if not caught:
        yield ok(WHAT, f"{', '.join(names)}, not for the nodes of the job")
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
    yield report(WHAT, "no_proxy for all nodes of the job", found, fix)


@frozen
class Exceptions:
    """The exceptions in no_proxy, indexed so that a node need not be compared with each entry.

    Attributes:
        everything: Whether there is a ``*``.
        domains: Names, also without a leading star or dot; each covers its subdomains, too.
        networks: First addresses of networks, by (IP version, prefix length).
    """

    everything: bool
    domains: frozenset[str]
    networks: Mapping[tuple[int, int], frozenset[int]]

    def cover(self, host: str) -> bool:
        """Whether a host is excepted: by name, by domain, by address or network, or by ``*``."""
        name = host.strip("[]").lower()
        labels = name.split(".")
        ends = (".".join(labels[first:]) for first in range(len(labels)))
        return self.everything or any(end in self.domains for end in ends) or self._cover_address(name)

    def _cover_address(self, name: str) -> bool:
        if not self.networks:
            return False
        import ipaddress  # takes 3 ms, and is needed only with a proxy

        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        bits = address.max_prefixlen
        return any(
            version == address.version and int(address) >> (bits - length) << (bits - length) in starts
            for (version, length), starts in self.networks.items()
        )


def read_exceptions(entries: Iterable[str]) -> Exceptions:
    """Return the exceptions in the entries of no_proxy; entries that are no name or network match nothing."""
    words = {entry.strip().lower() for entry in entries} - {""}
    domains = {domain for word in words for domain in (word, word.removeprefix("*").removeprefix("."))}
    return Exceptions("*" in words, frozenset(domains - {""}), _read_networks(words))


def _read_networks(words: Iterable[str]) -> dict[tuple[int, int], frozenset[int]]:
    import ipaddress

    found: dict[tuple[int, int], set[int]] = {}
    for word in words:
        try:
            network = ipaddress.ip_network(word, strict=False)
        except ValueError:
            continue
        found.setdefault((network.version, network.prefixlen), set()).add(int(network.network_address))
    return {key: frozenset(starts) for key, starts in found.items()}
