"""Several jobs, and several nodes of one job, on one machine: they meet, and no other job's."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from launcher.core.version import __version__
from launcher.machine.host import Host
from tests.process.starting import DEADLINE_S, ROOT, clean_environ, launch, open_launcher
from tests.process.test_engines import ALLREDUCE, ONE_THREAD

torch = pytest.mark.torch
ROUNDS = 20
PATIENCE_S = 3 * DEADLINE_S
"""For what loads torch seven times at once."""
MEET = """
import os, socket, sys, time
job, rank, size = os.environ["JOB"], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    with socket.create_server(("", place[1])) as server:
        for _ in range(size - 1):
            there, _ = server.accept()
            with there:
                there.sendall(job.encode())
    print("met at", place[1], flush=True)
    sys.exit()
deadline = time.monotonic() + 30
while True:
    try:
        with socket.create_connection(place, 5) as server:
            sys.exit(server.recv(100).decode() != job)
    except ConnectionRefusedError:
        assert time.monotonic() < deadline
        time.sleep(0.01)
"""
TWO = ("--nproc-per-node", "2")
MEETS = ("--", sys.executable, "-c", MEET)
SHOW = ("--", "sh", "-c", "echo $RANK $MASTER_ADDR:$MASTER_PORT $JAX_COORDINATOR_ADDRESS")


def end_all(jobs: Sequence[subprocess.Popen[str]]) -> list[tuple[str, str]]:
    """Wait for jobs that end well, and return what each has printed and said."""
    told = []
    for job in jobs:
        with job:
            told.append(job.communicate(timeout=PATIENCE_S))
        assert job.returncode == 0, told[-1]
    return told


@pytest.fixture
def squatter() -> Iterator[int]:
    """Yield a port at which another program listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


# --- one node


@pytest.mark.parametrize("count", [1, pytest.param(ROUNDS, marks=pytest.mark.thorough)])
def test_two_jobs_at_once_meet_each_at_a_port_of_its_own(count: int) -> None:
    for _ in range(count):
        jobs = [open_launcher("run", *TWO, *MEETS, environ={"JOB": name}) for name in "ab"]
        said = [out.split()[-1] for out, _ in end_all(jobs)]
        assert len(set(said)) == 2


def test_everything_follows_the_port_that_is_free() -> None:
    out = launch("run", *TWO, "--no-prefix", *SHOW).stdout.split("\n")[:2]
    ports = {line.rpartition(":")[2] for line in out}
    assert len(ports) == 1 and ports != {"6105"}
    (port,) = ports
    assert sorted(out) == [f"{rank} 127.0.0.1:{port} 127.0.0.1:{port}" for rank in range(2)]


def test_a_plan_of_one_node_is_the_same_each_time() -> None:
    """6105 stands for the port, in words, too; its processes get another one."""
    first, second = (launch("plan", *TWO, "--", "true").stdout for _ in range(2))
    assert first == second
    assert "free        one node: any free port" in first
    assert "MASTER_PORT is a free port, chosen when the job starts; the plan shows 6105 in its place" in first


def test_the_variables_of_one_process_name_a_port_that_is_free() -> None:
    """Those of several are asked for one by one: all must hear the same."""
    shown = [json.loads(launch("env", "--format", "json", "--nproc-per-node", "1").stdout) for _ in range(2)]
    assert "6105" not in {one["MASTER_PORT"] for one in shown}
    done = [launch("env", "--format", "json", *TWO, "--local-rank", rank) for rank in "01"]
    assert {json.loads(one.stdout)["MASTER_PORT"] for one in done} == {"6105"}
    assert "launcher run picks a free port; here MASTER_PORT is 6105" in done[0].stderr


