"""Proxy variables: gRPC, etcd and everything that speaks HTTP would look for the other nodes behind a proxy.

TensorFlow, JAX, Ray and an etcd rendezvous read them; NCCL, gloo and torch's own store do not.

Source: gRPC environment variables (grpc_proxy, https_proxy, http_proxy, no_grpc_proxy, no_proxy); Python
urllib.request.getproxies.
"""

from __future__ import annotations

from launcher.checks.finding import PROBLEM, WARNING, Finding, ok
from launcher.core.frozen import frozen
from launcher.frameworks.jax import MPIRUN_4
from launcher.sources.tensorflow import TF_CONFIG

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from launcher.checks.case import Case

PROXIES = ("grpc_proxy", "https_proxy", "http_proxy", "all_proxy")
EXCEPTIONS = ("no_proxy", "NO_PROXY", "no_grpc_proxy")
READERS = (TF_CONFIG, "COORDINATOR_ADDRESS", "JAX_COORDINATOR_ADDRESS", "RAY_ADDRESS")
"""Variables of frameworks whose nodes talk by gRPC."""
PLANNED = (TF_CONFIG, MPIRUN_4)
"""What the launcher sets for jobs of these frameworks, and for no others."""
WHAT = "proxy variables"
LISTED = 4


def look(case: Case) -> list[Finding]:
    """Compare the nodes of the job with no_proxy. No value is shown: a proxy's may hold a password."""
    names = [name for base in PROXIES for name in (base, base.upper()) if case.environ.get(name)]
    hosts = list(dict.fromkeys(host for host in (case.master_addr, *case.hosts) if host))
    if not names:
        return [ok("proxies", WHAT, "none")]
    if not case.spans_nodes or not hosts:
        return [ok("proxies", WHAT, f"{', '.join(names)}, and no other node to reach")]
    exceptions = read_exceptions(
        entry for name in EXCEPTIONS for entry in case.environ.get(name, "").split(",")
    )
    caught = [host for host in hosts if not exceptions.cover(host)]
    if not caught:
        return [ok("proxies", WHAT, f"{', '.join(names)}, not for the nodes of the job")]
    shown = ", ".join(caught[:LISTED]) + (f" and {len(caught) - LISTED} more" if caught[LISTED:] else "")
    is_read = any(case.environ.get(name) for name in READERS) or not case.planned.isdisjoint(PLANNED)
    found = f"{', '.join(names)} set, and no_proxy without {shown}"
    level = PROBLEM if is_read else WARNING
    return [
        Finding("proxies", level, WHAT, "no_proxy for all nodes of the job", found, _advise(names, caught))
    ]


def _advise(names: list[str], caught: list[str]) -> str:
    """Return what can be typed; of many nodes their list would fill the screen."""
    if not caught[LISTED:]:
        return f'export no_proxy="$no_proxy,{",".join(caught)}" NO_PROXY="$no_proxy"'
    unset = " ".join(f"-u {name}" for name in names)
    return (
        f"add all {len(caught)} nodes to no_proxy and NO_PROXY; "
        f"or, for a job that needs no proxy: env {unset} launcher ..."
    )


@frozen
class Exceptions:
    """What no_proxy excepts, so that a node is looked up in it rather than compared with each entry.

    Attributes:
        everything: There is a ``*``.
        domains: Names, without a star or dot in front: they stand for all that ends in them, too.
        networks: First addresses of networks, by the version of the protocol and the length of the prefix.
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
        import ipaddress  # 3 ms, where there is a proxy

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
    """Return what the entries of no_proxy except; what is neither a name nor a network excepts nothing."""
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
