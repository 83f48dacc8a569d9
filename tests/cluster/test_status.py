"""``launcher status``, ``stacks`` and ``exec`` on two nodes: asked on any of them, answered by all."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.rehearse.cluster import Cluster
from tests.cluster.conftest import need_namespaces
from tests.cluster.together import Job, own_environ
from tests.process.looking import wait_for
from tests.process.starting import clean_environ, open_launcher

pytestmark = [pytest.mark.root, pytest.mark.xdist_group("peers")]

SLEEPS = """
import os, sys, time
import launcher
launcher.arm()
def fetch():
    time.sleep(3600)
open(f"{sys.argv[1]}/up-{os.environ['RANK']}", "w").close()
fetch()
"""
COLLECTIVE = """
import os, sys, time
import launcher
launcher.arm()
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
def read_batch():
    time.sleep(3600)
def step():
    dist.all_reduce(torch.ones(1))
open(f"{sys.argv[1]}/up-{dist.get_rank()}", "w").close()
read_batch() if dist.get_rank() == 3 else step()
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """Return a job on two nodes; it is ended by a signal, as its users end it."""
    need_namespaces()
    with Cluster(2) as two:
        one = Job(two, tmp_path)
        try:
            yield one
        finally:
            for name, launcher in one.launchers.items():
                if launcher.poll() is None:
                    one.signal(name, signal.SIGTERM)
            one.wait()


def start(job: Job, script: str, *flags: str, count: int = 4, per_node: int = 2, **environ: str) -> None:
    """Start a script on both nodes, and wait until all ranks are where they stay."""
    path = job.folder / "train.py"
    path.write_text(script)
    command = (sys.executable, str(path), str(job.folder))
    job.start_all(*flags, "--", *command, environ={**own_environ(), **environ}, per_node=per_node)
    wait_for(lambda: len(list(job.folder.glob("up-*"))) == count, "all ranks are up", 60)
    for node in job.cluster.nodes:  # a launcher opens its door a moment after the start
        wait_for(lambda: ask(job, node.index, "status", "--json").returncode == 0, "it can be asked", 60)  # noqa: B023


def ask(job: Job, index: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the launcher on a node."""
    line = job.cluster.argv(job.cluster.nodes[index], (sys.executable, "-m", "launcher", *words))
    return subprocess.run(line, env=clean_environ(), capture_output=True, text=True, check=False, timeout=90)


def status(job: Job, index: int, expected: int = 0) -> dict[str, Any]:
    """Return the whole status as a node tells it; it ends with 75 where nodes are silent."""
    done = ask(job, index, "status", "--json")
    assert done.returncode == expected, (done.stdout[:500], done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("index", [0, 1])
def test_any_node_shows_all_nodes(job: Job, index: int) -> None:
    """All ranks of the job with their hosts; and where the nodes are counted."""
    start(job, SLEEPS)
    done = ask(job, index, "status")
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split() for line in done.stdout.splitlines()[2:6]]
    assert [row[:3] for row in rows] == [[str(r // 2), f"node{r // 2}", str(r)] for r in range(4)]
    assert all(row[4] == "running" for row in rows)
    assert "2 nodes" in done.stdout and "4 of 4 ranks run" in done.stdout
    assert status(job, index)["nodes"][0]["nodes"] == {
        "count": 2,
        "heard": 2,
        "lost": 0,
        "spares": 0,
        "spare_hosts": [],
    }


@pytest.mark.thorough
def test_a_launcher_of_the_machine_is_not_of_a_node_that_shares_its_files(job: Job) -> None:
    """Both have their sockets' folders in /tmp; only the kernel knows which network they are of."""
    outside = open_launcher("run", "--", "sleep", "600")
    try:
        start(job, SLEEPS)
        assert "4 of 4 ranks run" in ask(job, 0, "status").stdout
    finally:
        outside.terminate()
        outside.communicate()


@pytest.mark.torch
def test_the_stacks_of_all_nodes_say_who_is_waited_for(job: Job) -> None:
    """One rank sleeps, the others are in a collective: asked on the node of neither."""
    start(job, COLLECTIVE)
    wait_for(lambda: "wait in all_reduce" in ask(job, 0, "stacks").stdout, "they are in the collective", 60)
    text = ask(job, 0, "stacks").stdout
    assert "rank 3 waits in sleep (" in text and "probably the one that the others wait for" in text
    assert "ranks 0-2 wait in all_reduce (torch/distributed/" in text
    assert text.count("ranks 0-2, innermost first (faulthandler):") == 1


@pytest.mark.thorough
def test_a_node_that_does_not_answer_is_named(job: Job) -> None:
    """Its launcher is stopped; the others are shown, the status is 75."""
    start(job, SLEEPS, "--lost-after", "60")
    job.signal(1, signal.SIGSTOP)
    done = ask(job, 0, "status")
    job.signal(1, signal.SIGCONT)
    assert done.returncode == 75
    assert "1     -" in done.stdout and "no answer within 5 s" in done.stdout
    assert " 0     node0" not in done.stdout and done.stdout.count("running") == 2


def test_while_the_nodes_come_together_the_missing_are_named(job: Job) -> None:
    """Before anything was started."""
    job.start(0, "--", "sleep", "60")
    wait_for(lambda: "it has not joined yet" in ask(job, 0, "status").stdout, "node 0 can be asked", 60)
    found = status(job, 0, expected=75)
    assert found["nodes"][0]["state"] == "waits for the other nodes"
    assert found["nodes"][0]["command"] == "sleep 60"
    assert found["silent"] == [{"node": 1, "why": "it has not joined yet"}]


@pytest.mark.thorough
def test_a_node_that_has_lost_node_0_tells_of_itself(job: Job) -> None:
    """And that it is not all."""
    start(job, SLEEPS, "--lost-after", "15")
    job.signal(0, signal.SIGKILL)

    def lone() -> bool:
        done = ask(job, 1, "status")
        return done.returncode == 75 and "only this node: node 0 cannot be asked" in done.stdout

    wait_for(lone, "node 1 knows that it is alone", 60)


def test_programs_run_on_the_nodes_that_are_named(job: Job) -> None:
    """Asked on node 1: on all nodes, on the other one; one that is silent is named."""
    start(job, SLEEPS, "--lost-after", "60", LAUNCHER_TOKEN="a token of this job alone")
    done = ask(job, 1, "exec", "--all", "--", "sh", "-c", "hostname; test $(hostname) = node1")
    assert (done.returncode, done.stdout) == (1, "node 0: node0\nnode 1: node1\n"), done.stderr
    assert done.stderr == "launcher: node 0: exit status 1\n"
    done = ask(job, 1, "exec", "0", "--", "hostname")
    assert (done.returncode, done.stdout, done.stderr) == (0, "node 0: node0\n", "")
    job.signal(0, signal.SIGSTOP)
    done = ask(job, 1, "exec", "--timeout", "1", "1", "--", "hostname")
    job.signal(0, signal.SIGCONT)
    assert (done.returncode, done.stdout) == (0, "node 1: node1\n")


def test_without_a_token_programs_run_only_where_they_are_asked_for(job: Job) -> None:
    """The message says what works at once."""
    start(job, SLEEPS)
    for nodes in ("--all", "1"):
        done = ask(job, 0, "exec", nodes, "--", "touch", str(job.folder / "ran"))
        assert (done.returncode, done.stdout) == (64, "") and "error: [no-token] " in done.stderr
    assert not (job.folder / "ran").exists()
    assert "launcher exec RANK -- COMMAND" in done.stderr and "LAUNCHER_TOKEN" in done.stderr
    done = ask(job, 1, "exec", "1", "--", "hostname")
    assert (done.returncode, done.stdout, done.stderr) == (0, "node 1: node1\n", "")


def test_metrics_are_served_at_the_address_among_the_nodes(job: Job) -> None:
    """Not on all interfaces: node 1 reads node 0's from outside, and nobody at its loopback."""
    pytest.importorskip("prometheus_client")
    start(job, SLEEPS, "--metrics-port", "9400")
    address = job.cluster.nodes[0].address
    wait_for(lambda: job.says(0, f"metrics of this node: http://{address}:9400/metrics"), "it says where")
    fetch = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=20).read().decode())"
    text = job.on(job.cluster.nodes[1], (sys.executable, "-c", fetch, f"http://{address}:9400/metrics"))
    assert 'launcher_rank_running{local_rank="1",rank="1"} 1.0' in text
    assert "launcher_nodes_heard 2.0" in text and 'rank="2"' not in text
    refused = "import socket; socket.create_connection(('127.0.0.1', 9400), 20)"
    with pytest.raises(subprocess.CalledProcessError):
        job.on(job.cluster.nodes[0], (sys.executable, "-c", refused))


