"""The launchers of several nodes: who is missing, who does not fit, who failed first, who is gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cluster.together import Job, assert_one_truth, own_environ
from tests.process.looking import is_true_by, wait_for
from tests.process.starting import ROOT

pytestmark = [pytest.mark.root, pytest.mark.xdist_group("peers")]

TRAIN = os.path.join(ROOT, "examples", "train_ddp.py")
SHOW = 'echo "$RANK $MASTER_PORT $JAX_COORDINATOR_ADDRESS ${LAUNCHER_TOKEN-none} ${LAUNCHER_TOKEN_FILE-none}"'
TOKEN = "0123456789abcdef-a-token"
SHORT = ("--roll-call-timeout", "6")


# --- one verdict
def test_a_rank_that_is_killed_ends_the_job_on_all_nodes_at_once(job: Job) -> None:
    """Within a second all processes are told, and all launchers have one verdict, status and record."""
    job.start_waiting("--failure-file", str(job.folder / "failure-{}.json"), per_node=1)
    killed_at = job.kill_rank(2)
    done = job.wait()
    assert_one_truth(done, 137, "rank 2 of 4 failed first: it was killed by SIGKILL")
    assert "host node2, node 2" in done[0].err
    assert max(job.told_at(rank) for rank in (0, 1, 3)) - killed_at < 1.0


def test_the_last_lines_of_the_culprit_are_on_every_node(pair: Job) -> None:
    """The log that matters is on a node that nobody looks at."""
    files = [str(pair.folder / f"failure{node}.json") for node in (0, 1)]
    command = ("sh", "-c", 'echo "words of $RANK" >&2; [ $RANK = 3 ] && exit 9; exec sleep 60')
    for node in (0, 1):
        pair.start(node, "--failure-file", files[node], "--", *command, per_node=2)
    done = pair.wait()
    assert_one_truth(done, 9, "rank 3 of 4 failed first: it exited with code 9")
    assert "launcher:   | words of 3" in done[0].err
    assert "words of 3" in done[1].err.partition("launcher: rank 3")[0]  # its own node: right above
    records = [json.loads(Path(file).read_text()) for file in files]
    times = [record.pop("timings") for record in records]  # each node's own
    assert records[0] == records[1] and all(one["whole_s"] > 0 for one in times)
    assert (records[0]["rank"], records[0]["host"], records[0]["node_rank"]) == (3, "node1", 1)


def test_all_well_is_status_0_and_no_verdict(job: Job) -> None:
    """Whatever was measured and compared on the way."""
    job.start_all("--", "sh", "-c", SHOW)
    done = job.wait()
    assert [(one.status, one.first) for one in done.values()] == [(0, [])] * 4
    address = job.cluster.nodes[0].address
    assert [one.out for one in done.values()] == [
        f"{rank} 6105 {address}:6105 none none\n" for rank in range(4)
    ]
    assert "not authenticated" in done[0].err and "all 4 nodes are here" in done[0].err


def test_a_signal_to_one_launcher_means_the_job(pair: Job) -> None:
    """As with mpirun: a platform that stops one node has stopped the job."""
    pair.start_waiting()
    pair.signal(1, signal.SIGTERM)
    done = pair.wait()
    assert {one.status for one in done.values()} == {143}
    assert "node 1 (node1) received SIGTERM: passing it on to all nodes" in done[0].err
    by = "node 1 (node1) received SIGTERM before any process had failed"
    verdict = done[0].err
    assert by in verdict if "host node0" in verdict else "the launcher received SIGTERM" in verdict
    assert (pair.folder / "told-0").exists()


@pytest.mark.parametrize("how", ["saves", "fails"])
def test_all_nodes_map_the_status_of_a_stopped_or_hopeless_job(pair: Job, how: str) -> None:
    """Each launcher exits with --stopped-status or --fatal-status, whichever node was told or has failed."""
    flags = ("--stopped-status", "75", "--fatal-status", "65")
    waits = (
        f"import pathlib, signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        f"pathlib.Path({str(pair.folder)!r}, 'up-' + sys.argv[1]).touch()\n"
        "if sys.argv[2] == 'fails' and sys.argv[1] == '1': raise ValueError('no such column')\n"
        "time.sleep(600)"
    )
    (pair.folder / "waits.py").write_text(waits)
    pair.start_all(*flags, "--", "sh", "-c", f"exec {sys.executable} {pair.folder}/waits.py $RANK {how}")
    if how == "saves":
        wait_for(lambda: len(list(pair.folder.glob("up-*"))) == 2, "the ranks run")
        pair.signal(1, signal.SIGTERM)
    done = pair.wait()
    assert {one.status for one in done.values()} == {75 if how == "saves" else 65}, done[0].err


COUNTER = """
import os, signal, sys, time
folder, rank = sys.argv[1], os.environ["RANK"]
heard = []
def hear(*_):
    heard.append("TERM")
    with open(f"{folder}/heard-{rank}", "a") as file:
        file.write("TERM ")
