"""``launcher check`` on nodes with a real /dev/shm, hostname, resolver and ports of their own."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from launcher.rehearse.cluster import Cluster
from tests.process.starting import ROOT

from .conftest import Run

LISTEN = (
    "import socket, sys; s = socket.create_server(('', 6105)); print('ready', flush=True); sys.stdin.read()"
)
CHECK = f"PYTHONPATH={ROOT} exec {sys.executable} -m launcher check --format json --nnodes 2"


def findings(cluster: Cluster, on: Run, node: int, script: str) -> dict[str, list[dict[str, Any]]]:
    """Run a shell script on a node; return the findings that it prints, by check."""
    done = on(cluster, cluster.nodes[node], ["sh", "-c", script])
    assert done.returncode == 0, done.stderr
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in json.loads(done.stdout)["findings"]:
        found.setdefault(finding["check"], []).append(finding)
    return found


@pytest.mark.root
def test_64_mib_of_shared_memory(cluster: Cluster, on: Run) -> None:
    """What Docker gives: too little for two processes."""
    script = (
        "mount -o remount,size=64m /dev/shm && "
        + CHECK
        + " --node-rank 1 --master-addr {} --nproc-per-node 2"
    )
    words = script.format(cluster.nodes[0].address)
    (shm,) = findings(cluster, on, 1, words)["shm"]
    assert (shm["level"], shm["found"]) == ("problem", "64 MiB")
    assert "size=8g" in shm["fix"]


@pytest.mark.root
def test_names_and_proxies_of_two_nodes(cluster: Cluster, on: Run) -> None:
    """A master that the resolver does not know; a proxy that would catch what goes to it."""
    flags = " --node-rank 1 --master-addr no-such-host.invalid"
    found = findings(cluster, on, 1, f"export http_proxy=http://proxy:3128; {CHECK}{flags}")
    master = found["names"][1]
    assert (master["level"], master["found"]) == ("problem", "nothing: the name is not known")
    (proxies,) = found["proxies"]
    assert proxies["level"] == "warning" and "no_proxy without no-such-host.invalid" in proxies["found"]
    address = cluster.nodes[0].address
    export = f"export http_proxy=http://proxy:3128 no_proxy={address}; "
    found = findings(cluster, on, 1, f"{export}{CHECK} --node-rank 1 --master-addr {address}")
    assert [item["level"] for item in (found["names"][1], *found["proxies"])] == ["ok", "ok"]


@pytest.mark.root
def test_a_port_that_is_taken_on_the_first_node(cluster: Cluster, on: Run) -> None:
    """Its holder is named; on the other node the same port is nobody's business."""
    address = cluster.nodes[0].address
    hold = f'mkfifo /run/f /run/r; {sys.executable} -c "{LISTEN}" </run/f >/run/r & exec 3>/run/f; '
    hold += "read ready </run/r; "
    found = findings(cluster, on, 0, f"{hold}{CHECK} --node-rank 0 --master-addr {address}")
    (port,) = found["port"]
    assert port["level"] == "problem" and "(python" in port["found"] and "end process" in port["fix"]
    assert "port" not in findings(cluster, on, 1, f"{CHECK} --node-rank 1 --master-addr {address}")
