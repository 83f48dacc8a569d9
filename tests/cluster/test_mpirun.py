"""``launcher run --engine mpirun`` with real mpiruns on simulated nodes."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.cluster.conftest import MakeFleet, StartSshd
from tests.cluster.fleets import ALLREDUCE
from tests.mpis import FAMILIES
from tests.process.looking import wait_for

pytestmark = [pytest.mark.root]


@pytest.mark.parametrize("family", FAMILIES)
def test_four_nodes_by_one_command_on_each(family: str, fleet: MakeFleet) -> None:
    """4 nodes x 2 ranks: the sum over all is right, ranks are where they were asked for, all end with 0."""
    four = fleet(family, 4)
    four.start_all("--nproc-per-node", "2", "--no-prefix", "--", "python", four.script(ALLREDUCE))
    head, *others = four.wait()
    assert head.status == 0, [one.err[-1500:] for one in (head, *others)]
    records = head.records
    assert sorted(record["mpi_rank"] for record in records) == list(range(8))
    assert {record["sum"] for record in records} == {36}
    assert Counter(record["node"] for record in records) == {f"node{i}": 2 for i in range(4)}
    for record in records:
        rank = record["mpi_rank"]
        want = {
            "RANK": rank,
            "LOCAL_RANK": rank % 2,
            "NODE_RANK": rank // 2,
            "WORLD_SIZE": 8,
            "LOCAL_WORLD_SIZE": 2,
        }
        assert {name: int(record[name]) for name in want} == want
        assert record["node"] == f"node{rank // 2}" and record["MASTER_ADDR"] == "node0"
    assert [one.status for one in others] == [0, 0, 0], [one.err[-500:] for one in others]
    four.await_empty()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_rank_of_another_node_fails(family: str, fleet: MakeFleet) -> None:
    """Status 7 of rank 3 is the job's on every node, and the verdict names rank and host."""
    two = fleet(family, 2)
    script = two.script(
        """
        import os, sys, time
        if os.environ["RANK"] == "3":
            sys.exit(7)
        time.sleep(100)
        """
    )
    two.start_all("--nproc-per-node", "2", "--", "python", script)
    head, other = two.wait()
    assert (head.status, other.status) == (7, 7), head.err[-3000:]
    assert "rank 3 of 4 failed first: it exited with code 7" in head.err
    assert "host node1, node 1" in head.err
    two.await_empty()


@pytest.mark.parametrize("family", FAMILIES)
def test_sigterm_gives_every_rank_its_time(family: str, fleet: MakeFleet, tmp_path: Path) -> None:
    """Each rank needs 3 to 5 s to save its state, and has them, wherever it runs; then all is gone."""
    two = fleet(family, 2)
    script = two.script(
        f"""
        import os, signal, sys, time
        def save(*_):
            time.sleep(5 if os.environ["RANK"] == "3" else 3)
            open("{tmp_path}/saved" + os.environ["RANK"], "w").close()
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        open("{tmp_path}/ready" + os.environ["RANK"], "w").close()
        while True:
            time.sleep(1)
        """
    )
    two.start_all("--nproc-per-node", "2", "--", "python", script)
    deadline = time.monotonic() + 40
    while len(list(tmp_path.glob("ready*"))) < 4 and time.monotonic() < deadline:
        time.sleep(0.05)
    two.cluster.kill(two.launchers[0].pid, signal.SIGTERM)
    head, other = two.wait()
    assert len(list(tmp_path.glob("saved*"))) == 4, head.err[-3000:]
    assert (head.status, other.status) == (0, 0), head.err[-3000:]
    two.await_empty()


SLEEP = """
    import os, signal, sys, time
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    open("{folder}/ready" + os.environ["RANK"], "w").close()
    while True:
        time.sleep(1)
"""


def await_ready(folder: Path, count: int) -> None:
    """Wait until so many ranks have said that they run."""
    deadline = time.monotonic() + 40
    while len(list(folder.glob("ready*"))) < count:
        assert time.monotonic() < deadline, "not all ranks have started"
        time.sleep(0.05)