signal.signal(signal.SIGTERM, hear)
open(f"{folder}/pid-{rank}", "w").close()
while not os.path.exists(f"{folder}/go"):
    time.sleep(0.02)
"""


def start_counting(pair: Job, environ: Mapping[str, str] | None = None) -> None:
    """Start processes that count what they hear, and wait until they listen."""
    (pair.folder / "count.py").write_text(COUNTER)
    command = (sys.executable, str(pair.folder / "count.py"), str(pair.folder))
    pair.start_all("--", *command, environ=environ)
    wait_for(lambda: len(list(pair.folder.glob("pid-*"))) == 2, "the processes", 60)


def heard(pair: Job, rank: int) -> int:
    """Return how often a process was told to end."""
    path = pair.folder / f"heard-{rank}"
    return len(path.read_text().split()) if path.exists() else 0


@pytest.mark.thorough
@pytest.mark.parametrize("first", [0, 1])
def test_who_tells_all_nodes_to_end_is_heard_once(pair: Job, first: int) -> None:
    """As `scancel` and Kubernetes do: a second signal is for who sends a second one."""
    start_counting(pair)
    other = 1 - first
    pair.signal(first, signal.SIGTERM)
    wait_for(lambda: heard(pair, 0) and heard(pair, 1), "the first signal", 30)
    pair.signal(other, signal.SIGTERM)
    wait_for(lambda: pair.says(other, "already forwarded to the processes"), "it was heard", 30)
    assert (heard(pair, 0), heard(pair, 1)) == (1, 1)
    pair.signal(other, signal.SIGTERM)
    wait_for(lambda: heard(pair, other) == 2, "the second signal", 30)
    (pair.folder / "go").touch()
    pair.wait()
    assert heard(pair, first) == 1


@pytest.mark.thorough
@pytest.mark.torch
def test_ranks_of_torchruns_agents_are_told_once(pair: Job) -> None:
    """Its agent passes a signal on and waits for its ranks: a second one would end the agent itself."""
    start_counting(pair, environ=own_environ(LAUNCHER_ENGINE="torchrun"))
    pair.signal(0, signal.SIGTERM)
    wait_for(lambda: heard(pair, 0) and heard(pair, 1), "the first signal", 60)
    pair.signal(1, signal.SIGTERM)
    wait_for(lambda: pair.says(1, "already forwarded to the processes"), "it was heard", 60)
    (pair.folder / "go").touch()
    pair.wait()
    assert (heard(pair, 0), heard(pair, 1)) == (1, 1)


@pytest.mark.thorough
def test_a_node_that_returns_to_a_job_that_keeps_going_takes_part(pair: Job) -> None:
    """As one whose ranks torchrun restarts: it is let in, and its loss is no failure of the job any more."""
    script = f"touch {pair.folder}/up-$RANK; while [ ! -e {pair.folder}/go ]; do sleep 0.05; done"
    words = ("--keep-going", "--", "sh", "-c", script)
    pair.start_all(*words)
    wait_for(lambda: (pair.folder / "up-0").exists() and (pair.folder / "up-1").exists(), "both run")
    pair.signal(1, signal.SIGKILL)
    pair.launchers.pop(1).communicate()
    (pair.folder / "up-1").unlink()
    pair.start(1, *words, key=9)
    wait_for((pair.folder / "up-1").exists, "it runs again")
    (pair.folder / "go").touch()
    done = pair.wait()
    assert {one.status for one in done.values()} == {0}, done[0].err
    assert "node 1 (node1) is back" in done[0].err


def test_keep_going_stops_nobody(pair: Job) -> None:
    """The failure is told, the others end by themselves, the verdict is the same."""
    go = pair.folder / "go"
    command = f"[ $RANK = 1 ] && exit 7; while [ ! -e {go} ]; do sleep 0.05; done"
    pair.start_all("--keep-going", "--", "sh", "-c", command)
    wait_for(lambda: pair.says(0, "exited with code 7 on node 1"), "node 0 is told")
    assert pair.launchers[0].poll() is None
    go.touch()
    assert_one_truth(pair.wait(), 7, "rank 1 of 2 failed first")


def test_keep_going_lets_a_node_end_that_was_told_to_stop(pair: Job) -> None:
    """Its platform kills it soon; the others go on, and may run for hours."""
    pair.start_waiting("--keep-going")
    pair.signal(1, signal.SIGTERM)
    assert pair.wait(1)[1].status == 143
    assert pair.launchers[0].poll() is None
    pair.signal(0, signal.SIGTERM)
    assert pair.wait(0)[0].status == 143


def test_a_node_that_cannot_start_its_command_ends_the_job(pair: Job) -> None:
    """Its own error is on its own screen, and named on the others'."""
    folder = pair.folder / "bin"
    folder.mkdir()
    (folder / "only-here").symlink_to("/bin/sleep")
    pair.start(0, "--", "only-here", "60", environ={"PATH": f"{folder}:{os.environ['PATH']}"})
    pair.start(1, "--", "only-here", "60")
    done = pair.wait()
    assert {one.status for one in done.values()} == {127}
    assert "[command-not-found]" in done[1].err
    assert "node 1 failed first: it could not start its processes" in done[0].first[0]
    assert "cause: [node-refused] [command-not-found] 'only-here'" in done[0].err


