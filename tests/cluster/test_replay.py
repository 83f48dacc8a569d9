"""A snapshot of a node with two network cards: its replay is the plan that the node makes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from launcher.rehearse.cluster import Cluster
from tests.cluster.conftest import Run
from tests.process.starting import clean_environ

pytestmark = pytest.mark.root

CARDS = """
    ip link add ib0 type veth peer name ib1
    ip addr flush dev eth0
    ip addr add 10.0.0.4/24 dev eth0
    ip addr add 172.16.1.9/16 dev ib0
    ip link set ib0 up; ip link set ib1 up
    printf '10.0.0.5 head\\n' >> /etc/hosts
"""


@pytest.mark.parametrize(
    ("master", "interface"),
    [
        *(("10.0.0.5", "=eth0"), ("172.16.3.3", "=ib0"), ("head", "=eth0"), ("192.0.2.1", None)),
        ("10.0.0.4", "=eth0"),
    ],
)
@pytest.mark.parametrize("scope", ["node", "process"])
def test_a_replay_equals_the_plan_of_the_node(
    cluster: Cluster, on: Run, tmp_path: Path, master: str, interface: str | None, scope: str
) -> None:
    """Everything in the two plans as JSON, whatever leads to the master, by address or by name."""
    node = cluster.nodes[0]
    assert on(cluster, node, ["sh", "-ec", CARDS]).returncode == 0
    rank = {"NODE_RANK": "0" if master == "10.0.0.4" else "1", "AZUREML_NODE_COUNT": "2"}
    environ = clean_environ(MASTER_ADDR=master, LAUNCHER_NPROC_PER_NODE="2", LAUNCHER_SCOPE=scope, **rank)
    if scope == "process":
        environ |= {"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
        environ |= {"RANK": "0"} if master == "10.0.0.4" else {}
    line = [sys.executable, "-m", "launcher"]
    taken = on(cluster, node, [*line, "snapshot"], env=environ)
    assert taken.returncode == 0, taken.stderr
    file = tmp_path / "node.json"
    file.write_text(taken.stdout)
    live = on(cluster, node, [*line, "plan", "--format", "json"], env=environ)
    replayed = on(
        cluster, node, [*line, "plan", "--format", "json", "--replay", str(file)], env=clean_environ()
    )
    assert live.returncode == replayed.returncode == 0, live.stderr + replayed.stderr
    plan = json.loads(live.stdout)
    assert json.loads(replayed.stdout) == plan
    shown = live.stdout.partition('"NCCL_SOCKET_IFNAME"')[2]
    assert (interface in shown.partition("}")[0]) if interface else not shown
