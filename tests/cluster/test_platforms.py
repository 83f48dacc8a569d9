"""Each platform gives the variables that the real one was recorded or documented to give."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from launcher.core.errors import NotReady, Unavailable, UsageError
from launcher.machine.mpi import Mpi
from launcher.rehearse.cluster import SimulatedNode
from launcher.rehearse.job import run_rehearsal
from launcher.rehearse.mpirun import command_line, find_mpirun
from launcher.rehearse.platforms import PLATFORMS, PlatformStart, RehearsedJob, find_platform, plan_starts

from .conftest import RECORDINGS, read_dumps, read_recording

NODES = tuple(SimulatedNode(i, f"node{i}", f"10.77.0.{10 + i}", f"node{i}") for i in range(2))
OPEN_MPI = Mpi("/usr/bin/mpirun", "Open MPI", "4.1.4")
NOT_SIMULATED = {
    *("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"),
    *("SLURM_GPUS_ON_NODE", "SLURM_STEP_GPUS"),  # no GPUs are asked for
    *("SLURM_CONF", "SLURM_JOB_GID", "SLURM_JOB_UID", "SLURM_JOB_USER", "SLURM_PRIO_PROCESS"),
    *("SLURM_SUBMIT_DIR", "SLURM_TASK_PID", "SLURM_UMASK", "SLURM_WORKING_CLUSTER", "SRUN_DEBUG"),
}


def starts(like: str, processes: int, scope: str | None = None, **extra: str) -> list[PlatformStart]:
    """Return what a platform starts on two nodes, from a base environment of PATH alone."""
    platform, chosen = find_platform(like, processes, scope)
    mpirun = OPEN_MPI if platform.uses == "mpirun" else None
    base = {"PATH": "/usr/bin:/bin"}
    job = RehearsedJob(NODES, "/agent", processes, chosen, ("train",), base, extra, mpirun)
    return plan_starts(like, job)


def platform_names(environ: Mapping[str, str]) -> set[str]:
    """Return the names that come from the platform."""
    return set(environ) - {"PATH", "LAUNCHER_NPROC_PER_NODE", "LAUNCHER_BIND", "LAUNCHER_REHEARSED"}


def test_slurm_gives_what_srun_gives() -> None:
    """Names as captured from srun; values of the same form."""
    recorded = read_recording("captured_slurm-22.05_srun_2x2_gres-gpu2")
    planned = [start.environ for start in starts("slurm", 2)]
    for index, (ours, theirs) in enumerate(zip(planned, recorded, strict=True)):
        expected = {name for name in theirs if name.startswith(("SLURM", "SRUN"))}
        assert platform_names(ours) == expected - NOT_SIMULATED
        for name in ("PROCID", "LOCALID", "NODEID", "GTIDS", "NTASKS", "STEP_TASKS_PER_NODE"):
            assert ours[f"SLURM_{name}"] == theirs[f"SLURM_{name}"], (index, name)


def test_azure_batch_gives_what_is_documented() -> None:
    """Names and values as on the vendor's page, with our addresses."""
    documented = read_recording("azure_batch_multi_instance_docs")
    planned = [start.environ for start in starts("azure-batch", 2)]
    assert platform_names(planned[0]) == set(documented[0])
    for ours, theirs in zip(planned, documented, strict=True):
        for name, value in theirs.items():
            if "10.0.0." in value or value in ("true", "false"):
                here = value.replace("10.0.0.4", "10.77.0.10").replace("10.0.0.5", "10.77.0.11")
                assert ours[name] == here


@pytest.mark.parametrize(
    ("scope", "processes", "key"),
    [("process", 4, "pytorch_2nodes_x_4"), ("node", 4, "pytorch_per_node_launch_2nodes")],
)
def test_azureml_pytorch_gives_what_is_documented(scope: str, processes: int, key: str) -> None:
    """Per process: one identity each. Per node: RANK and WORLD_SIZE count nodes."""
    document = json.loads((RECORDINGS / "azureml_pytorch_and_tf_docs.json").read_text())
    planned = [start.environ for start in starts("azureml-pytorch", processes, scope)]
    for ours, item in zip(planned, document[key], strict=True):
        expected = {**item["env"], "MASTER_ADDR": "10.77.0.10"}
        assert {name: ours[name] for name in expected} == expected
        assert ours.get("LAUNCHER_NPROC_PER_NODE") == {"process": None, "node": "4"}[scope]
        assert ours.get("LAUNCHER_BIND") == {"process": None, "node": "none"}[scope]
        assert ours["AZUREML_NODE_COUNT"] == "2"


