"""``launcher run --engine mpirun`` under attack: who is killed, stopped or lied to, and what is left then."""

from __future__ import annotations

import hashlib
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher.rehearse.cluster import SimulatedNode
from tests.cluster.conftest import MakeFleet
from tests.cluster.fleets import FIND, Done, Fleet, assert_nothing_left, run_on, signal_on
from tests.mpis import FAMILIES, find_mpi
from tests.process.starting import launch
from tests.process.test_restarts import SETS_CLOCK

pytestmark = [pytest.mark.root]

SLEEP = """
    import os, signal, sys, time
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    open("{folder}/ready" + os.environ["RANK"], "w").close()
    while True:
        time.sleep(1)
"""


def start_sleepers(two: Fleet, folder: Path, *options: str) -> None:
    """Start four ranks that wait for SIGTERM, and return once they do."""
    script = two.script(SLEEP.format(folder=folder))
    two.start_all("--nproc-per-node", "2", "--grace", "2", *options, "--", "python", script)
    await_files(folder, "ready*", 4)


def await_files(folder: Path, pattern: str, count: int) -> None:
    """Wait until there are so many files."""
    deadline = time.monotonic() + 40
    while len(list(folder.glob(pattern))) < count:
        assert time.monotonic() < deadline, f"fewer than {count} of {pattern}"
        time.sleep(0.02)


def end(two: Fleet, timeout_s: float = 30) -> list[Done]:
    """Wait for all launchers; then nothing is left."""
    done = two.wait(timeout_s)
    assert_nothing_left(two)
    return done


def find_part(two: Fleet, part: str) -> tuple[SimulatedNode, tuple[str, ...]]:
    """Return where a part of a job runs, and what its command line has."""
    head, other = two.cluster.nodes
    if part == "mpirun":
        return head, ("bin/mpirun -", "bin/prterun -", "mpiexec.hydra -")
    return other, {
        "wrapper": ("rank.py", "wrapper"),
        "placeholder": ("rank.py",),
        "daemon": ("prted -", "orted -", "hydra_pmi_proxy -"),
    }[part]


# --- SIGKILL

KILLED = {
    "mpirun": (137, "mpirun failed first: it was killed by SIGKILL"),
    "wrapper": (137, "[rank-killed] its launcher ended without a report"),
    "placeholder": (137, "[rank-killed] its launcher ended without a report"),
    "daemon": (75, "[daemon-lost] mpirun's daemon on node 1 (node1), pid"),
}


@pytest.mark.parametrize(
    ("part", "family"),
    [
        ("mpirun", "mpich"),
        ("wrapper", "mpich"),
        ("placeholder", "openmpi4"),
        ("placeholder", "openmpi5"),
        ("placeholder", "mpich"),
        ("daemon", "openmpi5"),
        ("daemon", "mpich"),
        ("daemon", "impi"),
    ],
)
def test_a_part_that_is_killed(part: str, family: str, fleet: MakeFleet, tmp_path: Path) -> None:
    """The job ends, the verdict names what was killed and not what followed, and nothing is left."""
    two = fleet(family)
    start_sleepers(two, tmp_path)
    node, marks = find_part(two, part)
    signal_on(two, node, signal.SIGKILL, *marks)
    status, words = KILLED[part]
    head, other = end(two)
    assert (head.status, other.status) == (status, status), head.err[-3000:]
    assert words in head.err, head.err[-3000:]


@pytest.mark.thorough
@pytest.mark.parametrize("index", [0, 1])
def test_a_launcher_that_is_killed_leaves_no_files(index: int, fleet: MakeFleet, tmp_path: Path) -> None:
    """SIGKILL to the head or to a node that serves: its folders go with it."""
    two = fleet("mpich")
    start_sleepers(two, tmp_path)
    two.cluster.kill(two.launchers[index].pid, signal.SIGKILL)
    done = end(two)
    assert done[1 - index].status == 75
    if index == 1:
        assert "node 1 (node1) is lost: its connection has ended" in done[0].err, done[0].err[-2000:]


