"""A node is a machine of its own, reachable from the others, and leaves nothing behind."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from launcher.core.errors import UsageError
from launcher.rehearse.cluster import Cluster

from .conftest import Run, need_namespaces

CLEAN = {"PATH": "/usr/bin:/bin"}
TIMEOUT_S = 20
ECHO_SERVER = """
import socket, sys
server = socket.create_server((sys.argv[1], 5000))
print("ready", flush=True)
connection, peer = server.accept()
connection.sendall(peer[0].encode())
"""
CLIENT = """
import socket, sys
connection = socket.create_connection((sys.argv[1], 5000), timeout=float(sys.argv[2]))
print(connection.makefile().read())
"""
OWNER = """
import subprocess, sys, time
from launcher.rehearse.cluster import Cluster
with Cluster(2) as cluster:
    line = cluster.argv(cluster.nodes[1], ["sh", "-c", "echo up; exec sleep 600"])
    subprocess.run(line)
"""


@pytest.mark.thorough
@pytest.mark.root
def test_node_has_own_processes(cluster: Cluster, on: Run) -> None:
    """A node sees its own PID 1, and no process of another node."""
    first, second = cluster.nodes
    with start(cluster, first, ["sh", "-c", "echo up; exec sleep 600"]) as sleeper:
        assert sleeper.stdout is not None
        assert sleeper.stdout.readline() == b"up\n"
        everything = ["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]
        assert "sleep 600" in on(cluster, first, everything).stdout
        assert "sleep 600" not in on(cluster, second, everything).stdout
        cluster.kill(sleeper.pid, signal.SIGKILL)


@pytest.mark.thorough
@pytest.mark.root
@pytest.mark.parametrize("by", ["hostname", "address"])
def test_nodes_reach_each_other(cluster: Cluster, on: Run, by: str) -> None:
    """TCP works between nodes, by name and by address, and the peer is seen as itself."""
    first, second = cluster.nodes
    with start(cluster, second, [sys.executable, "-c", ECHO_SERVER, "0.0.0.0"]) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        done = on(cluster, first, [sys.executable, "-c", CLIENT, getattr(second, by), "10"])
    assert f"{first.address}\n" == done.stdout, done.stderr


@pytest.mark.parametrize("kind", ["cluster", "loopback"])
def test_command_passes_through(kind: str, request: pytest.FixtureRequest, on: Run) -> None:
    """Environment (also names no shell can hold), folder, status and signal reach us unchanged."""
    cluster: Cluster = request.getfixturevalue(kind)
    node = cluster.nodes[1]
    environ = {**CLEAN, "com.nvidia.cuda.version": "12", "EMPTY": ""}
    assert names(on(cluster, node, ["env"], env=environ).stdout) == {*environ, "TMPDIR"}
    assert f"{Path.cwd()}\n" == on(cluster, node, ["pwd"]).stdout
    assert on(cluster, node, ["sh", "-c", "exit 7"]).returncode == 7
    assert on(cluster, node, ["no-such-program"], env=CLEAN).returncode == 127
    assert on(cluster, node, ["sh", "-c", "kill -USR1 $$"]).returncode == -signal.SIGUSR1


@pytest.mark.thorough
@pytest.mark.root
def test_agent_reaches_the_right_node(cluster: Cluster, on: Run) -> None:
    """Names and addresses lead to the node; a signal's status is 128+n; a dead node gives 255."""
    first, second = cluster.nodes
    for host in (second.name, second.address):
        assert on(cluster, first, [cluster.agent, host, "hostname"]).stdout == "node1\n"
    assert on(cluster, first, [cluster.agent, second.name, "kill -9 $$"]).returncode == 137
    cluster.crash(second)
    assert on(cluster, first, [cluster.agent, second.name, "true"]).returncode == 255


@pytest.mark.root
def test_orphans_are_reaped(cluster: Cluster, on: Run) -> None:
    """PID 1 collects a process whose parent left: no zombie stays."""
    node = cluster.nodes[0]
    orphan = on(cluster, node, ["sh", "-c", "sleep 0.05 >&- 2>&- & echo $!"]).stdout.strip()
    deadline = time.monotonic() + TIMEOUT_S
    while on(cluster, node, ["test", "-e", f"/proc/{orphan}"]).returncode == 0:
        assert time.monotonic() < deadline, "the orphan is still there"


