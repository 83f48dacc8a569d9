"""Restarts of a whole job on several nodes: all nodes start the next attempt together, or the job ends."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from errno import EMFILE
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.agent.readiness import Readiness
from launcher.cluster.agreed import read_seats
from launcher.cluster.join import LauncherKilled, name_session
from launcher.cluster.messages import Beat, MachineNotice, Start
from launcher.cluster.settings import Shape
from launcher.core.supervision import Restarts
from launcher.core.wire import Garbled, pack, parse
from launcher.failure.arbiter import GAVE_UP, PREEMPTED, RANK
from launcher.failure.model import ProcessExit
from launcher.failure.verdict import make_verdict
from launcher.job import controller
from launcher.job.commands import News
from launcher.job.events import Left, Ready, Received
from launcher.process.loop import Loop
from launcher.process.signal_file import name_signal
from launcher.process.watchdog import NAME as WATCHDOG
from launcher.recovery.history import History
from launcher.rehearse.cluster import Cluster
from tests.cluster.conftest import need_namespaces
from tests.cluster.faults import COUNT, SPARE, World, find_left, find_overlap
from tests.cluster.together import Job, assert_one_truth
from tests.process.gpus import HOLDS, StandIn
from tests.process.hubs import Caller, LiveHub, exited, failed, live_hub, make_join, ready
from tests.process.looking import is_true_by, wait_for

pytestmark = [pytest.mark.root, pytest.mark.xdist_group("restarts")]

FAILS_ONCE = """
import os, signal, sys, time
attempt, rank, folder = int(os.environ.get("LAUNCHER_ATTEMPT", 0)), os.environ["RANK"], sys.argv[1]
assert os.environ["TORCHELASTIC_RESTART_COUNT"] == str(attempt)
open(f"{folder}/port-{rank}-{attempt}", "w").write(os.environ["MASTER_PORT"])
open(f"{folder}/up-{rank}-{attempt}", "w").write("up")
deadline = time.monotonic() + 60
while sum(name.endswith(f"-{attempt}") and name.startswith("up-") for name in os.listdir(folder)) < 4:
    assert time.monotonic() < deadline
    time.sleep(0.01)
if attempt < int(sys.argv[2]):
    if rank == "3":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
"""
REPLACED = "takes the place of node 2"
LIVES = """
import os, sys, time
attempt, rank, folder = os.environ.get("LAUNCHER_ATTEMPT", "0"), os.environ["RANK"], sys.argv[1]
open(f"{folder}/new-{rank}", "w").write(str(os.getpid()))
os.rename(f"{folder}/new-{rank}", f"{folder}/up-{rank}-{attempt}")
while not os.path.exists(f"{folder}/go"):
    time.sleep(0.02)