def test_setup_takes_a_port_that_is_free(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import launcher, os\nlauncher.setup()\nprint(os.environ['MASTER_PORT'])\n")
    environ = clean_environ(LAUNCHER_NPROC_PER_NODE="1")
    line = [sys.executable, str(script)]
    ports = {
        subprocess.run(line, env=environ, capture_output=True, text=True, check=True).stdout for _ in range(2)
    }
    assert "6105\n" not in ports


def test_processes_that_the_platform_has_started_keep_a_port_that_all_know() -> None:
    """They cannot agree on one that is free; a process that is alone can."""
    ranks = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    for rank in "01":
        place = {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_LOCAL_RANK": rank}
        assert launch("run", *SHOW, environ={**ranks, **place}).stdout.split()[1] == "127.0.0.1:6105"
    alone = {f"OMPI_COMM_WORLD_{name}": "1" for name in ("SIZE", "LOCAL_SIZE")}
    alone |= {f"OMPI_COMM_WORLD_{name}": "0" for name in ("RANK", "LOCAL_RANK")}
    assert launch("run", *SHOW, environ=alone).stdout.split()[1] != "127.0.0.1:6105"


# --- a port that is taken


def test_a_port_that_was_typed_and_is_taken_is_said_before_the_start(squatter: int) -> None:
    """With the process that has it, and nothing is started; also for one process."""
    for count in "12":
        done = launch("run", "--nproc-per-node", count, "--master-port", str(squatter), *SHOW)
        assert (done.returncode, done.stdout) == (75, "")
        said = f"port {squatter} of this node is needed for the rendezvous (--master-port {squatter})"
        assert f"error: [port-taken] {said}, but process {os.getpid()} (" in done.stderr
        assert f"fix:  end that process, or leave out --master-port {squatter}: a single node" in done.stderr


def test_a_port_that_a_variable_names_and_is_taken_is_replaced(squatter: int) -> None:
    """As the roll call does on several nodes, and said; one process may need no port at all."""
    for name in ("MASTER_PORT", "LAUNCHER_MASTER_PORT"):
        done = launch("run", *TWO, "--no-prefix", *SHOW, environ={name: str(squatter)})
        assert done.returncode == 0
        ports = {line.rpartition(":")[2] for line in done.stdout.splitlines()}
        assert len(ports) == 1 and str(squatter) not in ports
        assert f"port {squatter} ({name}='{squatter}') is taken on this node by process" in done.stderr
        assert f"the job meets at {ports.pop()} instead" in done.stderr
        alone = launch("run", "--nproc-per-node", "1", *SHOW, environ={name: str(squatter)})
        assert (alone.stdout.split()[1], alone.stderr) == (f"127.0.0.1:{squatter}", "")


def test_a_port_that_is_taken_where_the_platform_starts_the_processes_is_a_warning(squatter: int) -> None:
    """Rank 0 says it; a process around it that may listen there for this job is none of that."""
    ranks = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "MASTER_PORT": str(squatter)}
    zero = {**ranks, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    done = launch("run", *SHOW, environ=zero)
    assert (done.returncode, done.stdout.split()[1]) == (0, f"127.0.0.1:{squatter}")
    assert f"warning: port {squatter} (MASTER_PORT='{squatter}') is taken on this node" in done.stderr
    one = {**ranks, "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
    assert launch("run", *SHOW, environ=one).stderr == ""
    inside = ("run", "--", sys.executable, "-m", "launcher", "run", *SHOW)
    assert launch(*inside, environ=zero).stderr.count("warning: port") == 1


def test_a_port_that_is_held_is_nobodys_and_ours() -> None:
    """The kernel gives it to no one else; what says SO_REUSEADDR can listen there."""
    host = Host()
    port = host.free_port()
    assert host.free_port() == port
    assert not {port, port + 1} & {Host().free_port() for _ in range(99)}
    with socket.socket() as other, pytest.raises(OSError):
        other.bind(("", port))
    for place in (port, port + 1):
        with socket.create_server(("", place)):
            pass


# --- several nodes of one job


FAILS = "import os, sys, time; sys.exit(7) if os.environ['RANK'] == '3' else time.sleep(600)"
SEES = "echo $RANK $NODE_RANK $MASTER_ADDR:$MASTER_PORT"
LOOPBACKS = ("127.0.0.1", "localhost", "127.0.0.5", "0.0.0.0", "::1")


def open_nodes(
    *words: str, master: str = "127.0.0.1", folders: Sequence[str] = (ROOT, ROOT)
) -> list[subprocess.Popen[str]]:
    """Start both nodes of a job of two, each with two processes, at ports that no other test has.

    Args:
        words: Flags and command.
        master: Address of node 0.
        folders: Where each node's launcher is.
    """
    ports = [str(port) for port in (Host().free_port(), Host().free_port())]
    job = ("--nnodes", "2", "--master-addr", master, "--master-port", ports[0], "--control-port", ports[1])
    return [
        open_launcher("run", *job, *TWO, "--node-rank", str(rank), *words, environ=ONE_THREAD, folder=folder)
        for rank, folder in enumerate(folders)
    ]


BIND = {
    "socket": "socket.socket().bind(('127.0.0.1', int(os.environ['MASTER_PORT'])))",
    "socketserver": "socketserver.TCPServer(('', int(os.environ['MASTER_PORT'])), None)",
    "IPv6": "socket.socket(socket.AF_INET6).bind(('::1', int(os.environ['MASTER_PORT'])))",
}


@pytest.mark.parametrize("how", BIND)
def test_a_server_that_cannot_share_the_port_that_we_reserve_is_told_why(how: str) -> None:
    """It is no other process that has it."""
    script = f"import os, socket, socketserver; {BIND[how]}"
    done = launch("run", "--nproc-per-node", "2", "--", sys.executable, "-c", script)
    assert done.returncode == 1 and "reserves it for a server that sets SO_REUSEADDR" in done.stderr


@torch
def test_two_nodes_on_one_machine_are_one_job() -> None:
    """As with torchrun: what is typed is obeyed, with a note."""
    (out, err), (_, other) = end_all(open_nodes("--", sys.executable, ALLREDUCE))
    assert '"sum": 10, "expected": 10' in out
    assert "reachable only from this machine: 127.0.0.1 is this machine, so all of this job runs" in err
    assert other == ""


@torch
@pytest.mark.parametrize("flags", [("--engine", "torchrun"), ("--rdzv-backend", "c10d")])
def test_two_agents_of_torchrun_on_one_machine_are_one_job(flags: Sequence[str]) -> None:
    """Whether their workers are told who they are by the command line, or at the rendezvous."""
    told = end_all(open_nodes(*flags, "--", sys.executable, ALLREDUCE))
    assert sum('"sum": 10, "expected": 10' in out for out, _ in told) == 1


@pytest.mark.parametrize("master", LOOPBACKS)
def test_any_name_of_this_machine_will_do(master: str) -> None:
    """The nodes meet, and a launcher inside of a process takes its word for it."""
    if master == "::1" and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    inside = ("--no-prefix", "--", sys.executable, "-m", "launcher", "run", "--", "sh", "-c", SEES)
    lines = [
        line.split() for out, _ in end_all(open_nodes(*inside, master=master)) for line in out.splitlines()
    ]
    assert [line[:2] for line in sorted(lines)] == [["0", "0"], ["1", "0"], ["2", "1"], ["3", "1"]]
    assert {line[2].rpartition(":")[0] for line in lines} == {master}


def has_ipv6() -> bool:
    """Whether the loopback has an address of IPv6."""
    with socket.socket(socket.AF_INET6) as probe:
        return probe.connect_ex(("::1", 9)) != errno.EADDRNOTAVAIL


def test_a_failure_on_one_of_them_has_one_verdict() -> None:
    """Both launchers name the rank, and have its status."""
    nodes = open_nodes("--", sys.executable, "-c", FAILS)
    told = []
    for node in nodes:
        with node:
            told.append(node.communicate(timeout=PATIENCE_S)[1])
    assert [node.returncode for node in nodes] == [7, 7], told
    for err in told:
        assert "rank 3 of 4 failed first: it exited with code 7" in err
        assert "local rank 1" in err and "node 1" in err


@pytest.mark.parametrize("newer", [0, 1])
def test_another_version_of_the_launcher_is_refused_by_name_on_both_nodes(newer: int, tmp_path: Path) -> None:
    """Neither starts a process, whichever of them is node 0."""
    copy, started = tmp_path / "newer", tmp_path / "started"
    shutil.copytree(os.path.join(ROOT, "launcher"), copy / "launcher")
    (copy / "launcher" / "core" / "version.py").write_text('__version__ = "7.0.0"\n')
    folders = [ROOT, ROOT]
    folders[newer] = str(copy)
    jobs = open_nodes("--", "touch", str(started), folders=folders)
    said = []
    for job in jobs:
        with job:
            said.append(job.communicate(timeout=PATIENCE_S)[1])
        assert job.returncode == 78, said[-1]
    versions = [__version__, __version__]
    versions[newer] = "7.0.0"
    for text in said:
        assert "error: [other-version] node 1 (" in text, text
        assert (
            f") has launcher {versions[1]}; node 0 (" in text and f") has launcher {versions[0]}" in text
        ), text
    assert not started.exists()
