"""Restarts of a whole job on several nodes: all nodes start the next attempt together, or the job ends."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.rehearse.cluster import Cluster
from tests.cluster.conftest import need_namespaces
from tests.cluster.together import WAITER, Job, assert_one_truth
from tests.process.looking import wait_for

pytestmark = [pytest.mark.root, pytest.mark.xdist_group("restarts")]

FAILS_ONCE = """
import os, signal, sys, time
attempt, rank, folder = int(os.environ.get("LAUNCHER_ATTEMPT", 0)), os.environ["RANK"], sys.argv[1]
assert os.environ["TORCHELASTIC_RESTART_COUNT"] == str(attempt)
open(f"{folder}/port-{rank}-{attempt}", "w").write(os.environ["MASTER_PORT"])
open(f"{folder}/up-{rank}-{attempt}", "w").close()
deadline = time.monotonic() + 60
while sum(name.endswith(f"-{attempt}") and name.startswith("up-") for name in os.listdir(folder)) < 4:
    assert time.monotonic() < deadline
    time.sleep(0.01)
if attempt < int(sys.argv[2]):
    if rank == "3":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
"""
LIVES = """
import os, sys, time
attempt, rank, folder = os.environ.get("LAUNCHER_ATTEMPT", "0"), os.environ["RANK"], sys.argv[1]
open(f"{folder}/up-{rank}-{attempt}", "w").write(str(os.getpid()))
while not os.path.exists(f"{folder}/go"):
    time.sleep(0.02)