@pytest.mark.thorough
def test_a_head_that_is_killed_while_it_waits_leaves_no_files(fleet: MakeFleet) -> None:
    """Nothing of the job has started yet."""
    two = fleet("openmpi5")
    head, _ = two.cluster.nodes
    two.start(head, "--", "true")
    deadline = time.monotonic() + 20
    while "launcher-" not in run_on(two, head, FIND) and time.monotonic() < deadline:
        time.sleep(0.02)
    two.cluster.kill(two.launchers[0].pid, signal.SIGKILL)
    two.wait(20)
    assert_nothing_left(two)


# --- SIGSTOP and SIGTERM


@pytest.mark.thorough
@pytest.mark.parametrize("part", ["mpirun", "wrapper", "placeholder"])
def test_a_part_that_is_stopped_does_not_keep_the_job(part: str, fleet: MakeFleet, tmp_path: Path) -> None:
    """SIGTERM ends the job within the grace and a few seconds, on all nodes; ranks have had their SIGTERM."""
    two = fleet("openmpi5")
    start_sleepers(two, tmp_path)
    node, marks = find_part(two, part)
    signal_on(two, node, signal.SIGSTOP, *marks)
    started = time.monotonic()
    two.cluster.kill(two.launchers[0].pid, signal.SIGTERM)
    head, other = end(two)
    assert time.monotonic() - started < 2 + 20
    assert head.status == other.status == 0, head.err[-2000:]


@pytest.mark.thorough
def test_a_serving_launcher_that_is_stopped_does_not_keep_the_job(fleet: MakeFleet, tmp_path: Path) -> None:
    """mpirun ends the ranks there, and they still have their SIGTERM; it hears of the end later."""
    two = fleet("openmpi5")
    start_sleepers(two, tmp_path)
    two.cluster.kill(two.launchers[1].pid, signal.SIGSTOP)
    started = time.monotonic()
    two.cluster.kill(two.launchers[0].pid, signal.SIGTERM)
    try:
        assert two.launchers[0].wait(2 + 30) in (75, 137, 143)
        assert time.monotonic() - started < 2 + 30
    finally:
        two.launchers[1].send_signal(signal.SIGCONT)  # nsenter, which has stopped with its child
    end(two)


@pytest.mark.thorough
def test_sigterm_while_ranks_start_leaves_them_their_grace(fleet: MakeFleet, tmp_path: Path) -> None:
    """Ranks that start after the signal hear it, too, and none is killed long before the grace is over."""
    two = fleet("mpich")
    script = two.script(
        f"""
        import os, signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: None)
        open("{tmp_path}/up" + os.environ["RANK"], "w").close()
        time.sleep(60)
        """
    )
    two.start_all("--nproc-per-node", "2", "--grace", "4", "--", "python", script)
    await_files(tmp_path, "up*", 1)
    started = time.monotonic()
    two.cluster.kill(two.launchers[0].pid, signal.SIGTERM)
    head, other = end(two)
    assert time.monotonic() - started > 3.5, head.err[-2000:]
    assert (head.status, other.status) == (137, 137), head.err[-2000:]


@pytest.mark.thorough
def test_a_serving_node_is_told_twice_and_the_ranks_have_their_time(fleet: MakeFleet, tmp_path: Path) -> None:
    """SIGTERM is no Ctrl-C: who sends it again does not cut the grace short."""
    two = fleet("openmpi5")
    script = two.script(
        f"""
        import os, signal, sys, time
        def save(*_):
            open("{tmp_path}/asked" + os.environ["RANK"], "w").close()
            time.sleep(2)
            open("{tmp_path}/saved" + os.environ["RANK"], "w").close()
            os._exit(0)
        signal.signal(signal.SIGTERM, save)
        open("{tmp_path}/ready" + os.environ["RANK"], "w").close()
        while True:
            time.sleep(1)
        """
    )
    two.start_all("--grace", "8", "--stopped-status", "75", "--", "python", script)
    await_files(tmp_path, "ready*", 2)
    two.cluster.kill(two.launchers[1].pid, signal.SIGTERM)
    await_files(tmp_path, "asked*", 2)
    two.cluster.kill(two.launchers[1].pid, signal.SIGTERM)
    head, other = end(two)
    assert (head.status, other.status) == (75, 75), head.err[-2000:] + other.err
    assert len(list(tmp_path.glob("saved*"))) == 2