# --- who is gone


def test_a_node_that_is_killed_is_lost_and_named(job: Job) -> None:
    """Found within --lost-after; the others end with 75."""
    job.start_waiting("--lost-after", "5")
    job.cluster.crash(job.cluster.nodes[3])
    done = job.wait(0, 1, 2)
    assert_one_truth(done, 75, "node 3 failed first: it is lost")
    assert all("[node-lost]" in one.err and "retry: can help" in one.err for one in done.values())
    job.launchers.pop(3).communicate()


def test_a_node_that_is_cut_off_is_found_and_finds_itself_alone(job: Job) -> None:
    """Packets vanish and nobody is told: silence is all there is."""
    job.start_waiting("--lost-after", "5")
    before = time.time()
    job.cluster.disconnect(job.cluster.nodes[1])
    done = job.wait(0, 2, 3)
    assert_one_truth(done, 75, "node 1 failed first: it is lost")
    assert job.told_at(0) - before < 5.0 + 5.0 + 1.0
    alone = job.wait(1)[1]
    assert alone.status == 75
    assert "node 0 failed first: it is lost" in alone.first[0]


def test_a_lost_node_0_is_noticed_by_all(job: Job) -> None:
    """Each other node by itself."""
    job.start_waiting("--lost-after", "5")
    job.cluster.crash(job.cluster.nodes[0])
    done = job.wait(1, 2, 3)
    assert_one_truth(done, 75, "node 0 failed first: it is lost")
    job.launchers.pop(0).communicate()


def test_a_link_that_is_down_for_less_than_lost_after_ends_nothing(job: Job) -> None:
    """That of a node, that of node 0; the old connection would wait for seconds longer than the link."""
    job.start_waiting("--lost-after", "5")

    def has_end() -> bool:
        return any(one.poll() is not None for one in job.launchers.values())

    for link in (2, 0):
        job.cluster.disconnect(job.cluster.nodes[link])
        assert not is_true_by(has_end, 4.75), job.describe()
        job.cluster.reconnect(job.cluster.nodes[link])
        assert not is_true_by(has_end, 6.0), job.describe()
    job.kill_rank(2)
    assert_one_truth(job.wait(), 137, "rank 2 of 4 failed first")


