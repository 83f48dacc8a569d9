"""Containers as pods of an Indexed Job that are recreated: the launcher is process 1, and jobs restart."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from launcher.rehearse.cluster import Cluster
from tests.container.containers import Container
from tests.container.podman import TIMEOUT_S
from tests.process.looking import is_true_by

pytestmark = [pytest.mark.container, pytest.mark.root, pytest.mark.xdist_group("containers")]

SUBDOMAIN = "train.default.svc.cluster.local"
FLAGS = {"NNODES": "2", "RESTARTS": "3", "LOST_AFTER": "5", "GRACE": "1", "ROLL_CALL_TIMEOUT": "30"}
# Writes the time, so that two attempts that run at once are seen afterwards.
BEATS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *told: sys.exit(75))
rank, attempt = os.environ["RANK"], os.environ.get("LAUNCHER_ATTEMPT", "none")
name = f"beat-{attempt}-{rank}-{os.uname().nodename}-{time.monotonic_ns()}"
with open(f"/job/{name}", "w", buffering=1) as file:
    while not os.path.exists("/job/go"):
        file.write(f"{time.monotonic()}\\n")
        time.sleep(0.01)
"""


@pytest.fixture
def pods(container: Container) -> Iterator[Pods]:
    """Return pods on machines of which two are in reserve."""
    with Cluster(4) as cluster:
        yield Pods(container, cluster)


class Pods:
    """The pods of an Indexed Job, with a name service for them.

    Attributes:
        folder: Shared by all, as /job.
    """

    def __init__(self, container: Container, cluster: Cluster) -> None:
        self.folder = container.folder
        self._container, self._cluster = container, cluster
        self._addresses: dict[int, str] = {}
        self._names: list[str] = []
        container.write("train.py", BEATS)

    def start(self, index: int, machine: int) -> str:
        """Start the pod of an index on a machine, whose address it has then; return its container."""
        node = self._cluster.nodes[machine]
        holder = (entered := self._cluster.argv(node, []))[entered.index("--target") + 1]
        self._addresses[index] = node.address
        hosts = self.folder / f"hosts-{index}"
        self._publish(index)
        variables = {"JOB_COMPLETION_INDEX": str(index), "KUBERNETES_SERVICE_HOST": "10.96.0.1"}
        variables |= {f"LAUNCHER_{name}": text for name, text in FLAGS.items()}
        options = (
            *(f"--network=ns:/proc/{holder}/ns/net", f"--hostname=train-{index}"),
            *("--no-hosts", f"--volume={hosts}:/etc/hosts"),
            *(f"--env={name}={text}" for name, text in variables.items()),
        )
        self._names.append(self._container.start("python", "/job/train.py", options=options))
        return self._names[-1]

    def _publish(self, started: int) -> None:
        """Write the names of all pods where each pod looks, in place: the files are mounted."""
        for index in {*self._addresses, started}:
            lines = [
                f"{address} train-{other}.{SUBDOMAIN}" + (f" train-{other}" if other == index else "")
                for other, address in self._addresses.items()
            ]
            (self.folder / f"hosts-{index}").write_text("\n".join(("127.0.0.1 localhost", *lines, "")))

    def wait(self, name: str) -> tuple[int, str]:
        """Wait for a container; return its status, and what its launcher has said."""
        return int(self._container.podman.must("wait", name)), self._logs(name)

    def _logs(self, name: str) -> str:
        logs = self._container.podman("logs", name)
        return logs.stdout + logs.stderr

    def wait_until_up(self, attempt: str, count: int = 2) -> None:
        """Wait until so many ranks of an attempt have begun."""
        what = f"{count} ranks of attempt {attempt} have begun"
        if not is_true_by(lambda: self.up(attempt) == count, TIMEOUT_S):
            raise AssertionError("\n--- ".join((what, *map(self._logs, self._names))))

    def end(self, *words: str) -> None:
        """Run a command of podman on a container, such as kill."""
        self._container.podman.must(*words)

    def signal(self, name: str, number: int) -> None:
        """Send a signal to process 1 of a container from outside, where nothing protects it."""
        pid = self._container.podman.must("inspect", "--format", "{{.State.Pid}}", name)
        os.kill(int(pid), number)

    def up(self, attempt: str) -> int:
        """Return how many ranks of an attempt have begun."""
        return len(list(self.folder.glob(f"beat-{attempt}-*")))

    def span(self, attempt: str, rank: str = "*") -> tuple[float, float]:
        """Return the first and the last time that ranks of an attempt have written."""
        files = [path.read_text().splitlines() for path in self.folder.glob(f"beat-{attempt}-{rank}-*")]
        times = [float(line) for lines in files for line in lines]
        return min(times), max(times)


def begin(pods: Pods) -> list[str]:
    """Start a job of two pods, and wait until its ranks run."""
    names = [pods.start(index, index) for index in (0, 1)]
    pods.wait_until_up("none")
    return names


@pytest.mark.parametrize("machine", [1, 2], ids=["same-address", "other-address"])
def test_a_pod_that_is_recreated_takes_part_in_the_next_attempt(pods: Pods, machine: int) -> None:
    """It is let in by its index alone, and the job goes on to success."""
    first, second = begin(pods)
    pods.end("kill", second)
    second = pods.start(1, machine)
    pods.wait_until_up("1")
    (pods.folder / "go").touch()
    (status, said), (status_1, _) = pods.wait(first), pods.wait(second)
    assert (status, status_1) == (0, 0), said
    assert "node 1 (train-1) is back" in said
    assert pods.span("none")[1] < pods.span("1")[0]


def test_pod_0_that_is_recreated_begins_a_new_job(pods: Pods) -> None:
    """The other pod ends with 75; when the platform recreates it too, it finds pod 0 at its new address."""
    first, second = begin(pods)
    pods.end("kill", first)
    first = pods.start(0, 2)
    status, said = pods.wait(second)
    assert status == 75 and "node 0 failed first: it is lost" in said, said
    second = pods.start(1, 1)
    pods.wait_until_up("none", 4)
    (pods.folder / "go").touch()
    ends = [pods.wait(first), pods.wait(second)]
    assert [status for status, _ in ends] == [0, 0], ends
    assert not pods.up("1")
