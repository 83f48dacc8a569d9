"""deploy/ssh.sh: shellcheck, and two nodes with a real sshd."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.rehearse.cluster import Cluster
from tests.cluster.conftest import StartSshd
from tests.deploy.schemas import DEPLOY
from tests.deploy.shell import shellcheck
from tests.process.looking import wait_for
from tests.process.starting import clean_environ

SCRIPT = DEPLOY / "ssh.sh"
SHOW = """
import os, sys, time
words = (os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "on", os.uname().nodename, *sys.argv[1:])
os.write(1, (" ".join(words) + chr(10)).encode())
open("seen-" + os.environ["RANK"], "w").close()
while not (os.path.exists("seen-0") and os.path.exists("seen-1")):
    time.sleep(0.02)
sys.exit(int(os.environ["RANK"]) * int(sys.argv[2]))
"""


def run(
    cluster: Cluster, config: str, folder: Path, *words: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the script on the first node, as a user does, in a folder that both nodes have."""
    return subprocess.run(
        start(cluster, config, folder, *words, **variables),
        env=clean_environ(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


STAYS = """
import os, sys, time
open(f"pid-{os.environ['RANK']}", "w").write(str(os.getpid()))
while True:
    time.sleep(0.1)
"""


def start(cluster: Cluster, config: str, folder: Path, *words: str, **variables: str) -> list[str]:
    """Return the command that runs the script on the first node, in a folder that both nodes have."""
    given = {
        "HOSTS": "node0 node1",
        "SSH": f"ssh -F {config} -o ConnectionAttempts=30",
        "LAUNCHER": f"{sys.executable} -m launcher",
        **variables,
    }
    settings = [f"{name}={value}" for name, value in given.items()]
    return cluster.argv(
        cluster.nodes[0], ["env", f"--chdir={folder}", *settings, "bash", str(SCRIPT), *words]
    )


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_job_ends_with_the_script(
    number: int, cluster: Cluster, sshd_on_nodes: StartSshd, tmp_path: Path
) -> None:
    """On all nodes; and nodes may stand on lines of their own."""
    (tmp_path / "stays.py").write_text(STAYS)
    words = (sys.executable, "stays.py")
    line = start(cluster, sshd_on_nodes(cluster), tmp_path, *words, HOSTS="node0\nnode1\n", CHECK="0")
    with subprocess.Popen(line, env=clean_environ(), stdin=subprocess.DEVNULL) as process:
        pids = [tmp_path / f"pid-{rank}" for rank in (0, 1)]
        wait_for(lambda: all(path.exists() and path.read_text() for path in pids), "both ranks run", 60)
        os.kill(process.pid, number)
        wait_for(
            lambda: not any(Path("/proc", path.read_text()).exists() for path in pids), "no rank is left", 60
        )
    assert process.returncode in (143, 128 + number, -number)


@pytest.mark.parametrize("status", [0, 7])
def test_two_nodes_by_ssh(status: int, cluster: Cluster, sshd_on_nodes: StartSshd, tmp_path: Path) -> None:
    """Words with spaces arrive whole; the status is the job's; each node has the result of its check.

    A result replaces a link and does not follow it. Where ``od`` is missing, another program makes the token.
    """
    (tmp_path / "show.py").write_text(SHOW)
    (tmp_path / "other").write_text("of another user")
    (tmp_path / "check-node0.json").symlink_to("other")
    path = break_programs(tmp_path, "od", *(["openssl"] if status else []))
    words = (sys.executable, "show.py", "a  $b", str(status))
    done = run(cluster, sshd_on_nodes(cluster), tmp_path, *words, PATH=path)
    assert done.returncode == status, done.stderr
    shown = sorted(line.partition("] ")[2] or line for line in done.stdout.splitlines())
    assert shown == [f"{rank} of 2 on node{rank} a  $b {status}" for rank in (0, 1)]
    assert "not authenticated" not in done.stderr, "they have a token"
    checks = [json.loads((tmp_path / f"check-node{rank}.json").read_text()) for rank in (0, 1)]
    assert [check["hostname"] for check in checks] == ["node0", "node1"]
    assert (tmp_path / "other").read_text() == "of another user"


def break_programs(folder: Path, *names: str) -> str:
    """Return a PATH on which these programs fail."""
    for name in names:
        (folder / name).write_text("#!/bin/sh\nexit 127\n")
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.mark.thorough
def test_without_a_token_nothing_starts(tmp_path: Path) -> None:
    """The control channel would trust whoever knows the job's name."""
    path = break_programs(tmp_path, "od", "openssl", "python3")
    environ = {**clean_environ(), "HOSTS": "a", "SSH": "echo started", "PATH": path}
    done = subprocess.run(["bash", str(SCRIPT), "true"], env=environ, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (69, "") and "ssh.sh: no token" in done.stderr


@pytest.mark.thorough
def test_an_empty_list_of_nodes_is_an_error() -> None:
    """It would do nothing, with status 0."""
    environ = {**clean_environ(), "HOSTS": " \n"}
    done = subprocess.run(["bash", str(SCRIPT), "true"], env=environ, capture_output=True, text=True)
    assert done.returncode == 64 and "HOSTS is empty" in done.stderr


@pytest.mark.thorough
def test_a_node_with_a_problem_stops_the_job(
    cluster: Cluster, sshd_on_nodes: StartSshd, tmp_path: Path
) -> None:
    """Before it starts, with 69: here no node has the script."""
    done = run(cluster, sshd_on_nodes(cluster), tmp_path, sys.executable, "no-such-script.py")
    assert done.returncode == 69 and "see check-*.json" in done.stderr, done.stderr
    assert "command-not-found" in (tmp_path / "check-node1.json").read_text()


def test_shellcheck_finds_nothing() -> None:
    assert shellcheck(SCRIPT) == ""


def test_shellcheck_finds_a_missing_quote(tmp_path: Path) -> None:
    """So the test above can fail."""
    wrong = tmp_path / "ssh.sh"
    wrong.write_text(
        SCRIPT.read_text().replace('exit "$status"', "exit $status").replace('wait "$pid"', "wait $pid")
    )
    assert "SC2086" in shellcheck(wrong)