"""


def up(job: Job, attempt: int) -> int:
    """Return how many ranks of an attempt have begun."""
    return sum(path.stat().st_size > 0 for path in job.folder.glob(f"up-*-{attempt}"))


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
        assert "is not retryable" in one.err and "--restart-on any" in one.err


@pytest.mark.thorough
def test_all_nodes_wait_until_the_gpus_of_each_are_free(pair: Job) -> None:
    """NVML is a stand-in: on node 1 the memory is in use for a second after the end."""
    gpus = [StandIn(pair.folder, node.name) for node in pair.cluster.nodes]
    script = HOLDS.replace("sys.argv[1]", "f'{sys.argv[1]}/{socket.gethostname()}.json'")
    held = ("1 listed", "10 listed")
    for node in pair.cluster.nodes:
        words = ("-c", f"import socket\n{script}", str(pair.folder), *held[node.index].split())
        pair.start(node.index, "--restarts", "1", "--", sys.executable, *words, environ=gpus[0].environ(30))
    done = pair.wait()
    assert {one.status for one in done.values()} == {0}, done[0].err
    assert {one.out for one in done.values()} == {"free\n"}


@pytest.mark.thorough
def test_a_node_0_that_is_cut_off_between_two_attempts_blames_itself(job: Job) -> None:
    """As inside an attempt: all others fall silent at once, and none of them is blamed for that."""
    flags = ("--restarts", "9", "--restart-delay", "60", "--lost-after", "5")
    job.start_all(*flags, "--", "sh", "-c", "exit 9")
    wait_for(lambda: job.says(0, "restart 2 of 9 in"), "the job waits before attempt 2", 60)
    job.cluster.disconnect(job.cluster.nodes[0])
    done = job.wait()
    assert {one.status for one in done.values()} == {75}, done[0].err
    assert done[0].first[-1] == "node 0 failed first: it was cut off from all other nodes"
    assert "no restart: node 0 was cut off from all other nodes" in done[0].err
    assert "is lost before attempt" not in done[0].err and "did not come back" not in done[0].err
    for name in (1, 2, 3):
        assert "node 0 failed first: it is lost" in done[name].first[-1]


def test_the_budget_ends(job: Job) -> None:
    job.start_all("--restarts", "1", "--", "sh", "-c", "exit $((RANK + 3))")
    done = job.wait()
    assert len({one.status for one in done.values()}) == 1 and done[0].status in range(3, 7)
    assert all("no restart: the only restart is used" in one.err for one in done.values())


def test_the_record_has_a_line_for_each_attempt(job: Job) -> None:
    record = job.folder / "attempts.jsonl"
    flags = ("--restarts", "5", "--attempts-file", str(record))
    job.start_all(*flags, "--", sys.executable, "-c", FAILS_ONCE, str(job.folder), "1")
    done = job.wait()
    assert {one.status for one in done.values()} == {0}, done[0].err
    (line,) = [json.loads(line) for line in record.read_text().splitlines()]
    assert (line["number"], line["status"], line["node"], line["restarts"]) == (0, 137, 3, True)


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
    wait_for(lambda: up(five, 1) == 4, "all ranks run again", 60)
    (five.folder / "go").touch()
    done = five.wait()
    assert {one.status for one in done.values()} == {0}, done[0].err
    assert f"node 2 (node{new}) is back" in done[0].err
    assert "node 2 failed first: it is lost" in done[0].err


TELLS = LIVES + "open(f'{folder}/config-{rank}-{attempt}', 'w').write(os.environ['TF_CONFIG'])\n"
"""Without a list of hosts only the launchers can know the addresses of all nodes."""


def require_workers(five: Job, attempt: int, indices: Sequence[int]) -> None:
    """Check that all four ranks of an attempt were told the addresses of these nodes, and their places."""
    workers = [f"{five.cluster.nodes[index].address}:2222" for index in indices]
    for rank in range(4):
        config = json.loads((five.folder / f"config-{rank}-{attempt}").read_text())
        assert config["cluster"]["worker"] == workers
        assert config["task"]["index"] == rank


@pytest.mark.thorough
@pytest.mark.parametrize("new", [2, 4], ids=["same-machine", "other-machine"])
def test_tensorflow_is_told_the_address_of_a_node_that_comes_back(five: Job, new: int) -> None:
    words = (*LOSSES, "--framework", "tensorflow", "--", sys.executable, "-c", TELLS, str(five.folder))
    for index in range(4):
        five.start(index, *words, count=4)
    wait_for(lambda: up(five, 0) == 4, "all ranks have begun")
    five.signal(2, signal.SIGKILL)
    five.launchers.pop(2).communicate()
    five.start(new, *words, rank=2, count=4, key=2)
    wait_for(lambda: up(five, 1) == 4, "all ranks run again")
    (five.folder / "go").touch()
    done = five.wait()
    assert {one.status for one in done.values()} == {0}, done[0].err
    require_workers(five, 1, (0, 1, new, 3))


def test_a_node_that_does_not_come_back_ends_the_job(job: Job) -> None:
    """After --rejoin-timeout all other nodes end with 75, and the node is named."""
    flags = ("--restarts", "5", "--lost-after", "5", "--grace", "1", "--rejoin-timeout", "2")
    start_living(job, *flags)
    job.cluster.crash(job.cluster.nodes[2])
    job.launchers.pop(2).communicate()
    done = job.wait()
    assert_one_truth(done, 75, "node 2 failed first: it is lost")
    assert all("no restart: node 2 did not come back within 2 s" in one.err for one in done.values())
    assert "launcher: bad nodes: node2 (1 x node-lost)\n" in done[0].err


def test_the_end_of_node_0_ends_the_job(job: Job) -> None:
    """Nothing decides any more: 75, so that the platform starts the job again."""
    start_living(job, "--restarts", "5", "--lost-after", "5", "--grace", "1")
    job.cluster.crash(job.cluster.nodes[0])
    job.launchers.pop(0).communicate()
    done = job.wait()
    assert_one_truth(done, 75, "node 0 failed first: it is lost")


@pytest.mark.thorough
def test_a_node_without_processes_that_loses_node_0_has_killed_none(job: Job) -> None:
    """It waits for the next attempt, and its lease ends while it tries to tell node 0 that it leaves."""
    start_living(job, "--restarts", "5", "--lost-after", "5", "--grace", "1")
    job.signal(3, signal.SIGKILL)
    wait_for(lambda: job.says(1, "restart 1 of 5"), "the nodes wait for node 3")
    job.signal(0, signal.SIGKILL)
    for one in job.wait(1, 2).values():
        assert one.status == 75 and "node 0 failed first" in one.err, one.err
        assert "were killed" not in one.err, one.err


def test_a_second_failure_is_restarted_too(job: Job) -> None:
    """A rank dies, and in the next attempt another at once."""
    start_living(job, "--restarts", "5", "--restart-delay", "0", "--grace", "1")
    kill(job, 1, 0)
    wait_for(lambda: up(job, 1) == 4, "all ranks run again", 60)
    kill(job, 2, 1)
    wait_for(lambda: up(job, 2) == 4, "all ranks run again", 60)
    (job.folder / "go").touch()
    done = job.wait()
    assert {one.status for one in done.values()} == {0}, done[0].err


@pytest.mark.parametrize("told", [0, 2])
def test_a_hangup_of_one_launcher_ends_the_job_on_all_nodes(job: Job, told: int) -> None:
    """Its rank dies of the signal that was passed on: no failure to restart, whichever signal."""
    start_living(job, "--restarts", "5", "--grace", "2")
    job.signal(told, signal.SIGHUP)
    done = job.wait()
    assert {one.status for one in done.values()} == {129}, {name: one.err for name, one in done.items()}
    assert all("restart 1 of" not in one.err and "[told-to-stop]" in one.err for one in done.values())


@pytest.mark.parametrize(("told", "number"), [(0, signal.SIGTERM), (2, signal.SIGHUP)])
def test_a_signal_while_nodes_wait_for_a_restart_ends_the_job(job: Job, told: int, number: int) -> None:
    """The third attempt would wait for a minute; any launcher that is told to end ends it for all."""
    flags = ("--restarts", "9", "--restart-delay", "60")
    job.start_all(*flags, "--", "sh", "-c", "exit 9")
    wait_for(lambda: job.says(0, "restart 2 of 9 in"), "the job waits before attempt 2")
    job.signal(told, number)
    done = job.wait()
    assert {one.status for one in done.values()} == {9}, {name: one.err for name, one in done.items()}
    received = f"received {name_signal(number)}"
    assert all("no restart: node" in one.err and received in one.err for one in done.values())


@pytest.mark.thorough
def test_a_signal_that_crosses_the_start_of_an_attempt_ends_the_job(pair: Job) -> None:
    """Node 1 stands still while node 0 starts attempt 2; when it goes on, it finds the start and SIGTERM."""
    script = f'test "$LAUNCHER_ATTEMPT" = 2 || exit 9; touch {pair.folder}/up-$RANK; exec sleep 600'
    pair.start_all("--restarts", "5", "--restart-delay", "4", "--grace", "2", "--", "sh", "-c", script)
    wait_for(lambda: pair.says(1, "restart 2 of 5 in"), "both wait for attempt 2")
    assert not is_true_by((pair.folder / "up-0").exists, 0.5), "node 1 has time to say that it is ready"
    pair.signal(1, signal.SIGSTOP)
    wait_for((pair.folder / "up-0").exists, "node 0 has started attempt 2")
    pair.signal(1, signal.SIGTERM)
    pair.signal(1, signal.SIGCONT)
    since = time.monotonic()
    done = pair.wait()
    assert time.monotonic() - since < 5, {name: one.err for name, one in done.items()}
    assert {one.status for one in done.values()} == {143}, {name: one.err for name, one in done.items()}
    assert "node 1 (node1) received SIGTERM" in done[0].err, done[0].err


def test_a_rank_that_ignores_sigterm_is_gone_before_the_next_attempt(job: Job, tmp_path: Path) -> None:
    """Attempt 1 starts after the grace period, when nothing of attempt 0 is left."""
    script = "import os, signal, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + LIVES.replace(
        "import os, sys, time\n", ""
    )
    job.start_all("--restarts", "5", "--grace", "1", "--", sys.executable, "-c", script, str(job.folder))
    wait_for(lambda: up(job, 0) == 4, "all ranks have begun")
    kill(job, 1, 0)
    wait_for(lambda: up(job, 1) == 4, "all ranks run again", 60)
    for rank in (0, 2, 3):
        pid = (job.folder / f"up-{rank}-0").read_text()
        shown = job.on(
            job.cluster.nodes[rank], ("sh", "-c", f"test -e /proc/{pid} && echo there || echo gone")
        )
        assert shown.strip() == "gone"
    (job.folder / "go").touch()
    assert {one.status for one in job.wait().values()} == {0}


@pytest.mark.thorough
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


# --- spare nodes

SPARED = (*LOSSES, "--spares", "1")


def start_with_spare(five: Job, *flags: str, script: str = LIVES) -> None:
    """Start four ranks on the first four nodes, and a spare launcher on the fifth."""
    living = ("--", sys.executable, "-c", script, str(five.folder))
    for index in range(5):
        five.start(index, *SPARED, *flags, *living, count=4)
    wait_for(lambda: up(five, 0) == 4, "all ranks have begun")
    wait_for(lambda: five.says(0, "as a spare node"), "the spare node is here")


@pytest.mark.parametrize("way", ["the machine", "the launcher"])
def test_a_spare_node_takes_the_place_of_a_lost_one(five: Job, way: str) -> None:
    """No launcher is started by hand: rank 2 runs on the fifth node in the next attempt.

    The watchdog of a killed launcher tells node 0 at once that nothing runs there any more.
    """
    start_with_spare(five)
    if way == "the machine":
        five.cluster.crash(five.cluster.nodes[2])
    else:
        five.signal(2, signal.SIGKILL)
    five.launchers.pop(2).communicate()
    wait_for(lambda: up(five, 1) == 4, "all ranks run again", 60)
    pid = (five.folder / "up-2-1").read_text()
    assert five.on(five.cluster.nodes[4], ("cat", f"/proc/{pid}/comm")).startswith("python")
    (five.folder / "go").touch()
    done = five.wait()
    assert {one.status for one in done.values()} == {0}, done[0].err
    assert "a spare node, is lost" not in done[0].err
    how = "its connection has ended" if way == "the machine" else "its launcher was killed; stopping"
    assert f"node 2 (node2) is lost: {how}" in done[0].err, done[0].err
    require_order(
        done[0].err, "node 2 failed first: it is lost", "spare node 4 (node4) takes the place of node 2"
    )


def require_order(log: str, cause: str, effect: str) -> None:
    """Check that a log has a cause, and its effect after it."""
    assert cause in log and effect in log, log
    assert log.index(cause) < log.index(effect), log


@pytest.mark.thorough
def test_tensorflow_is_told_the_address_of_a_spare_node(five: Job) -> None:
    start_with_spare(five, "--framework", "tensorflow", script=TELLS)
    five.cluster.crash(five.cluster.nodes[1])
    five.launchers.pop(1).communicate()
    wait_for(lambda: up(five, 1) == 4, "all ranks run again", 60)
    (five.folder / "go").touch()
    done = five.wait()
    assert {one.status for one in done.values()} == {0}, done[0].err
    require_workers(five, 1, (0, 4, 2, 3))


@pytest.mark.thorough
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
    wait_for(lambda: up(five, 1) == 4, "all ranks run again", 60)
    (five.folder / "go").touch()
    assert {one.status for one in five.wait().values()} == {0}


@pytest.mark.thorough
def test_a_spare_node_that_is_told_to_end_leaves_the_job_alone(five: Job) -> None:
    start_with_spare(five)
    five.signal(4, signal.SIGTERM)
    assert five.wait(4)[4].status == 143
    five.launchers.pop(4)
    wait_for(lambda: five.says(0, "a spare node, has left"), "node 0 has noticed")
    (five.folder / "go").touch()
    assert {one.status for one in five.wait().values()} == {0}


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_a_node_that_was_replaced_comes_back_as_a_spare_one(five: Job) -> None:
    """Node 2 is replaced by the fifth node, and later replaces node 3."""
    start_with_spare(five)
    five.signal(2, signal.SIGKILL)
    five.launchers.pop(2).communicate()
    wait_for(lambda: up(five, 1) == 4, "all ranks run again", 60)
    living = ("--", sys.executable, "-c", LIVES, str(five.folder))
    five.start(2, *SPARED, *living, count=4, key=12)
    wait_for(lambda: five.says(0, "node 2 (node2) is here as a spare node"), "it is back")
    five.cluster.crash(five.cluster.nodes[3])
    five.launchers.pop(3).communicate()
    wait_for(lambda: up(five, 2) == 4, "all ranks run again", 60)
    pid = (five.folder / "up-3-2").read_text()
    assert five.on(five.cluster.nodes[2], ("cat", f"/proc/{pid}/comm")).startswith("python")
    (five.folder / "go").touch()
    done = five.wait()
    assert {one.status for one in done.values()} == {0}, done[0].err


# --- health, and bad nodes

CHECK = "sh -c 'test ! -e {folder}/ill-$(hostname) || {{ echo GPU 3 has fallen off the bus; exit 1; }}'"


@pytest.mark.thorough
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
    assert (
        done[1].status == 75
        and (
            "launcher: this node leaves the job: it is unhealthy (GPU 3 has fallen off the bus); "
            "a spare node has taken its place; status 75\n"
        )
        in done[1].err
    )
    left = done[1].err
    five.launchers.pop(1)
    (five.folder / "go").touch()
    done = five.wait()
    assert {one.status for one in done.values()} == {0}, done[0].err
    what = "node 1 (node1) is unhealthy: GPU 3 has fallen off the bus"
    require_order(done[0].err, what, "spare node 4 (node4) takes the place of node 1")
    assert "launcher: bad nodes: node1 (1 x unhealthy)\n" in done[0].err and "no restart" not in left


def test_a_node_that_has_become_unhealthy_is_replaced_by_a_restart(five: Job) -> None:
    start_with_spare(five, "--health-command", CHECK.format(folder=five.folder))
    (five.folder / "ill-node3").touch()
    kill(five, 3, 0)
    wait_for(lambda: up(five, 1) == 4, "all ranks run again", 60)
    pid = (five.folder / "up-3-1").read_text()
    assert five.on(five.cluster.nodes[4], ("cat", f"/proc/{pid}/comm")).startswith("python")
    (five.folder / "go").touch()
    done = five.wait()
    assert [done[index].status for index in range(5)] == [0, 0, 0, 75, 0], done[0].err
    assert "bad nodes: node3" in done[0].err and "unhealthy" in done[0].err


@pytest.mark.thorough
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


# --- no two attempts at once


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Return a job with a spare node whose ranks write the time."""
    need_namespaces()
    with Cluster(7) as cluster:
        one = World(cluster, tmp_path, 0)
        one.has_spare = True
        yield one
        one.close()


