"""deploy/azure, deploy/sagemaker, deploy/skypilot: each file by its reader, and a wrong field in each."""

from __future__ import annotations

import json
import os
import shlex
from fnmatch import fnmatch
from pathlib import Path

import botocore.session
import pytest
from botocore.validate import ParamValidator

from launcher.core.version import __version__
from tests.azure import folder
from tests.azure.commands import Shell, plan_run, ranks
from tests.deploy import bicep
from tests.deploy.schemas import DEPLOY, Json, documents, problems
from tests.deploy.shell import shellcheck
from tests.process.starting import launch

POOLS = "Microsoft.Batch/batchAccounts/pools@2025-06-01"
POOL = DEPLOY / "azure" / "batch-pool.bicep"
SPOT = DEPLOY / "azure" / "azureml-spot.yml"
TRAINING = DEPLOY / "sagemaker" / "training-job.json"
SKY = DEPLOY / "skypilot" / "train.yaml"


# Azure Batch: a pool


def pool_problems(text: str) -> list[str]:
    """Return what the published type has against the pool of a file."""
    body = bicep.read(text)[POOLS]
    assert body.pop("parent") == "batch"  # Bicep's own way to name the account
    return problems("azure-batch-2025-06-01", "pools", body)


def test_the_pool_is_one_of_the_published_type() -> None:
    assert pool_problems(POOL.read_text()) == []


def test_a_pool_is_as_multi_instance_tasks_need_it() -> None:
    """docs/platforms.md: inter-node communication, one slot, containers; the start task checks one node."""
    properties = bicep.read(POOL.read_text())[POOLS]["properties"]
    assert properties["interNodeCommunication"] == "Enabled" and properties["taskSlotsPerNode"] == 1
    start = properties["startTask"]
    assert start["waitForSuccess"] is True
    assert launch(*shlex.split(start["commandLine"])[1:], environ={"AZ_BATCH_NODE_ID": "n"}).returncode == 0


# Azure ML: spot

WRONG_SPOT = {
    "job_tier: spot": ("job_tier: cheap", "cheap"),
    "queue_settings:": ("queue:", "Unknown field"),
    "instance_count: 2": ("instance_count: two", "Not a valid integer"),
    "process_count_per_instance: 1": ("process_count: 1", "Unknown field"),
}


def load_spot(folder_: Path, text: str, name: str) -> Path:
    """Write a job where its code is found."""
    (folder_ / "examples").mkdir(exist_ok=True)
    place = folder_ / "deploy" / "azure"
    place.mkdir(parents=True, exist_ok=True)
    (place / name).write_text(text)
    return place / name


@pytest.mark.thorough
def test_azures_client_takes_the_spot_job_and_no_wrong_one(tmp_path: Path) -> None:
    """azure-ai-ml, as for the jobs in docker/azureml."""
    text = SPOT.read_text()
    files = [load_spot(tmp_path, text, "right.yml")]
    for number, (right, (wrong, _)) in enumerate(WRONG_SPOT.items()):
        assert text.count(right) == 1
        files.append(load_spot(tmp_path, text.replace(right, wrong), f"{number}.yml"))
    accepted, *refused = folder.load("job", files)
    assert accepted["error"] is None
    assert accepted["sent"]["properties"]["queueSettings"] == {"jobTier": "Spot"}
    for (wrong, says), answer in zip(WRONG_SPOT.values(), refused, strict=True):
        assert answer["error"] and says in answer["error"], f"{wrong}: {answer['error']}"


def test_the_spot_job_plans_a_process_for_each_gpu(tmp_path: Path) -> None:
    """On the variables of a recorded job of two nodes; the check comes first."""
    (job,) = documents(SPOT)
    check, run = job["command"].split(" && ")
    assert shlex.split(check)[:4] == ["launcher", "check", "--strict", "--format"]
    shell = Shell(tmp_path)
    assert shell.run(["bash", "-c", run], {}, tmp_path) == ""
    plans = plan_run(shell.call()["words"], "azureml_pytorch_per_node_gpus4", tmp_path)
    assert ranks(plans) == list(range(8))


# SageMaker


def training_problems(request: Json) -> str:
    """Return what boto's own validator has against a request, as `aws sagemaker create-training-job` has."""
    model = botocore.session.get_session().get_service_model("sagemaker")
    shape = model.operation_model("CreateTrainingJob").input_shape
    report: str = ParamValidator().validate(request, shape).generate_report()
    return report


def test_boto_takes_the_request() -> None:
    request = json.loads(TRAINING.read_text())
    assert training_problems(request) == ""
    stopping = request["StoppingCondition"]  # SageMaker's own condition for spot
    assert stopping["MaxWaitTimeInSeconds"] >= stopping["MaxRuntimeInSeconds"]


def test_the_entry_point_checks_and_runs(tmp_path: Path) -> None:
    """It is the program of the request; the toolkit starts it as `./train.sh`, so it must be executable."""
    script = TRAINING.parent / "train.sh"
    assert json.loads(json.loads(TRAINING.read_text())["HyperParameters"]["sagemaker_program"]) == script.name
    assert os.access(script, os.X_OK) and shellcheck(script) == ""
    shell = Shell(tmp_path)
    assert shell.run([str(script)], {}, tmp_path) == ""
    assert shell.call()["words"] == ["run", "--restarts", "3", "--", "python", "train.py"]


# SkyPilot


def sky_problems(task: Json) -> list[str]:
    """Return what SkyPilot's schemas have against a task: it reads the resources by a schema of their own."""
    schema = "skypilot-0.14.1"
    return problems(schema, "task", task) + problems(schema, "resources", task.get("resources", {}))


def test_the_task_is_one_for_skypilot() -> None:
    (task,) = documents(SKY)
    assert sky_problems(task) == []
    assert task["resources"]["job_recovery"]["recover_on_exit_codes"] == [75]


def test_the_commands_of_the_task_check_and_run(tmp_path: Path) -> None:
    (task,) = documents(SKY)
    shell = Shell(tmp_path)
    assert shell.run(["bash", "-c", task["run"]], {}, tmp_path) == ""
    flags = ["--stopped-status", "75", "--restarts", "3"]
    assert shell.call()["words"] == ["run", *flags, "--", "python", "train.py"]
    wheel = f"cluster_launcher-{__version__}-py3-none-any.whl"  # of make dist: no index has one yet
    install, what = task["setup"].strip().rsplit(maxsplit=1)
    assert install == "pip install" and fnmatch(f"./{wheel}", what)
    script = tmp_path / "run.sh"
    script.write_text(f"#!/bin/bash\n{task['run']}")
    assert shellcheck(script) == ""