def test_azureml_tensorflow_gives_tf_config() -> None:
    """TF_CONFIG as documented: workers only, environment ``cloud``."""
    planned = [json.loads(start.environ["TF_CONFIG"]) for start in starts("azureml-tensorflow", 1)]
    workers = ["10.77.0.10:2222", "10.77.0.11:2222"]
    assert planned == [
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}, "environment": "cloud"}
        for index in range(2)
    ]


def test_azureml_mpi_forwards_its_variables() -> None:
    """Open MPI takes only named variables to other nodes, so all of the platform's are named."""
    (start,) = starts("azureml-mpi", 2, HELLO="1")
    forwarded = {name for flag, name in zip(start.argv, start.argv[1:], strict=False) if flag == "-x"}
    assert {"AZUREML_RUN_ID", "AZ_BATCH_MASTER_NODE", "HELLO", "PATH"} <= forwarded
    assert start.environ["AZ_BATCH_MASTER_NODE"] == "10.77.0.10:6000"
    assert start.argv[-1] == "train"
    assert not {"RANK", "MASTER_ADDR", "WORLD_SIZE"} & set(start.environ)


def test_no_platform_gives_a_secret() -> None:
    """Values are made up, and none looks like a credential."""
    for like in sorted(PLATFORMS.keys() - {"torchrun"}):
        for start in starts(like, 1):
            assert not [name for name in start.environ if "TOKEN" in name or "KEY" in name]


@pytest.mark.parametrize(
    ("like", "processes", "scope", "message"),
    [
        ("azureml-tensorflow", 2, None, "one per node"),
        ("azure-batch", 2, "process", "expected node"),
        ("torchrun", 2, "node", "expected process"),
    ],
)
def test_impossible_rehearsals_are_usage_errors(
    like: str, processes: int, scope: str | None, message: str
) -> None:
    """What a platform cannot do is said before anything is started."""
    with pytest.raises(UsageError, match=message):
        find_platform(like, processes, scope)


def test_missing_mpirun_says_what_to_install(tmp_path: Path) -> None:
    """No mpirun on PATH, or one we do not know: a named error with the package."""
    with pytest.raises(NotReady) as missing:
        find_mpirun({"PATH": str(tmp_path)})
    assert "openmpi-bin" in missing.value.problems[0].fix
    (tmp_path / "mpirun").write_text("#!/bin/sh\necho LAM 7.1\n")
    (tmp_path / "mpirun").chmod(0o755)
    with pytest.raises(Unavailable, match="LAM"):
        find_mpirun({"PATH": str(tmp_path)})


@pytest.mark.parametrize(
    ("family", "version", "expected"),
    [
        ("Open MPI", "4.1.8", "--mca plm_rsh_agent /agent --host node0:2,node1:2 -np 4"),
        ("Open MPI", "5.0.11", "--prtemca plm_ssh_agent /agent --host node0:2,node1:2 -np 4"),
        ("MPICH", "5.0.2", "-launcher ssh -launcher-exec /agent -hosts node0:2,node1:2 -n 4"),
        ("Intel MPI", "2021.18", "-bootstrap-exec /agent -hosts node0,node1 -ppn 2 -n 4"),
    ],
)
def test_each_mpirun_has_its_own_line(family: str, version: str, expected: str) -> None:
    """The option for the agent differs by family and version: 5 ignores that of 4 silently."""
    line = command_line(Mpi("/opt/bin/mpirun", family, version), "/agent", NODES, 2, {})
    assert " ".join(line).endswith(expected)


@pytest.mark.mpi
@pytest.mark.parametrize("like", PLATFORMS)
def test_the_callers_variables_reach_every_process_and_what_is_taken_out_is_said(
    like: str,
    dump: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """OMP_NUM_THREADS and HF_HOME on both nodes; a leftover identity is on none, unless --env names it."""
    if like == "torchrun":
        pytest.importorskip("torch")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("HF_HOME", "/data")
    monkeypatch.setenv("AZUREML_CR_LEFTOVER", "7")
    monkeypatch.setenv("PBS_LEFTOVER", "7")
    monkeypatch.setenv("BASH_FUNC_f%%", "() { :; }")
    env = {"PBS_LEFTOVER": "8"}
    assert run_rehearsal(like, 2, 1, dump, bare=True, env=env, loopback=True) == 0
    environs = read_dumps(tmp_path)
    assert len(environs) == 2
    for environ in environs:
        assert (environ["OMP_NUM_THREADS"], environ["HF_HOME"]) == ("3", "/data")
        assert environ["PBS_LEFTOVER"] == "8" and "AZUREML_CR_LEFTOVER" not in environ
    said = capfd.readouterr().err
    assert "removed from the environment, because the platform sets its own: AZUREML_CR_LEFTOVER (" in said
