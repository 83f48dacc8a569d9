"""deploy/kubernetes: every object against the schema of its release, and what no schema says.

No API server runs here: Debian and the package indexes have none. kubectl sends what these tests read.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from launcher.core.supervision import GRACE_S
from tests.deploy.schemas import DEPLOY, Json, documents, problems
from tests.mpis import find_mpi
from tests.process.starting import clean_environ, launch

HERE = DEPLOY / "kubernetes"
FILES = sorted(HERE.glob("*.yaml"))
CORE = "kubernetes-1.37"
SCHEMA_OF = {
    "JobSet": "jobset-0.12.0",
    "TrainJob": "kubeflow-trainer-2.3.0",
    "ClusterTrainingRuntime": "kubeflow-trainer-2.3.0",
    "MPIJob": "mpi-operator-0.8.0",
    "PyTorchJob": "training-operator-1.9.0",
}
OBJECTS = [(path, document) for path in FILES for document in documents(path)]
IN_PLACE = "jobset-in-place"


def find(kind: str, file: str = "") -> Json:
    """Return the object of a kind; of a JobSet the one that restarts in place, if no file is named."""
    file = file or (IN_PLACE if kind == "JobSet" else "")
    (found,) = (one for path, one in OBJECTS if one["kind"] == kind and file in ("", path.stem))
    return found


@pytest.mark.parametrize(
    ("path", "document"), OBJECTS, ids=[f"{path.stem}-{one['kind']}" for path, one in OBJECTS]
)
def test_an_object_is_one_of_its_release(path: Path, document: Json) -> None:
    """Every field is one of the schema, of its type, and what is required is there."""
    assert problems(SCHEMA_OF.get(document["kind"], CORE), document["kind"], document) == []


def jobs() -> dict[str, Json]:
    """Return the specs of Jobs, whatever makes them, by the kind of the object they stand in."""
    inner = {
        "JobSet": find("JobSet", "jobset")["spec"],
        IN_PLACE: find("JobSet")["spec"],
        "runtime": find("ClusterTrainingRuntime")["spec"]["template"]["spec"],
    }
    return {
        "Job": find("Job")["spec"],
        **{name: spec["replicatedJobs"][0]["template"]["spec"] for name, spec in inner.items()},
    }


def statuses(helps: str) -> list[int]:
    """Return the statuses of docs/errors.md that starting the job again helps ("yes") or does not ("no")."""
    text = (DEPLOY.parent / "docs" / "errors.md").read_text()
    rows = re.findall(r"^\| (\d+) \|.*\| (\w+)[^|]*\|$", text, flags=re.MULTILINE)
    return sorted(int(status) for status, word in rows if word == helps)


HOPELESS = statuses("no")


@pytest.mark.parametrize("name", ["Job", "JobSet", IN_PLACE, "runtime"])
def test_the_policy_is_that_of_our_statuses(name: str) -> None:
    """What no retry helps fails the Job; 75 counts nothing. Kubernetes wants the values sorted and no 0."""
    spec = jobs()[name]
    rules = spec["podFailurePolicy"]["rules"]
    assert spec["template"]["spec"]["restartPolicy"] == "Never"  # the API server's own condition
    assert rules[0] == {"action": "FailJob", "onExitCodes": {"operator": "In", "values": HOPELESS}}
    actions = {rule["action"]: rule for rule in rules if "onExitCodes" in rule}
    assert set(actions) <= {"FailJob", "Ignore", "Count", "FailIndex"}
    if name == "Job":
        assert actions["Ignore"]["onExitCodes"]["values"] == statuses("yes")
        run = spec["template"]["spec"]["containers"][0]["command"]
        words = dict(word.split("=") for word in run if "=" in word)
        nodes, spares = (int(words[flag]) for flag in ("--nnodes", "--spares"))
        assert spec["completions"] == spec["parallelism"] == nodes + spares


def test_restarts_in_place_are_as_jobset_wants_them() -> None:
    """Its webhook (pkg/webhooks/jobset_webhook.go, v0.12.0) refuses anything else."""
    spec = jobs()[IN_PLACE]
    assert spec["backoffLimit"] == 2**31 - 1
    assert spec["podReplacementPolicy"] == "Failed"
    assert spec["completions"] == spec["parallelism"]
    (container,) = spec["template"]["spec"]["containers"]
    (rule,) = container["restartPolicyRules"]
    assert container["restartPolicy"] == "Never", "rules need it"
    assert rule["exitCodes"] == {"operator": "NotIn", "values": [0, *HOPELESS]}
    environ = {one["name"]: one for one in container["env"]}
    words = shlex.split(environ["WORKER_COMMAND"]["value"])
    assert words[:3] == ["exec", "launcher", "run"]
    assert int(words[words.index("--nnodes") + 1]) == spec["completions"]
    # What the agent reads (cmd/in-place-restart-agent/main.go).
    assert {"JOBSET_NAME", "POD_NAME"} <= set(environ)


def pods() -> list[tuple[str, Json, Json]]:
    """Return the pods that train: where, the pod, and its container."""
    found = {name: spec["template"]["spec"] for name, spec in jobs().items()}
    found["MPIJob"] = find("MPIJob")["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
    torch = find("PyTorchJob")["spec"]["pytorchReplicaSpecs"]
    found |= {f"PyTorchJob {name}": torch[name]["template"]["spec"] for name in torch}
    return [(name, pod, pod["containers"][0]) for name, pod in found.items()]


@pytest.mark.parametrize(("name", "pod", "container"), pods(), ids=[row[0] for row in pods()])
def test_a_node_is_checked_first(name: str, pod: Json, container: Json, tmp_path: Path) -> None:
    """With the image, the GPUs and the shared memory of the job; its plan is that of one node."""
    (init,) = pod["initContainers"]
    for field in ("image", "resources", "volumeMounts"):
        assert init[field] == container[field]
    word, *words = init["command"]
    assert word == "launcher" and words[:4] == ["check", "--strict", "--format", "json"]
    (tmp_path / "train.py").touch()
    words = [str(tmp_path / "train.py") if one == "train.py" else one for one in words]
    pod = {"JOB_COMPLETION_INDEX": "3", "K_MPI_JOB_ROLE": "worker", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    done = launch(*words[:1], *words[2:], environ=pod)
    assert done.returncode == 0 and '"check": "plan"' not in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(("name", "pod", "container"), pods(), ids=[row[0] for row in pods()])
def test_a_pod_asks_for_what_it_needs(name: str, pod: Json, container: Json) -> None:
    """CPU, memory and GPUs, a limited /dev/shm inside of the memory, time to report, no node that failed."""
    wanted, limits = container["resources"]["requests"], container["resources"]["limits"]
    assert wanted["memory"] == limits["memory"] and int(wanted["cpu"]) and limits["nvidia.com/gpu"]
    (shm,) = (one["emptyDir"] for one in pod["volumes"] if one["name"] == "shm")
    assert int(shm["sizeLimit"].removesuffix("Gi")) < int(wanted["memory"].removesuffix("Gi"))
    assert pod["terminationGracePeriodSeconds"] > GRACE_S
    affinity = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert affinity["nodeSelectorTerms"] == [
        {"matchExpressions": [{"key": "cluster-launcher/bad", "operator": "DoesNotExist"}]}
    ]


@pytest.mark.parametrize(("name", "pod", "container"), pods(), ids=[row[0] for row in pods()])
def test_a_launcher_exits_with_what_its_policy_reads(name: str, pod: Json, container: Json) -> None:
    """A stopped job is not complete, and a hopeless one fails; PyTorchJob retries only 128 and above."""
    environ = {one["name"]: one.get("value", "") for one in container.get("env", ())}
    words = [*container["command"], *shlex.split(environ.get("WORKER_COMMAND", ""))]
    if name == "MPIJob":
        return  # mpirun's launchers become the ranks
    line = " ".join(words).replace("=", " ")
    assert f"--stopped-status {143 if name.startswith('PyTorch') else 75} " in line
    assert name.startswith("PyTorch") or ("--fatal-status 65 " in line and 65 in HOPELESS)


@pytest.mark.parametrize("rank", [0, 3])
def test_the_command_of_the_pytorchjob_plans(rank: int, tmp_path: Path) -> None:
    """With the variables of its operator (pkg/controller.v1/pytorch/envvar.go, v1.9.0)."""
    spec = find("PyTorchJob")["spec"]
    replicas = spec["pytorchReplicaSpecs"]
    (container,) = replicas["Worker"]["template"]["spec"]["containers"]
    assert container["name"] == "pytorch"
    nodes = sum(one["replicas"] for one in replicas.values())
    master = {"ADDR": "train-master-0", "PORT": "23456"}
    environ = {f"{prefix}MASTER_{name}": value for name, value in master.items() for prefix in ("", "PET_")}
    environ |= {"RANK": str(rank), "PET_NODE_RANK": str(rank), "PET_NNODES": str(nodes)}
    environ |= {
        "PET_NPROC_PER_NODE": spec["nprocPerNode"],
        "WORLD_SIZE": str(nodes * int(spec["nprocPerNode"])),
    }
    (tmp_path / "train.py").touch()
    words = [*container["command"][2:-1], str(tmp_path / "train.py")]
    done = launch("plan", "--format", "json", *words, environ=environ)
    assert done.returncode == 0 and '"world_size": 32' in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("rank", [0, 3])
def test_the_command_of_the_runtime_and_the_trainjob_plan(rank: int, tmp_path: Path) -> None:
    """As the Trainer puts them together (pkg/runtime/framework/plugins/torch, v2.3.0)."""
    runtime = jobs()["runtime"]["template"]["spec"]["containers"][0]
    trainer = find("TrainJob")["spec"]["trainer"]
    assert "command" not in trainer and runtime["name"] == "node"
    (tmp_path / "train.py").touch()
    words = [*runtime["command"][2:], *trainer["args"][:-1], str(tmp_path / "train.py")]
    environ = {
        "PET_NNODES": str(trainer["numNodes"]),
        "PET_NPROC_PER_NODE": "8",
        "PET_NODE_RANK": str(rank),
        "PET_MASTER_ADDR": "train-node-0-0.train",
        "PET_MASTER_PORT": "29400",
    }
    done = launch("plan", "--format", "json", *words, environ=environ)
    assert done.returncode == 0 and '"world_size": 32' in done.stdout, done.stdout + done.stderr


@pytest.mark.mpi
@pytest.mark.parametrize(("given", "hosts"), [(True, 4), (False, 1)])
def test_open_mpi_5_takes_the_hostfile_of_the_operator(given: bool, hosts: int, tmp_path: Path) -> None:
    """Through the names in the manifest; with those that the operator sets, all ranks are in one pod."""
    (container,) = find("MPIJob")["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("".join(f"train-worker-{n}.train.default.svc slots=8\n" for n in range(4)))
    own = {one["name"]: one["value"].replace("/etc/mpi/hostfile", str(hostfile)) for one in container["env"]}
    # pkg/controller/mpi_job_controller.go, v0.8.0: ompiEnvVars.
    operators = {
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_orte_default_hostfile": str(hostfile),
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
    }
    mpi = find_mpi("openmpi5")
    mpirun, *options = container["command"]
    done = subprocess.run(
        [
            mpi.mpirun,
            *options,
            *("--display", "alloc", "--do-not-launch", "--oversubscribe"),
            *container["args"],
        ],
        env=clean_environ(**mpi.environ, **operators, **(own if given else {})),
        cwd=os.fspath(tmp_path),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert mpirun == "mpirun"
    job = done.stdout.partition("ALLOCATED NODES FOR JOB")[2].partition("=====\n")[2].partition("=====")[0]
    names = [line.split(":")[0].strip() for line in job.splitlines() if "slots=" in line]
    expected = [f"train-worker-{n}.train.default.svc" for n in range(4)]
    assert len(names) == hosts and (names == expected) is given, done.stdout


def numbers(document: Any) -> dict[str, int]:
    """Return the numbers of an MPIJob that belong together."""
    spec = document["spec"]
    command = spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]["command"]
    per_node = command[command.index("--map-by") + 1].split(":")[1]
    return {
        "ranks": int(command[command.index("-n") + 1]),
        "workers": spec["mpiReplicaSpecs"]["Worker"]["replicas"],
        "slots": spec["slotsPerWorker"],
        "mapped": int(per_node),
    }


def test_the_numbers_of_the_mpijob_belong_together() -> None:
    found = numbers(find("MPIJob"))
    assert found["ranks"] == found["workers"] * found["slots"] and found["mapped"] == found["slots"]
