"""``launcher run --ssh`` as it goes on: an ssh that ends, the terminal, and flags of node 0 alone."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.core import version
from launcher.rehearse.cluster import Cluster
from tests.cluster.conftest import MakeFleet, StartSshd
from tests.cluster.fleets import Fleet, run_on
from tests.process.looking import is_true_by, wait_for

pytestmark = [pytest.mark.root]

LAUNCHER = "__main__.py run"
WAITER = 'echo $$ > {folder}/pid-$RANK; test "$LAUNCHER_ATTEMPT" && exit 0; exec sleep 600'
StartJob = Callable[..., Fleet]


@pytest.fixture
def start(fleet: MakeFleet, sshd_on_nodes: StartSshd, tmp_path: Path) -> StartJob:
    """Return a function that starts a job of so many nodes by one command."""

    def start(nodes: int, *words: str, before: str = "true", hosts: str | None = None) -> Fleet:
        some = fleet("openmpi5", nodes)
        environ = {"LAUNCHER_TOKEN": "", "LAUNCHER_HOSTS": some.hosts if hosts is None else hosts}
        for node in some.cluster.nodes:
            run_on(some, node, before)
        cover = (sshd_on_nodes(some.cluster), "/etc/ssh/ssh_config")
        some.start(
            some.cluster.nodes[0], "--ssh", "--nproc-per-node", "1", *words, cover=cover, command="run",
            environ=environ, errors=tmp_path / "errors",
        )  # fmt: skip
        return some

    return start


def await_ranks(folder: Path, count: int) -> None:
    """Wait until so many processes have begun."""
    wait_for(lambda: len(list(folder.glob("pid-*"))) == count, "all processes have begun", 30)


def test_a_spare_node_replaces_a_lost_one(start: StartJob, tmp_path: Path) -> None:
    """The end of an ssh is not the end of the job once that runs: the control channel decides."""
    rules = ("--spares", "1", "--restarts", "2", "--lost-after", "5", "--grace", "1")
    # An ssh that ends as the job does is not worth a line: the second attempt takes longer
    waiter = WAITER.replace("exit 0", "exec sleep 4").format(folder=tmp_path)
    three = start(3, *rules, "--", "sh", "-c", waiter)
    await_ranks(tmp_path, 2)
    run_on(three, three.cluster.nodes[1], f"pkill -KILL -f '{LAUNCHER}'")
    (head,) = three.wait()
    assert head.status == 0, head.err
    assert "takes the place of node 1" in head.err and "cannot start" not in head.err, head.err
    assert "the ssh to node1 has ended: what its processes print is lost" in head.err, head.err


def test_a_node_that_is_lost_is_named(start: StartJob, tmp_path: Path) -> None:
    """Not as a launcher that could not start, and the job is not told to stop."""
    two = start(2, "--lost-after", "5", "--", "sh", "-c", WAITER.format(folder=tmp_path))
    await_ranks(tmp_path, 2)
    run_on(two, two.cluster.nodes[1], f"pkill -KILL -f '{LAUNCHER}'")
    (head,) = two.wait()
    assert head.status == 75, head.err
    assert "node 1 failed first: it is lost" in head.err and "SIGTERM" not in head.err, head.err


@pytest.mark.parametrize("status", [126, 127, 255])
def test_a_process_may_exit_as_ssh_does(start: StartJob, status: int) -> None:
    """The status of a rank is that of its launcher, and of its ssh."""
    two = start(2, "--", "sh", "-c", f"test $RANK = 0 || exit {status}; exec sleep 600")
    (head,) = two.wait()
    assert head.status == status, head.err
    assert "rank 1 of 2 failed first" in head.err and "ssh" not in head.err, head.err


def test_a_launcher_that_ends_before_the_start_ends_the_job(start: StartJob) -> None:
    """Node 0 doesn't wait for the whole roll call; here a module is missing on the other node."""
    hide = f"test $(hostname) = node0 || mount --bind /dev/null {version.__file__}"
    began = time.monotonic()
    two = start(2, "--roll-call-timeout", "300", "--", "true", before=hide)
    (head,) = two.wait()
    assert head.status == 143 and time.monotonic() - began < 60, head.err
    assert "cannot start the launcher on node1: ssh exited with 70" in head.err, head.err


def test_the_list_and_the_token_may_be_files_of_node_0(start: StartJob, tmp_path: Path) -> None:
    """The others are told both."""
    listed, token = tmp_path / "hosts", tmp_path / "token"
    listed.write_text("node0\nnode1\n")
    token.write_text("0123456789abcdef")
    hide = f"test $(hostname) = node0 || for f in {listed} {token}; do mount --bind /dev/null $f; done"
    flags = ("--hostfile", str(listed), "--token-file", str(token), "--no-prefix")
    two = start(2, *flags, "--", "sh", "-c", "echo $RANK", before=hide, hosts="")
    (head,) = two.wait()
    assert (head.status, sorted(head.out.split())) == (0, ["0", "1"]), head.err


def test_a_typed_rank_is_that_of_node_0(start: StartJob) -> None:
    """The fix of an error about a list without this node; the others have their own."""
    two = start(2, "--node-rank", "0", "--no-prefix", "--", "sh", "-c", "echo $NODE_RANK")
    (head,) = two.wait()
    assert (head.status, sorted(head.out.split())) == (0, ["0", "1"]), head.err


def test_ctrl_z_stops_the_whole_job_of_the_shell(
    cluster: Cluster, sshd_on_nodes: StartSshd, tmp_path: Path
) -> None:
    """The shell gets its terminal back, and ``fg`` continues."""
    config = sshd_on_nodes(cluster)
    command = f"'echo $$ > {tmp_path}/pid-$RANK; exec sleep 600'"
    line = f"{sys.executable} -m launcher run --ssh --hosts node0,node1 --nproc-per-node 1 -- sh -c {command}"
    enter = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/ssh/ssh_config; exec bash --norc -i')
    ours, theirs = pty.openpty()
    shell = subprocess.Popen(
        cluster.argv(cluster.nodes[0], ("setsid", "--ctty", *enter, config)),
        stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "PS1": "> ", "HISTFILE": ""},
    )  # fmt: skip
    os.close(theirs)
    os.set_blocking(ours, False)
    said = bytearray()

    def has_said(text: bytes) -> bool:
        with contextlib.suppress(BlockingIOError):
            said.extend(os.read(ours, 1 << 16))
        return text in said

    try:
        os.write(ours, f"{line}; echo ended $?\n".encode())
        await_ranks(tmp_path, 2)
        assert is_true_by(lambda: has_said(b"are here"), 10), said
        os.write(ours, b"\x1a")
        assert is_true_by(lambda: has_said(b"Stopped"), 10), said
        said.clear()
        os.write(ours, b"fg > /dev/null\n")
        states = ("sh", "-c", "ps -eo stat=,args= | grep '[l]auncher run' | grep -c ^T || true")
        look = cluster.argv(cluster.nodes[0], states)
        assert is_true_by(lambda: int(subprocess.check_output(look)) == 0, 10), "all go on"
        os.write(ours, b"\x03")
        assert is_true_by(lambda: has_said(b"SIGINT"), 10), said
        os.write(ours, b"\x03")
        assert is_true_by(lambda: has_said(b"> "), 20), said
    finally:
        shell.send_signal(signal.SIGKILL)
        shell.wait()
        os.close(ours)