"""


def up(job: Job, attempt: int) -> int:
    """Return how many ranks of an attempt have begun."""
    return len(list(job.folder.glob(f"up-*-{attempt}")))


def kill(job: Job, rank: int, attempt: int) -> None:
    """Kill a rank of an attempt of `LIVES`."""
    pid = (job.folder / f"up-{rank}-{attempt}").read_text()
    job.on(job.cluster.nodes[rank], ("kill", "-9", pid))


def start_living(job: Job, *flags: str) -> None:
    """Start ranks that wait for a file, and wait until all run."""
    job.start_all(*flags, "--", sys.executable, "-c", LIVES, str(job.folder))
    wait_for(lambda: up(job, 0) == 4, "all ranks have begun")


def test_all_nodes_start_again_and_know_the_attempt(job: Job) -> None:
    """A rank dies by SIGKILL twice: all restart twice, meet at a new port, and end with 0."""
    job.start_all("--restarts", "5", "--", sys.executable, "-c", FAILS_ONCE, str(job.folder), "2")
    done = job.wait()
    assert {one.status for one in done.values()} == {0}, done[0].err
    for attempt in (0, 1, 2):
        ports = {(job.folder / f"port-{rank}-{attempt}").read_text() for rank in range(4)}
        assert len(ports) == 1
    assert len({(job.folder / f"port-0-{attempt}").read_text() for attempt in (0, 1, 2)}) == 3
    for one in done.values():
        assert one.err.count("rank 3 of 4 failed first: it was killed by SIGKILL") == 2, one.err
        assert re.search(r"restart 1 of 5\n.*restart 2 of 5 in \d", one.err, re.DOTALL)
    assert "3 attempts, 2 failed" in done[0].err


def test_a_cause_that_a_restart_does_not_help_ends_the_job_on_all_nodes(job: Job) -> None:
    """A missing module: one attempt, the status of the rank, and the flag that restarts all the same."""
    job.start_all("--restarts", "5", "--", sys.executable, "-c", "import no_such_module")
    done = job.wait()
    assert {one.status for one in done.values()} == {1}
    for one in done.values():
        assert len(one.first) == 1 and "import-error" in one.err, one.err
        assert "no restart: a restart does not help" in one.err and "--restart-on any" in one.err


def test_the_budget_ends(job: Job) -> None:
    job.start_all("--restarts", "1", "--", "sh", "-c", "exit $((RANK + 3))")
    done = job.wait()
    assert len({one.status for one in done.values()}) == 1 and done[0].status in range(3, 7)
    assert all("no restart: all 1 restarts are used" in one.err for one in done.values())


def test_the_record_has_a_line_for_each_attempt(job: Job) -> None:
    record = job.folder / "attempts.jsonl"
    flags = ("--restarts", "5", "--attempts-file", str(record))
    job.start_all(*flags, "--", sys.executable, "-c", FAILS_ONCE, str(job.folder), "1")
    done = job.wait()
    assert {one.status for one in done.values()} == {0}, done[0].err
    (line,) = [json.loads(line) for line in record.read_text().splitlines()]
    assert (line["number"], line["status"], line["node"], line["restarts"]) == (0, 137, 3, True)


@pytest.fixture
def five(tmp_path: Path) -> Iterator[Job]:
    """Return a job on the first four of five nodes."""
    need_namespaces()
    with Cluster(5) as cluster:
        yield (one := Job(cluster, tmp_path))
        one.close()


LOSSES = ("--restarts", "5", "--lost-after", "5", "--grace", "1")


@pytest.mark.parametrize("new", [2, 4], ids=["same-machine", "other-machine"])
def test_a_node_that_comes_back_takes_part_in_the_next_attempt(five: Job, new: int) -> None:
    """Its container is gone with all that ran in it; a new launcher with its rank is let in."""
    living = ("--", sys.executable, "-c", LIVES, str(five.folder))
    for index in range(4):
        five.start(index, *LOSSES, *living, count=4)
    wait_for(lambda: up(five, 0) == 4, "all ranks have begun")
    if new == 4:
        five.cluster.crash(five.cluster.nodes[2])
    else:
        five.signal(2, signal.SIGKILL)
    five.launchers.pop(2).communicate()
    five.start(new, *LOSSES, *living, rank=2, count=4, key=2)
    wait_for(lambda: up(five, 1) == 4, "all ranks run again")
    (five.folder / "go").touch()
    done = five.wait()
    assert {one.status for one in done.values()} == {0}, done[0].err
    assert f"node 2 (node{new}) is back" in done[0].err
    assert "node 2 failed first: it is lost" in done[0].err


def test_a_node_that_does_not_come_back_ends_the_job(job: Job) -> None:
    """After --rejoin-timeout all other nodes end with 75, and the node is named."""
    flags = ("--restarts", "5", "--lost-after", "5", "--grace", "1", "--rejoin-timeout", "2")
    start_living(job, *flags)
    job.cluster.crash(job.cluster.nodes[2])
    job.launchers.pop(2).communicate()
    done = job.wait()
    assert_one_truth(done, 75, "node 2 failed first: it is lost")
    assert all("no restart: node 2 did not come back within 2 s" in one.err for one in done.values())


def test_the_end_of_node_0_ends_the_job(job: Job) -> None:
    """Nothing decides any more: 75, so that the platform starts the job again."""
    start_living(job, "--restarts", "5", "--lost-after", "5", "--grace", "1")
    job.cluster.crash(job.cluster.nodes[0])
    job.launchers.pop(0).communicate()
    done = job.wait()
    assert_one_truth(done, 75, "node 0 failed first: it is lost")


def test_a_second_failure_is_restarted_too(job: Job) -> None:
    """A rank dies, and in the next attempt another at once."""
    start_living(job, "--restarts", "5", "--restart-delay", "0", "--grace", "1")
    kill(job, 1, 0)
    wait_for(lambda: up(job, 1) == 4, "all ranks run again")
    kill(job, 2, 1)
    wait_for(lambda: up(job, 2) == 4, "all ranks run again")
    (job.folder / "go").touch()
    done = job.wait()
    assert {one.status for one in done.values()} == {0}, done[0].err


@pytest.mark.parametrize("told", [0, 2])
def test_sigterm_while_nodes_wait_for_a_restart_ends_the_job(job: Job, told: int) -> None:
    """The third attempt would wait for a minute; any launcher that is told to end ends it for all."""
    flags = ("--restarts", "9", "--restart-delay", "60")
    job.start_all(*flags, "--", "sh", "-c", "exit 9")
    wait_for(lambda: job.says(0, "restart 2 of 9 in"), "the job waits before attempt 2")
    job.signal(told, signal.SIGTERM)
    done = job.wait()
    assert {one.status for one in done.values()} == {9}, {name: one.err for name, one in done.items()}
    assert all("no restart: node" in one.err and "received SIGTERM" in one.err for one in done.values())


def test_a_rank_that_ignores_sigterm_is_gone_before_the_next_attempt(job: Job, tmp_path: Path) -> None:
    """Attempt 1 starts after the grace period, when nothing of attempt 0 is left."""
    script = "import os, signal, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + LIVES.replace(
        "import os, sys, time\n", ""
    )
    job.start_all("--restarts", "5", "--grace", "1", "--", sys.executable, "-c", script, str(job.folder))
    wait_for(lambda: up(job, 0) == 4, "all ranks have begun")
    kill(job, 1, 0)
    wait_for(lambda: up(job, 1) == 4, "all ranks run again")
    for rank in (0, 2, 3):
        pid = (job.folder / f"up-{rank}-0").read_text()
        shown = job.on(
            job.cluster.nodes[rank], ("sh", "-c", f"test -e /proc/{pid} && echo there || echo gone")
        )
        assert shown.strip() == "gone"
    (job.folder / "go").touch()
    assert {one.status for one in job.wait().values()} == {0}


def test_a_launcher_that_claims_a_node_that_runs_is_sent_away(job: Job) -> None:
    """A second launcher as node 2, while the first one runs: nothing happens to the job."""
    start_living(job, "--restarts", "5", "--roll-call-timeout", "3")
    job.start(3, "--roll-call-timeout", "3", "--", "true", rank=2, key=9)
    (second,) = job.wait(9).values()
    assert second.status == 75 and "runs already" in second.err, second.err
    (job.folder / "go").touch()
    job.launchers.pop(9)
    assert {one.status for one in job.wait().values()} == {0}
    assert up(job, 1) == 0


def test_without_restarts_nothing_waits(job: Job) -> None:
    job.start_waiting()
    job.kill_rank(1)
    done = job.wait()
    assert_one_truth(done, 137, "rank 1 of 4 failed first")
    assert WAITER and "restart" not in done[0].err


# --- spare nodes

SPARED = (*LOSSES, "--spares", "1")


def start_with_spare(five: Job, *flags: str) -> None:
    """Start four ranks on the first four nodes, and a spare launcher on the fifth."""
    living = ("--", sys.executable, "-c", LIVES, str(five.folder))
    for index in range(5):
        five.start(index, *SPARED, *flags, *living, count=4)
    wait_for(lambda: up(five, 0) == 4, "all ranks have begun")
    wait_for(lambda: five.says(0, "as a spare node"), "the spare node is here")


def test_a_spare_node_takes_the_place_of_a_lost_one(five: Job) -> None:
    """Nobody starts anything: rank 2 runs on the fifth node in the next attempt."""
    start_with_spare(five)
    five.cluster.crash(five.cluster.nodes[2])
    five.launchers.pop(2).communicate()
    wait_for(lambda: up(five, 1) == 4, "all ranks run again")
    pid = (five.folder / "up-2-1").read_text()
    assert five.on(five.cluster.nodes[4], ("cat", f"/proc/{pid}/comm")).startswith("python")
    (five.folder / "go").touch()
    done = five.wait()
    assert {one.status for one in done.values()} == {0}, done[0].err
    assert "node4 takes the place of node 2" in done[0].err


def test_a_spare_node_that_is_not_needed_ends_with_the_job(five: Job) -> None:
    start_with_spare(five)
    (five.folder / "go").touch()
    done = five.wait()
    assert {one.status for one in done.values()} == {0}, done[4].err
    assert up(five, 1) == 0 and not list(five.folder.glob("up-4-*"))


def test_a_spare_node_that_dies_while_it_waits_changes_nothing(five: Job) -> None:
    """The job goes on; a node that is lost later has to come back."""
    start_with_spare(five, "--rejoin-timeout", "1")
    five.cluster.crash(five.cluster.nodes[4])
    five.launchers.pop(4).communicate()
    wait_for(lambda: five.says(0, "a spare node, is lost"), "node 0 has noticed")
    assert up(five, 1) == 0
    kill(five, 1, 0)
    wait_for(lambda: up(five, 1) == 4, "all ranks run again")
    (five.folder / "go").touch()
    assert {one.status for one in five.wait().values()} == {0}


def test_a_spare_node_that_is_told_to_end_leaves_the_job_alone(five: Job) -> None:
    start_with_spare(five)
    five.signal(4, signal.SIGTERM)
    assert five.wait(4)[4].status == 143
    five.launchers.pop(4)
    wait_for(lambda: five.says(0, "a spare node, has left"), "node 0 has noticed")
    (five.folder / "go").touch()
    assert {one.status for one in five.wait().values()} == {0}


def test_a_node_that_was_replaced_ends_its_processes(five: Job) -> None:
    """Its network is cut for a while: the spare node has its rank, and it may not go on beside that."""
    start_with_spare(five)
    five.cluster.disconnect(five.cluster.nodes[2])
    wait_for(lambda: up(five, 1) == 4, "all ranks run again", 60)
    pid = (five.folder / "up-2-0").read_text()
    five.cluster.reconnect(five.cluster.nodes[2])
    there = f"test -e /proc/{pid} && echo there || echo gone"
    assert five.on(five.cluster.nodes[2], ("sh", "-c", there)).strip() == "gone"
    assert five.wait(2)[2].status == 75
    five.launchers.pop(2)
    (five.folder / "go").touch()
    assert {one.status for one in five.wait().values()} == {0}


def test_a_node_that_was_replaced_comes_back_as_a_spare_one(five: Job) -> None:
    """Node 2 is replaced by the fifth node, and later replaces node 3."""
    start_with_spare(five)
    five.signal(2, signal.SIGKILL)
    five.launchers.pop(2).communicate()
    wait_for(lambda: up(five, 1) == 4, "all ranks run again")
    living = ("--", sys.executable, "-c", LIVES, str(five.folder))
    five.start(2, *SPARED, *living, count=4, key=12)
    wait_for(lambda: five.says(0, "node 2 (node2) is here as a spare node"), "it is back")
    five.cluster.crash(five.cluster.nodes[3])
    five.launchers.pop(3).communicate()
    wait_for(lambda: up(five, 2) == 4, "all ranks run again")
    pid = (five.folder / "up-3-2").read_text()
    assert five.on(five.cluster.nodes[2], ("cat", f"/proc/{pid}/comm")).startswith("python")
    (five.folder / "go").touch()
    done = five.wait()
    assert {one.status for one in done.values()} == {0}, done[0].err


# --- health, and bad nodes

CHECK = "sh -c 'test ! -e {folder}/ill-$(hostname) || {{ echo GPU 3 has fallen off the bus; exit 1; }}'"


def test_an_unhealthy_node_is_replaced_before_the_first_attempt(five: Job) -> None:
    """It is named, and ends with 75; the fifth node has its rank from the beginning."""
    (five.folder / "ill-node1").touch()
    living = ("--", sys.executable, "-c", LIVES, str(five.folder))
    health = ("--health-command", CHECK.format(folder=five.folder))
    for index in range(5):
        five.start(index, *SPARED, *health, *living, count=4)
    wait_for(lambda: up(five, 0) == 4, "all ranks have begun")
    pid = (five.folder / "up-1-0").read_text()
    assert five.on(five.cluster.nodes[4], ("cat", f"/proc/{pid}/comm")).startswith("python")
    done = five.wait(1)
    assert done[1].status == 75 and "GPU 3 has fallen off the bus" in done[1].err
    five.launchers.pop(1)
    (five.folder / "go").touch()
    done = five.wait()
    assert {one.status for one in done.values()} == {0}, done[0].err
    assert "node 1 (node1) is unhealthy: GPU 3 has fallen off the bus" in done[0].err


def test_a_node_that_has_become_unhealthy_is_replaced_by_a_restart(five: Job) -> None:
    start_with_spare(five, "--health-command", CHECK.format(folder=five.folder))
    (five.folder / "ill-node3").touch()
    kill(five, 3, 0)
    wait_for(lambda: up(five, 1) == 4, "all ranks run again")
    pid = (five.folder / "up-3-1").read_text()
    assert five.on(five.cluster.nodes[4], ("cat", f"/proc/{pid}/comm")).startswith("python")
    (five.folder / "go").touch()
    done = five.wait()
    assert [done[index].status for index in range(5)] == [0, 0, 0, 75, 0], done[0].err
    assert "bad nodes: node3" in done[0].err and "unhealthy" in done[0].err


def test_without_a_spare_node_an_unhealthy_one_takes_part(job: Job) -> None:
    (job.folder / "ill-node2").touch()
    start_living(job, "--restarts", "2", "--health-command", CHECK.format(folder=job.folder))
    (job.folder / "go").touch()
    done = job.wait()
    assert {one.status for one in done.values()} == {0}
    assert "no spare node can take its place, so it takes part" in done[0].err


def test_bad_nodes_are_named_for_slurm(job: Job) -> None:
    """Two failures on one node: the last screen has the line for the next sbatch."""
    for index in range(4):
        environ = {"SLURMD_NODENAME": f"gpu-{index}"}
        job.start(index, "--restarts", "5", "--", sys.executable, "-c", FAILS_ONCE, str(job.folder), "2",
                  environ=environ)  # fmt: skip
    done = job.wait()
    assert {one.status for one in done.values()} == {0}, done[0].err
    assert "bad nodes: node3 (2 x" in done[0].err
    assert "sbatch --exclude=gpu-3" in done[0].err