def assert_restarted_apart(world: World) -> None:
    """The next attempt runs, no process of the one before ran beside it, and all ends well."""
    assert world.turn(60, lambda: world.up(1) == COUNT), world.explain("no restart")
    world.turn(60, world.is_whole)
    assert not find_overlap(world, {}), world.explain(find_overlap(world, {}))
    for name, launcher in world.job.launchers.items():
        if launcher.poll() is None:
            world.job.signal(name, signal.SIGCONT)
    for index in range(COUNT):
        world.cluster.reconnect(world.cluster.nodes[index])
        world.run_on(index, "iptables", "-F")
    done = world.finish()
    assert not find_overlap(world, done), world.explain(find_overlap(world, done))
    assert not find_left(world, done)
    assert [done[name].status for name in range(COUNT + 1)] == [0, 0, 75, 0, 0], world.explain("status")


@pytest.mark.thorough
def test_a_node_that_only_hears_has_ended_before_the_next_attempt(world: World) -> None:
    """Node 0 does not hear it, but is heard until it hangs up: only then does the silence begin."""
    world.start()
    rule = ("INPUT", "-s", world.cluster.nodes[2].address, "-j", "DROP")
    world.run_on(0, "iptables", "-A", *rule)
    assert_restarted_apart(world)


@pytest.mark.thorough
def test_a_node_that_is_deaf_has_its_grace_period_before_the_next_attempt(world: World) -> None:
    """It closes the connection when it gives node 0 up; a rank that ignores SIGTERM goes on for a while."""
    world.grace_s = 12
    (world.folder / "stubborn-2").touch()
    world.start()
    (world.folder / "stubborn-2").unlink()
    rule = ("INPUT", "-s", world.cluster.nodes[0].address, "-j", "DROP")
    world.run_on(2, "iptables", "-A", *rule)
    assert_restarted_apart(world)


