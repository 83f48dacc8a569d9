"""Clusters for tests: see `launcher.rehearse.cluster` for what a node is and what it can do.

A test that asks for `cluster` needs namespaces and is skipped without; `loopback` runs everywhere. A
program that is missing is a failure that says what to install, never a skip.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from launcher.rehearse.cluster import Cluster, SimulatedNode, find_fallback_reason
from tests.cluster.fleets import Fleet
from tests.cluster.together import Job
from tests.mpis import find_mpi
from tests.process.looking import wait_for

RECORDINGS = Path(__file__).parent.parent / "golden" / "recordings"
DUMP = """
import json, os, socket, sys
record = {"node": socket.gethostname(), "env": dict(os.environ)}
path = os.path.join(sys.argv[1], f"{socket.gethostname()}-{os.getpid()}.json")
with open(path, "w") as file:
    json.dump(record, file)
"""
Run = Callable[..., "subprocess.CompletedProcess[str]"]
MakeFleet = Callable[..., Fleet]
StartSshd = Callable[[Cluster], str]
SSHD = """\
Port 22
HostKey {home}/host
AuthorizedKeysFile {home}/.ssh/id_ed25519.pub
StrictModes no
UsePAM no
PidFile none
"""
SERVE = "mkdir -p /run/sshd; exec /usr/sbin/sshd -D -e -f {home}/sshd_config"
SSH = """\
Host *
  IdentityFile {home}/.ssh/id_ed25519
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
"""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Return two nodes with a network, hostname, mounts and process ids of their own."""
    need_namespaces()
    with Cluster(2) as two:
        yield two


@pytest.fixture
def loopback() -> Iterator[Cluster]:
    """Return two nodes that are loopback addresses."""
    with Cluster(2, loopback=True) as two:
        yield two


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """Return a job on four nodes."""
    need_namespaces()
    with Cluster(4) as four:
        yield (one := Job(four, tmp_path))
        one.close()


@pytest.fixture
def five(tmp_path: Path) -> Iterator[Job]:
    """Return a job on the first four of five nodes."""
    need_namespaces()
    with Cluster(5) as nodes:
        yield (one := Job(nodes, tmp_path))
        one.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Job]:
    """Return a job on two nodes."""
    need_namespaces()
    with Cluster(2) as two:
        yield (one := Job(two, tmp_path))
        one.close()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[MakeFleet]:
    """Return a function that makes N nodes with a family of MPI and a token of the job."""
    need_namespaces()
    made: list[Fleet] = []
    clusters: list[Cluster] = []

    def make(family: str, nodes: int = 2) -> Fleet:
        cluster = Cluster(nodes)
        clusters.append(cluster)
        cluster.__enter__()
        made.append(Fleet(cluster, find_mpi(family), tmp_path))
        return made[-1]

    yield make
    for one in made:
        one.close()
    for cluster in clusters:
        cluster.close()


@pytest.fixture
def sshd_on_nodes(tmp_path: Path) -> Iterator[StartSshd]:
    """Return a function that starts a plain sshd on all nodes, and returns ssh's configuration for it."""
    servers: list[subprocess.Popen[bytes]] = []

    def start(cluster: Cluster) -> str:
        home = tmp_path / "home"
        (home / ".ssh").mkdir(parents=True)
        for name in ("host", ".ssh/id_ed25519"):
            line = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(home / name)]
            subprocess.run(line, check=True)
        (home / "sshd_config").write_text(SSHD.format(home=home))
        (home / "ssh").write_text(SSH.format(home=home))
        for node in cluster.nodes:
            line = cluster.argv(node, ["sh", "-c", SERVE.format(home=home)])
            servers.append(subprocess.Popen(line))
        for node in cluster.nodes:
            look = cluster.argv(node, ["ss", "-Hltn", "sport = :22"])
            wait_for(lambda look=look: subprocess.check_output(look), "sshd listens")  # type: ignore[misc]
        return str(home / "ssh")

    yield start
    for server in servers:
        server.kill()
        server.wait()


@pytest.fixture
def on(request: pytest.FixtureRequest) -> Run:
    """Return a function that runs a command on a node and returns the completed process."""

    def run(
        cluster: Cluster, node: SimulatedNode, argv: Sequence[str], **options: object
    ) -> subprocess.CompletedProcess[str]:
        options.setdefault("timeout", 30)
        line = cluster.argv(node, argv)
        return subprocess.run(line, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload, no-any-return]

    return run


@pytest.fixture
def dump(tmp_path: Path) -> tuple[str, ...]:
    """Return a command that writes the environment of its process to a file in ``tmp_path``."""
    script = tmp_path / "dump.py"
    script.write_text(DUMP)
    (tmp_path / "dumps").mkdir()
    return (sys.executable, str(script), str(tmp_path / "dumps"))


def need_namespaces() -> None:
    """Skip unless namespaces can be made."""
    if find_fallback_reason():
        pytest.skip("needs root, or a kernel that gives user namespaces to us")


def read_dumps(tmp_path: Path) -> list[dict[str, str]]:
    """Return what the processes of the `dump` command wrote, by node and process id."""
    records = [json.loads(path.read_text()) for path in sorted((tmp_path / "dumps").iterdir())]
    return [record["env"] for record in records]


def read_recording(name: str) -> list[dict[str, str]]:
    """Return the environments of a recording, one per process."""
    document = json.loads((RECORDINGS / f"{name}.json").read_text())
    return [process["env"] for process in document["processes"]]