@pytest.mark.parametrize("family", FAMILIES)
def test_one_command_starts_all_nodes_by_the_users_ssh(
    family: str, fleet: MakeFleet, sshd_on_nodes: StartSshd
) -> None:
    """``--ssh``: no launcher is started on the other nodes; their sshd and the user's keys are enough."""
    two = fleet(family, 2)
    config = sshd_on_nodes(two.cluster)
    words = ("--ssh", "--nproc-per-node", "2", "--no-prefix", "--", "python", two.script(ALLREDUCE))
    cover = (config, "/etc/ssh/ssh_config")
    two.start(two.cluster.nodes[0], *words, cover=cover, environ={"LAUNCHER_TOKEN": ""})
    (head,) = two.wait()
    assert head.status == 0, head.err[-3000:]
    assert Counter(record["node"] for record in head.records) == {"node0": 2, "node1": 2}
    assert {record["sum"] for record in head.records} == {10}


SHOW = "import os; print(*(os.environ[name] for name in ('RANK', 'WORLD_SIZE', 'NODE_RANK', 'MASTER_ADDR')))"


def test_ssh_serves_every_engine(fleet: MakeFleet, sshd_on_nodes: StartSshd) -> None:
    """The launchers' own processes; a failure on another node is the job's."""
    two = fleet("openmpi5", 2)
    cover = (sshd_on_nodes(two.cluster), "/etc/ssh/ssh_config")
    words = ("--ssh", "--nproc-per-node", "2", "--no-prefix", "--", "python", "-c")
    for program, status in ((SHOW, 0), ("import os; os._exit(7 * (os.environ['RANK'] == '3'))", 7)):
        two.launchers.clear()
        two.errors.clear()
        two.start(
            two.cluster.nodes[0], *words, program, cover=cover, command="run", environ={"LAUNCHER_TOKEN": ""}
        )
        (head,) = two.wait()
        assert head.status == status, head.err[-3000:]
        if not status:
            assert sorted(head.out.splitlines()) == [f"{rank} 4 {rank // 2} node0" for rank in range(4)]


def test_a_host_that_ssh_does_not_reach_is_named(fleet: MakeFleet) -> None:
    """No sshd there: the job ends at once with the reason, not after the roll call."""
    two = fleet("openmpi5", 2)
    two.start(two.cluster.nodes[0], "--ssh", "--", "true", command="run")
    (head,) = two.wait(20)
    assert head.status != 0
    assert "cannot start the launcher on node1: ssh exited with 255" in head.err


def test_nodes_that_do_not_answer_are_named_with_the_reason(fleet: MakeFleet) -> None:
    """No such name, no such machine, another token, no launcher: each is named within the deadline."""
    four = fleet("openmpi5", 4)
    hosts = "node0,node1,node2,node3,10.77.0.99,no-such-node"
    environ = {"LAUNCHER_HOSTS": hosts, "LAUNCHER_ROLL_CALL_TIMEOUT": "10"}
    four.start(four.cluster.nodes[0], "--", "true", environ=environ)
    four.start(four.cluster.nodes[1], "--", "true", environ=environ)
    four.start(four.cluster.nodes[2], "--", "true", environ=environ | {"LAUNCHER_TOKEN": "x" * 32})
    started = time.monotonic()
    head, good, wrong = four.wait(40)
    assert time.monotonic() - started < 25
    assert head.status == 75 and "[nodes-missing] 4 of 6 nodes did not join within 10 s" in head.err
    assert "node 5 (no-such-node): its name does not resolve" in head.err
    assert "node 4 (10.77.0.99): " in head.err and "node 3 (node3): " in head.err
    assert "node 2 (node2): " in head.err and "another token" in head.err and "another token" in wrong.err
    assert good.status == 75, good.err
    assert wrong.status == 75 and "[nodes-missing]" in wrong.err
    four.await_empty()


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["openmpi4", "openmpi5"])
def test_ranks_that_are_all_on_one_node_are_noticed(family: str, fleet: MakeFleet, tmp_path: Path) -> None:
    """An mpirun that does not follow the hostfile would run all ranks on its own node, and exit with 0."""
    two = fleet(family, 2)
    script = two.script(SLEEP.format(folder=tmp_path))
    ignored = "--mpi-args=--host node0:4 --map-by slot --oversubscribe"
    two.start_all("--nproc-per-node", "2", ignored, "--", "python", script)
    head, other = two.wait(40)
    assert (head.status, other.status) == (78, 78), head.err[-3000:]
    assert "4 ranks were requested on 2 nodes, 2 on each; 4 started, all on node0" in head.err
    assert "[rank-count]" in head.err
    two.await_empty()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("fault", ["crash", "disconnect"])
