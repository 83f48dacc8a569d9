"""``--restarts`` where mpirun starts the ranks: the head starts mpirun again, on nodes that serve on."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.rehearse.cluster import SimulatedNode
from tests.cluster.conftest import MakeFleet
from tests.cluster.fleets import Done, Fleet, assert_nothing_left, run_on
from tests.mpis import FAMILIES
from tests.process.looking import wait_for

pytestmark = [pytest.mark.root, pytest.mark.xdist_group("mpirun-restarts")]

LIVES = """
    import json, os, sys, time
    names = ("LAUNCHER_ATTEMPT", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT", "RANK")
    told = {{name: os.environ.get(name) for name in names}} | {{"pid": os.getpid()}}
    attempt, rank = told["LAUNCHER_ATTEMPT"] or "0", told["RANK"]
    {before}
    with open(f"{folder}/new-{{rank}}-{{attempt}}", "w") as file:
        json.dump(told, file)
    os.rename(f"{folder}/new-{{rank}}-{{attempt}}", f"{folder}/up-{{rank}}-{{attempt}}")
    while not os.path.exists("{folder}/go"):
        time.sleep(0.02)
"""
"""Ranks that note what they were told, and wait for a file."""
START_S = 60.0
MakeJob = Callable[..., "Job"]


class Job:
    """A job of two nodes with two ranks each."""

    def __init__(self, fleet: Fleet, folder: Path, nodes: tuple[int, int] = (0, 1)) -> None:
        self.fleet, self.folder = fleet, folder
        self.head, self.other = (fleet.cluster.nodes[index] for index in nodes)
        self.errors: list[Path] = []

    def script(self, before: str = "pass") -> tuple[str, ...]:
        """Return the command of ranks that live; ``before``: what they do first."""
        return ("python", self.fleet.script(LIVES.format(folder=self.folder, before=before)))

    def start(self, *words: str, **options: object) -> None:
        """Start the launcher on both nodes."""
        for node in (self.head, self.other):
            self.start_on(node, *words, **options)

    def start_on(self, node: SimulatedNode, *words: str, **options: object) -> None:
        """Start the launcher on a node; what it says goes to a file, which can be read meanwhile."""
        path = self.folder / f"err{len(self.errors)}"
        self.errors.append(path)
        self.fleet.start(node, "--nproc-per-node", "2", *words, errors=path, **options)  # type: ignore[arg-type]

    def told(self, rank: int, attempt: int) -> dict[str, object]:
        """Return what a rank of an attempt was told."""
        found: dict[str, object] = json.loads((self.folder / f"up-{rank}-{attempt}").read_text())
        return found

    def await_attempt(self, attempt: int) -> None:
        """Wait until all ranks of an attempt run."""

        def is_up() -> bool:
            assert self.fleet.launchers[0].poll() is None, self.errors[0].read_text()[-3000:]
            return len(list(self.folder.glob(f"up-*-{attempt}"))) == 4

        wait_for(is_up, f"all ranks of attempt {attempt} run", START_S)

    def kill(self, rank: int, attempt: int) -> None:
        """Kill a rank of an attempt."""
        run_on(self.fleet, (self.head, self.other)[rank // 2], f"kill -9 {self.told(rank, attempt)['pid']}")

    def runs(self, rank: int, attempt: int) -> bool:
        """Whether a rank of an attempt is there."""
        node = (self.head, self.other)[rank // 2]
        return bool(run_on(self.fleet, node, f"ls -d /proc/{self.told(rank, attempt)['pid']} 2>/dev/null"))

    def says(self, words: str, place: int = 0) -> bool:
        """Whether a launcher has said this so far."""
        return words in self.errors[place].read_text()

    def end(self) -> list[Done]:
        """Let the ranks end, and wait for all launchers; then nothing is left."""
        (self.folder / "go").touch()
        return self.await_end()

    def await_end(self) -> list[Done]:
        """Wait for all launchers; then nothing is left."""
        done = self.fleet.wait(60)
        assert_nothing_left(self.fleet)
        return done


@pytest.fixture
def make_job(fleet: MakeFleet, tmp_path: Path) -> MakeJob:
    """Return a function that makes a job with a family of MPI."""

    def make(family: str) -> Job:
        return Job(fleet(family), tmp_path)

    return make


@pytest.mark.parametrize("family", FAMILIES)
def test_mpirun_starts_again_after_a_rank_was_killed(family: str, make_job: MakeJob) -> None:
    """Twice in a row: each attempt has its number and its port, and nothing of the one before."""
    job = make_job(family)
    job.start("--restarts", "5", "--restart-delay", "0", "--grace", "5", "--", *job.script())
    job.await_attempt(0)
    job.kill(3, 0)
    job.await_attempt(1)
    assert not any(job.runs(rank, 0) for rank in range(4))
    job.kill(0, 1)
    job.await_attempt(2)
    assert not any(job.runs(rank, 1) for rank in range(4))
    head, other = job.end()
    assert (head.status, other.status) == (0, 0), head.err[-4000:]
    for attempt in range(3):
        told = [job.told(rank, attempt) for rank in range(4)]
        assert len({one["MASTER_PORT"] for one in told}) == 1
        count = str(attempt) if attempt else None
        assert {one["LAUNCHER_ATTEMPT"] for one in told} == {count}
        assert {one["TORCHELASTIC_RESTART_COUNT"] for one in told} == {str(attempt)}
    assert len({str(job.told(0, attempt)["MASTER_PORT"]) for attempt in range(3)}) == 3
    assert "rank 3 of 4 failed first: it was killed by SIGKILL" in head.err, head.err[-4000:]
    assert "rank 0 of 4 failed first: it was killed by SIGKILL" in head.err, head.err[-4000:]
    assert head.err.index("restart 1 of 5") < head.err.index("restart 2 of 5")
    assert "3 attempts, 2 failed" in head.err.splitlines()[-5], head.err[-2000:]


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["openmpi4", "openmpi5", "mpich"])
def test_the_ranks_of_the_next_attempt_meet_by_mpi(family: str, make_job: MakeJob) -> None:
    """MPI_Init and an allreduce in each attempt."""
    job = make_job(family)
    program = """
        import os, signal
        from mpi4py import MPI
        assert MPI.COMM_WORLD.allreduce(1) == 4
        if MPI.COMM_WORLD.rank == 2 and "LAUNCHER_ATTEMPT" not in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)
        MPI.COMM_WORLD.Barrier()
    """
    job.start("--restarts", "2", "--grace", "3", "--", "python", job.fleet.script(program))
    head, other = job.await_end()
    assert (head.status, other.status) == (0, 0), head.err[-4000:]
    assert "2 attempts, 1 failed" in head.err, head.err[-2000:]


@pytest.mark.parametrize("told", [0, 1], ids=["head", "serving"])
def test_sigterm_before_an_attempt_ends_the_job(told: int, make_job: MakeJob) -> None:
    """The third attempt would wait for a minute; the job ends as the second has."""
    job = make_job("mpich")
    job.start("--restarts", "9", "--restart-delay", "60", "--", "sh", "-c", "exit 9")
    wait_for(lambda: job.says("restart 2 of 9 in"), "the job waits before attempt 2", START_S)
    job.fleet.cluster.kill(job.fleet.launchers[told].pid, signal.SIGTERM)
    head, other = job.await_end()
    assert (head.status, other.status) == (9, 9), head.err[-3000:] + other.err
    assert f"no restart: node {told} (node{told}) received SIGTERM" in head.err


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_ranks_that_run_ends_the_job(number: int, make_job: MakeJob) -> None:
    """A job that was told to end does not start again, although its ranks have died by the signal."""
    job = make_job("openmpi5")
    job.start("--restarts", "9", "--", *job.script())
    job.await_attempt(0)
    job.fleet.cluster.kill(job.fleet.launchers[0].pid, number)
    head, other = job.await_end()
    assert (head.status, other.status) == (128 + number, 128 + number), head.err[-3000:]
    assert "restart 1" not in head.err and "no restart: the job received a signal to stop" in head.err


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT])
def test_a_hangup_of_a_node_that_serves_ends_the_job(number: int, make_job: MakeJob) -> None:
    """Its terminal was closed: it has no process that could handle this, and the ranks get SIGTERM."""
    job = make_job("mpich")
    job.start("--restarts", "9", "--grace", "3", "--", *job.script())
    job.await_attempt(0)
    job.fleet.cluster.kill(job.fleet.launchers[1].pid, number)
    head, other = job.await_end()
    assert (head.status, other.status) == (143, 143), head.err[-3000:]
    assert f"node 1 (node1) received {signal.Signals(number).name}" in head.err
    assert "restart 1" not in head.err


def test_a_hangup_of_a_node_that_waits_for_the_head_ends_it(make_job: MakeJob) -> None:
    """No head is there that could be told."""
    job = make_job("mpich")
    job.start_on(job.other, "--", "true")
    wait_for(lambda: job.says("serving node 0"), "it waits", START_S)
    job.fleet.cluster.kill(job.fleet.launchers[0].pid, signal.SIGHUP)
    (other,) = job.await_end()
    assert other.status == 129, other.err[-3000:]


@pytest.mark.parametrize("family", ["openmpi5", "mpich"])
def test_a_launcher_that_is_killed_on_a_node_comes_back(family: str, make_job: MakeJob) -> None:
    """A new one on the same node serves the next attempt."""
    job = make_job(family)
    words = ("--restarts", "5", "--grace", "3", "--", *job.script())
    job.start(*words)
    job.await_attempt(0)
    job.fleet.cluster.kill(job.fleet.launchers[1].pid, signal.SIGKILL)
    job.start_on(job.other, *words)
    job.await_attempt(1)
    assert not any(job.runs(rank, 0) for rank in range(4))
    head, _, other = job.end()
    assert (head.status, other.status) == (0, 0), head.err[-4000:]
    assert "node 1 failed first: it is lost" in head.err and "node 1 (node1) is back" in head.err


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["openmpi5", "mpich"])
def test_a_network_that_is_cut_for_a_while(family: str, make_job: MakeJob) -> None:
    """Both sides notice, and the ranks of both end; once the network is back, the job starts again."""
    job = make_job(family)
    job.start("--restarts", "5", "--grace", "2", "--", *job.script())
    job.await_attempt(0)
    job.fleet.cluster.disconnect(job.other)
    wait_for(lambda: job.says("restart 1 of 5"), "the head gives up the node", START_S)
    wait_for(lambda: job.says("for it to come back", 1), "the node gives up the head", START_S)
    job.fleet.cluster.reconnect(job.other)
    job.await_attempt(1)
    assert not any(job.runs(rank, 0) for rank in range(4))
    head, other = job.end()
    assert (head.status, other.status) == (0, 0), head.err[-4000:]


@pytest.mark.thorough
def test_a_launcher_elsewhere_in_place_of_a_node_that_is_cut_off(fleet: MakeFleet, tmp_path: Path) -> None:
    """Ranks of the lost node run on until it gives up the head: the next attempt waits for that."""
    three = fleet("mpich", nodes=3)
    three.hosts = "node0,node1"
    job = Job(three, tmp_path, (0, 1))
    words = ("--restarts", "5", "--restart-delay", "0", "--grace", "2", "--rejoin-timeout", "20")
    job.start(*words, "--", *job.script())
    job.await_attempt(0)
    three.cluster.disconnect(job.other)
    serve = ("--master-addr", "node0", "--node-rank", "1")
    errors = tmp_path / "elsewhere"
    patient = {"LAUNCHER_ROLL_CALL_TIMEOUT": "60"}
    elsewhere = three.start(three.cluster.nodes[2], *serve, command="serve", errors=errors, environ=patient)
    assert job.runs(2, 0) and job.runs(3, 0)
    wait_for(lambda: job.says("node 1 (node1) is back"), "it has joined", START_S)
    job.await_attempt(1)
    assert not any(job.runs(rank, 0) for rank in range(4))
    assert job.says("ranks of the launcher that it replaces may still run")
    # The old one is turned away again and again, and waits no longer than it has said.
    three.cluster.reconnect(job.other)
    head, old = three.launchers[:2]
    assert old.wait(30) == 75
    assert job.errors[1].read_text().count("for it to come back") == 1
    (tmp_path / "go").touch()
    assert (head.wait(30), elsewhere.wait(30)) == (0, 0), job.errors[0].read_text()[-4000:]


@pytest.mark.thorough
def test_a_node_that_serves_gives_up_a_head_that_does_not_come_back(make_job: MakeJob) -> None:
    job = make_job("mpich")
    job.start("--restarts", "5", "--grace", "1", "--rejoin-timeout", "3", "--", *job.script())
    job.await_attempt(0)
    job.fleet.cluster.kill(job.fleet.launchers[0].pid, signal.SIGKILL)
    _, other = job.await_end()
    assert other.status == 75 and "has not come back within 3 s" in other.err, other.err


@pytest.mark.thorough
def test_a_node_that_does_not_come_back_ends_the_job(make_job: MakeJob) -> None:
    """After --rejoin-timeout: 75, and the node is named."""
    job = make_job("openmpi5")
    job.start("--restarts", "5", "--grace", "1", "--rejoin-timeout", "3", "--", *job.script())
    job.await_attempt(0)
    job.fleet.cluster.kill(job.fleet.launchers[1].pid, signal.SIGKILL)
    head, _ = job.await_end()
    assert head.status == 75, head.err[-3000:]
    assert head.err.count("node 1 failed first: it is lost") == 1, head.err[-3000:]
    want = "no restart: node 1 did not come back within 3 s (--rejoin-timeout)"
    assert want in head.err, head.err[-3000:]


@pytest.mark.thorough
def test_a_node_that_is_lost_before_an_attempt_ends_the_job(make_job: MakeJob) -> None:
    """The ranks have failed for another cause; the job ends for this one, with 75."""
    job = make_job("mpich")
    flags = ("--restarts", "9", "--restart-delay", "6", "--restart-delay-max", "6", "--rejoin-timeout", "2")
    job.start(*flags, "--grace", "1", "--", "sh", "-c", "exit 9")
    wait_for(lambda: job.says("restart 2 of 9 in"), "the job waits before attempt 2", START_S)
    job.fleet.cluster.kill(job.fleet.launchers[1].pid, signal.SIGKILL)
    head, _ = job.await_end()
    assert head.status == 75, head.err[-3000:]
    assert "node 1 failed first" in head.err and "no restart: node 1 did not come back" in head.err


@pytest.mark.thorough
def test_what_a_rank_has_left_is_gone_before_the_next_attempt(make_job: MakeJob) -> None:
    """A process in a session of its own that ignores SIGTERM, on each node."""
    job = make_job("openmpi5")
    before = (
        "import subprocess; told['pid'] = subprocess.Popen("
        "['sh', '-c', 'trap : TERM; while :; do sleep 1; done'], start_new_session=True).pid"
    )
    job.start("--restarts", "5", "--grace", "1", "--", *job.script(before + "; told['own'] = os.getpid()"))
    job.await_attempt(0)
    run_on(job.fleet, job.other, f"kill -9 {job.told(3, 0)['own']}")
    job.await_attempt(1)
    assert not any(job.runs(rank, 0) for rank in range(4))
    head, other = job.end()
    assert (head.status, other.status) == (0, 0), head.err[-4000:]
