"""The lines of `launcher.engines.dialects` with real mpiruns, on nodes with a network of their own."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from launcher.engines.dialects import MpirunJob, carries, changed, plan_line, plan_variables, render_hostfile
from launcher.engines.forward import choose_forwarded, plan_starter_environ
from launcher.machine.mpi import Mpi, find_mpi
from launcher.rehearse.cluster import Cluster
from launcher.rehearse.node import ENVIRON as SSH_ENVIRON
from tests import mpis
from tests.cluster.conftest import need_namespaces

pytestmark = [pytest.mark.mpi, pytest.mark.root]

DEADLINE_S = 60.0
FAMILIES = sorted(mpis.FAMILIES)
SHOW = """
import base64, json, os, socket, sys
rank = next(os.environ[name] for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK") if name in os.environ)
values = {os.fsdecode(n): base64.b64encode(v).decode() for n, v in os.environb.items()}
shown = {name: values[name] for name in sys.argv[2:] if name in values}
record = {"rank": int(rank), "node": socket.gethostname(), "values": shown}
record["cpus"] = len(os.sched_getaffinity(0))
with open(os.path.join(sys.argv[1], f"{rank}.json"), "x") as file:
    json.dump(record, file)
"""
WEIRD = {
    "BLANKS": b" a  b ",
    "SHELL_WORDS": b"$HOME `id` $(id) *?[x]{y}~ ; & | < > ! #",
    "QUOTES": b"'\"'x\" '",
    "ONLY_QUOTED": b"'x'",
    "BACKSLASHES": b"\\a\\\\n\\",
    "EQUALS": b"=a==b=",
    "COMMAS": b"a,b;c:d",
    "LINES": b"\na\n\nb\r\n",
    "CONTROL": b"\ta\x01\x1b[31m\x7f\t",
    "UTF8": "hé 世界 \N{GRINNING FACE}".encode(),
    "NOT_UTF8": b"\xff\xfe\x80x\xc3",
    "EMPTY": b"",
    "LONG": b"x" * 100_000,
}
ODD_NAMES = ("com.nvidia.cuda.version", "BASH_FUNC_module%%", "a-b", "a b", "\u00fc")
IN_SLURM = {
    "SLURM_JOBID": "77",
    "SLURM_JOB_ID": "77",
    "SLURM_NODELIST": "gone[1-2]",
    "SLURM_JOB_NODELIST": "gone[1-2]",
    "SLURM_NNODES": "2",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_TASKS_PER_NODE": "1(x2)",
    "HYDRA_BOOTSTRAP": "slurm",
    "HYDRA_LAUNCHER_EXTRA_ARGS": "--external-launcher",
    "I_MPI_HYDRA_BOOTSTRAP": "slurm",
    "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": "--external-launcher",
    "OMPI_MCA_plm_slurm_args": "--external-launcher",
    "PRTE_MCA_plm_slurm_args": "--external-launcher",
}
"""What a Slurm allocation has: its nodes are not ours, and its words for srun are none for ssh."""


@pytest.fixture(params=["openmpi5", "mpich", "openmpi4", "impi"])
def family(request: pytest.FixtureRequest) -> str:
    """Return one of the installed families."""
    name: str = request.param
    return name


class Head:
    """Node 0 of a cluster, with one mpirun and what a job needs of files."""

    def __init__(self, cluster: Cluster, family: str, folder: Path) -> None:
        """Take the mpirun of this family, as a PATH with it in front finds it."""
        self.cluster = cluster
        self.folder = folder
        self.environ = self.own_environ(family)
        found = find_mpi(self.environ)
        assert found is not None
        self.mpi: Mpi = found
        folder.chmod(0o755)
        (folder / "show.py").write_text(SHOW)
        (folder / "said").mkdir()

    @staticmethod
    def own_environ(family: str) -> dict[str, str]:
        path = mpis.find_mpi(family).mpirun.rpartition("/")[0]
        return {"PATH": f"{path}:{SSH_ENVIRON['PATH']}", "HOME": os.path.expanduser("~")}

    def job(self, per_node: int = 2, **given: object) -> MpirunJob:
        """Return a job on all nodes by their names, with the cluster's stand-in for ssh."""
        usual: dict[str, object] = {
            "hosts": tuple(node.hostname for node in self.cluster.nodes),
            "hostfile": str(self.folder / "hosts"),
            "rsh": (self.cluster.agent,),
            "as_root": True,
        }
        job = MpirunJob(self.mpi, per_node=per_node, **{**usual, **given})  # type: ignore[arg-type]
        Path(job.hostfile).write_text(render_hostfile(job.mpi, job.hosts, per_node))
        return job

    def run(
        self, line: Sequence[str], environ: Mapping[str, str], names: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run a line whose ranks write down where they are and what they have of some variables."""
        command = (sys.executable, str(self.folder / "show.py"), str(self.folder / "said"), *names)
        argv = self.cluster.argv(self.cluster.nodes[0], (*line, *command), cwd=str(self.folder))
        return subprocess.run(
            argv,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    def ranks(
        self, job: MpirunJob, environ: Mapping[str, str] | None = None, names: Sequence[str] = ()
    ) -> list[dict[str, object]]:
        """Return what the ranks of a job said, by rank; mpirun gets what is planned for it."""
        head = {**self.environ, **(environ or {})}
        own = plan_starter_environ(head, job.forward, plan_variables(job))
        return self.read(self.run(plan_line(job), own, names))

    def read(self, done: subprocess.CompletedProcess[str]) -> list[dict[str, object]]:
        """Return what ranks wrote down, by rank."""
        assert done.returncode == 0, (done.stdout, done.stderr)
        records = []
        for path in (self.folder / "said").iterdir():
            records.append(json.loads(path.read_text()))
            path.unlink()
        return sorted(records, key=lambda record: int(record["rank"]))


@pytest.fixture
def head(cluster: Cluster, family: str, tmp_path: Path) -> Head:
    """Return the head of two nodes, with each mpirun in turn."""
    return Head(cluster, family, tmp_path)


def places(records: Sequence[Mapping[str, object]]) -> list[tuple[object, object]]:
    return [(record["rank"], record["node"]) for record in records]


TWO_EACH = [(0, "node0"), (1, "node0"), (2, "node1"), (3, "node1")]


def test_ranks_stand_node_by_node_and_are_not_bound(head: Head) -> None:
    """From names as from addresses, and more of them than there are cores."""
    for hosts in (("node0", "node1"), ("10.77.0.10", "10.77.0.11")):
        assert places(head.ranks(head.job(hosts=hosts))) == TWO_EACH
    own = len(os.sched_getaffinity(0))
    records = head.ranks(head.job(own + 3))
    assert places(records) == [(rank, f"node{rank // (own + 3)}") for rank in range(2 * (own + 3))]
    assert {record["cpus"] for record in records} == {own}


def test_every_value_arrives_bit_for_bit(head: Head) -> None:
    """On the head as on the other node; a variable that is not named arrives on neither."""
    environ = {
        **{f"WEIRD_{name}": os.fsdecode(value) for name, value in WEIRD.items()},
        **{name: "value" for name in ODD_NAMES if carries(head.mpi, name)},
    }
    assert len(environ) == len(WEIRD) + (0 if head.mpi.family == "Intel MPI" else len(ODD_NAMES))
    withheld = {"HF_TOKEN": "secret", "RANK": "7", "SLURM_PROCID": "1"}
    forward = choose_forwarded({**environ, **withheld})
    assert set(forward) == set(environ)
    names = (*environ, *withheld)
    for record in head.ranks(head.job(forward=forward), {**environ, **withheld}, names):
        values = record["values"]
        assert isinstance(values, dict)
        arrived = {name: base64.b64decode(value) for name, value in values.items()}
        assert arrived == {name: os.fsencode(value) for name, value in environ.items()}


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["openmpi5", "mpich", "impi"], indirect=True)
def test_a_name_that_is_said_not_to_arrive_does_not(head: Head) -> None:
    """What `carries` refuses is refused with reason: on some node it is missing."""
    name = {"Open MPI": "-dash", "MPICH": "com,ma", "Intel MPI": "a-b"}[head.mpi.dialect]
    assert not carries(head.mpi, name)
    option = ("-x", name) if head.mpi.dialect == "Open MPI" else ("-genvlist", name)
    done = head.run(plan_line(head.job(extra=option)), {**head.environ, name: "1"}, (name,))
    assert not all(record["values"] for record in head.read(done))


@pytest.mark.thorough
def test_only_what_is_said_to_change_changes(head: Head) -> None:
    """Open MPI puts folders in front of PATH and the library path; nothing else does."""
    environ = {"PATH": f"/opt/mine:{head.environ['PATH']}", "LD_LIBRARY_PATH": "/opt/mine/lib"}
    job = head.job(forward=tuple(environ))
    for record in head.ranks(job, environ, tuple(environ)):
        values = record["values"]
        assert isinstance(values, dict)
        arrived = {name: base64.b64decode(value).decode() for name, value in values.items()}
        assert {name for name in environ if arrived[name] != environ[name]} <= set(changed(head.mpi))
        assert all(arrived[name].endswith(environ[name]) for name in environ)


def test_inside_of_a_slurm_allocation_it_is_ssh_that_starts_the_daemons(head: Head) -> None:
    """By the line alone, and all the more with the environment that is planned for mpirun."""
    assert places(head.ranks(head.job(), IN_SLURM)) == TWO_EACH
    job = head.job()
    environ = {**head.environ, **IN_SLURM, **dict(plan_variables(job))}
    assert places(head.read(head.run(plan_line(job), environ))) == TWO_EACH


def log_ssh(head: Head, *options: str) -> tuple[tuple[str, ...], Callable[[], list[list[str]]]]:
    """Return words that stand in for ssh and write down who called, and a function that reads it.

    One file for each call, since many call at once; the calls come back sorted, the caller's node first.
    A host's name loses its domain on the way to the stand-in, which knows none.
    """
    log = head.folder / "calls"
    log.mkdir()
    script = head.folder / "ssh"
    script.write_text(
        "#!/bin/bash\n"
        f'printf "%s\\0" "$(hostname)" "$@" >"$(mktemp {log}/XXXXXXXX)"\n'
        'words=("$@")\n'
        'for i in "${!words[@]}"; do\n'
        "  [[ ${words[i]} =~ ^(node[0-9]+)\\.job$ ]] && words[i]=${BASH_REMATCH[1]} && break\n"
        "done\n"
        f'exec {head.cluster.agent} "${{words[@]}}"\n'
    )
    script.chmod(0o755)

    def calls() -> list[list[str]]:
        found = []
        for path in log.iterdir():
            found.append(path.read_text().split("\0")[:-1])
            path.unlink()
        return sorted(found)

    return (str(script), *options), calls


def test_ssh_gets_all_its_words_and_the_hosts_as_they_are(head: Head) -> None:
    """Also a name with a domain, which is what stands in known_hosts; and nobody calls the head itself."""
    for node in head.cluster.nodes:
        names = "".join(f"{other.address} {other.name}.job\n" for other in head.cluster.nodes)
        done = head.cluster.argv(node, ("sh", "-c", 'printf "%s" "$0" >>/etc/hosts', names))
        subprocess.run(done, check=True, timeout=DEADLINE_S)
    ssh, calls = log_ssh(head, "-F", "/run/x/config", "-p", "2222")
    assert places(head.ranks(head.job(hosts=("node0.job", "node1.job"), rsh=ssh))) == TWO_EACH
    called = calls()
    assert {call[0] for call in called} == {"node0"}
    assert all("-F\0/run/x/config\0-p\x002222" in "\0".join(call) for call in called)
    hosts = {word for call in called for word in call if word in ("node0.job", "node1.job", "node0", "node1")}
    # Intel MPI starts its daemon on the head through ssh too, where the head has a name with a domain.
    own = {"node0", "node0.job"} if head.mpi.family == "Intel MPI" else {"node0"}
    assert hosts - own == {"node1.job"}


NARROW = {
    "openmpi4": (("--mca", "routed_radix", "1"), ("--mca", "plm_rsh_no_tree_spawn", "0")),
    "openmpi5": (("--prtemca", "rml_base_radix", "1"), ("--prtemca", "plm_ssh_no_tree_spawn", "0")),
    "impi": ((), ("-branch-count", "1")),
    "mpich": ((), ()),
}
"""What makes a tree of daemons narrow, so that three nodes show it, and what makes it a tree again."""


@pytest.mark.thorough
def test_the_head_alone_calls_ssh(family: str, tmp_path: Path) -> None:
    """The keys are there, and daemons must not start daemons: Open MPI lets them beyond 65 nodes."""
    narrow, tree = NARROW[family]
    need_namespaces()
    with Cluster(3) as three:
        head = Head(three, family, tmp_path)
        ssh, calls = log_ssh(head)
        assert len(head.ranks(head.job(1, rsh=ssh, extra=narrow))) == 3
        assert [call[0] for call in calls()] == ["node0", "node0"]
        assert len(head.ranks(head.job(1, rsh=ssh, extra=(*narrow, *tree)))) == 3
        assert [call[0] for call in calls()] == ["node0", "node0" if family == "mpich" else "node1"]


@pytest.mark.thorough
def test_the_network_that_is_named_is_the_one_that_is_used(head: Head) -> None:
    """Every node has a second network of the same addresses, as Docker makes one: nobody goes there."""
    for node in head.cluster.nodes:
        words = "ip link add d0 type veth peer name d1 && ip link set d1 up && ip link set d0 up"
        second = head.cluster.argv(node, ("sh", "-c", f"{words} && ip addr add 172.17.0.1/16 dev d0"))
        subprocess.run(second, check=True, timeout=DEADLINE_S)
    ssh, calls = log_ssh(head)
    job = head.job(rsh=ssh, network="10.77.0.0/24", interface="eth0")
    assert places(head.ranks(job)) == TWO_EACH
    words = " ".join(word for call in calls() for word in call)
    assert "10.77.0.10" in words and "172.17.0.1" not in words


def test_the_users_words_win(head: Head) -> None:
    """Fewer ranks than planned, from the same line with one more option."""
    extra = ("-np" if head.mpi.dialect == "Open MPI" else "-n", "3")
    assert places(head.ranks(head.job(extra=extra))) == TWO_EACH[:3]