# --- what a rank does

HOSTILE = """
    import glob, json, os, socket, sys, time
    if os.environ["RANK"] == "1":
        (path,) = glob.glob("/dev/shm/launcher-*/ranks")
        def send(data):
            with socket.socket(socket.AF_UNIX) as one:
                one.connect(path)
                try:
                    one.sendall(data)
                    one.shutdown(socket.SHUT_WR)
                    one.recv(1)
                except OSError:
                    pass
        forged = [{"is": "rankended", "rank": 0, "local_rank": 0, "status": 9, "code": 9},
                  {"is": "rankended", "rank": 0, "local_rank": 0, "status": 256, "code": 9},
                  {"is": "nodetold", "number": 15}, {"is": "ready", "launcher": "0"}, {"is": "started"},
                  {"is": "gone", "pid": "x"}]
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                for message in forged:
                    send(json.dumps(message).encode() + b"\\n")
                os._exit(0)
            os._exit(0)
        for message in forged:
            send(json.dumps(message).encode() + b"\\n")
        for data in (b"garbage\\n", b'{"is": "en', b"x" * 10_000_000, b"[" * 100_000 + b"\\n"):
            send(data)
        for _ in range(3000):
            send(b"")
        print(json.dumps({"is": "rankended", "rank": 0, "status": 9, "code": 9}))
    time.sleep(1)
"""


@pytest.mark.thorough
def test_a_rank_that_lies_to_the_launcher(fleet: MakeFleet) -> None:
    """What a rank has started is no rank: forged reports, garbage and floods change nothing."""
    two = fleet("mpich")
    two.start_all("--no-prefix", "--", "python", two.script(HOSTILE))
    head, other = end(two)
    assert (head.status, other.status) == (0, 0), head.err[-2000:] + other.err
    assert "fault" not in head.err and "stopping" not in head.err


ECHO = """
    import hashlib, json, os, sys
    said = {"rank": os.environ["RANK"], "argv": sys.argv[1:], "cwd": os.getcwd()}
    # Not itself: mpirun cuts long lines of several ranks into each other
    said["stdin"] = hashlib.sha256(sys.stdin.buffer.read()).hexdigest()
    sys.stdout.write(json.dumps(said) + "\\n")
"""
WORDS = (
    "a b",
    "",
    "'q'",
    '"d"',
    "$HOME `id`",
    "new\nline",
    "*",
    "--",
    "größe",
    "\\b\\",
    ";",
    "{folder}",
    "{job}",
)


