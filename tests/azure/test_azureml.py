"""docker/azureml: Azure's own client takes every file, and every command plans what its file says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.azure import folder
from tests.azure.commands import Shell, plan_run, ranks
from tests.process.starting import ROOT

HERE = Path(ROOT) / "docker" / "azureml"
JOBS = sorted((HERE / "jobs").glob("*.yml"))
ENVIRONMENTS = sorted(HERE.glob("environment*.yml"))
CONTEXT_DEADLINE_S = 240.0
KINDS = {"mpi": "Mpi", "pytorch": "PyTorch", "tensorflow": "TensorFlow"}


class Rehearsal(NamedTuple):
    """A job on what one recorded job of that distribution has seen.

    Attributes:
        job: The name of the file.
        case: The golden case.
        scope: How often the platform starts the launcher.
        gpus: GPUs of each node.
        known: What the recording leaves out.
    """

    job: str
    case: str
    scope: str
    gpus: int
    known: dict[str, Any] = {}  # noqa: RUF012 - a default of a NamedTuple


REHEARSALS = (
    Rehearsal("pytorch-node", "azureml_pytorch_per_node_gpus4", "node", 4),
    Rehearsal("pytorch-node", "azureml_pytorch_per_node_six_alone_gpus4", "node", 4),
    Rehearsal("pytorch-node", "azureml_common_runtime_pytorch_per_node", "node", 4),
    Rehearsal("pytorch-process", "azureml_pytorch_2x4", "process", 4),
    Rehearsal("pytorch-process", "azureml_pytorch_2x4_six_alone", "process", 4),
    Rehearsal("pytorch-process", "azureml_pytorch_2x4_six_alone_gpus4", "process", 4),
    Rehearsal("pytorch-process", "azureml_common_runtime_pytorch_2x4", "process", 4),
    Rehearsal("mpi-node", "azureml_mpi_one_per_node_gpus4", "node", 4),
    Rehearsal("mpi-process", "azureml_mpi_2x2", "process", 2),
    Rehearsal("mpi-process", "azureml_mpi_map_by_node", "process", 2),
    Rehearsal("tensorflow-workers", "azureml_tensorflow_2_workers", "process", 4),
    Rehearsal("single-node", "azureml_kubernetes_1_pod", "node", 4, {"gpus": 4}),
)


@lru_cache
def loaded_jobs() -> dict[str, dict[str, Any]]:
    """Return what Azure's client makes of each job, by name."""
    return {path.stem: answer for path, answer in zip(JOBS, folder.load("job", JOBS), strict=True)}


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the contexts, made as people make them."""
    made = tmp_path_factory.mktemp("contexts")
    subprocess.run(
        ["sh", str(HERE / "make_contexts.sh"), str(made)],
        env={**os.environ, "PYTHON": sys.executable},
        stdin=subprocess.DEVNULL,
        check=True,
        timeout=CONTEXT_DEADLINE_S,
    )
    return made


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_a_job_is_one_for_azures_client(path: Path) -> None:
    """It loads, validates, names code that is there, and all that it says is in what would be sent."""
    answer = loaded_jobs()[path.stem]
    assert answer["error"] is None
    written, sent = answer["written"], answer["sent"]["properties"]
    assert written["display_name"] == sent["displayName"] == path.stem
    assert written["command"] == sent["command"]
    assert written["environment"] == f"azureml:{sent['environmentId']}"
    assert written["compute"] == f"azureml:{sent['computeId']}"
    resources = {"instanceCount": written["resources"]["instance_count"], "shmSize": "16g"}
    assert resources == {name: sent["resources"][name] for name in resources}
    assert _distribution(written.get("distribution")) == sent.get("distribution")
    script = written["command"].split()[-1]
    assert (path.parent / written["code"] / script).is_file()


def _distribution(written: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a distribution in the names of the REST API."""
    if written is None:
        return None
    counts = {name: count for name, count in written.items() if name != "type"}
    sent = {re.sub("_(.)", lambda found: found[1].upper(), name): count for name, count in counts.items()}
    return {**sent, "distributionType": KINDS[written["type"]]}


def test_there_is_a_job_for_every_distribution() -> None:
    """Each type, none among them, and for two of them both ways."""
    found = [answer["written"].get("distribution", {}).get("type") for answer in loaded_jobs().values()]
    assert set(found) == {None, *KINDS}
    assert {job.job for job in REHEARSALS} | {"tensorflow-parameter-servers"} == {path.stem for path in JOBS}


def test_every_file_is_in_the_documentation() -> None:
    """Who looks for a job, or a task, finds it there."""
    text = (Path(ROOT) / "docs" / "platforms.md").read_text()
    files = [*JOBS, *ENVIRONMENTS, *(Path(ROOT) / "docker" / "batch").glob("*.json")]
    assert [path.name for path in files if str(path.relative_to(ROOT)) not in text] == []


