"""Proxy variables: gRPC, etcd and everything that speaks HTTP would look for the other nodes behind a proxy.

TensorFlow, JAX, Ray and an etcd rendezvous read them; NCCL, gloo and torch's own store do not.

Source: gRPC environment variables (grpc_proxy, https_proxy, http_proxy, no_grpc_proxy, no_proxy); Python
urllib.request.getproxies.
"""

from __future__ import annotations

from launcher.checks.case import Case
from launcher.checks.finding import PROBLEM, WARNING, Finding, ok

PROXIES = ("grpc_proxy", "https_proxy", "http_proxy", "all_proxy")
EXCEPTIONS = ("no_proxy", "NO_PROXY", "no_grpc_proxy")
READERS = ("TF_CONFIG", "COORDINATOR_ADDRESS", "RAY_ADDRESS")
"""Variables of frameworks whose nodes talk by gRPC."""
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
    entries = [entry for name in EXCEPTIONS for entry in case.environ.get(name, "").split(",")]
    caught = [host for host in hosts if not is_excepted(host, entries)]
    if not caught:
        return [ok("proxies", WHAT, f"{', '.join(names)}, not for the nodes of the job")]
    shown = ", ".join(caught[:LISTED]) + (f" and {len(caught) - LISTED} more" if caught[LISTED:] else "")
    level = PROBLEM if any(case.environ.get(name) for name in READERS) else WARNING
    fix = f'export no_proxy="$no_proxy,{",".join(caught)}" NO_PROXY="$no_proxy"'
    found = f"{', '.join(names)} set, and no_proxy without {shown}"
    return [Finding("proxies", level, WHAT, "no_proxy for all nodes of the job", found, fix)]


def is_excepted(host: str, entries: list[str]) -> bool:
    """Whether a host is one of no_proxy's: by name, by domain, by address or network, or by ``*``."""
    name = host.strip("[]").lower()
    return any(_covers(entry.strip().lower(), name) for entry in entries if entry.strip())


def _covers(entry: str, name: str) -> bool:
    domain = entry.removeprefix("*").removeprefix(".")
    if entry == "*" or name == entry or (domain and (name == domain or name.endswith(f".{domain}"))):
        return True
    import ipaddress  # 3 ms, where there is a proxy

    try:
        return ipaddress.ip_address(name) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False