@pytest.mark.thorough
def test_a_node_whose_calls_arrive_in_part_has_its_grace_period_before_the_next_attempt(world: World) -> None:
    """Node 0 answers a new call, so the old connection is closed; then no long packet arrives any more."""
    world.grace_s = 12
    (world.folder / "stubborn-2").touch()
    world.start()
    (world.folder / "stubborn-2").unlink()
    to_0 = ("OUTPUT", "-d", world.cluster.nodes[0].address)
    world.run_on(2, "iptables", "-A", *to_0, "-m", "length", "--length", "400:65535", "-j", "DROP")
    world.run_on(2, "iptables", "-A", *to_0, "-j", "DROP")
    world.turn(3.6)  # a node calls again after 3 s
    world.run_on(2, "iptables", "-D", *to_0, "-j", "DROP")
    assert_restarted_apart(world)


@pytest.mark.thorough
def test_a_launcher_that_stands_still_does_not_keep_its_ranks(world: World) -> None:
    """Its watchdog kills them when the lease ends, before a spare node takes the place."""
    world.start()
    world.job.signal(2, signal.SIGSTOP)
    assert_restarted_apart(world)
    assert "the launcher hung or was paused" in world.job.errors[2].read_text()


@pytest.mark.parametrize("until", ["it was replaced", "the next attempt runs"])
def test_a_frozen_node_kills_its_ranks_as_soon_as_it_goes_on(world: World, until: str) -> None:
    """Launcher, watchdog, and a rank that ignores SIGTERM: at once, without the grace."""
    world.grace_s = 12
    (world.folder / "stubborn-2").touch()
    world.start()
    world.run_on(2, "sh", "-c", "kill -STOP -1")
    is_replaced = until == "it was replaced"
    assert world.turn(60, lambda: world.job.says(0, REPLACED) if is_replaced else world.up(1)), world.explain(
        "no other attempt"
    )
    thawed = time.monotonic()
    world.run_on(2, "sh", "-c", "kill -CONT -1")
    world.job.signal(2, signal.SIGCONT)
    assert world.turn(60, lambda: world.up(1) == COUNT and world.is_whole()), world.explain("no restart")
    (old,) = (one for one in world.lives() if one.attempt == 0 and one.rank == 2)
    assert old.last < thawed + 5, world.explain(f"it ran for {old.last - thawed:.1f} s")
    assert not is_replaced or not find_overlap(world, {}), world.explain(find_overlap(world, {}))
    done = world.finish()
    assert [done[name].status for name in range(COUNT + 1)] == [0, 0, 75, 0, 0], world.explain("status")
    said = world.job.errors[2].read_text()
    assert "rank 2 of 4 failed first" not in said, said  # it has killed that itself


def test_a_new_launcher_ends_what_the_one_before_has_left(world: World) -> None:
    """Its watchdog was killed with it, and a shell has started the rank; no other job is touched."""
    world.has_spare, world.has_shell = False, True
    world.start()
    marks = ("00/0123456789abcdef-2/aa", f"{read_mark(world)}-1/aa", f"00/{read_mark(world)}0-2")
    for mark in marks:
        world.keep(2, "env", f"LAUNCHER_RUN_ID={mark}", "sleep", "601")
    world.run_on(2, "pkill", "-9", WATCHDOG)
    world.run_on(2, "pkill", "-9", "-f", "launcher run")
    world.launch(2, 2)
    assert world.turn(60, lambda: world.up(1) == COUNT and world.is_whole()), world.explain("no restart")
    assert not find_overlap(world, {}), world.explain(find_overlap(world, {}))
    assert len(world.job.on(world.cluster.nodes[2], ("pgrep", "-f", "^sleep 601")).split()) == len(marks)
    done = world.finish()
    assert [done[name].status for name in (0, 1, 3)] == [0, 0, 0], world.explain("status")


def read_mark(world: World) -> str:
    """Return the name of the run in the marks of the ranks."""
    pid = next(one.pid for one in world.lives() if one.rank == 2)
    lines = world.job.on(world.cluster.nodes[2], ("cat", f"/proc/{pid}/environ")).split("\0")
    mark = next(line.partition("=")[2] for line in lines if line.startswith("LAUNCHER_RUN_ID="))
    return mark.split("/")[0].removesuffix("-2")


