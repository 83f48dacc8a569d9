"""Jobs of several containers, each with an address, a hostname and a /dev/shm of its own."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from launcher.rehearse.cluster import Cluster, SimulatedNode
from launcher.rehearse.platforms import variables
from tests.cluster.fleets import ALLREDUCE
from tests.container.containers import Container, wait_for
from tests.container.test_entry_point import SAVE
from tests.process.starting import ROOT

pytestmark = [
    *(pytest.mark.container, pytest.mark.root, pytest.mark.torch, pytest.mark.mpi),
    pytest.mark.xdist_group("containers"),
]

NODES = 4
DEADLINE_S = 240.0
RECORDINGS = Path(ROOT, "tests", "golden", "recordings")
# Each process learns from numbers that are only its own, so the answer is right only if they average.
TRAIN = """
import json, os, torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(60):
    optimizer.zero_grad()
    loss = ((model(torch.ones(4, 1)) - rank) ** 2).mean()
    loss.backward()
    optimizer.step()
weight = model.module.weight.item()
names = ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR")
said = {**{name: os.environ.get(name) for name in names}, "host": os.uname().nodename}
right = abs(weight - (world - 1) / 2) < 1e-2
os.write(1, (json.dumps({**said, "right": right}) + "\\n").encode())  # in one piece: the pipe is shared
dist.destroy_process_group()
os._exit(0)  # at the end of Python, gloo's threads abort now and then ("terminate called"): not ours to test
"""


class Ended(NamedTuple):
    """What a node's container has said and how it ended."""

    status: int
    out: str
    err: str


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Return nodes whose networks containers join."""
    with Cluster(NODES) as made:
        assert made.isolated, "no namespaces, though there can be containers"
        yield made


class Job:
    """Containers on the nodes of a cluster."""

    def __init__(self, container: Container, cluster: Cluster, count: int, *user: str) -> None:
        self.container, self._cluster, self.user = container, cluster, user
        self.nodes = cluster.nodes[:count]

    def options(self, node: SimulatedNode, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Return what makes a container one of this node: its network, its name, its neighbours; its user."""
        entered = self._cluster.argv(node, [])
        holder = entered[entered.index("--target") + 1]
        hosts = [f"--add-host={other.name}:{other.address}" for other in self.nodes]
        variables = [f"--env={name}={text}" for name, text in environ.items()]
        network = (f"--network=ns:/proc/{holder}/ns/net", f"--hostname={node.name}")
        return (*network, *hosts, *variables, *self.user, "--shm-size=64m", "--memory=2g")

    def run(self, lines: Sequence[Sequence[str]], environs: Sequence[Mapping[str, str]]) -> list[Ended]:
        """Start a container on each node at once, and wait for all."""
        started = [
            self.container.podman.start(*self.container.line(tuple(line), self.options(node, environ)))
            for node, line, environ in zip(self.nodes, lines, environs, strict=True)
        ]
        ends = [process.communicate(timeout=DEADLINE_S) for process in started]
        return [
            Ended(process.returncode, out, err) for process, (out, err) in zip(started, ends, strict=True)
        ]


def records(ended: Sequence[Ended]) -> list[dict[str, Any]]:
    """Return what the processes of a job have printed, by rank."""
    lines = [line[line.index("{") :] for node in ended for line in node.out.splitlines() if "{" in line]
    return sorted(map(json.loads, lines), key=lambda record: int(record["RANK"]))


def azure_batch(nodes: Sequence[SimulatedNode]) -> list[dict[str, str]]:
    """Return the recorded variables of a multi-instance task with the addresses of two nodes of ours.

    Of the second node the page shows only what differs.
    """
    recorded = (RECORDINGS / "azure_batch_multi_instance_docs.json").read_text()
    for theirs, ours in zip(("10.0.0.4", "10.0.0.5"), nodes, strict=True):
        recorded = recorded.replace(theirs, ours.address)
    first, second = (process["env"] for process in json.loads(recorded)["processes"])
    return [first, {**first, **second}]


def azure_ml(nodes: Sequence[SimulatedNode]) -> list[dict[str, str]]:
    """Return the recorded variables of Azure ML's PyTorch distribution, one process per node.

    The page shows the distribution's own; what every job of Azure ML has comes beside them.
    """
    recorded = (RECORDINGS / "azureml_pytorch_and_tf_docs.json").read_text()
    recorded = recorded.replace("<node0>", nodes[0].address)
    processes = json.loads(recorded)["pytorch_per_node_launch_2nodes"]
    every = [variables("azureml-node", nodes, node) for node in nodes]
    return [{**common, **process["env"]} for common, process in zip(every, processes, strict=True)]


def check_training(ended: Sequence[Ended], count: int) -> list[dict[str, Any]]:
    """Assert that all processes of a job have learnt the same, and return what they have said."""
    assert [node.status for node in ended] == [0] * len(ended), [node.err for node in ended]
    said = records(ended)
    assert [int(record["RANK"]) for record in said] == list(range(count)), ended
    assert all(record["right"] for record in said), said
    return said


