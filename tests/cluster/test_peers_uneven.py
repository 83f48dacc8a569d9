"""Where only some nodes have the channel, or a way to it, or something of their own: no job fails unnamed."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cluster.together import Job

pytestmark = [pytest.mark.root, pytest.mark.xdist_group("peers")]

SHORT = ("--roll-call-timeout", "5")
LISTEN = """
import socket, sys, time
listener = socket.create_server(("", int(sys.argv[1])))
print(1, flush=True)
time.sleep(600)
"""


@contextmanager
def listening(job: Job, index: int, port: int) -> Iterator[None]:
    """Have another program listen on a node."""
    argv = job.cluster.argv(job.cluster.nodes[index], (sys.executable, "-c", LISTEN, str(port)))
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as squatter:
        assert squatter.stdout is not None
        squatter.stdout.readline()
        try:
            yield
        finally:
            job.cluster.kill(squatter.pid, 9)


# --- what may differ


def test_an_argument_of_each_nodes_own_is_a_warning(pair: Job) -> None:
    """Paths of scratch folders, names of nodes: such jobs have always worked."""
    for index in (0, 1):
        pair.start(index, "--", "sh", "-c", "exit 0", f"/scratch/{index}")
    done = pair.wait()
    assert [one.status for one in done.values()] == [0, 0], done
    assert "warning: the nodes differ in command" in done[0].err


def test_another_number_of_restarts_or_spare_nodes_ends_the_job_before_it_starts(pair: Job) -> None:
    """Node 1 would end when its restarts are used, and wait for a spare node that node 0 does not know."""
    pair.start(0, "--restarts", "5", "--", "true")
    pair.start(1, "--restarts", "3", "--spares", "1", "--", "true")
    done = pair.wait()
    assert [one.status for one in done.values()] == [78, 78], done
    for one in done.values():
        assert "the nodes differ in --restarts: " in one.err and "the nodes differ in --spares: " in one.err


# --- who has no channel


@pytest.mark.thorough
def test_a_node_without_the_channel_is_named(pair: Job) -> None:
    """The one that waits says what can be the matter, and what to do."""
    hosts = ",".join(node.address for node in pair.cluster.nodes)
    pair.start(0, "--hosts", hosts, *SHORT, "--", "true")
    pair.start(1, "--hosts", hosts, "--no-peers", "--", "true")
    done = pair.wait()
    assert (done[0].status, done[1].status) == (75, 0)
    assert "[nodes-missing] 1 of 2 nodes did not join within 5 s: node 1 (10.77.0.11): " in done[0].err
    assert "or it has --no-peers" in done[0].err and "--no-peers, on all nodes" in done[0].err


@pytest.mark.thorough
def test_a_node_0_without_the_channel_is_named(pair: Job) -> None:
    """Its processes wait already, where the others are to meet them."""
    pair.start(0, "--no-peers", "--", sys.executable, "-c", LISTEN, "6105")
    out = pair.launchers[0].stdout
    assert out is not None
    out.readline()
    pair.start(1, "--roll-call-timeout", "1", "--", "true")
    late = pair.wait(1)[1]
    assert late.status == 75
    assert "but a process listens at MASTER_PORT 6105: node 0 may have begun without the others" in late.err
    pair.signal(0, 15)


# --- who has no way to it


@pytest.mark.thorough
def test_a_firewall_before_the_control_port_is_named_and_another_port_is_a_way_out(pair: Job) -> None:
    """What node 0 says from that port goes nowhere; all other ports work."""
    rule = ("ip", "rule", "add", "ipproto", "tcp", "sport", "6106", "blackhole")
    pair.on(pair.cluster.nodes[0], rule)
    hosts = ",".join(node.address for node in pair.cluster.nodes)
    for index in (0, 1):
        pair.start(index, "--hosts", hosts, "--roll-call-timeout", "18", "--", "true")
    done = pair.wait()
    assert {one.status for one in done.values()} == {75}
    said = re.findall(r"(waiting for node 0|\[nodes-missing\]).* 10.77.0.10 port 6106: (.*)", done[1].err)
    drops = (
        r"no answer to calls for \d+ s, while its host answers at port 6105: a firewall or a security group"
    )
    assert [(first, re.match(drops, why) is not None) for first, why in said] == [
        ("waiting for node 0", True),
        ("[nodes-missing]", True),
    ], done[1].err
    assert "something blocks it from the control port of this node" in done[0].err
    assert "no other node has connected to the control port so far" in done[0].err
    assert all("--control-port N, where only some ports are open" in one.err for one in done.values())
    for index in (0, 1):
        pair.start(index, "--control-port", "7106", "--", "true")
    assert [one.status for one in pair.wait().values()] == [0, 0]


def test_a_port_that_a_task_needs_and_has_not_is_told_to_all(pair: Job) -> None:
    """The other nodes do not wait for the one that cannot start."""
    hosts = ",".join(node.address for node in pair.cluster.nodes)
    with listening(pair, 1, 2222):
        for index in (0, 1):
            pair.start(index, "--worker-count", "2", "--hosts", hosts, "--", "sleep", "60", per_node=None)
        done = pair.wait()
    assert {one.status for one in done.values()} == {75}
    assert "[port-taken] port 2222 of this node is needed for worker 1, but process " in done[1].err
    assert "cause: [node-refused] [port-taken] port 2222" in done[0].err


# --- real training