@pytest.mark.thorough
def test_node_0_that_stands_still_does_not_keep_its_rank(job: Job) -> None:
    """The others have given it up and ended, and the platform may start another node 0.

    When it goes on, it waits for none of them.
    """
    start_living(job, "--restarts", "5", "--lost-after", "5", "--grace", "1")
    pid = (job.folder / "up-0-0").read_text()
    job.signal(0, signal.SIGSTOP)
    done = job.wait(1, 2, 3)
    assert_one_truth(done, 75, "node 0 failed first: it is lost")
    there = ("sh", "-c", f"test -e /proc/{pid} && cut -d' ' -f3 /proc/{pid}/stat || echo gone")
    wait_for(lambda: job.on(job.cluster.nodes[0], there).strip() in ("gone", "Z"), "its rank is gone")
    assert "the launcher hung or was paused" in job.errors[0].read_text()
    job.signal(0, signal.SIGCONT)
    end = job.wait(0)[0]
    assert end.status == 75 and "no restart: node 0 was cut off from all other nodes" in end.err, end.err
    assert "host ," not in end.err


@pytest.mark.thorough
def test_a_spare_node_does_not_outlive_node_0(world: World) -> None:
    """It waits for a place, and hears nothing any more."""
    world.start()
    world.cluster.crash(world.cluster.nodes[0])
    done = world.job.wait(*range(1, COUNT + 1))
    assert_one_truth(done, 75, "node 0 failed first: it is lost")


@pytest.mark.thorough
def test_a_spare_node_that_comes_late_waits_longer_than_the_roll_call(world: World) -> None:
    world.start()
    world.job.signal(SPARE, signal.SIGKILL)
    world.job.launchers[SPARE].wait()
    flags = (*world.flags(), "--roll-call-timeout", "1")
    world.job.start(SPARE, *flags, *world.command(), rank=SPARE, count=COUNT, key=9)
    assert not is_true_by(lambda: not world.is_there(9), 8), world.explain("it has left")
    assert {world.finish()[name].status for name in (0, 1, 2, 3, 9)} == {0}


def test_node_0_that_starts_again_ends_the_launchers_of_the_job_before(job: Job) -> None:
    """It knows nothing of the attempt that they run: they end with 75, and there is no job of two halves."""
    start_living(job, "--restarts", "5", "--lost-after", "5", "--grace", "1")
    job.signal(0, signal.SIGKILL)
    job.launchers.pop(0).communicate()
    flags = ("--restarts", "5", "--roll-call-timeout", "3", "--", "true")
    job.start(0, *flags, key=9)
    done = job.wait(1, 2, 3)
    assert {one.status for one in done.values()} == {75}, done[1].err
    assert all(
        "node 0 was started again" in one.err or "node 0 failed first" in one.err for one in done.values()
    )


# --- messages that come at the wrong moment

RULE = Restarts(most=9, delay_s=0.0)


def join(hub: LiveHub, rank: int, session: str = "", **more: object) -> Caller:
    """Join as a launcher, and return its connection."""
    caller, first = Caller(hub.port), make_join(rank, 3, **more)
    caller.say({**first, "session": session or first["session"]})
    return caller


def kinds_until(caller: Caller, kind: str) -> list[object]:
    """Return the kinds of the messages that come before one of this kind."""
    while not any(one["is"] == kind for one in caller.waiting):
        data = caller.socket.recv(1 << 16)
        assert data, f"hung up before {kind}"
        caller.waiting += caller.sealed.feed(data)
    kinds = [one["is"] for one in caller.waiting]
    return kinds[: kinds.index(kind)]


def leave_2(hub: LiveHub, **facts: Any) -> Caller:
    """Start a job of three nodes, of which node 2 gives node 0 up; return node 1, which is ready again."""
    node_1, node_2 = join(hub, 1, **facts), join(hub, 2, **facts)
    node_2.hear("start")
    for message in (failed(GAVE_UP, 0, 75), exited(75), Left(0)):
        node_2.say(pack(message))
    node_1.say(pack(exited(143)))
    hub.hear_own(exited(143))
    node_1.hear("again")
    hub.hear_own(ready(1))
    node_1.say(pack(ready(1)))
    return node_1


def test_only_the_watchdog_of_a_launcher_can_say_that_it_was_killed() -> None:
    """What another node can know of it, its session, ends nothing."""
    with live_hub(3, RULE) as hub:
        session = name_session("secret")
        node_1, node_2 = join(hub, 1), join(hub, 2, session)
        node_2.hear("start")
        for secret in (session, "other"):
            stranger = Caller(hub.port)
            stranger.say(pack(LauncherKilled(secret)))
            stranger.drain()
        node = hub.node(2)
        assert node is not None and not node.is_lost
        dog = Caller(hub.port)
        dog.say(pack(LauncherKilled("secret")))
        assert "is lost: its launcher was killed" in str(node_1.hear("stop")["why"])
        assert not hub.faults


@pytest.mark.thorough
def test_a_new_launcher_that_reconnects_is_not_told_of_the_attempt_before() -> None:
    """It would start the processes of that attempt, alone."""
    with live_hub(3, RULE) as hub:
        node_1 = leave_2(hub)
        hub.delay(2.0)
        new = join(hub, 2, "aa")
        assert kinds_until(new, "again") == ["welcome"]
        new.drain()
        wait_for(lambda: hub.is_away(2), "node 0 has noticed")
        again = join(hub, 2, "aa")
        assert kinds_until(again, "again") == ["welcome"]
        assert again.hear("start")["attempt"] == node_1.hear("start")["attempt"] == 1
        assert not hub.faults


@pytest.mark.thorough
@pytest.mark.parametrize("index", [2, 3], ids=["new-launcher", "spare-node"])
def test_a_launcher_that_is_lost_before_its_first_attempt_may_come_back(index: int) -> None:
    """It has nothing left of an attempt, so it is ready without a word."""
    with live_hub(3, RULE, spare_count=1) as hub:
        node_1 = leave_2(hub)
        hub.delay(2.0)
        join(hub, index, "aa").hear("welcome")
        wait_for(lambda: hub.node(2) or hub.node(3), "it has the place of node 2")
        hub.lose(index)
        wait_for(lambda: hub.node(index) is None, "it is lost")
        again = join(hub, index, "aa")
        assert again.hear("start")["attempt"] == node_1.hear("start")["attempt"] == 1
        assert not hub.faults


