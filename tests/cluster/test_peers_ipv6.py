"""Nodes that have IPv6 addresses only: they find each other, and give one verdict."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.rehearse.cluster import Cluster, SimulatedNode
from tests.cluster.conftest import need_namespaces
from tests.cluster.together import WAITER, Job, assert_one_truth
from tests.process.looking import wait_for

pytestmark = [pytest.mark.root, pytest.mark.xdist_group("peers")]

PREFIX = "fd00:77::"
NAME = "the-first"


def address_of(node: SimulatedNode) -> str:
    """Return what a node has instead of its IPv4 address."""
    return f"{PREFIX}{10 + node.index}"


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """Return a job on four nodes without IPv4, of which the first has a name."""
    need_namespaces()
    with Cluster(4) as four:
        one = Job(four, tmp_path)
        for node in four.nodes:
            one.on(node, ("ip", "addr", "flush", "dev", "eth0"))
            one.on(node, ("ip", "addr", "add", f"{address_of(node)}/64", "dev", "eth0", "nodad"))
        hosts = "".join(f"{address_of(node)} {node.name}\n" for node in four.nodes)
        hosts = f"127.0.0.1 localhost\n::1 localhost\n{hosts}{address_of(four.nodes[0])} {NAME}\n"
        one.on(four.nodes[0], ("sh", "-c", 'printf "%s" "$1" > /etc/hosts', "sh", hosts))
        yield one
        one.close()


@pytest.mark.parametrize("master", [f"{PREFIX}10", NAME])
def test_they_meet_and_give_one_verdict(job: Job, master: str) -> None:
    """Node 0 by its address, or by a name that has no other."""
    for node in job.cluster.nodes:
        job.start(node.index, "--", "sh", "-c", WAITER.format(folder=job.folder), master=master)
    wait_for(lambda: len(list(job.folder.glob("pid-*[0-9]"))) == 4, "all processes have begun", 60)
    killed_at = job.kill_rank(2)
    done = job.wait()
    assert_one_truth(done, 137, "rank 2 of 4 failed first: it was killed by SIGKILL")
    assert f"control channel: {PREFIX}a port 6106" in done[0].err or f"{PREFIX}10 port 6106" in done[0].err
    assert max(job.told_at(rank) for rank in (0, 1, 3)) - killed_at < 2.0


@pytest.mark.thorough
def test_a_node_that_is_missing_is_looked_for(job: Job) -> None:
    """By names that mean IPv6 addresses only."""
    hosts = ",".join(node.name for node in job.cluster.nodes)
    for index in (0, 1, 2):
        job.start(index, "--roll-call-timeout", "6", "--hosts", hosts, "--", "true", master=NAME)
    done = job.wait()
    assert {one.status for one in done.values()} == {75}
    assert "node 3 (node3): its name resolves, its host answers" in done[0].err
    assert f"control channel: {PREFIX}10 port 6106" in done[0].err
