"""Which interface gloo is told: on nodes with two networks, of which one leads nowhere, and a docker0."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from launcher.rehearse.cluster import Cluster
from tests.cluster.conftest import Run
from tests.process.starting import clean_environ

pytestmark = [pytest.mark.root, pytest.mark.torch]

DEADLINE_S = 120.0
GLOO_TIMEOUT_S = 6
JOB = f"""
    import os
    from datetime import timedelta
    import torch, torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(seconds={GLOO_TIMEOUT_S}))
    total = torch.tensor(dist.get_rank() + 1)
    dist.all_reduce(total)
    print(int(total), os.environ.get("GLOO_SOCKET_IFNAME"), os.environ.get("NCCL_SOCKET_IFNAME"))
    dist.destroy_process_group()
"""
DEAD = "10.99.0"
NETWORKS = """
    ip link add anet0 type veth peer name vethnone
    ip link add docker0 type bridge
    ip link set vethnone master docker0
    ip addr add 172.17.0.1/16 dev docker0
    ip addr add {dead}/24 dev anet0
    for name in anet0 vethnone docker0; do ip link set $name up; done
    known=$(grep -v ' {name}$' /etc/hosts)
    printf '%s\\n' "{dead} {name}" "$known" > /etc/hosts
"""
"""The second network is up and has a carrier, but nobody hears; the node's name means its address there."""


@pytest.fixture
def job(tmp_path: Path) -> str:
    """Return a script that adds up over all processes, and says what it was told."""
    path = tmp_path / "job.py"
    path.write_text(textwrap.dedent(JOB))
    return str(path)


@pytest.fixture
def forked(cluster: Cluster, on: Run) -> Cluster:
    """Return two nodes with a dead network, and a bridge for containers with one address on both."""
    for place, node in enumerate(cluster.nodes):
        script = NETWORKS.format(dead=f"{DEAD}.{10 + place}", name=node.name)
        done = on(cluster, node, ["sh", "-ec", script])
        assert done.returncode == 0, done.stderr
    return cluster


def add_up(cluster: Cluster, job: str, **variables: str) -> list[tuple[int, str]]:
    """Start a process on each node through the launcher; return status and output of each."""
    started = []
    for place, node in enumerate(cluster.nodes):
        flags = ["--nnodes", "2", "--node-rank", str(place), "--master-addr", cluster.nodes[0].address]
        line = [
            *(sys.executable, "-m", "launcher", "run"),
            *flags,
            *("--engine", "process", "--", sys.executable, job),
        ]
        started.append(
            subprocess.Popen(
                cluster.argv(node, line),
                env=clean_environ(**variables),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        )
    ended = [process.communicate(timeout=DEADLINE_S)[0] for process in started]
    return [(process.returncode, text.strip()) for process, text in zip(started, ended, strict=True)]


def test_gloo_meets_through_the_interface_that_leads_to_the_others(forked: Cluster, job: str) -> None:
    """The launcher's choice adds up on both nodes."""
    assert add_up(forked, job) == [(0, "3 eth0 =eth0")] * 2