@pytest.mark.parametrize("family", FAMILIES)
def test_words_folder_and_input_arrive(family: str, fleet: MakeFleet, tmp_path: Path) -> None:
    """Arguments bit for bit, the head's folder, its input to rank 0, and an end of file to the others."""
    two = fleet(family)
    head, other = two.cluster.nodes
    folder = tmp_path / "a folder"
    folder.mkdir()
    text = "line\n" * 50_000
    (tmp_path / "input").write_text("skipped\n" + text)
    line = (sys.executable, "-m", "launcher", "run", "--engine", "mpirun", "--no-prefix", "--")
    shell = ("sh", "-c", 'read skipped; exec "$@"', "sh")
    with (tmp_path / "input").open() as stdin:
        argv = two.cluster.argv(head, (*shell, *line, "python", two.script(ECHO), *WORDS), cwd=str(folder))
        two.launchers.append(
            subprocess.Popen(
                argv,
                env=two.environ(),
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    two.start(other, "--", "true")
    done, _ = end(two)
    assert done.status == 0, done.err[-2000:]
    common = {"argv": list(WORDS), "cwd": str(folder)}
    assert sorted(done.records, key=lambda one: one["rank"]) == [
        {"rank": "0", **common, "stdin": hashlib.sha256(text.encode()).hexdigest()},
        {"rank": "1", **common, "stdin": hashlib.sha256(b"").hexdigest()},
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_that_one_node_lacks(family: str, fleet: MakeFleet) -> None:
    """Ranks do not work in the home directory instead: the verdict names the node and the folder."""
    two = fleet(family)
    head, other = two.cluster.nodes
    run_on(two, head, "mkdir /dev/shm/only-here")
    line = (sys.executable, "-m", "launcher", "run", "--engine", "mpirun", "--", "sleep", "20")
    argv = two.cluster.argv(head, line, cwd="/dev/shm/only-here")
    two.launchers.append(
        subprocess.Popen(
            argv,
            env=two.environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    )
    two.start(other, "--", "true")
    done, _ = end(two)
    assert done.status == 75, done.err[-2000:]
    assert "working directory '/dev/shm/only-here', on node1: No such file" in done.err, done.err[-2000:]


@pytest.mark.thorough
def test_a_command_that_one_node_lacks(fleet: MakeFleet) -> None:
    """Status 127, and the verdict names node and reason, although the kernel said so after the fork."""
    two = fleet("openmpi5")
    run_on(two, two.cluster.nodes[0], "cp /bin/sleep /dev/shm/only-here")
    two.start_all("--", "/dev/shm/only-here", "20")
    head, other = end(two)
    assert (head.status, other.status) == (127, 127), head.err[-2000:]
    assert "host node1, node 1" in head.err and "'/dev/shm/only-here': no such program" in head.err


@pytest.mark.parametrize("family", FAMILIES)
def test_mpi_abort(family: str, fleet: MakeFleet) -> None:
    """The status is what MPI_Abort was called with, also where mpirun kills the rank before it ends."""
    two = fleet(family)
    script = two.script(
        """
        from mpi4py import MPI
        MPI.COMM_WORLD.Barrier()
        if MPI.COMM_WORLD.rank == 1:
            MPI.COMM_WORLD.Abort(7)
        MPI.COMM_WORLD.Barrier()
        """
    )
    two.start_all("--", "python", script)
    head, other = end(two)
    assert (head.status, other.status) == (7, 7), head.err[-2000:]


# --- before mpirun


@pytest.mark.thorough
def test_one_node_under_two_names(fleet: MakeFleet) -> None:
    """The list is wrong, and node 0 says that before it waits for anyone."""
    two = fleet("openmpi5")
    environ = {"LAUNCHER_HOSTS": "node0,node1,10.77.0.11"}
    two.start(two.cluster.nodes[0], "--", "true", environ=environ)
    (head,) = end(two)
    assert head.status == 78, head.err[-2000:]
    assert "[same-node] node1 and 10.77.0.11 are the same node" in head.err or (
        "[same-node] 10.77.0.11 and node1 are the same node" in head.err
    )


@pytest.mark.thorough
def test_attempts_to_reach_a_node_do_not_pile_up(fleet: MakeFleet) -> None:
    """Each ssh that has failed is waited for: 15 minutes of them would fill the process table."""
    two = fleet("openmpi5")
    head, _ = two.cluster.nodes
    two.start(head, "--", "true", environ={"LAUNCHER_ROLL_CALL_TIMEOUT": "5"})
    zombies = 0
    while two.launchers[0].poll() is None:
        zombies = max(zombies, run_on(two, head, "ps -e -o stat=,comm=").count("Z"))
    assert zombies <= 2
    assert end(two)[0].status == 75


# --- the grace holds whatever is killed

SAVE = """
    import os, signal, sys, time
    from mpi4py import MPI
    MPI.COMM_WORLD.Barrier()
    def name(what):
        return "{folder}/" + what + os.environ["RANK"]
    def save(*_):
        open(name("asked"), "w").close()
        for _ in range(20):
            print("saving " + "x" * 10_000, flush=True)
            time.sleep({save_s} / 20)
        open(name("saved"), "w").close()
        os._exit(0)
    signal.signal(signal.SIGTERM, save)
    open(name("ready"), "w").close()
    while not (os.environ["RANK"] in "{fail}" and os.path.exists("{folder}/fail")):
        time.sleep(0.001)
    {by}
"""
SAVE_S = 4.0
"""Longer than any mpirun leaves its ranks by itself."""


def start_savers(two: Fleet, folder: Path, fail: str = "", by: str = "os._exit(3)") -> None:
    """Start four ranks that need a while to save their state; some fail when there is a file."""
    script = two.script(SAVE.format(folder=folder, save_s=SAVE_S, fail=fail, by=by))
    two.start_all("--nproc-per-node", "2", "--grace", "15", "--", "python", script)
    await_files(folder, "ready*", 4)


def find_saved(folder: Path) -> list[str]:
    """Return the ranks that have saved their state."""
    return sorted(path.name.removeprefix("saved") for path in folder.glob("saved*"))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("part", ["head", "server", "mpirun", "daemon"])
def test_all_ranks_have_their_grace(part: str, family: str, fleet: MakeFleet, tmp_path: Path) -> None:
    """Whatever is killed of what is not a rank: each rank is told, and has the time to save its state.

    But for Open MPI 4: its ranks abort when the daemon of their node is killed, on node 0 mpirun itself.
    """
    two = fleet(family)
    start_savers(two, tmp_path)
    if part in ("head", "server"):
        two.cluster.kill(two.launchers[part == "server"].pid, signal.SIGKILL)
    else:
        node, marks = find_part(two, part)
        signal_on(two, node, signal.SIGKILL, *marks)
    end(two)
    abort = {"mpirun": "01", "daemon": "23"}.get(part, "") if family == "openmpi4" else ""
    assert find_saved(tmp_path) == sorted({*"0123"} - {*abort})


@pytest.mark.thorough
@pytest.mark.parametrize("family", FAMILIES)
def test_two_ranks_fail_at_once(family: str, fleet: MakeFleet, tmp_path: Path) -> None:
    """On two nodes: the others have their time."""
    two = fleet(family)
    start_savers(two, tmp_path, fail="02")
    (tmp_path / "fail").touch()
    head, other = end(two)
    assert (head.status, other.status) == (3, 3), head.err[-2000:]
    assert find_saved(tmp_path) == ["1", "3"]


@pytest.mark.thorough
def test_a_rank_that_aborts_leaves_the_others_their_grace(fleet: MakeFleet, tmp_path: Path) -> None:
    """MPI_Abort is a failure like others: its status is the job's, and the other ranks are asked to end."""
    two = fleet("mpich")
    start_savers(two, tmp_path, fail="2", by="MPI.COMM_WORLD.Abort(7)")
    (tmp_path / "fail").touch()
    head, other = end(two)
    assert (head.status, other.status) == (7, 7), head.err[-2000:]
    # Told to end before its own abort has ended it, rank 2 saves, too
    assert {*find_saved(tmp_path)} - {"2"} == {"0", "1", "3"}


FAILS_BEFORE_THE_CLOCK_IS_SET = """
test $RANK = 1 || { sleep 1; exit 3; }
trap "touch $0; sleep 0.2; exit 0" TERM
while :; do sleep 0.05; done
"""


def test_a_clock_that_is_set_while_ranks_end_moves_no_event(tmp_path: Path) -> None:
    """By 400 days: which rank failed first, and when, is said by a clock that nobody sets."""
    (tmp_path / "clock.py").write_text(SETS_CLOCK)
    mark = str(tmp_path / "set")
    words = ("run", "--engine", "mpirun", "--nproc-per-node", "2", "--", "sh", "-c")
    done = launch(
        *words,
        FAILS_BEFORE_THE_CLOCK_IS_SET,
        mark,
        environ=find_mpi("mpich").environ,
        interpreter=(sys.executable, str(tmp_path / "clock.py"), mark),
    )
    assert done.returncode == 3 and "rank 0 of 2 failed first" in done.stderr, done.stderr
    found = re.search(r"(-?[0-9.,]+) s after the start", done.stderr)
    assert found and 0 < float(found[1].replace(",", "")) < 60, done.stderr