@pytest.mark.root
def test_crash_ends_all_of_a_node(cluster: Cluster) -> None:
    """A crash kills what runs there, in any session; the other node goes on."""
    first, second = cluster.nodes
    with start(cluster, second, ["sh", "-c", "setsid sleep 600 & echo up; wait"]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        cluster.crash(second)
        assert process.stdout.read() == b"", "something still holds the pipe"
        assert process.wait(TIMEOUT_S) == -signal.SIGKILL
    assert subprocess.run(cluster.argv(first, ["true"]), check=False).returncode == 0


@pytest.mark.root
def test_pulled_cable_is_silent(cluster: Cluster, on: Run) -> None:
    """A disconnected node does not answer, and does again once it is reconnected."""
    first, second = cluster.nodes
    with start(cluster, second, [sys.executable, "-c", ECHO_SERVER, "0.0.0.0"]) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        cluster.disconnect(second)
        cut = on(cluster, first, [sys.executable, "-c", CLIENT, second.address, "0.2"])
        assert "timed out" in cut.stderr
        cluster.reconnect(second)
        done = on(cluster, first, [sys.executable, "-c", CLIENT, second.address, "10"])
    assert f"{first.address}\n" == done.stdout, done.stderr


@pytest.mark.root
def test_nothing_is_left_when_a_cluster_ends() -> None:
    """When the block is left, no process of any node exists, and no mount or link on the machine."""
    need_namespaces()
    before = machine_state()
    with Cluster(2) as cluster:
        line = cluster.argv(cluster.nodes[1], ["sh", "-c", "echo up; setsid sleep 600"])
        process = subprocess.Popen(line, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        spaces = network_namespaces(os.getpid())
        assert len(spaces) == 3, "two nodes and their switch"
    process.communicate(timeout=TIMEOUT_S)
    assert members(spaces) == []
    assert before == machine_state()


@pytest.mark.root
def test_nothing_is_left_when_the_owner_is_killed() -> None:
    """SIGKILL of the owner ends every process of every node, without any of our code."""
    need_namespaces()
    before = machine_state()
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"up\n"
        spaces = network_namespaces(owner.pid)
        gone = [os.pidfd_open(pid) for pid in members(spaces)]
        assert len(gone) >= 6, "a switch, two nodes with their parents, a command"
        owner.kill()
    deadline = time.monotonic() + TIMEOUT_S
    for descriptor in gone:
        assert select.select([descriptor], [], [], deadline - time.monotonic())[0]
        os.close(descriptor)
    assert members(spaces) == []
    assert before == machine_state()


@pytest.mark.parametrize("node_count", [0, 201])
def test_node_count_has_bounds(node_count: int) -> None:
    """There is a node, and an address for each."""
    with pytest.raises(UsageError, match=r"expected 1\.\.200"):
        Cluster(node_count)


def start(cluster: Cluster, node: object, argv: list[str]) -> subprocess.Popen[bytes]:
    """Start a command on a node with its output on a pipe."""
    return subprocess.Popen(cluster.argv(node, argv), stdout=subprocess.PIPE)  # type: ignore[arg-type]


def names(env_output: str) -> set[str]:
    """Return the names in the output of env(1)."""
    return {line.partition("=")[0] for line in env_output.splitlines()}


def descendants(pid: int) -> list[int]:
    """Return all processes below one."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    below = [int(word) for word in text.split()]
    return below + [deeper for child in below for deeper in descendants(child)]


def network_namespaces(pid: int) -> set[str]:
    """Return the network namespaces below a process, other than the machine's."""
    spaces = {space for child in descendants(pid) if (space := network_namespace(child))}
    return spaces - {network_namespace(os.getpid())}


def members(spaces: set[str]) -> list[int]:
    """Return every process of the machine that is in one of some network namespaces."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if network_namespace(pid) in spaces]


def network_namespace(pid: int) -> str:
    """Return the name of a process's network namespace, empty if it is gone or a zombie."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


def machine_state() -> tuple[set[str], list[str]]:
    """Return the interfaces and the mounts of the machine itself."""
    interfaces = {name for _, name in socket.if_nameindex()}
    return interfaces, Path("/proc/self/mountinfo").read_text().splitlines()


@pytest.mark.parametrize("more", ["", "x" * 100], ids=["short", "too long for a socket"])
def test_a_temporary_directory_is_no_text_of_a_shell(
    more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name comes from the environment, and the agent between the nodes is a script."""
    base = Path(tempfile.mkdtemp(dir="/tmp"))
    folder = base / f"a b;touch $(echo planted){more}"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.chdir(tmp_path)
    with Cluster(2, loopback=True) as cluster:
        line = [cluster.agent, cluster.nodes[1].address, "echo", "here"]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "here\n"), done.stderr
    assert not (tmp_path / "planted").exists()
    shutil.rmtree(base)