@pytest.mark.thorough
def test_what_a_spare_node_says_is_not_said_of_the_node_that_has_its_place() -> None:
    """Node 2 was replaced, and waits as a spare node: its preemption concerns no rank."""
    with live_hub(3, RULE, spare_count=1) as hub:
        node_1 = leave_2(hub)
        heard: list[str] = []
        hub.hub.subscribers[MachineNotice] = lambda rank, notice: heard.append(notice.what)
        taker = join(hub, 3, "aa")
        taker.hear("start")
        node_1.hear("start")
        back = join(hub, 2, "bb")
        back.hear("start")  # it has no part in it: the seats say so
        back.say(pack(Received(0, 15, "SIGTERM")))
        back.say(pack(MachineNotice("announced", "of the spare node", 1000)))
        back.say(pack(ready(0)))  # the last of its messages
        wait_for(lambda: (node := hub.node(2)) and node.health == "", "node 0 has heard it")
        taker.say(pack(MachineNotice("announced", "of node 2", 1000)))
        wait_for(lambda: heard, "node 0 has heard of node 2")
        assert heard == ["of node 2"]
        attempt = hub.hub.state.attempt
        assert attempt is not None and attempt.stop is None
        assert not hub.faults


@pytest.mark.thorough
def test_an_unhealthy_node_that_leaves_before_the_start_is_forgotten() -> None:
    rule = Restarts(most=9, health_argv=("check",))
    with live_hub(3, rule, spare_count=1) as hub:
        node_1 = join(hub, 1)
        node_1.hear("welcome")
        node_1.say(pack(ready(0, "no GPU")))
        wait_for(lambda: (node := hub.node(1)) and node.health, "node 0 has heard")
        node_1.drain()
        wait_for(lambda: hub.node(1) is None, "it has left")
        assert not is_true_by(lambda: hub.faults, 1.5), hub.faults


@pytest.mark.thorough
def test_a_launcher_that_does_not_fit_replaces_no_node_that_is_away() -> None:
    """The connection of node 2 has just ended, and a launcher of another job has its rank."""
    with live_hub(3, RULE) as hub:
        node_1, node_2 = join(hub, 1), join(hub, 2)
        node_1.hear("start")
        node_2.drain()
        wait_for(lambda: hub.is_away(2), "node 0 has noticed")
        join(hub, 2, "aa", node_count=9).hear("busy")
        assert not hub.is_lost(2)
        join(hub, 2, "bb").hear("busy")
        assert hub.is_lost(2)


@pytest.mark.thorough
def test_a_launcher_that_has_begun_is_no_part_of_a_new_job() -> None:
    """Node 0 was started again, and would count it as one that waits for the start."""
    with live_hub(3, RULE) as hub:
        for rank in (1, 2):
            over = join(hub, rank, begun=True).hear("over")
            assert over["status"] == 75 and "node 0 was started again" in str(over["why"])
        assert list(hub.hub.members.by_index) == [0] and hub.hub.state.attempt is None


@pytest.mark.thorough
def test_a_successor_is_the_reason_for_the_loss_and_is_not_turned_away() -> None:
    """It calls seconds after the connection of its predecessor has ended, not after --lost-after."""
    with live_hub(3, RULE) as hub:
        node_1, node_2 = join(hub, 1), join(hub, 2)
        node_1.hear("start")
        node_2.drain()
        wait_for(lambda: hub.is_away(2), "node 0 has noticed")
        join(hub, 2, "aa").hear("busy")
        node_1.say(pack(exited(143)))
        hub.hear_own(exited(143))
        what = str(node_1.hear("again"))
        assert "a new launcher has called as node 2" in what and "no contact" not in what
        join(hub, 2, "aa").hear("welcome")
    assert not [line for line in hub.said if "turned away" in line], hub.said


def test_what_a_launcher_has_left_is_waited_for_in_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that comes after it kills that, answers signals meanwhile, and is ready once it has ended."""
    left, asked, told = [[7], [7], list[int]()], list[bytes](), list[int]()

    def kill(mark: bytes) -> list[int]:
        asked.append(mark)
        return left.pop(0)

    monkeypatch.setattr("launcher.agent.readiness.kill_marked", kill)
    loop = Loop(lambda text, event: told.append(-1))
    group: Any = SimpleNamespace(describe_survivors=list)
    readiness = Readiness(loop, group, (), lambda then: then(), lambda ready: told.append(ready.attempt), 0)
    readiness.end_predecessor("run-1")
    readiness.check(1)
    assert len(left) == 1 and told == []
    loop.turn_until(lambda: bool(told), 9)
    readiness.check(2)  # our own processes have this mark by now
    assert (asked, told) == ([b"run-1"] * 3, [1, 2])


def is_over(hub: LiveHub) -> bool:
    """Whether node 0 has ended the job."""
    return hub.is_over


def test_each_node_that_is_lost_has_its_own_time_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Node 1 is lost while node 2 is waited for, which comes back in its time."""
    monkeypatch.setattr("launcher.job.between.KILLED_S", 0.0)
    monkeypatch.setattr("launcher.job.between.LEASE_SLACK_S", 0.0)
    with live_hub(3, Restarts(most=9, delay_s=0.0, rejoin_timeout_s=2.0)) as hub:  # and a second of grace
        node_1 = leave_2(hub)
        assert not is_true_by(lambda: is_over(hub), 2.0), hub.said
        node_1.drain()
        wait_for(lambda: hub.is_away(1), "node 0 has noticed")
        hub.lose(1)
        back = join(hub, 2, "aa")
        assert not is_true_by(lambda: is_over(hub), 2.0), hub.said
        join(hub, 1, "bb").hear("start")
        assert back.hear("start") and not hub.faults


@pytest.mark.thorough
def test_a_node_that_comes_back_has_time_to_get_ready() -> None:
    """Its health command may take longer than what is left for its return; it is not called lost then."""
    with live_hub(3, Restarts(most=9, delay_s=0.0, rejoin_timeout_s=2.0, health_argv=("true",))) as hub:
        nodes = start_three(hub)
        fail(hub, *nodes)
        nodes[0].hear("again")
        hub.hear_own(ready(1))
        nodes[0].say(pack(ready(1)))
        nodes[1].drain()
        wait_for(lambda: hub.is_away(2), "node 0 has noticed")
        hub.lose(2)
        assert not is_true_by(lambda: is_over(hub), 2.0), hub.said
        node_2 = join(hub, 2, "aa")
        assert not is_true_by(lambda: is_over(hub), 2.0), hub.said
        nodes[0].say(pack(Beat()))  # no attempt starts while a node is silent
        node_2.say(pack(ready(0)))
        node_2.hear("start")