# --- the roll call


@pytest.mark.thorough
def test_a_node_that_comes_late_is_waited_for(pair: Job) -> None:
    """Said every 15 seconds, with what node 0 knows of it; as late as that it comes, not a minute."""
    hosts = ",".join(node.address for node in pair.cluster.nodes)
    pair.start(0, "--hosts", hosts, "--", "true")
    wait_for(
        lambda: pair.says(0, "waiting for 1 of 2 nodes: node 1 (10.77.0.11): its name resolves, "), "a word"
    )
    assert pair.says(0, "its container may still be starting")
    pair.start(1, "--hosts", hosts, "--", "true")
    assert [one.status for one in pair.wait().values()] == [0, 0]


def test_a_node_that_never_comes_is_named_on_all(job: Job) -> None:
    """Status 75 everywhere, and nothing was started."""
    for index in (0, 1, 3):
        job.start(index, *SHORT, "--", "touch", str(job.folder / "started"))
    done = job.wait()
    assert {one.status for one in done.values()} == {75}
    assert all(
        "[nodes-missing] 1 of 4 nodes did not join within 6 s: node 2" in one.err for one in done.values()
    )
    assert not (job.folder / "started").exists()


@pytest.mark.thorough
def test_node_0_says_why_before_it_waits_for_late_comers(job: Job) -> None:
    """At once, and whole if it is told to end meanwhile, as platforms do when the first node has ended."""
    for index in (0, 1):
        job.start(index, *SHORT, "--", "true")
    job.wait(1)
    wait_for(lambda: job.says(0, "the job does not start: [nodes-missing] 2 of 4 nodes"), "node 0 says why")
    assert not job.says(0, "  fix: ")
    job.signal(0, signal.SIGTERM)
    (done,) = job.wait(0).values()
    assert done.status == 75
    assert "launcher: error: [nodes-missing] 2 of 4 nodes did not join within 6 s: node 2; node 3" in done.err
    assert "has left again" not in done.err


def test_a_missing_node_0_is_named(pair: Job) -> None:
    """With the place where nothing listens."""
    pair.start(1, "--roll-call-timeout", "1", "--", "true")
    (done,) = pair.wait().values()
    assert done.status == 75
    assert "[nodes-missing] node 0 did not start the job within 1 s: 10.77.0.10 port 6106" in done.err


def test_two_nodes_with_one_rank_are_both_named(job: Job) -> None:
    """At once, without waiting for the node that is missing because of it."""
    for index, rank in enumerate((0, 1, 1, 3)):
        job.start(index, "--", "true", rank=rank)
    done = job.wait()
    assert {one.status for one in done.values()} == {78}
    assert "has left again" not in done[0].err
    for one in done.values():
        assert "[two-nodes-one-rank] two nodes claim to be node 1: " in one.err
        assert "node1 (10.77.0.11" in one.err and "node2 (10.77.0.12" in one.err


def test_nodes_that_do_not_fit_are_named_before_the_start(job: Job) -> None:
    """One table, the odd ones out marked, on every node."""
    for index in range(4):
        command = "true" if index != 2 else "false"
        job.start(index, "--", command, per_node=2 if index == 3 else 1)
    done = job.wait()
    assert {one.status for one in done.values()} == {78}
    for one in done.values():
        assert "problem: the nodes differ in processes per node" in one.err
        assert "> 2  node 3 (node3)" in one.err
        assert "[nodes-differ]" in one.err and "> false" in one.err


def test_nodes_with_other_numbers_below_the_users_own_launcher_are_named(pair: Job) -> None:
    """Three and one: ranks 0-2 of 6 beside rank 1 of 2, which all end with 0."""
    for index, each in enumerate((3, 1)):
        pair.start(index, "--", "deepspeed", "train.py", per_node=each)
    for one in pair.wait().values():
        assert one.status == 78 and "problem: the nodes differ in processes per node" in one.err
        assert "fix:  pass --nproc-per-node 1 on all nodes" in one.err