def test_a_node_that_is_lost_ends_the_job_by_name(
    fault: str, family: str, fleet: MakeFleet, tmp_path: Path
) -> None:
    """Killed, or silently cut off: the head ends in bounded time, and its verdict names the node."""
    two = fleet(family, 2)
    script = two.script(SLEEP.format(folder=tmp_path))
    two.start_all("--nproc-per-node", "2", "--grace", "3", "--", "python", script)
    await_ready(tmp_path, 4)
    getattr(two.cluster, fault)(two.cluster.nodes[1])
    started = time.monotonic()
    _, err = two.launchers[0].communicate(timeout=60)
    assert two.launchers[0].returncode == 75, err[-3000:]
    assert time.monotonic() - started < 45
    assert "node 1 failed first: it is lost" in err and "[node-lost] node 1 (node1) is lost" in err
    two.await_empty(two.cluster.nodes[0])
    if fault == "disconnect":  # the node that was cut off ends what runs there by itself
        _, said = two.launchers[1].communicate(timeout=60)
        assert two.launchers[1].returncode == 75, said
        two.await_empty(two.cluster.nodes[1])


VALUES = {
    "V_SPACES": " two  words ",
    "V_DOLLAR": "$HOME `id` $(id)",
    "V_QUOTES": "'single' \"double\" \\back\\",
    "V_EQUALS": "a=b=c",
    "V_LINES": "one\ntwo\n",
    "V_UTF8": "größe 漢字 🚀",
    "V_BYTES": "\udcff\udcfe",
    "V_LONG": "x" * 100_000,
    "V_SEPARATORS": "a,b;c|d&e>f*?[!]~#",
}


@pytest.mark.thorough
def test_a_platforms_numbers_of_a_node_are_not_those_of_its_ranks(fleet: MakeFleet) -> None:
    """A platform that starts a launcher on each node numbers these; no rank inherits such a number."""
    two = fleet("openmpi4", 2)
    script = two.script("import json, os; print(json.dumps({'RANK': os.environ['RANK']}), flush=True)")
    for index, node in enumerate(two.cluster.nodes):
        numbers = {"RANK": str(index), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "NODE_RANK": str(index)}
        two.start(node, "--nproc-per-node", "2", "--no-prefix", "--", "python", script, environ=numbers)
    head, other = two.wait()
    assert (head.status, other.status) == (0, 0), head.err[-3000:]
    assert sorted(record["RANK"] for record in head.records) == ["0", "1", "2", "3"]


@pytest.mark.parametrize("family", FAMILIES)
def test_values_arrive_bit_for_bit_and_secrets_stay(family: str, fleet: MakeFleet) -> None:
    """Variables of the head reach ranks of other nodes as they are; a secret only where it is asked for."""
    two = fleet(family, 2)
    script = two.script(
        """
        import hashlib, json, os, sys
        found = {name: value for name, value in os.environb.items() if name.startswith((b"V_", b"MY_"))}
        digests = {name.decode(): hashlib.sha256(value).hexdigest() for name, value in found.items()}
        sys.stdout.write(json.dumps({"RANK": os.environ["RANK"], **digests}) + "\\n")
        """
    )
    secrets = {"MY_TOKEN": "hush", "MY_PASSWORD": "hush"}
    two.start(
        two.cluster.nodes[0],
        *("--no-prefix", "--forward", "MY_TOKEN", "--", "python", script),
        environ=VALUES | secrets,
    )
    two.start(two.cluster.nodes[1], "--", "true")
    head, other = two.wait()
    assert (head.status, other.status) == (0, 0), head.err[-3000:]
    sent = VALUES | {"MY_TOKEN": "hush"}
    want = {name: hashlib.sha256(os.fsencode(value)).hexdigest() for name, value in sent.items()}
    assert sorted(head.records, key=lambda one: one["RANK"]) == [
        {"RANK": str(rank), **want} for rank in (0, 1)
    ]