@pytest.mark.thorough
def test_a_node_0_that_all_others_give_up_between_two_attempts_waits_for_none() -> None:
    """It was paused: it reads only later that they have given it up and have ended."""
    with live_hub(3, RULE) as hub:
        nodes = start_three(hub)
        fail(hub, *nodes)
        for node in nodes:
            node.hear("again")
        for node in nodes:
            assert not is_over(hub)
            node.say(pack(failed(GAVE_UP, 0, 75, attempt=1)))
        over = nodes[0].hear("over")
        assert over["status"] == 75 and "node 0 was cut off from all other nodes" in str(over["why"]), over
        assert not hub.faults


@pytest.mark.thorough
def test_a_node_that_is_lost_in_the_roll_call_had_joined() -> None:
    with live_hub(3, timeout_s=1.0) as hub:
        node_1 = join(hub, 1)
        node_1.hear("welcome")
        node_1.drain()
        wait_for(lambda: hub.is_over, "the job does not start")
        assert str(hub.told[-1]["what"]).startswith(
            "2 of 3 nodes did not join, or were lost, within 1 s: "
            "node 1: it had joined, and its connection has ended (closed by the other side); node 2"
        )


@pytest.mark.thorough
def test_a_node_that_calls_again_beside_its_connection_loses_no_message() -> None:
    """What has arrived on the old connection is read; what node 0 has sent since it heard comes again."""
    with live_hub(3) as hub:
        node_1, _ = start_three(hub)
        hub.do(lambda: hub.hub.broadcast(News("x is gone", 0)))
        node_1.say(pack(failed(RANK, time.monotonic_ns(), 9, what="x", rank=1, pid=5, code=9)))
        again = join(hub, 1)
        assert again.hear("welcome") and again.hear("stop")
        hub.do(lambda: hub.hub.broadcast(News("y is gone", 0)))
        assert again.hear("news")["why"] == "y is gone"
        third = join(hub, 1)
        assert third.hear("news")["why"] == "y is gone"
        third.say(pack(Beat()))
        wait_for(lambda: not hub.hub.members.by_index[1].unheard, "node 0 has heard it")
        with pytest.raises(ConnectionError):
            again.hear("news")