def test_a_wrong_number_of_nodes_is_said_at_once(pair: Job) -> None:
    """Not after fifteen minutes."""
    pair.start(0, "--", "true", count=3)
    pair.start(1, "--", "true", count=2)
    done = pair.wait()
    assert {one.status for one in done.values()} == {78}
    assert all("differ in: number of nodes" in one.err for one in done.values())


def test_a_port_that_is_taken_on_node_0_is_replaced_on_all(pair: Job) -> None:
    """In every variable that names it, and said."""
    listen = (
        "import socket, time; s = socket.create_server(('', 6105)); print(1, flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        pair.cluster.argv(pair.cluster.nodes[0], (sys.executable, "-c", listen)), stdout=subprocess.PIPE
    ) as squatter:
        assert squatter.stdout is not None
        squatter.stdout.readline()
        pair.start_all("--", "sh", "-c", SHOW)
        done = pair.wait()
        pair.cluster.kill(squatter.pid, signal.SIGKILL)
    assert [one.status for one in done.values()] == [0, 0], done
    assert "MASTER_PORT 6105 is taken on this node: all nodes use 6106" not in done[0].err
    assert "MASTER_PORT 6105 is taken on this node: all nodes use 6107 instead" in done[0].err
    assert [one.out for one in done.values()] == [
        f"{rank} 6107 10.77.0.10:6107 none none\n" for rank in (0, 1)
    ]


# --- who is not of the job


def test_a_token_lets_in_who_has_it_and_is_handed_to_nobody(pair: Job) -> None:
    """From a variable on one node and from a file on the other."""
    file = pair.folder / "token"
    file.write_text(TOKEN + "\n")
    pair.start(0, "--", "sh", "-c", SHOW, environ={"LAUNCHER_TOKEN": TOKEN})
    pair.start(1, "--token-file", str(file), "--", "sh", "-c", SHOW)
    done = pair.wait()
    assert [one.status for one in done.values()] == [0, 0], done
    assert all(one.out.endswith("none none\n") and TOKEN not in one.err for one in done.values())
    assert "not authenticated" not in done[0].err


def test_a_wrong_token_stays_outside_and_is_named_on_both_sides(job: Job) -> None:
    """The job waits for the node that has the right one."""
    for index in (0, 1, 3):
        job.start(index, "--", "true", environ={"LAUNCHER_TOKEN": TOKEN})
    job.start(2, *SHORT, "--", "true", environ={"LAUNCHER_TOKEN": TOKEN + "x"})
    wrong = job.wait(2)[2]
    assert wrong.status == 75
    assert "a launcher with another token, or of another job" in wrong.err
    assert job.says(0, "turned away 10.77.0.12: has another token, or is of another job")
    job.start(2, "--", "true", environ={"LAUNCHER_TOKEN": TOKEN})
    assert {one.status for one in job.wait().values()} == {0}


def test_a_second_job_on_the_same_hosts_is_a_job_of_its_own(pair: Job) -> None:
    """It finds the next port by itself, and its end is not that of the first."""
    pair.start_waiting()
    for index in (0, 1):
        pair.start(index, "--master-port", "7105", "--", "sh", "-c", "exit 5", key=10 + index)
    done = pair.wait(10, 11)
    assert_one_truth(done, 5, "of 2 failed first: it exited with code 5")
    assert "10.77.0.10 port 6107" in done[10].err
    assert all(pair.launchers[name].poll() is None for name in (0, 1))
    pair.kill_rank(1)
    assert_one_truth(pair.wait(0, 1), 137, "rank 1 of 2 failed first")


# --- real training


@pytest.mark.torch
@pytest.mark.thorough  # tests/cluster/test_recovery_training.py trains on nodes, and loses ranks
@pytest.mark.parametrize("engine", ["process", "torchrun"])
def test_real_training_ends_well_and_ends_together(pair: Job, engine: str) -> None:
    """The same training twice: to its end, and with a rank killed on the way."""
    environ = own_environ(LAUNCHER_ENGINE=engine)
    pair.start_all("--", TRAIN, "--epochs", "1", environ=environ)
    done = pair.wait()
    assert [one.status for one in done.values()] == [0, 0], [one.err for one in done.values()]
    assert "2 process" in done[0].out