@pytest.mark.parametrize("recorded", [azure_batch, azure_ml], ids=["azure-batch", "azure-ml"])
def test_two_containers_train_as_azure_starts_them(
    container: Container, cluster: Cluster, recorded: Any
) -> None:
    """Two processes on each, by the recorded variables: the nodes meet, and train."""
    job = Job(container, cluster, 2)
    container.write("train.py", TRAIN)
    environs = [{**environ, "LAUNCHER_NPROC_PER_NODE": "2"} for environ in recorded(job.nodes)]
    said = check_training(job.run([["/job/train.py"]] * 2, environs), 4)
    assert [record["host"] for record in said] == ["node0", "node0", "node1", "node1"]
    assert {record["MASTER_ADDR"] for record in said} == {job.nodes[0].address}


@pytest.mark.parametrize(("count", "peers"), [(NODES, "1"), (2, "0")], ids=["4-roll-call", "2-plain"])
def test_containers_train(container: Container, cluster: Cluster, count: int, peers: str) -> None:
    """A process on each, started by the launcher itself, with a roll call of the nodes and without."""
    job = Job(container, cluster, count)
    container.write("train.py", TRAIN)
    settings = {"LAUNCHER_ENGINE": "process", "LAUNCHER_PEERS": peers, "LAUNCHER_NPROC_PER_NODE": "1"}
    environs = [{**variables("azureml-pytorch", job.nodes, node), **settings} for node in job.nodes]
    said = check_training(job.run([["python", "/job/train.py"]] * count, environs), count)
    assert [record["host"] for record in said] == [node.name for node in job.nodes]
    assert [record["NODE_RANK"] for record in said] == [str(node.index) for node in job.nodes]


def run_mpi(job: Job, environs: Sequence[Mapping[str, str]]) -> list[Ended]:
    """Run an allreduce by mpirun on node 0, for which the other nodes serve, with a token of its own."""
    container, others = job.container, len(job.nodes) - 1
    container.write("allreduce.py", textwrap.dedent(ALLREDUCE))
    container.folder.chmod(0o755)
    head = "launcher run --engine mpirun --nproc-per-node 2 -- python /job/allreduce.py"
    token = {"LAUNCHER_TOKEN": "a token of these tests"}
    lines = [head.split(), *[["launcher", "serve"]] * others]
    return job.run(lines, [{**environ, **token} for environ in environs])


def check_allreduce(job: Job, ended: Sequence[Ended]) -> None:
    """Assert that two ranks on each node have come to the sum of all."""
    count = len(job.nodes)
    assert [node.status for node in ended] == [0] * count, [node.err for node in ended]
    said = records(ended)
    assert [record["mpi_rank"] for record in said] == list(range(2 * count))
    assert {record["sum"] for record in said} == {count * (2 * count + 1)}
    assert [record["node"] for record in said] == [node.name for node in job.nodes for _ in range(2)]


def named_hosts(job: Job) -> list[dict[str, str]]:
    """Return the variables of a job whose nodes are known by name."""
    return [{"LAUNCHER_HOSTS": ",".join(node.name for node in job.nodes)}] * len(job.nodes)


@pytest.mark.parametrize("count", [2, NODES])
def test_containers_of_an_mpi_job(container: Container, cluster: Cluster, count: int) -> None:
    """Node 0 starts all ranks by mpirun, the others serve: as on Azure Batch."""
    job = Job(container, cluster, count)
    environs = azure_batch(job.nodes) if count == 2 else named_hosts(job)
    check_allreduce(job, run_mpi(job, environs))


def test_an_mpi_job_of_a_user_without_rights(container: Container, cluster: Cluster) -> None:
    """User 1000, no capability, no entry in /etc/passwd."""
    rights = ("--cap-drop=all", "--security-opt=no-new-privileges")
    job = Job(container, cluster, 2, "--user=1000:1000", "--passwd=false", *rights)
    check_allreduce(job, run_mpi(job, named_hosts(job)))


def test_podman_stop_of_one_node_saves_on_all(container: Container, cluster: Cluster) -> None:
    """One container is told to stop: the job stops, and every rank has its time to save."""
    job = Job(container, cluster, 2)
    container.write("train.py", SAVE)
    settings = {"LAUNCHER_ENGINE": "process", "LAUNCHER_NPROC_PER_NODE": "2"}
    names = [
        container.start("/job/train.py", options=job.options(node, {**environ, **settings}))
        for node, environ in zip(job.nodes, azure_ml(job.nodes), strict=True)
    ]
    wait_for(lambda: all((container.folder / f"ready{n}").exists() for n in range(4)), "all ranks are ready")
    ended, said = container.stop(names[1], "--time", "20")
    assert [(container.folder / f"saved{n}").read_text().strip() for n in range(4)] == ["SIGTERM"] * 4, said
    status = container.podman.must("wait", names[0])
    assert (ended, status) == (0, "0"), said