def test_nodes_that_wait_for_a_lost_one_say_until_when(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.cluster.coordinator.SAY_EVERY_S", 0.1)
    with live_hub(3, RULE) as hub:
        node_1 = leave_2(hub)
        said = r"attempt 1 waits for node 2, at most \d+ s more \(--rejoin-timeout\)"
        wait_for(lambda: any(re.search(said, line) for line in hub.said), "it is said")
        assert node_1


@pytest.mark.parametrize(
    "seats",
    [
        ["x"], "x", {"x": 1}, {"-1": 1}, {"9" * 5000: 1}, {"٢": 1}, {"5": 1}, {"4": 4}, {"4": -1},
        {"4": True}, {"4": "1"}, {"4": 1.0}, {"3": 1, "4": 1}, {"4": {}},
    ],
)  # fmt: skip
def test_seats_that_cannot_be_end_the_connection(seats: object) -> None:
    """They come from the network: they must not become a rank, nor a fault of the launcher."""
    shape = Shape(1, 4, 4, "10.77.0.10", (6106,), spare_count=1)
    with pytest.raises(Garbled):
        read_seats(parse(Start, {"seats": seats}), shape)


@pytest.mark.thorough
def test_a_spare_node_that_is_heard_shows_that_node_0_is_not_cut_off() -> None:
    """Both others fall silent: each is lost, and the job goes on."""
    with live_hub(3, RULE, spare_count=1, lost_after_s=3.0) as hub:
        spare, *_ = [join(hub, rank) for rank in (3, 1, 2)]
        spare.hear("start")

        def finds(condition: Callable[[], bool]) -> bool:
            spare.say(pack(Beat()))
            return condition()

        wait_for(lambda: finds(lambda: hub.is_lost(1) and hub.is_lost(2)), "both are lost")
        hub.hear_own(exited(143))
        has_place = lambda: any("takes the place" in line for line in hub.said)  # noqa: E731
        wait_for(lambda: finds(has_place), "the spare node has a place")
        assert not any("cut off" in line for line in hub.said)
        assert not hub.faults


def test_seats_that_can_be() -> None:
    shape = Shape(1, 4, 4, "10.77.0.10", (6106,), spare_count=1)
    assert read_seats(Start(seats={"4": 1}), shape) == {4: 1}
    assert read_seats(Start(), shape) == {}


def test_a_node_that_comes_back_with_another_command_is_named() -> None:
    """A path may be the node's own, so it may take part, as at the start; but not without a word."""
    with live_hub(3, RULE) as hub:
        node_1 = leave_2(hub, command="one")
        join(hub, 2, "aa", command="another").hear("start")
        node_1.hear("start")
        assert any("command" in line for line in hub.said) and not hub.faults, hub.said


@pytest.mark.thorough
def test_a_job_ends_if_node_0_finds_no_port_for_the_next_attempt() -> None:
    """Otherwise the other nodes would wait for the start for ever."""

    def refuse(attempt: int) -> dict[str, object]:
        raise OSError(EMFILE, os.strerror(EMFILE))

    with live_hub(3, RULE) as hub:
        node_1 = leave_2(hub)
        hub.agree = refuse
        join(hub, 2, "aa")
        over = node_1.hear("over")
        assert "no port for attempt 1: [Errno 24] Too many open files" in str(over["why"])
        assert over["status"] == 75 and not hub.faults


@pytest.mark.thorough
def test_a_node_that_has_killed_its_processes_itself_stops_the_others() -> None:
    """Its launcher stood still at the start, so that its lease was over; the others would wait for ever."""
    with live_hub(3, RULE) as hub:
        node_1, node_2 = join(hub, 1), join(hub, 2)
        node_1.hear("start")
        node_2.say(pack(failed(RANK, 0, 137, what="rank 2 was killed", asked=True, rank=2)))
        node_2.say(pack(exited(137)))
        assert "node 2 has ended with exit code 137" in str(node_1.hear("stop")["why"])
        assert not hub.faults


def fail(hub: LiveHub, *nodes: Caller, status: int = 9) -> None:
    """Let a rank of node 1 fail; the ranks of the other nodes end because of it."""
    what = "rank 1 (pid 5) exited with code 9"
    nodes[0].say(pack(failed(RANK, time.monotonic_ns(), status, what=what, rank=1, pid=5, code=status)))
    nodes[0].say(pack(exited(status)))
    for node in nodes[1:]:
        node.say(pack(exited(143)))
    hub.hear_own(exited(143))


def start_three(hub: LiveHub) -> tuple[Caller, Caller]:
    """Start a job of three nodes; return nodes 1 and 2."""
    node_1, node_2 = join(hub, 1), join(hub, 2)
    for node in (node_1, node_2):
        if hub.needs_health:
            node.say(pack(ready(0)))
    if hub.needs_health:
        hub.hear_own(ready(0))
    node_1.hear("start")
    node_2.hear("start")
    return node_1, node_2


TAKEN = "Azure reclaims this spot machine"


@pytest.mark.thorough
def test_a_preemption_after_another_failure_ends_the_job() -> None:
    """The rank of node 1 fails first; while all stop, the time of node 2 has come."""
    with live_hub(3, RULE) as hub:
        node_1, node_2 = start_three(hub)
        for pid in range(10):  # reports of ranks do not crowd it out
            node_2.say(pack(failed(RANK, time.monotonic_ns() + 10**9, 1, what="x", rank=2, pid=pid, code=1)))
        node_2.say(pack(failed(PREEMPTED, time.monotonic_ns() + 10**9, 75, what=TAKEN, left_ms=30_000)))
        node_2.hear("stop")
        fail(hub, node_1, node_2)
        over = node_1.hear("over")
        assert (over["status"], over["why"]) == (75, "no restart: a node is being reclaimed")
        assert not hub.faults


def test_a_preemption_between_two_attempts_ends_the_job() -> None:
    with live_hub(3, RULE) as hub:
        node_1 = leave_2(hub)
        node_1.say(pack(failed(PREEMPTED, time.monotonic_ns(), 75, what=TAKEN, left_ms=30_000, attempt=1)))
        over = node_1.hear("over")
        assert over["status"] == 75 and TAKEN in str(over["why"]), over
        assert not hub.faults


@pytest.mark.thorough
@pytest.mark.parametrize("whose", ["own", "other"])
def test_a_wall_clock_does_not_lengthen_an_attempt(whose: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is set forward during an attempt, or that of the node that fails is: the attempt was short."""
    with live_hub(3, RULE) as hub:
        node_1, node_2 = start_three(hub)
        clock, ahead_ns = time.time_ns, 7200 * 10**9
        if whose == "own":
            monkeypatch.setattr(time, "time_ns", lambda: clock() + ahead_ns)
            fail(hub, node_1, node_2)
        else:
            exit_ = ProcessExit(1, 0, 5, 9, clock() + ahead_ns)
            verdict = make_verdict(exit_, [], host_name="b", node_rank=1, world_size=3, attempt=0,
                                   started_ns=clock() + ahead_ns, told=None, causes=[])  # fmt: skip
            node_1.say(pack(failed(RANK, time.monotonic_ns(), 9, what="x", rank=1, pid=5, code=9)))
            node_1.say(pack(exited(9, verdict)))
            node_2.say(pack(exited(143)))
            hub.hear_own(exited(143))
        node_1.hear("again")
        assert hub.history.failed[0].lasted_s < 60


@pytest.mark.thorough
def test_a_launcher_that_takes_a_place_is_examined_itself() -> None:
    """That of node 2 is killed between two attempts; its health was its own."""
    with live_hub(3, Restarts(most=9, delay_s=0.0, health_argv=("check",))) as hub:
        node_1, node_2 = start_three(hub)
        fail(hub, node_1, node_2)
        node_1.hear("again")
        node_2.say(pack(ready(1)))
        node_2.drain()
        wait_for(lambda: hub.is_away(2), "node 0 has noticed")
        new = join(hub, 2, "aa")
        new.hear("again")
        hub.hear_own(ready(1))
        node_1.say(pack(ready(1)))
        starts = lambda: (one := hub.hub.state.attempt) and one.number == 1  # noqa: E731
        assert not is_true_by(starts, 1), "nothing has examined it"
        new.say(pack(ready(0)))
        new.hear("start")
        assert not hub.faults


@pytest.mark.parametrize("where", ["agree", "step"])
def test_a_fault_of_node_0_between_two_attempts_ends_the_job(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the other nodes would wait for the start for ever."""
    step, broken = controller.step, Event()

    def fail(*given: Any) -> Any:
        if where == "step" and not (broken.is_set() and isinstance(given[1], Ready)):
            return step(*given)
        raise ZeroDivisionError("a bug")

    if where == "step":
        monkeypatch.setattr(controller, "step", fail)
    with live_hub(3, RULE) as hub:
        nodes = start_three(hub)
        broken.set()
        if where == "agree":
            hub.agree = fail
        node_1, node_2 = nodes
        node_1.say(pack(failed(RANK, time.monotonic_ns(), 9, what="x", rank=1, pid=5, code=9)))
        node_1.say(pack(exited(9)))
        node_2.say(pack(exited(143)))
        hub.hear_own(exited(143))
        node_1.hear("again")
        for node in nodes:
            node.say(pack(ready(1)))
        hub.hear_own(ready(1))
        over = node_1.hear("over")
        assert "internal launcher error on node 0 between two attempts: ZeroDivisionError: a bug" in str(
            over["why"]
        )
        assert over["status"] == 9


def test_a_record_that_fails_keeps_no_node_from_hearing_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others would wait for it until they give node 0 up."""

    def fail(self: object, why: str) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(History, "give_up", fail)
    with live_hub(3, RULE) as hub:
        node_1 = leave_2(hub)
        node_1.say(pack(Received(0, 15, "SIGTERM")))
        assert "no restart: node 1" in str(node_1.hear("over")["why"])


HELD = "1 survive SIGKILL: python (pid 7, state D)"


def test_a_node_that_holds_processes_of_the_last_attempt_ends_the_job() -> None:
    with live_hub(3, RULE) as hub:
        node_1, node_2 = start_three(hub)
        fail(hub, node_1, node_2)
        node_1.hear("again")
        hub.hear_own(ready(1))
        node_1.say(pack(ready(1)))
        node_2.say(pack(ready(1, HELD, is_held=True)))
        over = node_1.hear("over")
        assert over["status"] == 9 and f"{HELD}; no spare node can take its place" in str(over["why"]), over
        assert [one.node for one in hub.history.noted] == [2] and not hub.faults