@pytest.mark.thorough
def test_what_a_killed_rank_has_printed_is_not_lost(fleet: MakeFleet) -> None:
    """Ranks write to pipes (but for Open MPI's, which have terminals): Python would keep 8 KiB to itself."""
    two = fleet("mpich", 2)
    script = two.script(
        """
        import os, signal
        print("rank", os.environ["RANK"], "was here")
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    two.start_all("--no-prefix", "--", "python", script)
    head, _ = two.wait(40)
    assert "was here" in head.out, head.err


@pytest.mark.thorough
def test_other_signals_and_the_map_reach_the_ranks(fleet: MakeFleet, tmp_path: Path) -> None:
    """SIGUSR2 arrives as it is; SIGTERM arrives as SIGUSR1 where the script wants that, with its grace."""
    two = fleet("openmpi5", 2)
    script = two.script(
        f"""
        import os, signal, sys, time
        rank = os.environ["RANK"]
        def note(number, _):
            open("{tmp_path}/" + signal.Signals(number).name + rank, "w").close()
            if number == signal.SIGUSR1:
                time.sleep(2)
                sys.exit(0)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, note)
        open("{tmp_path}/ready" + rank, "w").close()
        while True:
            time.sleep(0.1)
        """
    )
    two.start_all("--signal-map", "TERM=USR1", "--", "python", script)
    await_ready(tmp_path, 2)
    two.cluster.kill(two.launchers[0].pid, signal.SIGUSR2)
    deadline = time.monotonic() + 20
    while len(list(tmp_path.glob("SIGUSR2*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    two.cluster.kill(two.launchers[0].pid, signal.SIGTERM)
    head, other = two.wait()
    assert {path.name for path in tmp_path.glob("SIG*")} == {"SIGUSR10", "SIGUSR11", "SIGUSR20", "SIGUSR21"}
    assert (head.status, other.status) == (0, 0), head.err[-2000:]


@pytest.mark.parametrize("family", ["openmpi5", "impi"])
def test_nothing_survives_a_sigkill_of_the_head(family: str, fleet: MakeFleet, tmp_path: Path) -> None:
    """Nobody is left to say anything: mpirun, its daemons and all ranks go, and the nodes know."""
    two = fleet(family, 2)
    script = two.script(SLEEP.format(folder=tmp_path))
    two.start_all("--nproc-per-node", "2", "--grace", "2", "--", "python", script)
    await_ready(tmp_path, 4)
    two.cluster.kill(two.launchers[0].pid, signal.SIGKILL)
    _, err = two.launchers[1].communicate(timeout=40)
    assert two.launchers[1].returncode == 75 and "the head of the job is gone" in err
    two.await_empty()


@pytest.mark.thorough
def test_sigterm_to_any_node_ends_the_job_everywhere(fleet: MakeFleet, tmp_path: Path) -> None:
    """A platform that stops the container of one node means the job: all ranks may save their state."""
    two = fleet("openmpi5", 2)
    script = two.script(SLEEP.format(folder=tmp_path))
    two.start_all("--nproc-per-node", "2", "--", "python", script)
    await_ready(tmp_path, 4)
    two.cluster.kill(two.launchers[1].pid, signal.SIGTERM)
    head, other = two.wait(30)
    assert (head.status, other.status) == (0, 0), head.err[-2000:]
    assert "node 1 (node1) received SIGTERM" in head.err


@pytest.mark.thorough
@pytest.mark.parametrize("told", [0, 1])
def test_sigterm_while_a_node_is_missing(told: int, fleet: MakeFleet, tmp_path: Path) -> None:
    """The one that was told has the signal's status; for the other one the roll call has ended by that."""
    two = fleet("openmpi5", 2)
    errors = [tmp_path / "head", tmp_path / "other"]
    for node, path in zip(two.cluster.nodes, errors, strict=True):
        two.start(node, "--", "true", environ={"LAUNCHER_HOSTS": "node0,node1,10.77.0.99"}, errors=path)
    has_joined = lambda: "waiting for 1 of 3 nodes" in errors[0].read_text()  # noqa: E731
    wait_for(has_joined, "the second node has joined, says the head", 40)
    two.cluster.kill(two.launchers[told].pid, signal.SIGTERM)
    done = two.wait(30)
    assert [one.status for one in done] == ([75, 143] if told else [143, 75]), done[0].err + done[1].err
    assert f"[roll-call-ended] node {told} (node{told}) received SIGTERM" in done[1 - told].err
    two.await_empty()