def hosts(job: Job, index: int) -> tuple[list[str], list[str]]:
    """Return the hosts of ranks 0 to 3 and of the spare nodes, as a node tells them in both forms."""
    found = status(job, index)
    in_job = [node["host"] for node in found["nodes"]]
    spares = found["nodes"][0]["nodes"]["spare_hosts"]
    shown = ask(job, index, "status").stdout.splitlines()
    assert [line.split()[1] for line in shown[2:6]] == in_job, shown
    assert (f"1 spare node ({spares[0]})" if spares else "4 of 4 ranks run") in shown[0], shown
    assert ("spare" in shown[0]) == bool(spares), shown
    return in_job, spares


@pytest.mark.thorough
def test_the_nodes_that_are_in_and_the_spare_ones_are_named_before_and_after_a_loss(five: Job) -> None:
    """Asked on node 0, on the spare node, and on one that has come back while another has its rank."""
    flags = ("--restarts", "5", "--lost-after", "5", "--grace", "1", "--spares", "1")
    script = five.folder / "train.py"
    script.write_text(SLEEPS.replace("up-{os", "up-{os.environ.get('LAUNCHER_ATTEMPT', 0)}-{os"))
    words = (*flags, "--", sys.executable, str(script), str(five.folder))
    for index in range(5):
        five.start(index, *words, count=4)
    wait_for(lambda: len(list(five.folder.glob("up-0-*"))) == 4, "all ranks have begun")
    wait_for(lambda: five.says(0, "as a spare node"), "the spare node is here")
    for index in (0, 4):
        assert hosts(five, index) == (["node0", "node1", "node2", "node3"], ["node4"])
    five.signal(2, signal.SIGKILL)
    five.launchers.pop(2).communicate()
    wait_for(lambda: len(list(five.folder.glob("up-1-*"))) == 4, "all ranks run again", 60)
    for index in (0, 4):
        assert hosts(five, index) == (["node0", "node1", "node4", "node3"], [])
    five.start(2, *words, count=4, key=12)
    wait_for(lambda: five.says(0, "node 2 (node2) is here as a spare node"), "it is back")
    for index in (0, 4, 2):
        assert hosts(five, index) == (["node0", "node1", "node4", "node3"], ["node2"])