@pytest.mark.xdist_group("contexts")
@pytest.mark.parametrize("path", ENVIRONMENTS, ids=lambda path: path.stem)
def test_an_environment_is_one_for_azures_client(path: Path, contexts: Path, tmp_path: Path) -> None:
    """It loads and validates, and the upload has every file that the Dockerfile copies."""
    text = path.read_text()
    start = "../../build/azureml"
    assert text.count(f"path: {start}/") == 1, "where make_contexts.sh puts them"
    here = tmp_path / path.name
    here.write_text(text.replace(start, str(contexts)))
    (answer,) = folder.load("environment", [here])
    assert answer["error"] is None
    sent = answer["sent"]
    assert sent["properties"]["build"]["dockerfilePath"] == "Dockerfile"
    dockerfile = (HERE / "Dockerfile").read_text()
    copied = re.findall(r"^COPY ([^-]\S+) ", dockerfile, flags=re.MULTILINE)
    assert copied == ["launcher", "requirements.txt"]
    uploaded = sent["uploaded"]
    wheels = [name for name in uploaded if name.startswith("launcher/wheels/")]
    assert [name for name in wheels if name.startswith("launcher/wheels/cluster_launcher-")]
    scripts = ("install.sh", "describe.sh", "launcher.py", "launcher.sh")
    locks = ("requirements.lock", "observe.lock", "tools.lock")
    own = {f"launcher/docker/{name}" for name in (*scripts, *locks)}
    assert set(uploaded) == {"Dockerfile", "requirements.txt", *own, *wheels}
    # Nothing in them is for one Python alone, and all is there for both kinds of machines: the image may have
    # another than this machine.
    special = [name for name in wheels if not name.endswith("-none-any.whl")]
    found = {
        re.sub(r"launcher/wheels/(\w+)-[\d.]+-.*_(x86_64|aarch64)\.whl", r"\1 \2", name) for name in special
    }
    assert found == {f"{name} {kind}" for name in ("py_spy", "psutil") for kind in ("x86_64", "aarch64")}
    assert all("-py2.py3-none-" in name or "-abi3-" in name for name in special)


@pytest.mark.xdist_group("contexts")
def test_jobs_run_in_environments_that_are_here(contexts: Path) -> None:
    """Each is the latest of one that is registered from here; each has a context."""
    text = "\n".join(path.read_text() for path in ENVIRONMENTS)
    names = re.findall(r"^name: (\S+)$", text, flags=re.MULTILINE)
    used = {answer["written"]["environment"] for answer in loaded_jobs().values()}
    assert used == {f"azureml:{name}@latest" for name in names}
    made = re.findall(r"^  path: \.\./\.\./build/azureml/(\S+)$", text, flags=re.MULTILINE)
    assert sorted(made) == sorted(path.name for path in contexts.iterdir())


@pytest.mark.parametrize("rehearsal", REHEARSALS, ids=lambda it: f"{it.job}-{it.case}")
def test_a_job_plans_as_many_processes_as_it_says(rehearsal: Rehearsal, tmp_path: Path) -> None:
    """No error, in the scope that the distribution means, and every rank once."""
    written = loaded_jobs()[rehearsal.job]["written"]
    nodes = written["resources"]["instance_count"]
    distribution = written.get("distribution", {})
    shell = Shell(tmp_path)
    assert shell.run(["bash", "-c", written["command"]], {}, tmp_path) == ""
    plans = plan_run(shell.call()["words"], rehearsal.case, tmp_path, **rehearsal.known)
    started = distribution.get("worker_count") or nodes * distribution.get("process_count_per_instance", 1)
    assert len(plans) == started, "the recording is of another job"
    assert {plan["scope"] for plan in plans} == {rehearsal.scope}
    size = nodes * rehearsal.gpus if rehearsal.scope == "node" else started
    assert ranks(plans) == list(range(size))
    assert {plan["topology"]["world_size"] for plan in plans} == {size}
    assert {plan["topology"]["node_count"] for plan in plans} <= {nodes, None}


def test_parameter_servers_have_a_chief(tmp_path: Path) -> None:
    """The job says two workers and one server; all of them, and the chief, are planned once."""
    written = loaded_jobs()["tensorflow-parameter-servers"]["written"]
    shell = Shell(tmp_path)
    shell.run(["bash", "-c", written["command"]], {}, tmp_path)
    plans = plan_run(shell.call()["words"], "azureml_pytorch_per_node_gpus4", tmp_path)
    assert len(plans) == written["resources"]["instance_count"]
    started = [one for plan in plans for one in (*plan["processes"], *plan["companions"])]
    configs = [
        json.loads(setting["value"])
        for one in started
        for setting in one["settings"]
        if setting["name"] == "TF_CONFIG"
    ]
    tasks = sorted((config["task"]["type"], config["task"]["index"]) for config in configs)
    assert tasks == [("chief", 0), ("ps", 0), ("worker", 0), ("worker", 1)]
    counted = {kind: len(hosts) for kind, hosts in configs[0]["cluster"].items()}
    assert counted == {"chief": 1, "ps": 1, "worker": 2}