@pytest.mark.thorough
def test_an_mpirun_that_fails_speaks_for_itself(fleet: MakeFleet) -> None:
    """An option that it does not know: its own words and status, nothing is left on any node."""
    two = fleet("openmpi5", 2)
    two.start_all("--mpi-args=--no-such-option", "--", "true")
    head, other = two.wait(30)
    assert head.status not in (0, 75) and other.status == head.status, head.err
    assert "mpirun failed first" in head.err and "no-such-option" in head.err
    two.await_empty()


@pytest.mark.thorough
def test_launcher_serve_by_itself(fleet: MakeFleet, tmp_path: Path) -> None:
    """A node need not know the command: launcher serve, with node 0's address, and the token in a file."""
    two = fleet("mpich", 2)
    (tmp_path / "token").write_text(two.token)
    words = ("--master-addr", "node0", "--control-port", "6200", "--token-file", str(tmp_path / "token"))
    two.start(
        two.cluster.nodes[1], *words, command="serve", environ={"LAUNCHER_TOKEN": "", "LAUNCHER_HOSTS": ""}
    )
    run = ("--control-port", "6200", "--no-prefix", "--", "python", two.script(ALLREDUCE))
    two.start(two.cluster.nodes[0], *run)
    other, head = two.wait()
    assert (head.status, other.status) == (0, 0), head.err[-2000:] + other.err
    assert {record["sum"] for record in head.records} == {3}


@pytest.mark.thorough
def test_a_stall_is_the_jobs_and_its_end_too(fleet: MakeFleet, tmp_path: Path) -> None:
    """A rank of another node that writes is no stall; silence ends the ranks, with their grace."""
    two = fleet("mpich", 2)
    script = two.script(
        f"""
        import os, signal, sys, time
        def save(*_):
            time.sleep(3)
            open("{tmp_path}/saved" + os.environ["RANK"], "w").close()
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        for turn in range(8):
            if os.environ["RANK"] == "1":
                print("turn", turn)
            time.sleep(0.5)
        while True:
            time.sleep(1)
        """
    )
    two.start_all("--stall-timeout", "3", "--on-stall", "stop", "--", "python", script)
    head, other = two.wait(40)
    assert head.out.count("turn 7") == 1, head.err
    assert {path.name for path in tmp_path.glob("saved*")} == {"saved0", "saved1"}, head.err
    assert head.status == other.status == 75 and "stalled: no output for 3 s" in head.err, head.err


@pytest.mark.thorough
def test_each_node_says_what_is_wrong_with_it_while_the_job_runs(fleet: MakeFleet) -> None:
    """The head and the node that serves; a rank says nothing."""
    two = fleet("openmpi4")
    proxy = {"http_proxy": "http://proxy:3128", "RAY_ADDRESS": "head:6379"}
    two.start_all("--no-prefix", "--", "sleep", "2", environ=proxy)
    for done in two.wait():
        assert done.status == 0, done.err[-1500:]
        lines = [line for line in done.err.splitlines() if "check:" in line]
        assert len(lines) == 1 and lines[0].startswith("launcher: check: [proxies]")
