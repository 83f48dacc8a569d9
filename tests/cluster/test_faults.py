"""Faults of nodes and networks, and the words for them: no false success, the right rank, the right node."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence

import pytest

from tests.cluster.together import WAITER, Job, assert_one_truth, own_environ
from tests.process.looking import wait_for
from tests.process.test_torch_agent import SAVES as SAVES_IN_TORCH
from tests.process.test_torch_agent import WHOLE, ranks_with

pytestmark = [pytest.mark.root, pytest.mark.xdist_group("peers")]

SAVES = """
trap 'sleep 0.3; echo saved >> {folder}/saved-$RANK; exit 0' TERM
echo $$ > {folder}/pid-$RANK.new; mv {folder}/pid-$RANK.new {folder}/pid-$RANK
while :; do sleep 0.05; done
"""
DIES_SLOWLY = """
import os, sys, time
if os.environ["RANK"] == "1":
    try:
        raise ValueError("the true cause")
    finally:
        time.sleep(0.6)
time.sleep(0.1)
sys.exit("RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.77.0.11]:31372")
"""


def hear_no_more(job: Job, deaf: int, mute: int, *, again: bool = False) -> None:
    """Drop all packets from one node to another; those in the other direction arrive."""
    nodes = job.cluster.nodes
    rule = ("INPUT", "-s", nodes[mute].address, "-j", "DROP")
    job.on(nodes[deaf], ("iptables", "-D" if again else "-A", *rule))


@pytest.mark.thorough
def test_a_node_that_gave_node_0_up_makes_no_success_of_the_job(job: Job) -> None:
    """It hears nothing of node 0, its rank saves and ends with 0; then packets flow again."""
    job.start_all("--lost-after", "5", "--", "sh", "-c", SAVES.format(folder=job.folder))
    wait_for(lambda: len(list(job.folder.glob("pid-*[0-9]"))) == 4, "all processes have begun")
    hear_no_more(job, 2, 0)
    wait_for(lambda: (job.folder / "saved-2").exists(), "the deaf node has ended its rank")
    hear_no_more(job, 2, 0, again=True)
    done = job.wait()
    assert {one.status for one in done.values()} == {75}, {name: one.err for name, one in done.items()}
    for name in (
        0,
        1,
        3,
    ):  # node 2 says so, or node 0 has missed it first: its packets may have stopped sooner
        (first,) = done[name].first
        assert first in ("node 2 failed first: it was out of contact", "node 2 failed first: it is lost"), (
            first
        )
        assert "[node-lost] node 2 " in done[name].err


def test_a_rank_that_dies_slowly_is_the_one_to_blame(job: Job) -> None:
    """Those that it leaves die first, of its connections; its exception is said when it has ended."""
    job.start_all("--", sys.executable, "-c", DIES_SLOWLY)
    done = job.wait()
    assert_one_truth(done, 1, "rank 1 of 4 failed first")
    assert all("[python-exception] ValueError: the true cause" in one.err for one in done.values())


@pytest.mark.thorough
def test_a_launcher_that_is_killed_before_a_rank_fails_elsewhere_is_named(job: Job) -> None:
    """The moment at which its connection ended is known: a tenth of a second is no same time."""
    job.start_waiting("--lost-after", "5")
    job.cluster.crash(job.cluster.nodes[3])
    wait_for(lambda: len(_find_connected(job)) == 2, "node 0 has seen the end of the connection")
    time.sleep(0.1)
    job.kill_rank(1)
    done = job.wait(0, 1, 2)
    assert_one_truth(done, 75, "node 3 failed first: it is lost")
    assert all("also:  rank 1" in one.err for one in done.values()), done[0].err
    job.launchers.pop(3).communicate()


def test_a_failure_that_is_heard_late_is_named_beside_the_first(job: Job) -> None:
    """Rank 2 has ended when its node is told of rank 1: it has not ended because of that."""
    exits = "while ! test -e {0}/go-$RANK; do sleep 0.01; done; echo > {0}/gone-$RANK; exit $((RANK + 2))"
    job.start_all("--", "sh", "-c", f"echo > {job.folder}/up-$RANK; {exits.format(job.folder)}")
    wait_for(lambda: len(list(job.folder.glob("up-*"))) == 4, "all processes have begun")
    job.signal(2, signal.SIGSTOP)
    for rank in (2, 1):
        (job.folder / f"go-{rank}").touch()
        wait_for((job.folder / f"gone-{rank}").exists, f"rank {rank} ends")
    wait_for(lambda: "rank 1 (pid" in job.errors[0].read_text(), "node 0 has heard of rank 1")
    job.signal(2, signal.SIGCONT)
    done = job.wait()
    assert_one_truth(done, 3, "rank 1 of 4 failed first")
    assert all("  also:  rank 2 (pid " in one.err for one in done.values()), done[0].err


@pytest.mark.parametrize("told", [0, 1])
def test_a_signal_while_nodes_are_waited_for_ends_at_once(job: Job, told: int) -> None:
    """Podman kills after ten seconds; all that wait are told, and by whom."""
    for index in (0, 1, 2):
        job.start(index, "--", "true")
    wait_for(lambda: job.count_joined() == 3, "they wait for node 3", 60)
    began = time.monotonic()
    job.signal(told, signal.SIGTERM)
    job.launchers[told].wait(20)
    seconds = time.monotonic() - began
    done = job.wait(0, 1, 2)
    assert time.monotonic() - began < 5.0
    assert seconds < 1.0, seconds
    assert done[told].status == 143
    for name in {0, 1, 2} - {told}:
        assert done[name].status == 75
        assert f"node {told} (node{told}) received SIGTERM while the nodes were joining" in done[name].err


def test_a_signal_while_a_node_calls_node_0_ends_all_that_wait(job: Job) -> None:
    """Node 0 stands still, so that node 1 has called and was not let in; it tells that it leaves."""
    job.start(0, "--", "true")
    wait_for(lambda: job.listens(0, 6106), "node 0 listens")
    job.signal(0, signal.SIGSTOP)
    for index in (1, 2):
        job.start(index, "--", "true")
    both = {node.address for node in job.cluster.nodes[1:3]}
    wait_for(lambda: _find_connected(job) == both, "they have called")
    job.signal(1, signal.SIGTERM)
    job.signal(0, signal.SIGCONT)
    done = job.wait(0, 1, 2)
    assert [done[name].status for name in (0, 1, 2)] == [75, 143, 75]
    assert all("node 1 (node1) received SIGTERM" in done[name].err for name in (0, 2))


@pytest.mark.parametrize("told", [0, 1])
def test_a_signal_that_crosses_the_start_ends_the_job(job: Job, told: int) -> None:
    """Node 1 stands still at the start; when it goes on, it finds the start, and SIGTERM to it or node 0."""
    for index in (0, 1, 2):
        job.start(index, "--grace", "2", "--", "sh", "-c", WAITER.format(folder=job.folder))
    wait_for(lambda: job.count_joined() == 3, "three nodes are here", 60)
    job.signal(1, signal.SIGSTOP)
    job.start(3, "--grace", "2", "--", "sh", "-c", WAITER.format(folder=job.folder))
    wait_for(lambda: len(list(job.folder.glob("pid-*[0-9]"))) == 3, "the other nodes have begun", 60)
    job.signal(told, signal.SIGTERM)
    if not told:
        wait_for(lambda: job.says(3, "passing it on to all nodes"), "all were told")
    job.signal(1, signal.SIGCONT)
    done = job.wait()
    assert {one.status for one in done.values()} == {143}, {name: one.err for name, one in done.items()}
    assert all("is lost" not in one.err for one in done.values()), done[0].err


def _find_connected(job: Job) -> set[str]:
    """Return the addresses that are connected to node 0, which has closed what they have closed."""
    states = ("state", "established", "state", "close-wait")
    ports = job.on(job.cluster.nodes[0], ("ss", "-Htn", *states, "sport", "=", ":6106"))
    return {line.split()[-1].rpartition(":")[0] for line in ports.splitlines()}


def test_a_node_0_that_is_cut_off_blames_itself(job: Job) -> None:
    """All others fall silent at once: it is its own network."""
    job.start_waiting("--lost-after", "5")
    job.cluster.disconnect(job.cluster.nodes[0])
    done = job.wait()
    assert {one.status for one in done.values()} == {75}
    assert done[0].first == ["node 0 failed first: it was cut off from all other nodes"], done[0].err
    for name in (1, 2, 3):
        assert "node 0 failed first: it is lost" in done[name].first[0]


@pytest.mark.thorough
def test_a_node_0_that_stood_still_for_long_blames_itself(job: Job) -> None:
    """The others have given it up when it goes on."""
    job.start_waiting("--lost-after", "5")
    job.signal(0, signal.SIGSTOP)
    done = job.wait(1, 2, 3)
    job.signal(0, signal.SIGCONT)
    done = {**done, **job.wait(0)}
    assert {one.status for one in done.values()} == {75}
    assert done[0].first and done[0].first[0].startswith("node 0 failed first: "), done[0].err


@pytest.mark.parametrize("second", [0, 1])
def test_two_launchers_that_are_both_node_0_are_named_at_once(pair: Job, second: int) -> None:
    """Each would wait for node 1 and suspect a firewall; the second one on a machine has the next port."""
    pair.start(0, "--", "true", rank=0)
    pair.start(second, "--", "true", rank=0, key=9)
    done = pair.wait()
    assert {one.status for one in done.values()} == {78}
    for one in done.values():
        assert "[two-nodes-one-rank] two nodes claim to be node 0: " in one.err


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGSTOP, 0], ids=["stopped", "runs"])
def test_of_a_job_that_hangs_the_rank_that_the_others_wait_for_is_named(job: Job, number: int) -> None:
    """All are silent; one is stopped, or goes round in circles, on the node that is heard last."""
    loop = "while test -e {0}/hang; do :; done" if not number else "sleep 1000"
    script = (
        f"test $RANK = 3 && exec sh -c 'echo $$ > {{0}}/pid-3; {loop}'; echo > {{0}}/pid-$RANK; sleep 1000"
    )
    (job.folder / "hang").touch()
    flags = ("--stall-timeout", "2", "--on-stall", "stop")
    job.start_all(*flags, "--", "sh", "-c", script.format(job.folder))
    wait_for(lambda: len(list(job.folder.glob("pid-*"))) == 4, "all processes have begun")
    if number:
        job.kill_rank(3, number)
    done = job.wait()
    words = "is stopped (state T), and the others wait" if number else "runs (pid "
    for one in done.values():
        assert one.first == ["node 3 ended first: it was ended because it hung"], one.err
        assert f"stalled: no output for 2 s; rank 3 on node 3 (node3) {words}" in one.err
    assert {one.status for one in done.values()} == {75}


@pytest.mark.thorough
@pytest.mark.torch
@pytest.mark.parametrize(("how", "status"), [("saves", 0), ("ignores", 137), ("fails", 1)])
def test_workers_of_two_torchruns_that_are_told_on_one_node_all_save(
    pair: Job, how: str, status: int
) -> None:
    """SIGTERM to one launcher: all workers are told once; where all end well, so does the job."""
    (pair.folder / "saves.py").write_text(SAVES_IN_TORCH)
    command = (sys.executable, str(pair.folder / "saves.py"), str(pair.folder), how)
    environ = own_environ(LAUNCHER_ENGINE="torchrun", LAUNCHER_GRACE="6" if how == "ignores" else "30")
    pair.start_all("--", *command, environ=environ, per_node=2)
    wait_for(lambda: ranks_with(pair.folder, "ready") == [0, 1, 2, 3], "the workers listen", 90)
    pair.signal(1, signal.SIGTERM)
    done = pair.wait()
    assert {one.status for one in done.values()} == {status}, [one.err for one in done.values()]
    saved = [rank for rank in range(4) if how == "saves" or rank != 1]
    assert ranks_with(pair.folder, "checkpoint", WHOLE) == saved
    assert ranks_with(pair.folder, "heard", "TERM ") == (saved if how == "ignores" else [0, 1, 2, 3])
    assert how == "fails" or "Traceback" not in done[0].err


def silence_names(job: Job, index: int) -> None:
    """Give a node a name server that never answers."""
    node = job.cluster.nodes[index]
    (job.folder / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:4 attempts:1\n")
    job.on(node, ("mount", "--bind", str(job.folder / "resolv.conf"), "/etc/resolv.conf"))
    job.on(node, ("iptables", "-A", "INPUT", "-p", "udp", "--dport", "53", "-j", "DROP"))


def count_questions(job: Job, index: int) -> int:
    """Return how many packets a node has sent to that name server."""
    rules = job.on(job.cluster.nodes[index], ("iptables", "-nvxL", "INPUT"))
    return sum(int(line.split()[0]) for line in rules.splitlines() if "dpt:53" in line)


def has_agent(job: Job, index: int) -> bool:
    """Whether a launcher on this node has begun to take signals from its loop: it blocks SIGTERM."""
    files = "cat /proc/[0-9]*/status 2>/dev/null || true"
    lines = job.on(job.cluster.nodes[index], ("sh", "-c", files)).splitlines()
    masks = [int(line.split()[1], 16) for line in lines if line.startswith("SigBlk:")]
    return any(mask >> (signal.SIGTERM - 1) & 1 for mask in masks)


@pytest.mark.parametrize(
    ("index", "master", "flags"),
    [
        (1, "node-0.example", ()),
        (1, "node-0.example", ("--metrics-port", "9400")),
        (0, None, ("--hosts", "10.77.0.10,node-1.example")),
    ],
    ids=["client", "metrics", "missing"],
)
def test_a_name_server_that_is_silent_holds_no_signal_back(
    pair: Job, index: int, master: str | None, flags: Sequence[str]
) -> None:
    """The launcher waits for the other node, and asks for a name; it is told to end, and does so at once."""
    silence_names(pair, index)
    pair.start(index, *flags, "--", "true", master=master)
    wait_for(lambda: has_agent(pair, index), "it waits for the other node", 60)
    asked = count_questions(pair, index)
    wait_for(lambda: count_questions(pair, index) > asked, "it asks for a name", 60)
    began = time.monotonic()
    pair.signal(index, signal.SIGTERM)
    pair.launchers[index].wait(60)
    seconds = time.monotonic() - began
    assert pair.launchers[index].returncode == 143, pair.errors[index].read_text()
    assert seconds < 1.0, seconds
